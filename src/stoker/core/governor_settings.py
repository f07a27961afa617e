"""What decisions rest on: the rules of the house, and numbers that each carry their reason."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.policy import NO_RULES, House


@dataclass(frozen=True)
class Policy:
    """The rules of the house, and the numbers that it has not set."""

    house: House = NO_RULES
    # Why the rules of the house could not be read. What nobody could hold a job against never causes a launch.
    unread: str = ""

    # Ranks that were asked to save (stop, drain, limit) have the job's `checkpoints.grace`, which their agent keeps,
    # and this much more to make it durable and leave by themselves, before their machine is ended.
    leave_s: float = 30.0
    # A notice is told by the node: a grace that no cloud gives is not believed.
    longest_notice_s: float = 600.0
    # A node that waits longer than this to be allowed to train gives itself back.
    wait_limit_s: float = 900.0
    # A dry offering is left alone this long, doubled for each dry one in a row, up to the most.
    dry_first_s: float = 2.0
    dry_most_s: float = 300.0
    # A claim is launched at once. One that has waited for so long was left behind, and may find its budget spent.
    unfinished_s: float = 60.0
    # Failures before a step or a checkpoint was made are start-up failures while younger than this.
    startup_s: float = 60.0
    # A checkpoint on which this many attempts failed, and from which none got further, is poisoned. Once may be chance.
    poison_after: int = 2
    # How many checkpoints may be given up on before the script itself is to blame.
    most_poisoned: int = 2
    # A checkpoint after so much training is progress, whatever its step.
    long_s: float = 3600.0
    # Attempts in a row that end without progress before the job fails: never loop.
    most_without_progress: int = 5
    # The same for reclaims, which say nothing about the job.
    most_reclaims_without_progress: int = 20
    # A job whose checkpoint folder is still empty after so much training is warned about: most scripts have saved once
    # by then, or saved elsewhere, and little is lost by starting again with the right folder.
    empty_folder_s: float = 300.0
    # A spot job that commits nothing for so long, whatever is in its folder, is warned about.
    checkpoint_warning_s: float = 1800.0
    # Ranks that are to be asked to leave for standing still get this long to collect what they were doing.
    evidence_s: float = 60.0
    # A marker comes moments before the entry that it announces. One that has waited this long announces nothing, and
    # whoever comes later all the same puts it back.
    announced_s: float = 3600.0
    # Silence of more than this share of all nodes, and of at least so many, is our blindness, not their death.
    mass_silence_share: float = 0.5
    mass_silence_least: int = 3


DEFAULT = Policy()
