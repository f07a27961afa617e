"""Notify people of what happens to jobs: through SNS, plain webhooks, and every service that Apprise supports."""
