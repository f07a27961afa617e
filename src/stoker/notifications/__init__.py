"""Channels that people are told through: SNS, plain webhooks, and whatever Apprise knows."""
