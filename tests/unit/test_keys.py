"""The keys of the bucket."""

from __future__ import annotations

from stoker.model import keys


def test_every_prefix_is_known_as_the_stores_own() -> None:
    """A copy of checkpoints may lie beside them in the bucket, and nowhere below them."""
    prefixes = {
        name: value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, str) and value.endswith("/") and name != "UNFINISHED"
    }
    assert len(prefixes) > 20
    assert {name for name, value in prefixes.items() if value.partition("/")[0] not in keys.ROOTS} == set()
