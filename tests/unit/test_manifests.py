"""Tests of what is believed of manifests, and of what is read of them."""

from __future__ import annotations

import pytest

from stoker.store.checkpoint_manifests import MAX_ORDINAL, TRUST_ALL, TRUST_NONE, ManifestKey, TrustedClaims

TWO_AND_ONE = {1: 2, 3: 1}


@pytest.mark.parametrize(
    ("trust", "claim", "rank", "believed"),
    [
        (TRUST_ALL, 9, 99, True),
        (TRUST_ALL, 0, 99, True),
        (TRUST_NONE, 1, 0, False),
        (TRUST_NONE, 0, 0, False),
        (TrustedClaims(TWO_AND_ONE), 1, 1, True),
        (TrustedClaims(TWO_AND_ONE), 1, 2, False),
        (TrustedClaims(TWO_AND_ONE), 2, 0, False),
        (TrustedClaims(TWO_AND_ONE), 3, 0, True),
        (TrustedClaims(TWO_AND_ONE), 3, 1, False),
        # Imported from elsewhere, where that was asked for.
        (TrustedClaims(TWO_AND_ONE), 0, 5, True),
        (TrustedClaims(TWO_AND_ONE, imported=False), 0, 0, False),
        (TrustedClaims(TWO_AND_ONE, imported=False), 1, 0, True),
    ],
)
def test_the_ranks_of_claims_in_the_log_are_believed(
    trust: TrustedClaims, claim: int, rank: int, believed: bool
) -> None:
    assert trust.trusts(ManifestKey(claim, 1, "a", rank)) is believed
    assert trust.trusts(ManifestKey(claim, MAX_ORDINAL, "a", rank)) is believed
    assert trust.trusts(ManifestKey(claim, MAX_ORDINAL + 1, "a", rank)) is False
