"""The functions that a training script may import. Standard library only; outside Stoker they do nothing.

    from stoker import train

    start = 0
    if (saved := train.latest()) is not None:
        start = load(saved)
    for step in range(start, steps):
        loss = …
        train.report(step=step, loss=loss)
        if step % 100 == 0 or train.interrupted():
            with train.checkpoint(f"step-{step}", step=step) as folder:
                save(folder)
        if train.interrupted():
            break

**Signals.** On a notice the agent sends SIGTERM, whose default action would end a script that only polls. Therefore the
first `interrupted()` or `checkpoint()` under Stoker, in the main thread, installs a SIGTERM handler that sets a flag
and does nothing else. It is installed only where the default action is still set: your own handler is left alone.
Children made by fork get the default action back. `on_interrupt()` installs the same handler outside Stoker, too.

Modules are imported only when they are needed: importing this module costs next to nothing.
"""

# pathlib takes longer to import than everything else here together.
# ruff: noqa: PTH110, PTH118, PTH123

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType
    from typing import Any, TypeVar

    from stoker.agent.checkpoints.save_protocol import Save

    F = TypeVar("F", bound=Callable[..., object])

__all__ = [
    "attempt",
    "checkpoint",
    "checkpoint_dir",
    "interrupted",
    "latest",
    "on_interrupt",
    "output_dir",
    "params",
    "report",
    "save_requested",
    "time_left",
    "wait_durable",
]

_CHECK_EVERY_S = 0.05


def _check_keywords(function: F) -> F:
    """Make a keyword that `function` does not have raise a TypeError that names the nearest one."""

    def checked(*arguments: object, **named: object) -> object:
        for name in named:
            if name not in known:
                from stoker.model.errors import WrongKeyword
                from stoker.model.keywords import nearest

                message = f"{function.__name__}({name}=…): there is no such argument; {nearest(name, list(known))}"
                raise WrongKeyword(message)
        return function(*arguments, **named)

    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # As functools.wraps does, whose import would cost more than all of this.
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(checked, attribute, getattr(function, attribute))
    checked.__wrapped__ = function  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


# How long a save waits to be durable after a SIGTERM that came without a notice file.
_PATIENCE_S = 30.0
_LINE_BYTES = 8 * 1024  # Readers ignore longer lines.


# ── Metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Metrics:
    """The open metrics file. Each line is one write: appends by several processes never mix."""

    path = ""
    file = -1
    is_torn = False


def report(step: object = None, **metrics: object) -> None:
    """Report metrics to Stoker: `report(step=3, loss=0.5)`. Numbers, or anything `float()` takes, NaN included.

    Never raises: values that are no numbers are left out, and so are metrics with a secret in their name; a full disk
    loses the line, not the training.
    """
    channel = os.environ.get("STOKER_CHANNEL")
    if not channel:
        return
    head: dict[str, object] = {"t": time.time()}
    number = _number(step)
    if number is not None and number == number and abs(number) < 2**53:
        head["step"] = int(number)
    numbers = {name: _number(raw) for name, raw in metrics.items()}
    values = {name: value for name, value in numbers.items() if value is not None}
    secrets = [os.environ.get(name) for name in os.environ.get("STOKER_SECRETS", "").split(",")]
    if any(secrets):
        values = {name: value for name, value in values.items() if not any(one and one in name for one in secrets)}
    import json

    line = json.dumps({**head, **values})
    if len(line) <= _LINE_BYTES or len(values) < 2:
        lines = [line]
    else:
        lines = [json.dumps({**head, name: value}) for name, value in values.items()]
    for line in lines:
        _append(os.path.join(channel, "metrics.jsonl"), line.encode() + b"\n")


def _number(value: object) -> float | None:
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a metric is any object at all; a bad one must not end the training
        return None


