"""Agree with the other ranks on a checkpoint, and restore it."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.agent import job_folders
from stoker.agent.checkpoints.blobs import BlobSender
from stoker.agent.checkpoints.restore import find_candidates
from stoker.agent.checkpoints.restore_folder import RestoreFolder
from stoker.agent.checkpoints.resume_from import import_checkpoint, parse_source
from stoker.agent.phases.context import AttemptContext
from stoker.agent.rendezvous import GangRendezvous, RendezvousResult
from stoker.core.governor_settings import DEFAULT as SETTINGS
from stoker.core.poisoned_checkpoints import poisoned_checkpoints
from stoker.model.errors import SetupFailed, UserError
from stoker.model.job_state import JobState
from stoker.model.spec import Spec, master_port
from stoker.store.checkpoint_manifests import TrustedClaims, trusted_claims
from stoker.store.checkpoints import RestoreError


@dataclass(frozen=True)
class RestoreResult:
    """The agreement of all ranks, and which manifests of the job count."""

    rendezvous: RendezvousResult
    trust: TrustedClaims


def agree_and_restore(context: AttemptContext, state: JobState, spec: Spec) -> RestoreResult:
    """Restore the newest checkpoint that every rank can restore, or clear the folder if the job has none.

    Raises LeaveEarly, RestoreError, SetupFailed.
    """
    config = context.config
    claim = state.claim(config.claim)
    assert claim is not None
    trust = trusted_claims(state, own=claim.number, imported=spec.resume_from is not None)
    folder = RestoreFolder.open(context.paths, spec, config.job, job_folders.confinement(context.node, spec))
    gang = GangRendezvous(context.store, config.job, claim, config.rank, context.heartbeat, context.wait_for_others)
    address, host = context.node.machine.address(), context.setup_result.host

    def fetch(key: str) -> None:
        try:
            context.record.restored = context.leaving.ask_store(
                lambda: folder.restore(context.store, config.rank, key, trust, context.leaving.stop_if_left)
            )
        except RestoreError as error:
            context.node.say(f"checkpoint {key} cannot be restored: {error.reason}")
            raise

    if config.rank != 0:
        agreement = gang.follow(address, fetch, host)
    else:
        given_up = poisoned_checkpoints(state, SETTINGS)
        _import_checkpoint(context, spec.resume_from, trust)
        candidates = context.leaving.ask_store(
            lambda: find_candidates(context.store, config.job, given_up, state.chosen_checkpoint, trust=trust)
        )
        port = context.node.machine.master_port(master_port(spec))
        agreement = gang.lead(address, port, iter(candidates), fetch, host)
        if agreement.checkpoint in candidates:
            context.record.older_checkpoints = len(candidates) - candidates.index(agreement.checkpoint) - 1
    if agreement.checkpoint is None:
        context.record.restored = None
        context.leaving.ask_store(lambda: folder.clear(context.store))
    if folder.aside:
        context.node.say(f"{folder.aside_text}; nothing of it is deleted")
    return RestoreResult(agreement, trust)


def _import_checkpoint(context: AttemptContext, resume_from: str | None, trust: TrustedClaims) -> None:
    """Copy the checkpoint that the job's `resume_from` names into this job, unless the job has checkpoints."""
    source = parse_source(resume_from) if resume_from else None
    if source is None:
        return
    senders: dict[int, BlobSender] = {}
    try:
        context.leaving.ask_store(
            lambda: import_checkpoint(
                context.store,
                context.config.job,
                source,
                ordinal=context.config.claim,
                trust=trust,
                senders=senders,
                scratch=context.paths.root,
                check=context.leaving.stop_if_left,
            )
        )
    except UserError as error:
        raise SetupFailed(f"resume_from: {error}", user=True) from error
