"""Check addresses before anything is sent there: when a job is submitted, and when a policy is set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import zip_longest
from typing import Literal

from stoker.model import channel_address, secret_refs
from stoker.model.errors import UserError
from stoker.notifications import apprise_sender


def check_addresses(addresses: Iterable[str], where: str) -> None:
    """Raise UserError for a text that is no address, without quoting it: it may hold a key."""
    for to in addresses:
        try:
            channel_address.address_kind(to)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None


# The kinds of address that each cloud can grant a governor. A governor reaches all others without a grant, or never.
_GRANTABLE = {"AWS": ("sns", "aws-sm", "aws-ssm"), "Google Cloud": ("gcp-sm",)}
_SYNTAX = {"sns": "sns:ARN", "aws-sm": "aws-sm:NAME", "aws-ssm": "aws-ssm:NAME", "gcp-sm": "gcp-sm:NAME"}


def _grant_kind(to: str) -> str:
    """The kind of an address, as the grants of a cloud name it."""
    return "sns" if channel_address.topic_of(to) is not None else to.partition(":")[0]


def check_grantable(addresses: Iterable[str], cloud: Literal["AWS", "Google Cloud"]) -> None:
    """Raise UserError for an address of `--notify` that `cloud` cannot grant: naming it would change nothing."""
    addresses = tuple(addresses)
    check_addresses(addresses, "--notify")
    for to in addresses:
        kind = _grant_kind(to)
        if kind in _GRANTABLE[cloud]:
            continue
        may = " or ".join(_SYNTAX[each] for each in _GRANTABLE[cloud])
        if kind == "env":
            problem = "is a variable, which no grant gives to a governor; keep the address as a secret"
        elif kind in _SYNTAX:
            problem = f"is not in {cloud}; use a channel of this cloud"
        else:
            problem = "needs no grant; the policy's `notify` alone names it"
        raise UserError(f"--notify: {channel_address.masked(to)} {problem}. Here: {may}")


def grantable_addresses(
    addresses: Iterable[str], cloud: Literal["AWS", "Google Cloud"]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the policy's addresses, those that `cloud` has to grant, and those, masked, that no governor there can use."""
    allowed, useless = [], []
    for to in addresses:
        kind = _grant_kind(to)
        if kind in _GRANTABLE[cloud]:
            allowed.append(to)
        elif kind == "env" or kind in _SYNTAX:
            useless.append(channel_address.masked(to))
    return tuple(dict.fromkeys(allowed)), tuple(dict.fromkeys(useless))


def address_warnings(addresses: Iterable[str], places: Iterable[str] = ()) -> tuple[str, ...]:
    """Warnings about these addresses, a line each. `places` are where the addresses are written. Makes no request.

    Raises UserError for an address that Apprise, where it is installed, does not recognise.
    """
    found = []
    for to, where in zip_longest(addresses, places, fillvalue="notify"):
        shown = channel_address.masked(to)
        if channel_address.address_kind(to) == "apprise":
            if not apprise_sender.is_installed():
                found.append(f"{where}: {shown} needs Apprise wherever a governor runs; {apprise_sender.INSTALL}")
            elif not apprise_sender.is_known(to):
                raise UserError(
                    f"{where}: {shown} is no address that Apprise knows; its documentation lists how they are written"
                )
        if to.startswith("env:") and to.removeprefix("env:").partition("#")[0] not in os.environ:
            found.append(
                f"{where}: {to} is not set here; the governor needs it, and `stoker notify` tries whether it has"
            )
        if channel_address.exposes_secret(to):
            found.append(
                f"{where}: {shown} is stored in clear text, for every machine to read; "
                f"store it as a secret, and write {secret_refs.expected(channel_address.REFERENCES)}"
            )
    return tuple(found)
