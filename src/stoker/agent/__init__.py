"""The program on a node."""
