"""`stoker notify`: whether channels work."""

from __future__ import annotations

import time

import click

from stoker.cli.options import opened_store, store_option

# Longer than any of them has.
_MOST_S = 30.0
_THERE = "where the governor runs"


@click.command("notify")
@click.argument("addresses", metavar="[TO]...", nargs=-1)
@store_option
def command(addresses: tuple[str, ...]) -> int:
    """Send a test message to TO, such as sns:ARN, https://…, slack://… or env:NAME; else to the policy's channels.

    From this computer, with what is installed and set here: a governor elsewhere may lack it, or have more. Exits with
    0 only when every message was taken.
    """
    from stoker.model import channel_address
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.notifications.background_call import Errand
    from stoker.notifications.events import Letter
    from stoker.notifications.senders import address_of, open_sender
    from stoker.policy import versions
    from stoker.store.job_log import new_token

    store = opened_store()
    check_channels.check_written(addresses, "TO")
    channels = [(channel_address.masked(to), to) for to in addresses]
    if not channels:
        channels = [(each.name, each.to) for each in versions.house(versions.current(store)).notify]
    if not channels:
        raise UserError("the policy has no `notify`; name an address, as in `stoker notify env:NAME`")
    text = f"This is a test, by `stoker notify`. Jobs of {store.url} are told of here."
    letter = Letter(new_token(), store.url, "Stoker can be heard", text, ())
    errands = [Errand(lambda to=to: open_sender(address_of(to))(letter)) for _, to in channels]  # type: ignore[misc]
    until_s, failed = time.monotonic() + _MOST_S, False
    for (name, to), errand in zip(channels, errands, strict=True):
        # A governor elsewhere may have what is not set here, and the line begins with the address.
        problem = _problem(errand, until_s).removeprefix(f"{channel_address.masked(to)}: ").replace(_THERE, "here")
        failed = failed or bool(problem)
        sign = click.style("✗", fg="red") if problem else click.style("✓", fg="green")
        shown = "" if name == channel_address.masked(to) else f" ({channel_address.masked(to)})"
        click.echo(f"{sign} {name}{shown}: {problem or 'taken'}")
    return 2 if failed else 0


def _problem(errand: object, until_s: float) -> str:
    from stoker.cli.format import legible, one_line
    from stoker.notifications.background_call import Errand

    assert isinstance(errand, Errand)
    if not errand.wait(until_s):
        return "does not answer"
    try:
        errand.result()
    except Exception as error:  # noqa: BLE001 - any library's: which it was is told, and the others are tried
        return one_line(legible(str(error) or type(error).__name__), 300)
    return ""
