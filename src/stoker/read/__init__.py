"""Read what agents pushed: logs, metrics, and comparisons of them."""
