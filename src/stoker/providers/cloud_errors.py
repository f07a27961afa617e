"""Parts of mapping a cloud's errors to `stoker.model.errors`, shared by the modules `errors` of the providers."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.errors import ProviderError


def by_code(table: Mapping[type[ProviderError], tuple[str, ...]]) -> dict[str, type[ProviderError]]:
    """Turn a table of the codes of each error into one of the error of each code."""
    return {code: kind for kind, codes in table.items() for code in codes}


def first_line(error: object) -> str:
    """The first line of an error's message, at most 400 characters."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]
