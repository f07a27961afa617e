"""What a job file says about containers, read the same way where it is written and where it runs."""
