"""Govern SageMaker training jobs that Stoker did not start."""
