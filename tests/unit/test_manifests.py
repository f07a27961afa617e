"""Tests of what is believed of manifests, and of what is read of them."""

from __future__ import annotations

import pytest

from stoker.store.checkpoint_manifests import EVERYTHING, MAX_ORDINAL, NOTHING, Place, Trust

TWO_AND_ONE = {1: 2, 3: 1}


@pytest.mark.parametrize(
    ("trust", "claim", "rank", "believed"),
    [
        (EVERYTHING, 9, 99, True),
        (EVERYTHING, 0, 99, True),
        (NOTHING, 1, 0, False),
        (NOTHING, 0, 0, False),
        (Trust(TWO_AND_ONE), 1, 1, True),
        (Trust(TWO_AND_ONE), 1, 2, False),
        (Trust(TWO_AND_ONE), 2, 0, False),
        (Trust(TWO_AND_ONE), 3, 0, True),
        (Trust(TWO_AND_ONE), 3, 1, False),
        # Imported from elsewhere, where that was asked for.
        (Trust(TWO_AND_ONE), 0, 5, True),
        (Trust(TWO_AND_ONE, imported=False), 0, 0, False),
        (Trust(TWO_AND_ONE, imported=False), 1, 0, True),
    ],
)
def test_the_ranks_of_claims_in_the_log_are_believed(trust: Trust, claim: int, rank: int, believed: bool) -> None:
    assert trust.believes(Place(claim, 1, "a", rank)) is believed
    assert trust.believes(Place(claim, MAX_ORDINAL, "a", rank)) is believed
    assert trust.believes(Place(claim, MAX_ORDINAL + 1, "a", rank)) is False
