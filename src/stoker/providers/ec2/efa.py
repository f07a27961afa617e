"""The network interfaces of machines with Elastic Fabric Adapters, as AWS recommends them. Pure.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


class NetworkFacts(Protocol):
    """The facts about a machine type that decide on its interfaces."""

    @property
    def name(self) -> str: ...
    @property
    def efa_interfaces(self) -> int: ...
    @property
    def efa_card(self) -> int: ...


@dataclass(frozen=True)
class Interface:
    """One network interface: where it is attached, and what it carries. `efa` carries IP traffic as well."""

    card: int
    device: int
    type: Literal["interface", "efa", "efa-only"]


# Cards that share a GPU share its bandwidth: one of each group is enough.
_CARDS = {"p6e-gb200.36xlarge": (1, 5, 9, 13)}


def layout(machine: NetworkFacts) -> tuple[Interface, ...]:
    """The interfaces that give a machine type all its EFA bandwidth with one private address.

    With one network card the only interface is an EFA that carries IP traffic too, so that the machine may have a
    public address. With several, the first interface is for IP traffic alone, and the EFAs have no addresses.
    """
    cards = _CARDS.get(machine.name) or range(machine.efa_card, machine.efa_card + max(1, machine.efa_interfaces))
    if tuple(cards) == (0,):
        return (Interface(0, 0, "efa"),)
    # On the first card, device 0 is the interface for IP traffic.
    return (Interface(0, 0, "interface"), *(Interface(card, 1 if card == 0 else 0, "efa-only") for card in cards))
