"""Training jobs of SageMaker's that others started: what they are, which rules they break, what follows. Pure."""
