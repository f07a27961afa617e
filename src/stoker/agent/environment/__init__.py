"""Install the training's Python, packages and tools: once per machine, before any process of the training starts.

| module | content |
|---|---|
| `steps` | the steps of a set-up in order, each with its output and duration |
| `python` | the Python that an environment is built on |
| `image_environments` | the environment with PyTorch that a machine's image brings |
| `read_requirements`, `package_sources` | which packages a job names, and where they come from |
| `install_packages`, `conda`, `apt` | install Python packages, a conda environment, Debian packages |
| `venv`, `uv` | virtual environments, and the program that installs packages |
| `build` | take an environment from a cache, else build it |
| `local_cache`, `store_cache`, `archive` | environments kept on this machine and in the store |
| `variables`, `cpu_level` | settings and processors that an environment depends on |
| `error_hints` | why an installer failed, from its output |
"""
