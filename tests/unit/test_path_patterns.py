"""Folders and patterns for outputs and checkpoints."""

from __future__ import annotations

import pytest

from stoker.model.path_patterns import PathFilter, below, common_base, entries_of, is_pattern


@pytest.mark.parametrize(
    ("written", "path", "taken"),
    [
        ("artifacts", "artifacts/a/b", True),
        ("./artifacts/", "artifacts/a", True),
        ("artifacts", "artifacts-of-mine/a", False),
        (".", "any/thing", True),
        ("*.png", "a.png", True),
        ("*.png", "deep/a.png", False),
        ("**/*.png", "a.png", True),
        ("**/*.png", "very/deep/a.png", True),
        ("runs/**", "runs/a/b", True),
        ("runs/*", "runs/a/b/c", True),
        ("runs/?", "runs/ab", False),
        ("out/[a-c].pt", "out/b.pt", True),
        ("out/model.pt", "out/model.pt", True),
        ([".", "!cache"], "cache/x", False),
        ([".", "!cache", "cache/keep"], "cache/keep/x", True),
        (["!**", "artifacts"], "other/x", False),
        (["!**", "artifacts"], "artifacts/x", True),
    ],
)
def test_what_a_pattern_takes(written: str | list[str], path: str, taken: bool) -> None:
    assert PathFilter(entries_of(written)).takes(path) is taken


@pytest.mark.parametrize(
    ("written", "base"),
    [
        ("checkpoints", "checkpoints"),
        (".", "."),
        ("out/*.pt", "out"),
        ("*.pt", "."),
        ("out/model.pt", "out"),
        ("model.pt", "."),
        ("/data/saves/*.pt", "/data/saves"),
        (["a/b", "a/c/*.x"], "a"),
        (["a", "b"], "."),
        (["out", "!out/tmp"], "out"),
    ],
)
def test_the_folder_that_holds_everything(written: str | list[str], base: str) -> None:
    assert common_base(entries_of(written)) == base


def test_patterns_as_seen_from_their_folder() -> None:
    assert below(("out/*.pt", "!out/old.pt"), "out") == ("*.pt", "!old.pt")
    assert below(("checkpoints",), "checkpoints") == (".",)
    assert below(("/data/a/*.pt",), "/data/a") == ("*.pt",)


def test_names_of_folders_and_of_files() -> None:
    assert not any(map(is_pattern, ("checkpoints", "run.v1", "/data/x", ".", "lightning.saves")))
    assert all(map(is_pattern, ("model.pt", "out/log.csv", "*.x", "a?", "!a")))


def test_a_pattern_that_would_backtrack_for_ever_ends() -> None:
    pattern = PathFilter(("/".join(["**", "*a*a*a*a*a*a*a*b"] * 8),))
    assert not pattern.takes("/".join(["a" * 200] * 40))
