"""The promises of every provider, as tests: inherit `ProviderContract`, supply two fixtures, run pytest.

    class TestMine(ProviderContract):
        @pytest.fixture
        def connect(self) -> Connect: ...    # connect(store) -> Provider, a new connection each time
        @pytest.fixture
        def order(self) -> OrderFactory: ... # order(store=…, claim=…, nodes=…) -> LaunchOrder

Machines that are launched from these orders must stay up until they are terminated. Stores are names only: nothing
is read from them. What is still there after a test is terminated by the suite, in the stores it used.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from stoker.model import codec
from stoker.model.errors import NotFound
from stoker.model.offerings import Instance, InstanceState
from stoker.providers.base import LaunchOrder, Provider, SupportsInterrupt, SupportsWakeup

Connect = Callable[[str], Provider]


class OrderFactory(Protocol):
    """Makes an order that the provider can fill."""

    def __call__(self, *, store: str, claim: int = 1, nodes: int = 1) -> LaunchOrder: ...


class ProviderContract:
    """The suite. Waits for conditions, up to `patience_s`; asserts nothing about how fast anything is."""

    patience_s = 60.0

    @pytest.fixture
    def store(self) -> str:
        """A store of this test alone."""
        return f"file:///contract/{uuid.uuid4().hex}"

    @pytest.fixture
    def provider(self, connect: Connect, store: str) -> Iterator[Provider]:
        provider = connect(store)
        yield provider
        self.clear(provider)

    def clear(self, provider: Provider) -> None:
        """End every machine of this provider's store."""
        for instance in provider.list_instances():
            self.end(provider, instance.id)

    def end(self, provider: Provider, instance: str) -> None:
        """Terminate, again and again, until it is gone."""
        self.until(lambda: provider.terminate(instance) == "gone", f"{instance} to be gone")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + self.patience_s
        while not holds():
            assert time.monotonic() < deadline, f"waited {self.patience_s:g} s for {what}"
            time.sleep(0.01)

    def until_state(self, provider: Provider, instance: str, state: InstanceState) -> None:
        """Wait for a machine to be in a state."""
        self.until(lambda: provider.state([instance])[instance] == state, f"{instance} to be {state}")

    def launch(self, provider: Provider, order: LaunchOrder) -> tuple[Instance, ...]:
        """Build and launch."""
        return provider.launch(provider.build(order))

    # ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_capabilities_fit_together(self, provider: Provider) -> None:
        what = provider.capabilities
        assert what.token_lifetime_s > what.boot_timeout_s > 0
        assert what.newborn_s > 0
        assert what.silence_s > 0
        assert what.interrupts == isinstance(provider, SupportsInterrupt)
        assert what.wakes == isinstance(provider, SupportsWakeup)

    def test_offerings_are_this_providers_and_cheapest_first(
        self, provider: Provider, order: OrderFactory, store: str
    ) -> None:
        found = provider.offerings(order(store=store).spec.resources)
        assert found
        assert {offering.provider for offering in found} == {provider.name}
        prices = [offering.price for offering in found if offering.price is not None]
        assert prices == sorted(prices)
        assert len({offering.key for offering in found}) == len(found)

    def test_build_is_pure(self, provider: Provider, connect: Connect, order: OrderFactory, store: str) -> None:
        asked = order(store=store, nodes=2)
        before = codec.dumps(asked)
        requests = provider.build(asked)
        assert requests
        assert provider.build(asked) == requests
        assert connect(store).build(order(store=store, nodes=2)) == requests
        assert codec.dumps(asked) == before
        # It is data: `--dry-run` prints it.
        assert json.loads(json.dumps(codec.dump(requests)))
        assert provider.list_instances() == ()

    # ── launching ────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_launch_makes_every_rank(self, provider: Provider, order: OrderFactory, store: str) -> None:
        asked = order(store=store, claim=3, nodes=2)
        made = self.launch(provider, asked)
        assert sorted(instance.rank for instance in made) == [0, 1]
        assert {(instance.job, instance.claim, instance.provider) for instance in made} == {
            (asked.job, 3, provider.name)
        }
        assert len({instance.id for instance in made}) == 2
        for instance in made:
            assert instance.created_at.tzinfo is not None
            self.until_state(provider, instance.id, "running")

    def test_launching_again_answers_the_same(
        self, provider: Provider, connect: Connect, order: OrderFactory, store: str
    ) -> None:
        asked = order(store=store, nodes=2)
        first = self.launch(provider, asked)
        again = self.launch(provider, asked)
        elsewhere = self.launch(connect(store), asked)
        assert _ids(first) == _ids(again) == _ids(elsewhere)
        assert _ids(provider.list_instances()) == _ids(first)

    def test_launching_from_many_at_once_makes_one_set(
        self, provider: Provider, connect: Connect, order: OrderFactory, store: str
    ) -> None:
        asked = order(store=store, nodes=2)
        together = threading.Barrier(8)
        answers: list[Any] = []

        def work() -> None:
            mine = connect(store)
            requests = mine.build(asked)
            together.wait()
            try:
                answers.append(_ids(mine.launch(requests)))
            except Exception as error:  # noqa: BLE001 - shown by the assertion below
                answers.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [answers[0]] * 8
        assert len(answers[0]) == 2
        assert _ids(provider.list_instances()) == answers[0]

    def test_another_claim_is_another_machine(self, provider: Provider, order: OrderFactory, store: str) -> None:
        (first,) = self.launch(provider, order(store=store, claim=1))
        (second,) = self.launch(provider, order(store=store, claim=2))
        assert first.id != second.id
        self.end(provider, first.id)
        assert provider.state([second.id])[second.id] != "gone"

    def test_a_token_never_makes_a_second_machine(self, provider: Provider, order: OrderFactory, store: str) -> None:
        asked = order(store=store)
        (made,) = self.launch(provider, asked)
        self.end(provider, made.id)
        again = self.launch(provider, asked)
        assert {instance.state for instance in again} <= {"gone"}
        assert provider.state([made.id])[made.id] == "gone"
        assert all(instance.state == "gone" for instance in provider.list_instances())

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_the_list_has_what_was_launched(
        self, provider: Provider, connect: Connect, order: OrderFactory, store: str
    ) -> None:
        made = self.launch(provider, order(store=store, claim=5, nodes=2))
        listed = connect(store).list_instances()
        assert {(each.id, each.job, each.claim, each.rank) for each in listed} == {
            (each.id, each.job, each.claim, each.rank) for each in made
        }
        # A cloud may stamp the request and its machine one after the other.
        born = {each.id: each.created_at for each in made}
        assert all(abs((each.created_at - born[each.id]).total_seconds()) < 60 for each in listed)

    def test_machines_of_another_store_are_not_seen(
        self, provider: Provider, connect: Connect, order: OrderFactory, store: str
    ) -> None:
        other = connect(store + "-other")
        try:
            (theirs,) = self.launch(other, order(store=store + "-other"))
            (mine,) = self.launch(provider, order(store=store))
            assert _ids(provider.list_instances()) == [mine.id]
            assert _ids(other.list_instances()) == [theirs.id]
        finally:
            self.clear(other)

    def test_what_was_never_there_is_gone(self, provider: Provider) -> None:
        states = provider.state(["never-there", "nor-this"])
        assert set(states) == {"never-there", "nor-this"}
        # An eventually consistent cloud cannot exclude for a moment that the instance exists.
        assert set(states.values()) in ({"gone"}, {"unheard-of"})
        assert provider.terminate("never-there") == "gone"
        assert provider.state([]) == {}

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_terminate_is_repeated_until_gone(self, provider: Provider, order: OrderFactory, store: str) -> None:
        (made,) = self.launch(provider, order(store=store))
        self.until_state(provider, made.id, "running")
        assert provider.terminate(made.id) in ("requested", "gone")
        self.end(provider, made.id)
        for _ in range(3):
            assert provider.state([made.id])[made.id] == "gone"
            assert provider.terminate(made.id) == "gone"

    def test_terminating_a_machine_that_is_only_starting(
        self, provider: Provider, order: OrderFactory, store: str
    ) -> None:
        (made,) = self.launch(provider, order(store=store))
        self.end(provider, made.id)
        assert provider.state([made.id])[made.id] == "gone"

    def test_ending_one_rank_leaves_the_others(self, provider: Provider, order: OrderFactory, store: str) -> None:
        first, second = self.launch(provider, order(store=store, nodes=2))
        self.end(provider, first.id)
        self.until_state(provider, second.id, "running")

    # ── what some can do ─────────────────────────────────────────────────────────────────────────────────────────────

    def test_an_interrupted_machine_is_taken_away(self, provider: Provider, order: OrderFactory, store: str) -> None:
        if not isinstance(provider, SupportsInterrupt):
            pytest.skip("this provider cannot rehearse a reclaim")
        (made,) = self.launch(provider, order(store=store))
        self.until_state(provider, made.id, "running")
        provider.interrupt(made.id, grace_s=0.2)
        self.until_state(provider, made.id, "gone")
        with pytest.raises(NotFound):
            provider.interrupt(made.id, grace_s=0.2)

    def test_waiting_ends_when_a_machine_does(self, provider: Provider, order: OrderFactory, store: str) -> None:
        if not isinstance(provider, SupportsWakeup):
            pytest.skip("this provider cannot wake anybody")
        (made,) = self.launch(provider, order(store=store))
        self.until_state(provider, made.id, "running")
        while provider.wait(0.0):
            pass
        assert not provider.wait(0.05)
        provider.terminate(made.id)
        assert provider.wait(self.patience_s)


def _ids(instances: tuple[Instance, ...]) -> list[str]:
    return sorted(instance.id for instance in instances)
