"""Machines that ask a metadata server for as long as they live: none of them outlives its test.

Else it would go on asking at a port that the next server on this computer may get.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stoker.providers.ec2.machine import Ec2Machine
from stoker.providers.gce.machine import GceMachine


@contextmanager
def closed_afterwards(kind: type[Ec2Machine] | type[GceMachine]) -> Iterator[None]:
    """Every machine of this kind that is made within the block is closed at its end."""
    made: list[Ec2Machine | GceMachine] = []
    begin = kind.__init__

    def remember(machine: Ec2Machine | GceMachine, *args: Any, **options: Any) -> None:
        made.append(machine)
        begin(machine, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__init__", remember)
        yield
        for machine in made:
            machine.close()
