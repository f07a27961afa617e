"""Contract suites of stores and providers, and a store in memory, to inherit and to test against."""
