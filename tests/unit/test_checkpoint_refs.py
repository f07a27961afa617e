"""Checkpoints that share a name are told apart, chosen, and passed over where attempts failed on them."""

from __future__ import annotations

import importlib
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from stoker import client
from stoker.agent.checkpoints.restore import find_candidates
from stoker.cli import cli
from stoker.cli.completers import complete_checkpoint
from stoker.cli.resume import command as resume_command
from stoker.core.governor_settings import DEFAULT
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints, poisoned_checkpoints
from stoker.governor.background import GovernorChoice
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import ChosenCheckpoint, JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record, ResumeAsked
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.checkpoint_manifests import encode
from stoker.store.checkpoint_refs import candidates, completions, matching, reference, resolve
from stoker.store.checkpoints import Checkpoint, Manifest, ManifestKey, RestoreError
from stoker.submit.resume import ask_to_resume, prepare_resume
from tests.support.sim_data import SPOT_A, make_state, nodes


def checkpoint(claim: int, ordinal: int, name: str = "ckpt", step: int | None = None, whole: bool = True) -> Checkpoint:
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    manifest = Manifest(name, "job-1", claim, 0, ordinal, moment, (), step=step)
    place = ManifestKey(claim, ordinal, name, 0)
    return Checkpoint(place.key, place, {0: manifest}, whole, moment)


# Claim 2 is the first attempt, claim 4 never got a machine, claim 6 is the second attempt.
STATE = make_state(
    Claimed(SPOT_A, 1),
    Launched(2, nodes(2)),
    Claimed(SPOT_A, 1),
    Closed(4, "dry", "no-capacity"),
    Claimed(SPOT_A, 1),
    Launched(6, nodes(6)),
)
ONE, TWO, THREE = checkpoint(2, 1, step=10), checkpoint(2, 2, step=20), checkpoint(6, 1, step=30)
BEST = checkpoint(6, 2, "best", step=25)
ALL = [ONE, TWO, THREE, BEST]


def test_three_of_one_name_have_references_of_their_own() -> None:
    assert [reference(one.place, STATE) for one in ALL] == ["1.1", "1.2", "2.1", "2.2"]
    assert [resolve(ALL, f"1.{n}", STATE, "job-1").checkpoint for n in (1, 2)] == [ONE, TWO]
    assert resolve(ALL, "02.000001", STATE, "job-1").checkpoint == THREE
    assert resolve(ALL, ONE.key, STATE, "job-1").checkpoint == ONE
    assert resolve(ALL, "@2.2", None, "job-1").checkpoint == TWO
    assert reference(ManifestKey(0, 0, "x", 0), STATE) == "0.0"
    assert reference(ManifestKey(99, 3, "x", 0), STATE) == "@99.3", "of a claim that the log does not have"


def test_a_name_means_the_newest_and_says_so() -> None:
    chosen = resolve(ALL, "ckpt", STATE, "job-1")
    assert (chosen.checkpoint, chosen.reference) == (THREE, "2.1")
    assert chosen.note == "3 checkpoints are called ckpt: 2.1 is the newest of them (the others are 1.2, 1.1)"
    assert resolve(ALL, "best", STATE, "job-1").note == ""
    assert resolve(ALL, None, STATE, "job-1").checkpoint == BEST


