"""Govern SageMaker's training jobs that others started: observe, decide, apply, as for every job."""
