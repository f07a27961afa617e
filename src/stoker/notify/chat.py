"""Whatever Apprise knows: chats, mail, phones. https://github.com/caronc/apprise"""

from __future__ import annotations

import importlib.util
import logging
import threading

from stoker.core.telling import Letter
from stoker.notify import address
from stoker.notify.senders import NotHere, NotSent, Send

INSTALL = "pip install 'stoker[notify]'"


def installed() -> bool:
    """Whether Apprise is there."""
    return importlib.util.find_spec("apprise") is not None


def known(url: str) -> bool:
    """Whether Apprise makes anything of the address. Raises NotHere without it."""
    if not installed():
        raise NotHere(f"{address.masked(url)} needs Apprise; {INSTALL}")
    import apprise

    logging.getLogger("apprise").propagate = False
    return apprise.Apprise.instantiate(url, suppress_exceptions=True) is not None


def open_chat(url: str) -> Send:
    """What sends to one of Apprise's addresses. Raises NotHere where Apprise is not installed or does not know it."""
    if not known(url):
        raise NotHere(f"{address.masked(url)} is no address that Apprise knows")
    import apprise

    # One after another, in the thread that sends: nobody would wait for its own.
    asset = apprise.AppriseAsset(app_id="Stoker", app_desc="Stoker", async_mode=False)

    def send(letter: Letter) -> None:
        target = apprise.Apprise(asset=asset)
        target.add(url)
        heard = _Heard()
        log = logging.getLogger("apprise")
        log.addHandler(heard)
        try:
            sent = target.notify(title=letter.title, body=letter.text)
        finally:
            log.removeHandler(heard)
        if not sent:
            # It tells why in its log alone.
            why = heard.last or "Apprise could not deliver it"
            raise NotSent(address.scrubbed(why, url))

    return send


class _Heard(logging.Handler):
    """The last complaint of this thread's."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.last = record.getMessage()
