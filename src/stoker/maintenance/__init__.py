"""Delete jobs, rebuild the index, and handle jobs whose log is corrupt."""
