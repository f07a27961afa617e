"""Look at addresses before anything is told there: when a job is submitted, and when a policy is set."""

from __future__ import annotations

from collections.abc import Iterable

from stoker import references
from stoker.errors import UserError
from stoker.notify import address, chat


def check_written(addresses: Iterable[str], where: str) -> None:
    """Raise UserError for what is no address, without repeating it: it may hold a key."""
    for to in addresses:
        try:
            address.kind_of(to)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None


def remarks(addresses: Iterable[str]) -> tuple[str, ...]:
    """What is no mistake and should be known, a line each. Asks nobody.

    Raises UserError for an address that Apprise, where it is installed, makes nothing of.
    """
    found = []
    for to in addresses:
        shown = address.masked(to)
        if address.kind_of(to) == "apprise":
            if not chat.installed():
                found.append(f"notify: {shown} needs Apprise wherever a governor runs; {chat.INSTALL}")
            elif not chat.known(to):
                raise UserError(
                    f"notify: {shown} is no address that Apprise knows; its documentation lists how they are written"
                )
        if address.in_clear(to):
            found.append(
                f"notify: {shown} stands in the store as it is, for every machine to read; "
                f"keep it as a secret, and write {references.expected(address.REFERENCES)}"
            )
    return tuple(found)
