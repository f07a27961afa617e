"""Why installers failed, out of what they printed: as uv, pip, conda, mamba, apt, git and curl do."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.environment.error_hints import InstallErrorCause, read_cause

# Each: `== kind: name`, what was printed, and behind an arrow what is told of it.
CASES = [case.strip("\n") for case in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("== ")[1:]]


@pytest.mark.parametrize("case", CASES, ids=[case.partition("\n")[0] for case in CASES])
def test_what_is_told_of_a_failure(case: str) -> None:
    head, *printed, told = case.split("\n")
    expected = InstallErrorCause(told.removeprefix("-> "), transient=head.startswith("no answer: "))
    assert told.startswith("-> ") and read_cause(printed) == expected


def test_nothing_was_printed() -> None:
    assert read_cause(["", " "]) == InstallErrorCause("")


def test_a_long_cause_is_cut_at_its_end() -> None:
    told = read_cause(["error: Couldn't parse requirement in `a.txt` at position 6", *["  cause: more"] * 200]).text
    assert told.startswith("Couldn't parse requirement in `a.txt` at position 6: more")
    assert told.endswith("…") and len(told) <= 500


def test_a_cause_that_just_fits_is_not_cut() -> None:
    fits = "error: " + "x" * 500
    assert read_cause([fits]).text == "x" * 500
    assert read_cause([f"{fits}x"]).text == "x" * 499 + "…"
