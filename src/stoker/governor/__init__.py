"""Observe, decide, apply. Keeps no state of its own; any number may run at once."""
