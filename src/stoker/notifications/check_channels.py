"""Look at addresses before anything is told there: when a job is submitted, and when a policy is set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import zip_longest
from typing import Literal

from stoker.model import channel_address, secret_refs
from stoker.model.errors import UserError
from stoker.notifications import apprise_sender


def check_written(addresses: Iterable[str], where: str) -> None:
    """Raise UserError for what is no address, without repeating it: it may hold a key."""
    for to in addresses:
        try:
            channel_address.kind_of(to)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None


# What each cloud can allow a governor. The others it reaches without, or not at all.
_GRANTED = {"AWS": ("sns", "aws-sm", "aws-ssm"), "Google Cloud": ("gcp-sm",)}
_WRITTEN = {"sns": "sns:ARN", "aws-sm": "aws-sm:NAME", "aws-ssm": "aws-ssm:NAME", "gcp-sm": "gcp-sm:NAME"}


def check_granted(addresses: Iterable[str], where: str, cloud: Literal["AWS", "Google Cloud"]) -> None:
    """Raise UserError for an address that `cloud` has nothing to allow for: naming it would change nothing."""
    addresses = tuple(addresses)
    check_written(addresses, where)
    for to in addresses:
        kind = "sns" if channel_address.topic_of(to) is not None else to.partition(":")[0]
        if kind in _GRANTED[cloud]:
            continue
        may = " or ".join(_WRITTEN[each] for each in _GRANTED[cloud])
        if kind == "env":
            problem = "is a variable, which no grant gives to a governor; keep the address as a secret"
        elif kind in _WRITTEN:
            problem = f"is nothing that {cloud} keeps; use a channel of this cloud's"
        else:
            problem = "needs no grant; the policy's `notify` alone names it"
        raise UserError(f"{where}: {channel_address.masked(to)} {problem}. Here: {may}")


def granted(addresses: Iterable[str], cloud: Literal["AWS", "Google Cloud"]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the house's addresses, those that `cloud` has to allow, and those, masked, that no governor there can use."""
    allowed, useless = [], []
    for to in addresses:
        kind = "sns" if channel_address.topic_of(to) is not None else to.partition(":")[0]
        if kind in _GRANTED[cloud]:
            allowed.append(to)
        elif kind == "env" or kind in _WRITTEN:
            useless.append(channel_address.masked(to))
    return tuple(dict.fromkeys(allowed)), tuple(dict.fromkeys(useless))


def remarks(addresses: Iterable[str], places: Iterable[str] = ()) -> tuple[str, ...]:
    """What is no mistake and should be known, a line each. `places` are where they are written. Asks nobody.

    Raises UserError for an address that Apprise, where it is installed, makes nothing of.
    """
    found = []
    for to, where in zip_longest(addresses, places, fillvalue="notify"):
        shown = channel_address.masked(to)
        if channel_address.kind_of(to) == "apprise":
            if not apprise_sender.installed():
                found.append(f"{where}: {shown} needs Apprise wherever a governor runs; {apprise_sender.INSTALL}")
            elif not apprise_sender.known(to):
                raise UserError(
                    f"{where}: {shown} is no address that Apprise knows; its documentation lists how they are written"
                )
        if to.startswith("env:") and to.removeprefix("env:").partition("#")[0] not in os.environ:
            found.append(
                f"{where}: {to} is not set here; the governor needs it, and `stoker notify` tries whether it has"
            )
        if channel_address.in_clear(to):
            found.append(
                f"{where}: {shown} stands in the store as it is, for every machine to read; "
                f"keep it as a secret, and write {secret_refs.expected(channel_address.REFERENCES)}"
            )
    return tuple(found)
