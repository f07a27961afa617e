"""Resume an ended job: choose the checkpoint, check the policy again, and record the request."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.governor_settings import DEFAULT
from stoker.core.poisoned_checkpoints import PoisonedCheckpoints, poisoned_checkpoints
from stoker.governor.price_keeper import bring_prices
from stoker.model import keys
from stoker.model.errors import ProviderError, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Event, ResumeAsked
from stoker.model.offerings import Offering
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.store.checkpoint_refs import candidates, describe, resolve
from stoker.store.checkpoints import Checkpoint, list_checkpoints
from stoker.submit.choose_offerings import connect, fitting_offerings
from stoker.submit.identity import user_at_host
from stoker.submit.policy_check import check_policy, check_used_limits, policy_limits, read_policy
from stoker.submit.submitted_state import read_state, require_state

_MOST_NAMED = 5


@dataclass(frozen=True)
class ResumePlan:
    """The state before the resumption, and the checkpoint to continue from.

    `key` and `title` are those of a checkpoint that a person chose; `messages` are for that person.
    """

    state: JobState
    key: str | None
    title: str
    messages: tuple[str, ...]


def prepare_resume(job: str, store: Store, checkpoint: str | None = None) -> ResumePlan:
    """Do everything of a resumption that comes before the first write.

    Raises UserError when the job is active, being removed or succeeded, when its code or the checkpoint is missing,
    and when the policy refuses the job now.
    """
    state = read_state(store, job)
    _check_resumable(state, checkpoint)
    code = job_index.read_submission(store, state).code if state.code_digest is not None else None
    if code is not None and store.head(keys.code(keys.shared_name(code.digest, code.generation))) is None:
        raise UserError(f"{job}: its code is not in the store any more; submit it again from the folder")
    plan = plan_resume(store, state, checkpoint)
    _check_policy_again(store, state)
    return plan


def ask_to_resume(plan: ResumePlan, store: Store) -> None:
    """Record that the job continues. The caller ensures that a governor acts on it."""
    me, job = user_at_host(), plan.state.job

    def wanted(newest: JobState | None) -> tuple[Event, str] | None:
        # Another person may have resumed the job since the plan was made.
        _check_resumable(require_state(job, newest))
        if plan.key is None:
            return ResumeAsked(by=me), f"resumed by {me}"
        return ResumeAsked(by=me, checkpoint=plan.key), f"resumed by {me} from checkpoint {plan.title}"

    announcements: list[str] = []

    def announce(seq: int) -> None:
        announcements.append(keys.announcement(job, seq, job_log.new_token()))
        store.put(announcements[-1], b"")

    # Announced before the entry is written: an open job that no governor looks at would wait for ever.
    after = job_log.append_next(store, job, plan.state, wanted, me, before=announce)
    # Create-if-absent does not remember: the number may have been free because the job was removed meanwhile.
    if job_log.is_removed(store, job):
        raise UserError(f"{job} was removed meanwhile")
    # Announcements are deleted after a while; the marker of an entry that is in the log stays.
    if after is not None and after.ended is None:
        store.put(keys.active(job, after.opened_seq), b"")
        store.delete(announcements)


def _check_resumable(state: JobState, checkpoint: str | None = None) -> None:
    if state.removal_at is not None:
        raise UserError(f"{state.job} is being removed; `stoker rm {state.job}` finishes that")
    if state.ended is None:
        raise UserError(f"{state.job} has not ended; `stoker logs -f {state.job}` follows it")
    if state.ended.outcome == "succeeded":
        again = f"`stoker clone {state.job}` starts a new job like it"
        source = state.job if checkpoint is None else f"{state.job}:{checkpoint}"
        which = "its last checkpoint" if checkpoint is None else "that checkpoint"
        further = f"with `--set resume_from={source}`, from {which}"
        raise UserError(f"{state.job} has succeeded; {again}, {further}")


def _check_policy_again(store: Store, state: JobState) -> None:
    """Raise UserError where the policy refuses the job now: it would end as soon as it is opened."""
    policy = read_policy(store)
    if not policy.rules:
        return
    spec = job_index.read_submission(store, state).spec
    fitting: tuple[Offering, ...] = ()
    # The governor reports tables that cannot be used.
    bring_prices(store, spec.resources.provider)
    try:
        provider = connect(spec, store)
        offered = offerings_in_regions(provider, spec.resources).offerings
    except (ProviderError, UserError):
        pass  # The governor finds out which machines are offered; the other rules need no answer of a cloud.
    else:
        fitting = fitting_offerings(policy_limits(policy, spec, state.job), provider, offered)
    check_used_limits(policy, spec, state, fitting)
    check_policy(policy, spec, fitting, store, state.job)


# ── The checkpoint ────────────────────────────────────────────────────────────────────────────────────────────────────


def plan_resume(store: Store, state: JobState, text: str | None) -> ResumePlan:
    """Choose the checkpoint to continue from: the one that `text` names, else the newest that is usable.

    Raises UserError where `text` names no checkpoint, or attempts failed on every one.
    """
    listed = list_checkpoints(store, state.job)
    poisoned = poisoned_checkpoints(state, DEFAULT)
    if text is not None:
        return _plan_chosen(listed, poisoned, state, text)
    complete = [one for one in listed if one.complete]
    found = candidates(listed, poisoned, state.chosen_checkpoint)
    if found:
        newer = [one for one in complete if one.place > found[0].place and poisoned.covers(one.key)]
        messages = [f"it goes on from {describe(found[0], state)}"]
        if newer:
            messages.append(
                f"passed over: {_newest_names(newer, state)}: attempts failed there; --checkpoint REF takes one anyway"
            )
        return ResumePlan(state, None, "", tuple(messages))
    if complete:
        why = (
            "the chosen checkpoint is gone"
            if state.chosen_checkpoint is not None
            else "attempts failed on every checkpoint"
        )
        advice = f"choose one with --checkpoint REF, or start anew with `stoker clone {state.job}`"
        raise UserError(f"{state.job}: {why}; it has {_newest_names(complete, state)}; {advice}")
    why = "no checkpoint was committed by all ranks" if listed else "there is no checkpoint"
    return ResumePlan(state, None, "", (f"it starts from the beginning: {why}",))


def _plan_chosen(listed: list[Checkpoint], poisoned: PoisonedCheckpoints, state: JobState, text: str) -> ResumePlan:
    chosen = resolve(listed, text, state, state.job)
    one, title = chosen.checkpoint, describe(chosen.checkpoint, state)
    messages = [chosen.note] if chosen.note else []
    messages.append(f"it goes on from {title}" + (", on which attempts failed" if poisoned.covers(one.key) else ""))
    newer = [other for other in listed if other.complete and other.place > one.place]
    if newer:
        messages.append(f"left aside: {_newest_names(newer, state)}")
    return ResumePlan(state, one.key, title, tuple(messages))


def _newest_names(checkpoints: list[Checkpoint], state: JobState) -> str:
    newest = [describe(one, state) for one in checkpoints[::-1]]
    more = f" and {len(newest) - _MOST_NAMED} more" if len(newest) > _MOST_NAMED else ""
    return ", ".join(newest[:_MOST_NAMED]) + more
