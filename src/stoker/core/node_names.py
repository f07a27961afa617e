"""The names by which the nodes of a gang know each other. Pure.

Names and addresses come from facts that other nodes wrote: they are checked before they reach an environment or
`/etc/hosts`.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

# One label of a host name. Underscores are no part of the standard, but computers have such names.
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
# HOST_NAME_MAX of Linux.
_LONGEST = 64
# The kernel takes 128 KiB for one variable of an environment.
_LONGEST_LIST = 120_000
# Names that mean something else on every machine, or the metadata service of a cloud.
_RESERVED = frozenset(
    {
        "localhost",
        *("ip6-localhost", "ip6-loopback", "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes", "ip6-allrouters"),
        *("broadcasthost", "metadata", "instance-data"),
    }
)


def is_address(text: str) -> bool:
    """Return whether a text is an IP address that all machines of a network understand."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def is_host_name(text: str) -> bool:
    """Return whether a machine may call itself this way: not too long, not to be taken for an address."""
    labels = text.split(".")
    well_formed = len(text) <= _LONGEST and all(_LABEL.fullmatch(label) for label in labels)
    return well_formed and not _NUMBER.fullmatch(labels[-1])


def is_own_name(text: str) -> bool:
    """Return whether other nodes may know a machine by this name, as far as one machine can tell."""
    return is_host_name(text) and text.split(".")[0].lower() not in _RESERVED


def node_names(hosts: Sequence[str], addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all nodes in rank order. Every node computes the same ones.

    `hosts` is what each machine calls itself, exactly; empty where nodes can have no names. A name that is malformed,
    or that several machines have, is replaced by one made of the rank. A node without a name goes by its address.
    """
    if len(addresses) == 1:
        own = hosts[0] if hosts else ""
        return (own if is_host_name(own) else addresses[0],)
    if len(hosts) != len(addresses):
        return tuple(addresses)
    usable = _usable(hosts)
    prefix = "node"
    while any(host.lower().startswith(f"{prefix}-") for host in usable):
        prefix = f"stoker-{prefix}"
    made = [f"{prefix}-{rank}" for rank in range(len(hosts))]
    found = [host if host in usable else made[rank] for rank, host in enumerate(hosts)]
    if len(" ".join(found)) > _LONGEST_LIST:
        found = made
    return tuple(name if hosts[rank] else addresses[rank] for rank, name in enumerate(found))


def _usable(hosts: Sequence[str]) -> frozenset[str]:
    """Return the names that nodes may keep.

    The machines of a gang are in one network, and so in one domain: a node that claims a name elsewhere, such as that
    of a service, does not get it.
    """
    own = [host for host in hosts if is_own_name(host)]
    domains = {host.partition(".")[2].lower() for host in own}
    times = Counter(host.lower() for host in own)
    return frozenset(host for host in own if times[host.lower()] == 1 and ("." not in host or len(domains) == 1))


def hosts_text(known: str, names: Mapping[str, str], mark: str = "") -> str:
    """Return the text of `/etc/hosts` with these names added, and their other addresses removed.

    Where a name has two addresses, a program may take either: Debian gives a machine's own name to 127.0.1.1, where no
    other node reaches it. Lines that end with `mark` were added before, and are replaced.
    """
    wanted = {name.lower(): address for name, address in names.items()}
    lines = known.removesuffix("\n").split("\n") if known else []
    kept = [line for line in lines if not (mark and line.endswith(mark))]
    kept = [line for each in kept for line in _without_others(each, wanted)]
    present = {(address, name.lower()) for address, *found in map(_words, kept) for name in found}
    added = [f"{address}\t{name}{mark}" for name, address in names.items() if (address, name.lower()) not in present]
    return "".join(f"{line}\n" for line in (*kept, *added))


def _without_others(line: str, wanted: Mapping[str, str]) -> Iterator[str]:
    """Return the line without the names that belong to another address; nothing if no name is left."""
    address, *names = _words(line)
    kept = [name for name in names if wanted.get(name.lower(), address) == address]
    if kept == names:
        yield line
    elif kept:
        yield "\t".join((address, *kept))


def _words(line: str) -> list[str]:
    return line.partition("#")[0].split() or [""]
