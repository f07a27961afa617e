"""`stoker notify`: test notification channels."""

from __future__ import annotations

import time

import click

from stoker.cli.options import opened_store, store_option

# Longer than any channel may take.
_MOST_S = 30.0
_THERE = "where the governor runs"


@click.command("notify")
@click.argument("addresses", metavar="[TO]...", nargs=-1)
@store_option
def command(addresses: tuple[str, ...]) -> int:
    """Send a test message to TO, such as sns:ARN, https://…, slack://… or env:NAME; default: the policy's channels.

    The message is sent from this computer, with its programs and variables; a governor elsewhere may have others. Exits
    with 0 only when every message was accepted.
    """
    from stoker.model import channel_address
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.notifications.background_call import BackgroundCall
    from stoker.notifications.events import Message
    from stoker.notifications.senders import open_sender, resolve_address
    from stoker.policy import versions
    from stoker.store.job_log import new_token

    store = opened_store()
    check_channels.check_addresses(addresses, "TO")
    channels = [(channel_address.masked(to), to) for to in addresses]
    if not channels:
        channels = [(each.name, each.to) for each in versions.current_policy(store).notify]
    if not channels:
        raise UserError("the policy has no `notify`; name an address, as in `stoker notify env:NAME`")
    text = f"This is a test by `stoker notify`. Notifications about jobs of {store.url} arrive here."
    message = Message(new_token(), store.url, "Stoker notifications work", text, ())
    calls = [BackgroundCall(lambda to=to: open_sender(resolve_address(to))(message)) for _, to in channels]  # type: ignore[misc]
    until_s, failed = time.monotonic() + _MOST_S, False
    for (name, to), call in zip(channels, calls, strict=True):
        # The line begins with the address already, and the test runs here rather than where the governor runs.
        problem = _problem(call, until_s).removeprefix(f"{channel_address.masked(to)}: ").replace(_THERE, "here")
        failed = failed or bool(problem)
        sign = click.style("✗", fg="red") if problem else click.style("✓", fg="green")
        shown = "" if name == channel_address.masked(to) else f" ({channel_address.masked(to)})"
        click.echo(f"{sign} {name}{shown}: {problem or 'accepted'}")
    return 2 if failed else 0


def _problem(call: object, until_s: float) -> str:
    """Why the message was not accepted; empty where it was."""
    from stoker.notifications.background_call import BackgroundCall
    from stoker.read.format import one_line
    from stoker.read.safe_text import legible

    assert isinstance(call, BackgroundCall)
    if not call.wait(until_s):
        return "does not answer"
    error = call.error
    return "" if error is None else one_line(legible(str(error) or type(error).__name__), 300)
