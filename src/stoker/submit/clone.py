"""Prepare a clone: a new job with the code and the spec of another one, with changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stoker.core.policy_rules import names_submitters
from stoker.jobfile import assignments, resolve, spec_layer
from stoker.model.submission import Submission
from stoker.notifications import check_channels
from stoker.providers import registry
from stoker.store.base import Store
from stoker.submit.check_inputs import check_readable
from stoker.submit.choose_offerings import choose_offerings, connect, place_of
from stoker.submit.identity import with_submitter
from stoker.submit.local_environment import localise, store_environ
from stoker.submit.node_packages import architectures, pack_agents, pack_tools
from stoker.submit.prepare import plan_uploads
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.result_folders import check_result_folders
from stoker.submit.wheel_targets import reuse_wheels


def prepare_clone(origin: str, submission: Submission, store: Store, sets: Sequence[str] = ()) -> PreparedJob:
    """Prepare a new job like `origin`, whose submission this is. Use the result in a `with`.

    `sets` are as for `--set`. Code and wheels are those that the store already holds. Raises UserError for the first
    mistake.
    """
    layers = [spec_layer(submission.spec, origin), *([assignments(sets)] if sets else [])]
    resolved = resolve(layers, registry.capabilities)
    spec, submitter_doubts = with_submitter(resolved.spec, store)
    provider = connect(spec, store)
    spec = localise(spec, provider.capabilities, Path.cwd(), store)
    spec, uploads = plan_uploads(spec, provider, store.url, store)
    if provider.capabilities.runs_locally:
        check_readable(spec)
    check_result_folders(spec, provider.capabilities, None, store)
    choice = choose_offerings(spec, provider, store, freeze=False)
    bundles, missing_agents = pack_agents(provider, spec, choice.offerings)
    tools, _ = pack_tools(provider, spec, choice.offerings)
    return PreparedJob(
        spec=spec,
        capabilities=provider.capabilities,
        offerings=choice.offerings,
        all_offerings=choice.all_offerings,
        folder=Path.cwd(),
        warnings=(
            *resolved.warnings,
            *(submitter_doubts if names_submitters(choice.policy) else ()),
            *choice.check.warnings,
            *check_channels.address_warnings(spec.notify),
            *missing_agents,
        ),
        notes=choice.check.notes,
        limits=choice.check.limits,
        code=submission.code,
        environ=submission.environ if provider.capabilities.runs_locally else store_environ(store.url),
        bundles=bundles,
        tools=tools,
        uploads=uploads,
        wheels=reuse_wheels(
            spec, provider.capabilities, choice.offerings, partial(architectures, provider), submission.wheels
        ),
        place=place_of(provider),
        origin=origin,
    )
