"""Importable contract suites and fakes, for Stoker and for whoever extends it."""
