"""Send a message to an address. Each kind of address has one small sender; all may block, and are cut off in time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from stoker.model import channel_address
from stoker.model.errors import StokerError
from stoker.notifications.events import Message

Send = Callable[[Message], None]

# For each step of one message, connecting and reading the answer; and for the whole message.
STEP_TIMEOUT_S = 5.0
MESSAGE_TIMEOUT_S = 7.0


class NotSent(StokerError):
    """The message was refused, or not answered. The text says why, without any part of the address that may be a
    key."""


class PartlySent(NotSent):
    """Some of the receivers behind the address have the message, so it is not sent again. The text names the others."""


class SenderUnavailable(StokerError):
    """This computer cannot use the channel: a package, a setting, a permission or a network route is missing. Another
    computer may be able to."""


def open_sender(to: str) -> Send:
    """Return a sender for an address that is no reference. Raises SenderUnavailable."""
    # Imported where used: each sender needs a package that most computers do not have.
    match channel_address.address_kind(to):
        case "sns":
            from stoker.notifications.sns_sender import open_topic

            return open_topic(to)
        case "webhook":
            from stoker.notifications.webhook_sender import open_webhook

            return open_webhook(to)
        case _:
            from stoker.notifications.apprise_sender import open_apprise

            return open_apprise(to)


def resolve_address(to: str, environ: Mapping[str, str] = os.environ) -> str:
    """The address itself, or the one that a reference leads to. Raises SenderUnavailable."""
    return _resolve(to, environ) if channel_address.address_kind(to) == "reference" else to


def _resolve(reference: str, environ: Mapping[str, str]) -> str:
    from stoker.model.errors import SetupFailed
    from stoker.secrets.fetch_secrets import fetch

    try:
        found = fetch(reference, reference, environ, patience_s=0.0).strip()
    except SetupFailed as error:
        where = "where the governor runs"
        text = str(error).replace("in the environment that launched this node", where)
        raise SenderUnavailable(text.replace("; set it where you run stoker", "")) from None
    try:
        kind = channel_address.address_kind(found)
    except ValueError:
        kind = "reference"
    if kind == "reference":
        raise SenderUnavailable(f"{reference}: its value is no address")
    return found