def _append(path: str, line: bytes) -> None:
    try:
        if _Metrics.path != path:
            _Metrics.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            _Metrics.path = path
        data = b"\n" + line if _Metrics.is_torn else line
        _Metrics.is_torn = os.write(_Metrics.file, data) < len(data)
    except OSError:
        return


# ── Interruption ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Notice:
    """The knowledge of this process about its end."""

    seen = False
    next_check_at = 0.0
    # The process that set up SIGTERM; the handler if it is ours, and the handler that it replaced.
    installed_in = 0
    handler: Any = None
    before: Any = None
    handles_forks = False
    mask: Any = ()


def interrupted() -> bool:
    """Return True if this machine is about to be reclaimed, or the job stopped: save now, then exit.

    Cheap enough for every step. Once true it stays true. See the module's text on SIGTERM.
    """
    if _Notice.seen:
        return True
    now = time.monotonic()
    if now < _Notice.next_check_at:
        return False
    _Notice.next_check_at = now + _CHECK_EVERY_S
    if _channel() is not None:
        _install_handler(replace=False)
    path = _notice_file()
    if path is not None and os.path.exists(path):
        _Notice.seen = True
    return _Notice.seen


class _SaveRequest:
    """The newest request to save and go on that this process has seen."""

    newest = 0
    next_check_at = 0.0


def save_requested() -> bool:
    """Return True if now is a good time to save and go on: the machine may be reclaimed before long.

    True once for each request, in each process that asks. Cheap enough for every step; False outside Stoker.
    """
    now = time.monotonic()
    channel = _channel()
    if channel is None or now < _SaveRequest.next_check_at:
        return False
    _SaveRequest.next_check_at = now + _CHECK_EVERY_S
    try:
        with open(os.path.join(channel, "save"), "rb") as file:
            request = int(file.read())
    except (OSError, ValueError):
        return False
    new = request > _SaveRequest.newest
    _SaveRequest.newest = max(_SaveRequest.newest, request)
    return new


def time_left() -> float | None:
    """Return the seconds until the training is ended by force; None when no end is known."""
    import json

    path = _notice_file()
    try:
        with open(path or os.devnull, "rb") as file:
            deadline = json.loads(file.read())["deadline_monotonic"]
        # Processes of one machine share this clock.
        return max(0.0, float(deadline) - time.monotonic())
    except (OSError, ValueError, TypeError, KeyError):
        return None


def on_interrupt() -> None:
    """Make SIGTERM set the result of `interrupted()`, inside or outside Stoker. Call it in the main thread.

    An existing handler is still called. Raises ValueError in another thread, as `signal.signal` does.
    """
    if _Notice.handler is None:
        _install_handler(replace=True)


def _install_handler(*, replace: bool) -> None:
    if _Notice.installed_in == os.getpid() and not replace:
        return
    import signal

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL and not replace:
        _Notice.installed_in = os.getpid()
        return

    def note(number: int, frame: FrameType | None) -> None:
        _Notice.seen = True
        if callable(before):
            before(number, frame)

    try:
        signal.signal(signal.SIGTERM, note)
    except ValueError:
        if replace:
            raise
        # Not the main thread: the main thread may call this later.
        return
    _Notice.installed_in, _Notice.handler, _Notice.before = os.getpid(), note, before
    if not _Notice.handles_forks:
        _Notice.handles_forks = True
        os.register_at_fork(before=_block_sigterm, after_in_parent=_restore_mask, after_in_child=_uninstall_handler)


def _block_sigterm() -> None:
    """Block SIGTERM before a fork. A child must not inherit a mere flag: a worker that is terminated has to die.

    Python drops a signal that reaches a child at its very beginning, so the signal is held back until the child is
    ready.
    """
    import signal

    _Notice.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _restore_mask() -> None:
    import signal

    signal.pthread_sigmask(signal.SIG_SETMASK, _Notice.mask)


