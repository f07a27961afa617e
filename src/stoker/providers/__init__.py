"""Adapters to clouds, and to this computer."""
