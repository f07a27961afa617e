"""What the training finds installed: made once on a machine, before any process of the training starts."""
