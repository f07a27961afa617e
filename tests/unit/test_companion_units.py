"""Which folders belong to the same saves: by the order in which a program begins to write them."""

from __future__ import annotations

import pytest

from stoker.agent.checkpoints import save_cycles
from stoker.agent.checkpoints.companion_units import CompanionUnits
from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.save_cycles import SaveCycles


def begun(words: str, every_s: float = 1.0) -> CompanionUnits:
    units = CompanionUnits()
    for nth, unit in enumerate(words.split(), 1):
        units.note(unit, int(nth * every_s * 1e9))
    return units


@pytest.mark.parametrize(
    ("words", "of_a", "still"),
    [
        ("a", set(), None),
        ("a b", set(), None),
        # The second save has begun: its other folder is still to come.
        ("a b a", {"b"}, "b"),
        ("a b a b", {"b"}, None),
        ("a b c a", {"b", "c"}, "b"),
        ("a b c a b", {"b", "c"}, "c"),
        ("a b c a b c", {"b", "c"}, None),
        # One of them is written in some saves only, or at times of its own.
        ("a b a a", set(), None),
        ("a b b a b", set(), None),
        ("a a a b a", set(), None),
        # It was not in the first saves, and then in all.
        ("a a b a b a b a b a", {"b"}, "b"),
        # What a third one does makes no difference.
        ("a x b x x a x", {"b"}, "b"),
    ],
)
def test_folders_that_are_begun_in_turn_are_one_save(words: str, of_a: set[str], still: str | None) -> None:
    units = begun(words)
    assert units.of("a") == of_a
    assert units.still_to_come("a") == still


def test_companions_are_found_and_given_up_as_the_program_goes_on() -> None:
    units = begun("a b")
    assert units.of("a") == set()
    units.note("a", 3)
    assert units.of("a") == {"b"}
    units.note("a", 4)
    assert units.of("a") == set(), "b is written in some saves only"


def test_the_one_that_is_still_to_come_is_of_the_save_before() -> None:
    units = begun("a b a")
    assert units.of("b") == {"a"} and units.still_to_come("b") is None
    assert units.begun() == {"a": 2, "b": 1}


@pytest.mark.parametrize("words", ["a b a", "a b a b", "a a b a b a b a b"])
def test_states_of_two_units_are_of_one_save_or_not(words: str) -> None:
    units = begun(words)
    ahead = 1 if words.startswith("a a") else 0
    assert units.is_one_save("a", 1 + ahead, "b", 1) and units.is_one_save("b", 1, "a", 1 + ahead)
    assert not units.is_one_save("a", 2 + ahead, "b", 1) and not units.is_one_save("b", 2, "a", 1 + ahead)
    assert not units.is_one_save("a", None, "b", 1) and not units.is_one_save("a", 1 + ahead, "b", None)


def test_the_units_of_an_earlier_attempt_are_known_before_the_first_save() -> None:
    units = CompanionUnits()
    units.expect(["a", "b", "b", "a"])
    assert units.of("a") == {"b"} and units.still_to_come("a") is None
    units.note("a", 1)
    assert units.still_to_come("a") == "b"


def test_a_pause_is_from_one_unit_to_the_next_of_the_same_save() -> None:
    units = CompanionUnits()
    units.expect(["a", "b"])
    for unit, at_s in (("a", 10), ("b", 13), ("a", 100), ("b", 107)):
        units.note(unit, at_s * 10**9)
    assert units.longest_pause_s("a") == units.longest_pause_s("b") == 7
    assert units.longest_pause_s("unheard-of") == 0


def test_more_units_than_any_save_has_are_not_compared() -> None:
    units = begun(" ".join(f"sample{n}" for n in range(1000)))
    for unit in ("sample0", "sample999", "sample0"):
        units.note(unit, 1)
    assert units.of("sample0") == units.of("sample999") == set()


@pytest.mark.parametrize("name", ["step-001/f{:05}", "model/expert{:05}", "f{:05}.pt", "ckpt_{}"])
def test_a_save_of_many_files_takes_time_in_proportion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    role_of = save_cycles.role_of

    def counted(path: str) -> str:
        nonlocal calls
        calls += 1
        return role_of(path)

    monkeypatch.setattr(save_cycles, "role_of", counted)
    cycles = SaveCycles()
    cycles.note({}, (), lambda _path: False)
    count = 3000
    for second in (1, 2):
        stamps = range(second * 10**12, second * 10**12 + count)
        files = {
            name.format(n): File(name.format(n), Signature(1, n, 10, stamp, stamp), 0o644)
            for n, stamp in enumerate(stamps)
        }
        cycles.note(files, (), lambda _path: False)
    assert calls < 40 * count
