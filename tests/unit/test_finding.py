"""What people call a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import layout
from stoker.errors import UserError
from stoker.finding import choose_job, find_job, name_of
from stoker.store import open_store

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
    store.put(layout.log_entry("gpt-7f3k", 1), b"{}")
    store.put(layout.index("ghost-2222", 1), b"{}")
    assert find_job(store, "gpt") == "gpt-7f3k"
    with pytest.raises(UserError):
        find_job(store, "ghost")


def test_the_name_is_the_id_without_its_suffix() -> None:
    assert name_of("gpt-big-2222") == "gpt-big"


def test_of_namesakes_the_one_that_is_active_is_meant(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for job in ("gpt-big-2222", "gpt-big-3333", "gpt-big-more-4444"):
        store.put(layout.log_entry(job, 1), b"{}")
    store.put(layout.active("gpt-big-3333", 1), b"")
    assert find_job(store, "gpt-big") == "gpt-big-3333"
    store.put(layout.active("gpt-big-2222", 1), b"")
    with pytest.raises(UserError, match="could be any of 2 jobs"):
        find_job(store, "gpt-big")
