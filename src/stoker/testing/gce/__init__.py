"""A Compute Engine that boots what it is asked to boot, for tests."""
