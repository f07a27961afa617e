"""Read jobs: lists, logs, metrics, costs, outputs and comparisons; and follow them."""