def test_a_reference_wins_over_a_name_that_looks_like_one() -> None:
    odd = [*ALL, checkpoint(6, 3, "1.1"), checkpoint(6, 4, "9.9")]
    assert resolve(odd, "1.1", STATE, "job-1").checkpoint == ONE
    assert resolve(odd, "9.9", STATE, "job-1").reference == "2.4"
    assert resolve(odd, "2.3", STATE, "job-1").checkpoint.name == "1.1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1.9", "job-1 has no checkpoint '1.9'; the nearest are 1."),
        ("bset", "the nearest is 2.2 (best, step 25)"),
        ("zzzz", "it has 2.2 (best, step 25), 2.1 (ckpt, step 30), 1.2 (ckpt, step 20), 1.1 (ckpt, step 10)"),
        ("", "it has 2.2"),
    ],
)
def test_a_wrong_reference_gets_one_line_with_the_nearest(text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(ALL, text, STATE, "job-1")
    assert told in str(error.value) and "\n" not in str(error.value)


def test_what_is_incomplete_is_never_chosen() -> None:
    part = checkpoint(6, 3, "ckpt", whole=False)
    assert resolve([*ALL, part], "ckpt", STATE, "job-1").checkpoint == THREE
    with pytest.raises(UserError, match=r"2\.3 is not complete"):
        resolve([*ALL, part], "2.3", STATE, "job-1")
    with pytest.raises(UserError, match="has no checkpoint"):
        resolve([], "2.3", STATE, "job-1")
    with pytest.raises(UserError, match="has no checkpoint that can be restored; `stoker checkpoints job-1` says why"):
        resolve([part], None, STATE, "job-1")
    # Of several that fit, the newest is named.
    with pytest.raises(UserError, match=r"^job-1: checkpoint 2\.3 is not complete"):
        resolve([checkpoint(2, 1, whole=False), part], "ckpt", STATE, "job-1")


def test_an_agent_understands_what_was_pinned_without_a_log() -> None:
    assert matching(ALL, "@6.1", None) == [THREE]
    assert matching(ALL, "ckpt", None) == [ONE, TWO, THREE]
    assert matching(ALL, "1.1", None) == []


def test_after_a_choice_nothing_newer_is_picked_up_again() -> None:
    choice = ChosenCheckpoint(ONE.key, seq=9)
    assert candidates(ALL, NONE_POISONED, None) == ALL[::-1]
    assert candidates(ALL, PoisonedCheckpoints(frozenset({BEST.key})), None)[0] == THREE
    assert candidates(ALL, PoisonedCheckpoints(frozenset({ONE.key})), choice) == [ONE], "though poisoned"
    since = checkpoint(10, 1, step=15)
    assert candidates([*ALL, since], NONE_POISONED, choice) == [since, ONE]
    assert candidates([*ALL, since], PoisonedCheckpoints(frozenset({since.key})), choice) == [ONE]
    assert candidates(ALL[1:], NONE_POISONED, choice) == [], "it is gone"


def test_what_a_failing_attempt_copied_is_passed_over_with_its_claim() -> None:
    assert candidates(ALL, PoisonedCheckpoints(claims=frozenset({6})), None) == [TWO, ONE]
    assert candidates(ALL, PoisonedCheckpoints(claims=frozenset({6})), ChosenCheckpoint(THREE.key, seq=9)) == [THREE]


def test_completion_knows_references_and_names() -> None:
    assert list(completions(ALL, STATE)) == ["2.2", "2.1", "1.2", "1.1", "best", "ckpt"]


# ── With a store ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    # Nothing of this computer's own home, and no process beside this one, has a part in what is tested.
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("stoker.governor.handover_guard._spawn", lambda *_: None)
    monkeypatch.setattr("stoker.governor.background.ensure_governor", lambda _url: None)
    return open_store((tmp_path / "store").as_uri())


def put(store: Store, job: str, one: Checkpoint) -> None:
    manifest = one.manifests[0]
    data = encode(
        Manifest(one.name, job, one.place.claim, 0, one.place.ordinal, manifest.committed_at, (), step=one.step)
    )
    assert store.create(keys.manifest(job, one.key), data)


def append(store: Store, job: str, *events: Event) -> JobState:
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        assert job_log.append(store, job, state.seq + 1, Record(token="t", by="t", reason=event.kind, event=event))
    state = job_log.read(store, job)
    assert state is not None
    return state


def failed_on(claim: int, key: str | None, **told: object) -> tuple[Event, ...]:
    """An attempt that failed on a checkpoint before any progress."""
    closed = Closed(claim, "failed", "checkpoint", restored_from=key, suspects_checkpoint=key is not None, **told)  # type: ignore[arg-type]
    return Claimed(SPOT_A, 1), Launched(claim, (NodeRef(0, f"i-{claim}"),)), closed


@pytest.fixture
def job(store: Store, tmp_path: Path) -> str:
    """A job with three checkpoints of one name in two attempts, the newest of them poisoned, which has failed."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    found = client.submit(Job(run="python train.py", name="job", code=str(tmp_path / "code")), store=store)
    append(store, found, *failed_on(2, None), *failed_on(5, THREE5.key), *failed_on(8, THREE5.key))
    append(store, found, Ended(outcome="failed", rule="user-error", claim=8))
    for one in (ONE, TWO, THREE5):
        put(store, found, one)
    return found


THREE5 = checkpoint(5, 1, step=30)


def run(store: Store, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["--store", store.url, *arguments])
    told = str(result.exception) if isinstance(result.exception, UserError) else ""
    return result.exit_code, result.output + told


def test_the_list_tells_them_apart(store: Store, job: str) -> None:
    code, output = run(store, "checkpoints", job)
    lines = [line.split() for line in output.splitlines()]
    assert code == 0 and lines[0] == ["REF", "CHECKPOINT", "STEP", "ATTEMPT", "COMMITTED", "FILES", "SIZE"]
    assert [line[:4] for line in lines[1:]] == [
        ["2.1", "ckpt", "30", "2"],
        ["1.2", "ckpt", "20", "1"],
        ["1.1", "ckpt", "10", "1"],
    ]
    assert "poisoned: attempts failed on it" in output.splitlines()[1]
    listed = json.loads(run(store, "checkpoints", job, "--json")[1])
    assert [(one["ref"], one["attempt"], one["poisoned"]) for one in listed] == [
        ("2.1", 2, True),
        ("1.2", 1, False),
        ("1.1", 1, False),
    ]


def test_pull_takes_the_one_that_is_named(store: Store, job: str, tmp_path: Path) -> None:
    code, output = run(store, "pull", job, str(tmp_path / "a"), "--checkpoint", "1.2")
    assert code == 0 and "1.2 ckpt: " in output and "are called" not in output
    code, output = run(store, "pull", job, str(tmp_path / "b"), "--checkpoint", "ckpt")
    assert code == 0 and "2.1 is the newest of them" in output
    code, output = run(store, "pull", job, str(tmp_path / "c"), "--checkpoint", "1.7")
    assert code != 0 and "the nearest are 1." in output and "Traceback" not in output


def test_resume_never_takes_a_poisoned_checkpoint_by_itself(store: Store, job: str) -> None:
    plan = prepare_resume(job, store)
    ask_to_resume(plan, store)
    told = plan.messages
    assert told[0] == "it goes on from 1.2 (ckpt, step 20)"
    assert told[1].startswith("passed over: 2.1 (ckpt, step 30): attempts failed there")
    state = append(store, job)
    assert state.chosen_checkpoint is None
    assert find_candidates(store, job, poisoned_checkpoints(state, DEFAULT), state.chosen_checkpoint) == [
        TWO.key,
        ONE.key,
    ]


@pytest.mark.parametrize(("text", "wanted"), [("2.1", THREE5), ("1.1", ONE), ("ckpt", THREE5)])
def test_a_person_may_choose_any_and_it_is_obeyed(store: Store, job: str, text: str, wanted: Checkpoint) -> None:
    client.resume(job, store, checkpoint=text)
    entry = list(job_log.entries(store, job))[-1]
    assert isinstance(entry.event, ResumeAsked) and entry.event.checkpoint == wanted.key
    assert "from checkpoint " in entry.reason
    state = append(store, job)
    given_up = poisoned_checkpoints(state, DEFAULT)
    assert find_candidates(store, job, given_up, state.chosen_checkpoint) == [wanted.key]
    # What the attempts of this resume commit comes first, and what was left aside never.
    new = checkpoint(append(store, job, Claimed(SPOT_A, 1)).seq, 1, step=11)
    put(store, job, new)
    assert find_candidates(store, job, given_up, state.chosen_checkpoint) == [new.key, wanted.key]


def test_the_command_says_what_it_goes_on_from(store: Store, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.governor.background.ensure_governed", lambda *_: GovernorChoice())
    code, output = run(store, "resume", job, "--checkpoint", "1.1")
    assert code == 0, output
    assert "it goes on from 1.1 (ckpt, step 10)" in output
    assert "left aside: 2.1 (ckpt, step 30), 1.2 (ckpt, step 20)" in output
    assert "from 1.1 (ckpt)" in run(store, "explain", job)[1]


def test_a_job_without_a_checkpoint_is_said_to_start_from_the_beginning(store: Store, job: str) -> None:
    store.delete([keys.manifest(job, one.key) for one in (ONE, TWO, THREE5)])
    assert prepare_resume(job, store).messages == ("it starts from the beginning: there is no checkpoint",)


def test_a_job_whose_ranks_did_not_all_commit_starts_from_the_beginning(
    store: Store, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = checkpoint(2, 1, step=10, whole=False)
    monkeypatch.setattr(importlib.import_module("stoker.submit.resume"), "list_checkpoints", lambda *_: [torn])
    plan = prepare_resume(job, store)
    assert plan.messages == ("it starts from the beginning: no checkpoint was committed by all ranks",)
    assert (plan.key, plan.title, plan.state.job) == (None, "", job)


def test_a_job_whose_code_is_gone_is_not_opened_again(store: Store, job: str) -> None:
    store.delete([meta.key for meta in store.list(keys.CODE)])
    with pytest.raises(UserError, match=f"^{job}: its code is not in the store any more; submit it again from the fol"):
        prepare_resume(job, store)


def test_a_job_whose_log_is_corrupt_is_named_with_the_command_that_removes_it(store: Store, job: str) -> None:
    for number in range(1, 99):
        if store.head(keys.log_entry(job, number)) is None:
            break
    store.put(keys.log_entry(job, number), b"{")
    with pytest.raises(UserError, match=f"^{job} cannot be read: .*; `stoker rm {job}` removes it, once it has no mac"):
        prepare_resume(job, store)


@pytest.mark.parametrize("error", [StoreUnavailable("no route"), StoreDenied("no access")])
def test_a_store_that_does_not_answer_makes_no_job_corrupt(store: Store, job: str, error: StoreError) -> None:
    class Silent:
        def __getattr__(self, name: str) -> object:
            raise error

    with pytest.raises(type(error), match=str(error)):
        prepare_resume(job, Silent())  # type: ignore[arg-type]


def test_a_job_without_bad_checkpoints_passes_none_over(store: Store, job: str) -> None:
    store.delete([keys.manifest(job, THREE5.key)])
    assert prepare_resume(job, store).messages == ("it goes on from 1.2 (ckpt, step 20)",)


def test_a_choice_is_told_with_what_speaks_against_it(store: Store, job: str) -> None:
    newest = prepare_resume(job, store, "2.1")
    assert newest.messages == ("it goes on from 2.1 (ckpt, step 30), on which attempts failed",)
    assert (newest.key, newest.title) == (THREE5.key, "2.1 (ckpt, step 30)")
    named = prepare_resume(job, store, "ckpt").messages
    assert "is the newest of them" in named[0] and named[1].startswith("it goes on from 2.1 ")
    older = prepare_resume(job, store, "1.2").messages
    assert older == ("it goes on from 1.2 (ckpt, step 20)", "left aside: 2.1 (ckpt, step 30)")


@pytest.mark.parametrize(("more", "told"), [(4, ""), (5, " and 1 more"), (6, " and 2 more")])
def test_of_many_that_are_left_aside_the_newest_five_are_named(store: Store, job: str, more: int, told: str) -> None:
    store.delete([keys.manifest(job, one.key) for one in (TWO, THREE5)])
    for ordinal in range(2, 3 + more):
        put(store, job, checkpoint(2, ordinal, step=ordinal * 10))
    last = prepare_resume(job, store, "1.1").messages[-1]
    assert last.startswith(f"left aside: 1.{more + 2} (ckpt, step {(more + 2) * 10}), ") and last.endswith(
        told or "1.2 (ckpt, step 20)"
    )
    assert last.count("ckpt") == 5


def test_a_job_whose_chosen_checkpoint_is_gone_asks_for_another(store: Store, job: str) -> None:
    client.resume(job, store, checkpoint="1.1")
    append(store, job, Ended(outcome="failed", rule="user-error"))
    store.delete([keys.manifest(job, ONE.key)])
    with pytest.raises(UserError, match=r"the chosen checkpoint is gone; it has 2\.1 .*, 1\.2 .*stoker clone"):
        prepare_resume(job, store)


def test_a_list_has_no_blanks_at_the_end_of_a_line(store: Store, job: str) -> None:
    lines = run(store, "checkpoints", job)[1].splitlines()
    assert len(lines) == 4 and all(line == line.rstrip() for line in lines)


def test_python_chooses_by_the_same_references(store: Store, job: str) -> None:
    found = client.checkpoints(job, store)
    assert [one.ref for one in found] == ["2.1", "1.2", "1.1"]
    assert prepare_resume(job, store, found[-1].ref).key == ONE.key


def test_a_chosen_checkpoint_that_is_gone_never_means_starting_anew(store: Store, job: str) -> None:
    client.resume(job, store, checkpoint="1.1")
    state = append(store, job)
    store.delete([keys.manifest(job, ONE.key)])
    with pytest.raises(RestoreError, match=r"the chosen checkpoint .* is not in the store any more"):
        find_candidates(store, job, NONE_POISONED, state.chosen_checkpoint)


def test_where_all_are_poisoned_a_person_has_to_choose(store: Store, job: str) -> None:
    store.delete([keys.manifest(job, one.key) for one in (ONE, TWO)])
    with pytest.raises(UserError, match=r"attempts failed on every checkpoint; it has 2\.1 .*--checkpoint REF"):
        prepare_resume(job, store)
    state = append(store, job)
    with pytest.raises(RestoreError, match="every checkpoint"):
        find_candidates(store, job, poisoned_checkpoints(state, DEFAULT), None)
    ask_to_resume(prepare_resume(job, store, "2.1"), store)


def test_a_wrong_choice_writes_nothing(store: Store, job: str) -> None:
    before = append(store, job).seq
    with pytest.raises(UserError, match="the nearest are"):
        client.resume(job, store, checkpoint="1.8")
    assert append(store, job).seq == before


def test_another_job_resumes_from_the_one_that_is_named(store: Store, job: str, tmp_path: Path) -> None:
    def taken(text: str) -> str | None:
        made = Job(run="python train.py", code=str(tmp_path / "code"), resume_from=f"{job}{text}")
        with client.prepare_any(made, store) as prepared:
            return prepared.spec.resume_from

    assert taken(":1.1") == f"{job}:@2.1"
    assert taken(":ckpt") == f"{job}:ckpt", "the newest of that name when it starts"
    assert taken("") == f"{job}:@2.2", "attempts failed on its newest"
    with pytest.raises(UserError, match=r"resume_from: .* has no checkpoint '1\.8'; the nearest are"):
        taken(":1.8")


def test_the_shell_completes_them(store: Store, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_STORE", store.url)
    import click

    context = click.Context(resume_command)
    context.params["job"] = job
    assert [item.value for item in complete_checkpoint(context, resume_command.params[1], "1")] == ["1.2", "1.1"]
    # As a shell asks: the option has no value yet.
    shell = ShellComplete(cli, {}, "stoker", "_STOKER_COMPLETE")
    for typed in (["resume", job, "--checkpoint"], ["pull", job, "--checkpoint"], ["resume", "--checkpoint"]):
        expected = ["2.1", "1.2", "1.1", "ckpt"] if job in typed else []
        assert [item.value for item in shell.get_completions(typed, "")] == expected
    context.params["job"] = "nowhere"
    assert complete_checkpoint(context, resume_command.params[1], "") == []


def test_a_poisoned_claim_covers_what_it_committed_and_nothing_else() -> None:
    poisoned = PoisonedCheckpoints(frozenset({"00000003/000001-a"}), frozenset({2}))
    covered = [f"0000000{claim}/00000{ordinal}-a" for claim in (1, 2, 3) for ordinal in (1, 2)]
    covered = [key for key in covered if poisoned.covers(key)]
    assert covered == ["00000002/000001-a", "00000002/000002-a", "00000003/000001-a"]
    assert not poisoned.covers("00000021/000001-a") and not poisoned.covers("2/000001-a") and not poisoned.covers("")
    assert not poisoned.without("00000002/000001-a").covers("00000002/000001-a")
    assert poisoned.without("00000003/000001-a") == PoisonedCheckpoints(claims=frozenset({2}))
