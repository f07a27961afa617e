"""Send a letter somewhere. Each kind of address is one small function; all of them may block, and are cut off."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from stoker.model import channel_address
from stoker.model.errors import StokerError
from stoker.notifications.events import Letter

Send = Callable[[Letter], None]

# For each step of one message: to be connected, and to be answered. And for all of it.
TIMEOUT_S = 5.0
ALL_S = 7.0


class NotSent(StokerError):
    """It was refused, or nobody answered. Says why, without any part of the address that may be a key."""


class PartlySent(NotSent):
    """Some of those behind the address have it, so it is not sent again. Says who has not."""


class NotHere(StokerError):
    """This computer cannot use the channel: something is not installed, set or allowed, or it has no way there. Another
    one may."""


def open_sender(to: str) -> Send:
    """What sends to an address that is no reference. Libraries are imported. Raises NotHere."""
    # Imported here: each of them needs something that most computers do not have.
    match channel_address.kind_of(to):
        case "sns":
            from stoker.notifications.sns_sender import open_topic

            return open_topic(to)
        case "webhook":
            from stoker.notifications.webhook_sender import open_webhook

            return open_webhook(to)
        case _:
            from stoker.notifications.apprise_sender import open_chat

            return open_chat(to)


def address_of(to: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where it leads: references are followed. Raises NotHere."""
    return _follow(to, environ) if channel_address.kind_of(to) == "reference" else to


def _follow(reference: str, environ: Mapping[str, str]) -> str:
    from stoker.model.errors import SetupFailed
    from stoker.secrets.fetch_secrets import fetch

    try:
        found = fetch(reference, reference, environ, patience_s=0.0).strip()
    except SetupFailed as error:
        where = "where the governor runs"
        text = str(error).replace("in the environment that launched this node", where)
        raise NotHere(text.replace("; set it where you run stoker", "")) from None
    try:
        kind = channel_address.kind_of(found)
    except ValueError:
        kind = "reference"
    if kind == "reference":
        raise NotHere(f"{reference}: what is kept there is no address")
    return found
