"""The data sets of a job on this machine: copied before the start, mounted, or passed as a URL."""
