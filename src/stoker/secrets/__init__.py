"""Fetch secrets by reference, and keep them out of logs."""
