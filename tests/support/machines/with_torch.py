"""A machine that has PyTorch: the one of whoever runs the tests, lent to a Debian with the same Python."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.machines.images import Tree
from tests.support.machines.needs import why_no_machines

# For PYTHONPATH on the machine. Nothing is copied: the packages are most of a gigabyte.
PLACE = "/opt/torch"

_SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
_SUITE = _SUITES.get(sys.version_info[:2], "bookworm")


def _packages() -> str | None:
    found = find_spec("torch")
    return str(Path(found.origin).parents[1]) if found is not None and found.origin else None


MACHINE = Tree(_SUITE, lent=((PLACE, _packages() or "/nowhere"),))


@lru_cache(maxsize=1)
def why_no_torch_machines() -> str | None:
    """One line that says why no machine with PyTorch can be booted here; None where they can."""
    if (why := why_no_machines()) is not None:
        return why
    if sys.version_info[:2] not in _SUITES:
        return "the machines of tests have no Python {}.{}".format(*sys.version_info)
    return None if _packages() is not None else "PyTorch is not installed (pip install 'stoker[test]')"
