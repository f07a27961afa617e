"""Clients of cloud services that nodes use: standard library alone."""
