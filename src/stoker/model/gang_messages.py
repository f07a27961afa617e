"""Messages between the ranks of a gang. Each rank writes them into its heartbeat, and reads those of the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rendezvous:
    """The message of rank 0 to the others: all addresses, the checkpoint to restore, and when to start.

    A round is one proposal. When all ranks have acknowledged it, rank 0 repeats it with `go`.
    """

    round: int
    addresses: tuple[str, ...]
    port: int
    checkpoint: str | None = None
    go: bool = False
    # The names that the ranks call themselves; empty for a rank that can have none.
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ack:
    """A rank's answer to a round: it has restored and verified the proposed checkpoint, or could not."""

    round: int
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class SaveProposal:
    """Rank 0 asks the others to join a save of the watched folder. `token` identifies it; no other save has it.

    `quiet_s` is how long nothing had been written when it was made. With `ended` it is how long before the notice, or
    before the end of its training, rank 0 wrote last; negative if it wrote after the notice.
    """

    token: int
    quiet_s: float
    # The newest numbered name of each kind at the top of rank 0's folder, such as `epoch_2`.
    newest: tuple[str, ...] = ()
    # The token of rank 0's last save that others joined and that is committed.
    committed: int = 0
    # The training of rank 0 has ended: no answer is waited for.
    ended: bool = False


@dataclass(frozen=True)
class SaveAnswer:
    """A rank's answer to a proposal: it holds its part of the save, or it has no files of its own.

    The token 0 answers no proposal: the rank has got files, or its training has ended without any.
    """

    token: int
    saves: bool
