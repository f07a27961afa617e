"""How a plain machine of any cloud becomes a node: `script` is written where it is launched, `install` runs on it.

`install`, and what a cloud adds to it, travels inside the machine's boot script and runs there on any Python 3.6 or
newer, so that a machine whose Python is too old for Stoker can still say so: no newer syntax, no dataclasses,
annotations in quotes where need be, and the standard library alone.
"""
