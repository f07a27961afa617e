"""Whatever Apprise knows: chats, mail, phones. https://github.com/caronc/apprise"""

from __future__ import annotations

import importlib.util
import logging
import threading

from stoker.model import channel_address
from stoker.notifications.events import Letter
from stoker.notifications.senders import NotHere, NotSent, PartlySent, Send

# What a service does not take at once comes in parts, so many at most: some are paid for by the part.
_MOST_PARTS = 4
INSTALL = "pip install 'stoker[notify]'"


def installed() -> bool:
    """Whether Apprise is there."""
    return importlib.util.find_spec("apprise") is not None


def known(url: str) -> bool:
    """Whether Apprise makes anything of the address. Raises NotHere without it."""
    if not installed():
        raise NotHere(f"{channel_address.masked(url)} needs Apprise; {INSTALL}")
    import apprise

    logging.getLogger("apprise").propagate = False
    return apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None


def open_chat(url: str) -> Send:
    """What sends to one of Apprise's addresses. Raises NotHere where Apprise is not installed or does not know it."""
    if not known(url):
        raise NotHere(f"{channel_address.masked(url)} is no address that Apprise knows")
    import apprise

    # One after another, in the thread that sends: nobody would wait for its own.
    asset = apprise.AppriseAsset(app_id="Stoker", app_desc="Stoker", async_mode=False)

    def send(letter: Letter) -> None:
        plugin = apprise.Apprise.instantiate(url, asset=asset)
        assert plugin is not None, "it was known a moment ago"
        plugin.overflow_mode = apprise.OverflowMode.SPLIT
        target = apprise.Apprise(asset=asset)
        target.add(plugin)
        heard = _Heard()
        log = logging.getLogger("apprise")
        # What was taken, it tells at this level.
        log.setLevel(logging.INFO)
        log.addHandler(heard)
        try:
            # Reasons quote scripts: `<module>` is a word there, and no tag.
            text = cut(letter.text, _MOST_PARTS * max(100, plugin.body_maxlen - len(letter.title) - 20))
            sent = target.notify(title=letter.title, body=text, body_format=apprise.NotifyFormat.TEXT)
        finally:
            log.removeHandler(heard)
        if not sent:
            # It tells why in its log alone.
            why = channel_address.scrubbed(heard.last or "Apprise could not deliver it", url)
            raise PartlySent(f"not everybody there was reached: {why}") if heard.taken else NotSent(why)

    return send


def cut(text: str, most: int) -> str:
    """Whole lines, as many as fit; the last says how many are missing."""
    if len(text) <= most:
        return text
    lines = text.splitlines()
    kept = len(lines) - 1
    while kept > 1 and len("\n".join(lines[:kept])) > most - 30:
        kept -= 1
    return f"{chr(10).join(lines[:kept])[: most - 30]}\n… and {len(lines) - kept} more lines"


class _Heard(logging.Handler):
    """The last complaint of this thread's, and whether anybody took anything."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last = ""
        self.taken = False
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        if record.levelno >= logging.WARNING:
            self.last = record.getMessage()
        elif record.levelno == logging.INFO and record.getMessage().startswith("Sent "):
            self.taken = True
