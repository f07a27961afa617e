"""What people call a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.model import keys
from stoker.model.errors import NoSuchJob, UserError
from stoker.store.base import open_store
from stoker.store.find_job import choose_job, find_job, find_jobs, looks_like_id, name_of

JOBS = ["gpt-7f3k", "gpt-big-2222", "gpt-big-3333", "vision-bbbb"]


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("gpt-7f3k", "gpt-7f3k"),
        ("gpt", "gpt-7f3k"),  # A whole name comes before the beginnings of others.
        ("gpt-7", "gpt-7f3k"),
        ("gpt-big-2", "gpt-big-2222"),
        ("vision", "vision-bbbb"),
        ("v", "vision-bbbb"),
    ],
)
def test_a_job_is_found_by_id_name_or_beginning(text: str, job: str) -> None:
    assert choose_job(text, JOBS) == job


def test_a_name_of_several_jobs_is_not_guessed() -> None:
    with pytest.raises(UserError) as caught:
        choose_job("gpt-big", JOBS)
    assert "gpt-big-2222, gpt-big-3333" in str(caught.value) and "gpt-7f3k" not in str(caught.value)


def test_of_many_candidates_only_some_are_named() -> None:
    with pytest.raises(UserError) as caught:
        choose_job("a", [f"a{number}-bbbb" for number in range(30)])
    assert "any of 30 jobs" in str(caught.value) and str(caught.value).count("-bbbb") == 5


def test_a_mistyped_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean vision-bbbb\?"):
        choose_job("vison", JOBS)
    with pytest.raises(UserError, match="stoker run"):
        choose_job("anything", [])


@pytest.mark.parametrize("text", ["", " ", "../jobs", "a/b", "\0"])
def test_what_cannot_be_an_id_is_only_not_found(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        find_job(open_store(str(tmp_path)), text)


def test_a_job_is_found_without_any_index(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(keys.log_entry("gpt-7f3k", 1), b"{}")
    store.put(keys.index("ghost-2222", 1), b"{}")
    assert find_job(store, "gpt") == "gpt-7f3k"
    with pytest.raises(UserError):
        find_job(store, "ghost")


def test_the_name_is_the_id_without_its_suffix() -> None:
    assert name_of("gpt-big-2222") == "gpt-big"


def test_of_namesakes_the_one_that_is_active_is_meant(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for job in ("gpt-big-2222", "gpt-big-3333", "gpt-big-more-4444"):
        store.put(keys.log_entry(job, 1), b"{}")
    store.put(keys.active("gpt-big-3333", 1), b"")
    told: list[str] = []
    assert find_job(store, "gpt-big", told.append) == find_job(store, "gpt-big") == "gpt-big-3333"
    assert told == ["gpt-big-3333 is taken: of 2 jobs called gpt-big, only this one is active"]
    assert find_job(store, "gpt-big-m", told.append) == "gpt-big-more-4444" and len(told) == 1
    store.put(keys.active("gpt-big-2222", 1), b"")
    with pytest.raises(UserError, match="could be any of 2 jobs"):
        find_job(store, "gpt-big")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("gpt-7f3k", True),
        ("gpt-big-2222", True),
        ("gpt-7f3", False),
        ("gpt-7f3kk", False),
        ("gpt-7f3a", False),
        ("-7f3k", False),
        ("7f3k", False),
    ],
)
def test_what_can_be_an_id(text: str, is_one: bool) -> None:
    assert looks_like_id(text) is is_one


@pytest.mark.parametrize(("job", "name"), [("a-bbbb", "a"), ("-bbbb", "-bbbb"), ("bbb", "bbb")])
def test_what_is_too_short_for_an_id_is_its_own_name(job: str, name: str) -> None:
    assert name_of(job) == name


@pytest.mark.parametrize(("many", "told"), [(5, "a4-bbbb;"), (6, "a4-bbbb, …;")])
def test_more_candidates_than_are_named_are_told_of(many: int, told: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_job("a", [f"a{number}-bbbb" for number in range(many)])
    assert told in str(caught.value)


def test_a_name_that_resembles_nothing_is_told_where_all_are_listed() -> None:
    with pytest.raises(NoSuchJob, match="there is no job 'xyz'; `stoker ps --all` lists them"):
        choose_job("xyz", JOBS)
    with pytest.raises(UserError, match=r"^name a job: its id, a unique beginning"):
        choose_job("", JOBS)


def test_several_jobs_are_found_by_name_or_pattern(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for job in (*JOBS, "half-bbbb"):
        store.put(keys.log_entry(job, 1), b"{}")
    store.put(keys.removed("half-bbbb"), b"")
    assert find_jobs(store, " gpt-big ") == ["gpt-big-2222", "gpt-big-3333"]
    assert find_jobs(store, "gpt*") == ["gpt-7f3k", "gpt-big-2222", "gpt-big-3333"]
    assert find_jobs(store, "gpt-big-[2]222") == ["gpt-big-2222"]
    assert find_jobs(store, "vis?on") == ["vision-bbbb"]
    assert find_jobs(store, "gpt-7f3k") == ["gpt-7f3k"]
    assert find_jobs(store, "v") == ["vision-bbbb"]
    assert find_jobs(store, "half-bbbb") == ["half-bbbb"], "what is left of it can be asked for by its whole id"
    with pytest.raises(NoSuchJob, match=r"no job fits the pattern 'half\*'; `stoker ps --all` lists them"):
        find_jobs(store, "half*")
    with pytest.raises(UserError, match="could be any of 3 jobs"):
        find_jobs(store, "gpt-")


def test_a_job_whose_log_is_gone_is_found_by_its_whole_id(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(keys.spec("half-bbbb"), b"{}")
    assert find_job(store, "half-bbbb") == "half-bbbb"
