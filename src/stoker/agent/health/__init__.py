"""Health of a training: what its processes are doing, as its agent sees it."""
