"""Send the output of a training to the store and to log services."""