def _uninstall_handler() -> None:
    import signal

    if _Notice.handler is not None and signal.getsignal(signal.SIGTERM) is _Notice.handler:
        signal.signal(signal.SIGTERM, _Notice.before)
    _Notice.handler = None
    _restore_mask()


def _notice_file() -> str | None:
    path = os.environ.get("STOKER_NOTICE_FILE")
    if path:
        return path
    channel = _channel()
    return os.path.join(channel, "notice.json") if channel else None


# ── Where things are ──────────────────────────────────────────────────────────────────────────────────────────────────


def checkpoint_dir() -> Path:
    """Return the folder to save to, created if necessary; `checkpoints` outside Stoker."""
    return _folder("STOKER_CHECKPOINT_DIR", "checkpoints")


def output_dir() -> Path:
    """Return the folder for results that are no checkpoints, created if necessary; `outputs` outside Stoker."""
    return _folder("STOKER_OUTPUT_DIR", "outputs")


def params() -> dict[str, Any]:
    """Return the job's parameters; empty outside Stoker."""
    import json

    try:
        tree = json.loads(os.environ.get("STOKER_PARAMS") or "{}")
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def attempt() -> int | None:
    """Return the number of this attempt of the job: 1, 2, …; None outside Stoker."""
    text = os.environ.get("STOKER_ATTEMPT", "")
    return int(text) if text.isdecimal() else None


def latest() -> Path | None:
    """Return the newest checkpoint that `checkpoint()` committed or Stoker restored; None when there is none."""
    from pathlib import Path

    from stoker.agent.checkpoints.save_protocol import numbered_saves

    folder = Path(os.environ.get("STOKER_CHECKPOINT_DIR") or "checkpoints")
    saves = numbered_saves(folder)
    return folder / max(saves)[1] if saves else None


def _folder(variable: str, default: str) -> Path:
    from pathlib import Path

    folder = Path(os.environ.get(variable) or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _channel() -> str | None:
    return os.environ.get("STOKER_CHANNEL") or None


# ── Checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────


@_check_keywords
def checkpoint(name: str, *, step: int | None = None, sharded: bool = False, writers: int = 1) -> Save:
    """Save atomically: `with checkpoint("step-100", step=100) as folder:` and write into `folder`.

    Leaving the block makes `<checkpoint_dir()>/<name>` appear as a whole, in place of one with the same name, and asks
    Stoker to bring it to the store in the background. After a notice it also waits, within the time left, until that is
    done. Leaving by an exception discards the save.

    `sharded`: every node saves its own part under the same name, and the parts count only together. `writers`: this
    many processes of this node write into the same folder; it is committed when the last one leaves. Under Stoker,
    saves older than the newest `checkpoints.keep` are removed from the folder; and of several that wait for a slow
    store, only the newest is sure to get there. Raises ValueError for a name that is not valid in a path, OSError when
    the disk fails.
    """
    from pathlib import Path

    from stoker.agent.checkpoints.save_protocol import Save

    interrupted()
    channel = _channel()
    save = Save(name, checkpoint_dir(), Path(channel) if channel else None, step=step, sharded=sharded, writers=writers)
    save.after_request = _wait_after_notice
    return save


@_check_keywords
def wait_durable(timeout: float | None = None) -> bool:
    """Wait until the last save of this node is in the store. Return False if `timeout` seconds were not enough."""
    from pathlib import Path

    from stoker.agent.checkpoints.save_protocol import POLL_S, newest_answer, request_counters

    channel = _channel()
    if channel is None:
        return True
    sequence = request_counters(Path(channel))[0]
    limit = None if timeout is None else time.monotonic() + timeout
    while newest_answer(Path(channel)) < sequence:
        if limit is not None and time.monotonic() >= limit:
            return False
        time.sleep(POLL_S)
    return True


def _wait_after_notice() -> None:
    """After a notice, wait until the save is durable: the script may exit right after it."""
    if interrupted():
        left_s = time_left()
        wait_durable(_PATIENCE_S if left_s is None else left_s)
