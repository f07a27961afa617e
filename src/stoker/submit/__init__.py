"""Prepare, check, pack and send jobs; and requests to jobs: stop, resume."""
