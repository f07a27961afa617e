"""The local provider keeps the contract of all providers."""

from __future__ import annotations

from collections.abc import Callable

import local_nodes
import pytest
from local_nodes import make_order

from stoker.providers.local.provider import LocalProvider
from stoker.providers.registry import Context
from stoker.testing.provider_contract import Connect, OrderFactory, ProviderContract

# Fixtures that all tests of nodes on this computer share.
way, home, acting = local_nodes.way, local_nodes.home, local_nodes.acting


class TestLocalContract(ProviderContract):
    @pytest.fixture
    def connect(self, way: str, acting: Callable[[str], None]) -> Connect:
        return lambda store: LocalProvider(Context(store))

    @pytest.fixture
    def order(self) -> OrderFactory:
        return lambda *, store, claim=1, nodes=1: make_order(store=store, claim=claim, nodes=nodes)
