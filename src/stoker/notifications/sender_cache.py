"""Senders of channels, each opened in the background: an address or a secret that hangs blocks no other channel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from stoker.notifications.background_call import BackgroundCall
from stoker.notifications.channel_subscriptions import NamedChannel, is_out_of_bounds
from stoker.notifications.senders import Send, SenderUnavailable, open_sender, resolve_address

Open = Callable[[str], Send]
Resolve = Callable[[str], str]

# A sender is opened anew after this time, since the secret behind its address may have changed. One that failed to open
# is tried again sooner: the missing package may have been installed meanwhile.
_REOPEN_AFTER_S = 600.0
_RETRY_OPENING_AFTER_S = 60.0


class SenderCache:
    """The open senders of one dispatcher, by channel. `open_` and `resolve` may be replaced, as tests do."""

    def __init__(self, open_: Open | None = None, resolve: Resolve | None = None) -> None:
        self._open = open_ or open_sender
        self._resolve = resolve or resolve_address
        self._opened: dict[str, BackgroundCall[Send]] = {}

    def start_opening(self, channel: str, named: NamedChannel | None, to: str) -> None:
        """Open the channel's sender in the background, unless it is being opened or the last result is recent."""
        call = self._opened.get(channel)
        if call is not None:
            age_s = time.monotonic() - call.began_s
            if not call.over or age_s < (_REOPEN_AFTER_S if call.error is None else _RETRY_OPENING_AFTER_S):
                return
        self._opened[channel] = BackgroundCall(lambda: self._open_for(named, to))

    def opening_count(self) -> int:
        """Count the senders that are being opened now."""
        return sum(not call.over for call in self._opened.values())

    def is_ready(self, channel: str) -> bool:
        """Return whether opening the channel is over, with a sender or with an error."""
        return channel in self._opened and self._opened[channel].over

    def error(self, channel: str) -> Exception | None:
        """Return the error with which opening the channel failed; None if it has not failed."""
        return self._opened[channel].error if channel in self._opened else None

    def sender(self, channel: str) -> Send:
        """Return the sender of a channel that is ready and has no error."""
        return self._opened[channel].result()

    def calls(self, channels: Iterable[str]) -> list[BackgroundCall[Send]]:
        """The calls that open these channels, as far as they were started."""
        return [self._opened[channel] for channel in channels if channel in self._opened]

    def drop(self, channel: str) -> None:
        """Open the channel anew next time."""
        self._opened.pop(channel, None)

    def retain(self, channels: Iterable[str]) -> None:
        """Drop all other channels: a governor may run for months."""
        wanted = set(channels)
        self._opened = {channel: call for channel, call in self._opened.items() if channel in wanted}

    def _open_for(self, named: NamedChannel | None, to: str) -> Send:
        """Resolve the address, then open it. Raises SenderUnavailable.

        The resolved address is checked like one that a job writes directly: a job controls both.
        """
        address = self._resolve(to)
        if is_out_of_bounds(named, address):
            raise SenderUnavailable("it is inside the governor's own computer or cloud, where no job sends anything")
        return self._open(address)
