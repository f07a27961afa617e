"""Nodes on this computer get notice, from a person or from the simulated market, and are taken away in time."""

from __future__ import annotations

import json
from dataclasses import replace

import local_nodes
import pytest
from local_nodes import STORE, folder_of, launch, make_order, process_of, reason_of, until, until_gone

from stoker.model.errors import InvalidRequest, NotFound
from stoker.model.resources import LocalResources
from stoker.providers.local.machine import LocalMachine
from stoker.providers.local.provider import LocalProvider

# Fixtures that all tests of nodes on this computer share.
way, home, acting, provider = local_nodes.way, local_nodes.home, local_nodes.acting, local_nodes.provider


class TestNotices:
    def test_a_notice_reaches_the_agents_side_and_its_deadline_is_hard(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        agent = process_of(node, "agent")
        machine = LocalMachine(node.path)
        assert machine.notice() is None
        provider.interrupt(instance.id, 2.0)
        until(lambda: machine.notice() is not None, "the notice")
        notice = machine.notice()
        assert notice is not None
        assert notice.hard
        assert notice.source == "stoker interrupt"
        assert 0.0 <= notice.grace_s <= 2.0
        assert machine.notice() is notice  # Not read again, and not changed.
        until_gone(provider, instance)
        assert not agent.alive
        assert reason_of(node) == "reclaimed"

    def test_a_second_notice_can_only_be_sooner(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        provider.interrupt(instance.id, 600.0)
        until(node.notice.exists, "the notice")
        provider.interrupt(instance.id, 3600.0)
        until(lambda: not node.interrupt.exists(), "the second notice to be taken")
        assert json.loads(node.notice.read_text())["grace_s"] == 600.0
        machine = LocalMachine(node.path)
        first = machine.notice()
        assert first is not None
        provider.interrupt(instance.id, 0.2)
        until_gone(provider, instance)
        sooner = machine.notice()
        assert sooner is not None
        assert sooner.grace_s < first.grace_s

    def test_a_notice_before_the_node_is_up_is_given(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        provider.interrupt(instance.id, 0.2)
        until_gone(provider, instance)
        assert reason_of(folder_of(provider, instance)) == "reclaimed"

    def test_impossible_notices(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        with pytest.raises(InvalidRequest):
            provider.interrupt(instance.id, -1.0)
        with pytest.raises(NotFound):
            provider.interrupt("never-there", 1.0)

    def test_the_market_takes_spot_nodes_back(self, provider: LocalProvider) -> None:
        market = LocalResources(reclaim_mean_s=0.1, grace_s=0.1)
        (instance,) = launch(provider, make_order(store=STORE, spot=True, local=market))
        until_gone(provider, instance)
        node = folder_of(provider, instance)
        assert reason_of(node) == "reclaimed"
        assert json.loads(node.notice.read_text())["source"] == "the simulated spot market"

    def test_the_market_repeats_itself(self, provider: LocalProvider) -> None:
        def drawn(*, spot: bool = True, attempt: int = 1, seed: int = 7, job: str = "job-1") -> list[float | None]:
            market = LocalResources(reclaim_mean_s=30.0, seed=seed)
            order = make_order(store=STORE, nodes=3, spot=spot, local=market)
            order = replace(order, attempt=attempt, job=job)
            return [request.params.get("reclaim_after_s") for request in provider.build(order)]

        # Another job of the same name is another rehearsal of the same piece.
        assert drawn() == drawn(job="job-2")
        assert len({*drawn(), *drawn(attempt=2), *drawn(seed=8)}) == 9
        assert drawn(spot=False) == [None, None, None]
