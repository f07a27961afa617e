"""Settings of decisions: the policy, and numbers with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.policy import NO_RULES, Policy


@dataclass(frozen=True)
class GovernorSettings:
    """The policy, and numbers that no policy sets."""

    policy: Policy = NO_RULES
    # Why the policy could not be read. Without a readable policy nothing is launched.
    policy_error: str = ""

    # Ranks that were asked to save (stop, drain, limit) get the job's `checkpoints.grace`, enforced by their agent, and
    # this much more to upload and leave by themselves, before their machine is terminated.
    leave_s: float = 30.0
    # Upper bound on the grace period that a node reports: no cloud gives more.
    longest_notice_s: float = 600.0
    # A node that waits longer than this to be allowed to train terminates itself.
    wait_limit_s: float = 900.0
    # An offering without capacity is avoided this long, doubled for each such answer in a row, up to the maximum.
    dry_first_s: float = 2.0
    dry_most_s: float = 300.0
    # Claims are launched at once. An older unlaunched claim was abandoned by its governor, and its budget is checked
    # again.
    unfinished_s: float = 60.0
    # A failure without progress within this training time is a start-up failure.
    startup_s: float = 60.0
    # A checkpoint is poisoned after this many failed attempts without progress from it. A single failure may be chance.
    poison_after: int = 2
    # After this many poisoned checkpoints the script itself is to blame.
    most_poisoned: int = 2
    # A checkpoint after this much training is progress, whatever its step.
    long_s: float = 3600.0
    # The job fails after this many attempts in a row without progress, so that it never loops.
    most_without_progress: int = 5
    # The same for reclaims, which say nothing about the job.
    most_reclaims_without_progress: int = 20
    # Warn if the checkpoint folder is still empty after this much training: most scripts have saved by then, perhaps
    # elsewhere, and little is lost by starting again with the right folder.
    empty_folder_s: float = 300.0
    # Warn if a spot job commits nothing for this long, whatever is in its folder.
    checkpoint_warning_s: float = 1800.0
    # Ranks of a stalled job get this long to collect evidence before they are asked to leave.
    evidence_s: float = 60.0
    # A marker is written moments before the entry that it announces. After this long the entry is not expected any
    # more; a writer that comes later nevertheless writes the marker again.
    announced_s: float = 3600.0
    # If more than this share of all nodes, and at least this many, are silent, the fault is assumed to be the
    # governor's.
    mass_silence_share: float = 0.5
    mass_silence_least: int = 3


DEFAULT = GovernorSettings()
