"""Submit jobs: what is checked, packed and sent before a job exists."""
