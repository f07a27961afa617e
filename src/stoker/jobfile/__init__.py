"""From what people write to a validated spec."""
