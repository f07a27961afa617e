"""Delete jobs, those with a corrupt log among them, and rebuild the index."""
