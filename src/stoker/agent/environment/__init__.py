"""Install the training's Python, packages and tools: once per machine, before any process of the training starts."""
