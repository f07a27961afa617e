"""Turn a plain machine of any cloud into a node: the launcher renders `script`, and the machine runs `install`, which
fetches the agent's archive and runs `start` out of it.

`install`, `install_paths`, `retry` and a cloud's own `bootstrap` travel inside the machine's boot script. They run
there on any Python 3.6 or newer, so that a machine whose Python is too old for Stoker can still report that: no newer
syntax, no dataclasses, newer annotations in quotes, and the standard library alone. `start`, `agent_service` and
`local_disks` travel in the agent's archive, since some clouds take only small boot scripts.
"""
