"""Send through Apprise: chats, mail, phones. https://github.com/caronc/apprise"""

from __future__ import annotations

import importlib.util
import logging
import threading

from stoker.model import channel_address
from stoker.notifications.events import Message
from stoker.notifications.senders import NotSent, PartlySent, Send, SenderUnavailable

# A text that is too long for a service is sent in parts, at most so many: some services charge for each part.
_MAX_PARTS = 4
INSTALL = "pip install 'stoker[notify]'"


def is_installed() -> bool:
    """Return whether Apprise is installed."""
    return importlib.util.find_spec("apprise") is not None


def is_known(url: str) -> bool:
    """Return whether Apprise recognises the address. Raises SenderUnavailable where Apprise is not installed."""
    if not is_installed():
        raise SenderUnavailable(f"{channel_address.masked(url)} needs Apprise; {INSTALL}")
    import apprise

    logging.getLogger("apprise").propagate = False
    return apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None


def open_apprise(url: str) -> Send:
    """Return a sender for an Apprise address. Raises SenderUnavailable where Apprise is not installed or does not
    recognise the address."""
    if not is_known(url):
        raise SenderUnavailable(f"{channel_address.masked(url)} is no address that Apprise knows")
    import apprise

    # Without async mode the calls are made one after another in the sending thread, whose log records are read below.
    asset = apprise.AppriseAsset(app_id="Stoker", app_desc="Stoker", async_mode=False)

    def send(message: Message) -> None:
        plugin = apprise.Apprise.instantiate(url, asset=asset)
        assert plugin is not None, "it was known a moment ago"
        plugin.overflow_mode = apprise.OverflowMode.SPLIT
        target = apprise.Apprise(asset=asset)
        target.add(plugin)
        records = _ThreadRecords()
        log = logging.getLogger("apprise")
        # Apprise logs each accepted message at this level.
        log.setLevel(logging.INFO)
        log.addHandler(records)
        try:
            # As plain text, since reasons quote scripts: `<module>` in them is no tag.
            text = truncate(message.text, _MAX_PARTS * max(100, plugin.body_maxlen - len(message.title) - 20))
            sent = target.notify(title=message.title, body=text, body_format=apprise.NotifyFormat.TEXT)
        finally:
            log.removeHandler(records)
        if not sent:
            # Apprise gives the reason in its log alone.
            why = channel_address.without_keys(records.last_warning or "Apprise could not deliver it", url)
            raise PartlySent(f"some receivers were not reached: {why}") if records.accepted else NotSent(why)

    return send


def truncate(text: str, max_chars: int) -> str:
    """As many whole lines as fit; the last line says how many are missing."""
    if len(text) <= max_chars:
        return text
    lines = text.splitlines()
    count = len(lines) - 1
    while count > 1 and len("\n".join(lines[:count])) > max_chars - 30:
        count -= 1
    return f"{chr(10).join(lines[:count])[: max_chars - 30]}\n… and {len(lines) - count} more lines"


class _ThreadRecords(logging.Handler):
    """This thread's last warning, and whether any service accepted the message."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last_warning = ""
        self.accepted = False
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        if record.levelno >= logging.WARNING:
            self.last_warning = record.getMessage()
        elif record.levelno == logging.INFO and record.getMessage().startswith("Sent "):
            self.accepted = True
