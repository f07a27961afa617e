"""The command line in this process: what it prints, what it exits with, what it never imports."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path

import click
import pytest
from command_line import Stoker, stoker, store

from stoker import client
from stoker.cli import COMMANDS, cli, main, run
from stoker.cli.format import table
from stoker.cli.plan_view import agree, offering_rows, show_plan, worst_case
from stoker.governor import background
from stoker.jobfile import Job
from stoker.maintenance.reindex import reindex
from stoker.model import codec, keys
from stoker.model.errors import AuthDenied, InvalidRequest, NoCredentials, StokerError, StoreDenied, UserError
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Capabilities, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Limits, Spec
from stoker.model.submission import Submission
from stoker.read import job_status
from stoker.read.follow import Follower
from stoker.read.job_list import list_jobs
from stoker.read.logs import LogLine
from stoker.read.node_chunks import node_logs
from stoker.read.screens import TerminalScreen
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.submit.prepared_job import PreparedJob

__all__ = ["stoker", "store"]

SPOT = Offering(provider="p", machine="m", zone="z", spot=True, price=1.0, on_demand_price=4.0)
FULL = replace(SPOT, spot=False, price=4.0)


def append(store: Store, job: str, *events: Event) -> None:
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        assert job_log.append(
            store, job, state.seq + 1, Record(token=job_log.new_token(), by="t", reason="test", event=event)
        )


def submit(store: Store, name: str = "train") -> str:
    return client.submit(Job(run="python train.py", name=name), store=store)


def submission_of(store: Store, job: str) -> Submission:
    found = store.get(keys.spec(job))
    assert found is not None
    return codec.loads(Submission, found.data)


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_imports_click_and_nothing_of_ours() -> None:
    code = (
        "import sys\nfrom stoker.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    )
    assert {name for name in loaded if name.startswith("stoker")} == {"stoker", "stoker.cli"}
    assert not loaded & {"yaml", "rich", "obstore", "plotext", "pathspec", "pynvml", "asyncio", "dataclasses"}


def test_without_a_command_the_help_is_shown(stoker: Stoker) -> None:
    code, out, err = stoker()
    assert code == 2 and not out
    assert err.startswith("Usage: stoker") and "\n  run " in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_agrees_with_the_list(name: str, stoker: Stoker) -> None:
    code, out, _ = stoker(name, "--help")
    assert code == 0 and f"Usage: stoker {name}" in out
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.help


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["comparee"], "did you mean compare?"),
        (["ps", "--nope"], "--nope"),
        (["show"], "JOB"),
        (["logs", "x", "--node", "-1"], "--node"),
        (["interrupt", "x", "--grace", "soon"], "--grace soon: expected a duration"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], words: str, stoker: Stoker, store: Store) -> None:
    code, out, err = stoker(*arguments)
    assert (code, out) == (2, "") and err.startswith("stoker: ") and err.count("\n") == 1 and words in err


def test_the_unexpected_is_one_line_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, stoker: Stoker, store: Store
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(job_status, "read_record", broken)
    job = submit(store)
    code, _, err = stoker("show", job)
    assert (code, err) == (3, "stoker: unexpected RuntimeError: two lines; STOKER_DEBUG=1 shows the traceback\n")
    monkeypatch.setenv("STOKER_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["show", job])


def test_a_reader_that_has_enough_is_not_told() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "stoker.cli", "schema"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == b"" and done.returncode != 0


def test_colours_are_for_terminals(stoker: Stoker, store: Store) -> None:
    submit(store)
    assert "\x1b" not in "".join(stoker("ps")[1:])


def test_completion_knows_commands_and_jobs(store: Store) -> None:
    job = submit(store, "gpt-small")

    def completed(*words: str) -> list[str]:
        environ = {
            **os.environ,
            "_STOKER_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("stoker", *words)),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run([sys.executable, "-m", "stoker.cli"], env=environ, capture_output=True, text=True)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("comp") == ["compare", "completion"]
    assert completed("show", "gpt") == [job]


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_the_requests_and_writes_nothing(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    code, out, err = stoker("run", "--dry-run", "--json", "--nodes", "2", "--spot", "--", "python", "train.py")
    assert code == 0 and err == ""
    plan = json.loads(out)
    assert plan["offering"]["spot"] is True
    assert [request["operation"] for request in plan["requests"]] == ["start-node", "start-node"]
    assert plan["requests"][1]["params"]["node"]["claim"] == 2
    assert not (tmp_path / "store").exists() and not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("file", "text", "asked", "problem"),
    [
        ("code.txt", "", "environment.requirements=nope.txt", "environment.requirements: there is no nope.txt"),
        ("deps.txt", "numpy 2\n", "environment.requirements=deps.txt", "deps.txt:1: 'numpy 2' is no requirement"),
        ("conda", "#!/bin/sh\n", "environment.conda=nope.yml", "environment.conda: nope.yml is not in the code folder"),
        ("code.txt", "", "environment.wheels=pack", "environment.wheels: there is nothing to gather"),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_dry_run_refuses_what_a_run_does(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, asked: str, problem: str
) -> None:
    Path(file).write_text(text)
    Path(file).chmod(0o755)
    monkeypatch.setenv("CONDA_EXE", str(Path("conda").absolute()))
    (tmp_path / "packed").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "packed"))
    for words in (("run", "--dry-run"), ("run",)):
        code, out, err = stoker(*words, "--set", asked, "--", "python", "train.py")
        assert (code, out) == (2, "") and problem in err
    assert not (tmp_path / "store").exists()
    assert list((tmp_path / "packed").iterdir()) == []


@pytest.mark.usefixtures("store")
def test_a_dry_run_says_what_a_run_does_of_the_packages(stoker: Stoker) -> None:
    Path("requirements.txt").write_text("numpy\n")
    _, _, err = stoker("run", "--dry-run", "--", "python", "train.py")
    assert "\n  requirements.txt is installed before the training starts" in err
    assert "warning:" not in err
    Path(".stokerignore").write_text("requirements.txt\n")
    _, _, err = stoker("run", "--dry-run", "--", "python", "train.py")
    assert "\nwarning: requirements.txt is left out of the packed code" in err


def test_detach_prints_the_id_and_nothing_else(stoker: Stoker, store: Store) -> None:
    code, out, err = stoker("run", "--detach", "--", "python", "train.py")
    assert code == 0 and "cost: none" in err
    assert job_log.read(store, out.strip()) is not None and out.count("\n") == 1
    assert submission_of(store, out.strip()).spec.run == ("python", "train.py")


def test_flags_win_over_the_job_file(
    stoker: Stoker, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stoker.yaml").write_text(
        "name: from-file\nrun: python train.py\nnodes: 3\nparams: {lr: 1, depth: 2}\nenv: {A: file, B: file, C: file}\n"
    )
    (tmp_path / "vars").write_text("B=from env file\nD='quoted'\n")
    monkeypatch.setenv("E", "mine")
    given = [
        "--set",
        "nodes=4",
        "--name",
        "flagged",
        "--param",
        "lr=3e-4",
        "--env",
        "A=flag",
        "--env",
        "E",
        "--no-spot",
    ]
    _, out, _ = stoker("run", "--detach", *given, "--env-file", str(tmp_path / "vars"))
    spec = submission_of(store, out.strip()).spec
    assert (spec.name, spec.nodes, spec.resources.spot) == ("flagged", 4, "never")
    assert spec.params == {"lr": 3e-4, "depth": 2} and spec.params_written["lr"] == "3e-4"
    assert spec.env == {"A": "flag", "B": "from env file", "C": "file", "D": "quoted", "E": "mine"}


def test_what_follows_the_dashes_is_not_ours(stoker: Stoker, store: Store) -> None:
    _, out, _ = stoker("run", "--detach", "--", "python", "train.py", "--detach", "--", "-x")
    assert submission_of(store, out.strip()).spec.run == ("python", "train.py", "--detach", "--", "-x")


def prepared(paid: bool) -> PreparedJob:
    capabilities = Capabilities(paid=paid, token_lifetime_s=1, newborn_s=1, boot_timeout_s=1, silence_s=1)
    return PreparedJob(Spec(name="x", run="true"), capabilities, (SPOT,), (SPOT,))


def test_money_is_not_spent_without_a_yes() -> None:
    agree(prepared(paid=False), yes=False)
    agree(prepared(paid=True), yes=True)
    with pytest.raises(UserError, match="-y"):
        agree(prepared(paid=True), yes=False)


@pytest.mark.parametrize(
    ("limits", "nodes", "words"),
    [
        (Limits(max_runtime_s=7200.0), 1, "$8.00 (2h 00m of training at $4.00/h; starting and saving come on top)"),
        (Limits(max_runtime_s=7200.0), 2, "$16.00 (2h 00m of training at $8.00/h; starting and saving come on top)"),
        (Limits(max_runtime_s=7200.0, max_cost=5.0), 1, "$5.00 (limits.max_cost)"),
        (Limits(), 2, "no bound is set; $8.00 an hour"),
    ],
)
def test_the_worst_case_is_the_tightest_bound_at_the_dearest_price(limits: Limits, nodes: int, words: str) -> None:
    spec = Spec(name="x", run="true", nodes=nodes, limits=limits)
    assert worst_case(spec, (SPOT, FULL)) == words


def test_where_spot_prices_are_not_known_the_bound_is_that_of_on_demand() -> None:
    unknown, priceless = replace(SPOT, price=None), replace(SPOT, price=None, on_demand_price=None)
    spec = Spec(name="x", run="true", nodes=2, limits=Limits(max_runtime_s=3600.0))
    guess = "at most $8.00 (1h 00m of training at $8.00/h if all of it were on-demand; starting and saving come on top)"
    assert worst_case(spec, (unknown,)) == worst_case(spec, (unknown, FULL)) == guess
    # The cloud is told the highest price, so that it is one.
    capped = replace(spec, resources=Resources(max_price=0.5))
    assert (
        worst_case(capped, (unknown, priceless))
        == "$1.00 (1h 00m of training at $1.00/h; starting and saving come on top)"
    )
    assert worst_case(replace(spec, limits=Limits(max_cost=1.0)), (unknown,)) == "$1.00 (limits.max_cost)"
    unbound = replace(spec, limits=Limits())
    assert worst_case(unbound, (unknown,)) == "no bound is set; $8.00 an hour if all of it were on-demand"
    # What is set already is not advised.
    assert worst_case(spec, (priceless,)) == "unknown: a price is not known; training ends after 1h 00m"
    assert "set limits.max_runtime" in worst_case(unbound, (priceless,))


def test_free_and_unknown_prices_are_told_apart() -> None:
    spec = Spec(name="x", run="true")
    assert worst_case(spec, (replace(SPOT, price=0.0),)) == "it costs nothing"
    bounded = replace(spec, limits=Limits(max_runtime_s=60.0, max_cost=5.0))
    assert worst_case(bounded, (replace(SPOT, price=0.0),)) == "it costs nothing"
    assert "unknown" in worst_case(spec, (SPOT, replace(FULL, price=None, on_demand_price=None)))


def test_spot_is_shown_against_on_demand() -> None:
    both = [["m in z", "spot", "$2.00/h for 2 nodes", "on-demand $8.00/h, saves 75%"]]
    assert offering_rows((SPOT,), 2) == both

    def against(price: float) -> str:
        return offering_rows((replace(SPOT, price=price),))[0][3]

    assert against(4.48) == "on-demand $4.00/h; spot costs 12% more"
    assert against(4.0) == "on-demand $4.00/h"


def test_each_machine_has_a_row_in_its_best_zone(capsys: pytest.CaptureFixture[str]) -> None:
    zones = tuple(replace(SPOT, zone=f"z{number}", price=float(number)) for number in range(1, 6))
    anywhere = replace(FULL, zone="")
    assert [row[:3] for row in offering_rows((*zones, anywhere))] == [
        ["m in 5 zones, z1 first", "spot", "$1.00/h"],
        ["m in any zone", "on-demand", "$4.00/h"],
    ]
    many = tuple(replace(SPOT, machine=f"m{number}") for number in range(7))
    show_plan(replace(prepared(paid=False), offerings=many))
    plan = capsys.readouterr().err
    assert "m4 in z" in plan and "m5 in z" not in plan and "  … and 2 more; `stoker offers` lists them\n" in plan


def test_an_answer_of_no_is_no_interruption(monkeypatch: pytest.MonkeyPatch, stoker: Stoker, store: Store) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda *_words, **_how: False)
    monkeypatch.setattr(run, "agree", lambda _prepared, *, yes: agree(prepared(paid=True), yes=yes))
    code, out, err = stoker("run", "--", "python", "train.py")
    assert (code, out) == (130, "") and err.endswith("\nnot started\n")
    assert not list(store.list(""))


@pytest.mark.parametrize("error", [StoreDenied, NoCredentials, AuthDenied, InvalidRequest])
def test_what_a_person_can_put_right_is_their_mistake_until_the_job_is_there(
    error: type[StokerError], monkeypatch: pytest.MonkeyPatch, stoker: Stoker, store: Store
) -> None:
    def refuse(*_given: object, **_more: object) -> None:
        raise error("it is not allowed")

    with monkeypatch.context() as patched:
        patched.setattr(importlib.import_module("stoker.submit.prepare"), "prepare", refuse)
        assert stoker("run", "--", "python", "train.py") == (2, "", "stoker: it is not allowed\n")
    monkeypatch.setattr("stoker.governor.loop.Governor.watch", lambda _self, until, on_error: None)
    monkeypatch.setattr("stoker.read.follow.Follower.run", refuse)
    code, _, err = stoker("run", "--", "python", "train.py")
    (job,) = client.active_jobs(store)
    assert code == 3 and f"stoker: it is not allowed; {job} was submitted" in err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["uptime"], "uptime"),
        (["-v", "ls", "my dir"], "ls 'my dir'"),
        (["-L", "1:localhost:2", "-N", "uptime"], "uptime"),
        (["-vp", "22", "uptime"], "uptime"),
        (["-p22", "uptime"], "uptime"),
        (["-N"], None),
        (["-NL", "1:localhost:2"], None),
        (["-o", "ServerAliveInterval=5", "-v"], None),
        ([], None),
    ],
)
def test_a_command_is_for_exec_and_options_are_for_ssh(
    words: list[str], command: str | None, stoker: Stoker, store: Store
) -> None:
    code, _, err = stoker("ssh", "x", "--", *words)
    assert code == 2 and err.count("\n") == 1
    assert (f"use stoker exec x -- {command}\n" in err) == (command is not None), err


def test_ctrl_c_detaches_and_says_how_to_come_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    carried: list[str] = []
    monkeypatch.setattr(
        background, "ensure_governed", lambda _store, jobs: carried.extend(jobs) or background.GovernorChoice()
    )

    def interrupted(_self: object, _tail: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "run", interrupted)
    monkeypatch.setattr("stoker.governor.loop.Governor.watch", lambda _self, until, on_error: None)
    job = submit(store)
    assert run.follow_job(store, job, nodes=1, paid=False) == 0
    assert carried == [job]
    err = capsys.readouterr().err
    assert f"stoker logs -f {job}" in err and f"stoker stop {job}" in err


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ps_shows_active_jobs_and_the_last_that_ended(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    jobs = [submit(store, f"job-{number}") for number in range(4)]
    for job in jobs[1:]:
        append(store, job, Ended(outcome="failed", rule="test"))
    reindex(store)
    store.delete([keys.active(job, 1) for job in jobs[1:]])
    for age, job in enumerate(jobs[1:]):
        moment = datetime.now(timezone.utc) - timedelta(hours=age)
        os.utime(tmp_path / "store" / keys.index(job, 2), (moment.timestamp(), moment.timestamp()))
    listed = list_jobs(store, 2)
    active, found = set(listed.active), list(listed.summaries)
    assert active == {jobs[0]}
    assert [summary.id for summary in found] == [jobs[2], jobs[1], jobs[0]], "newest first; the oldest end is left out"
    code, out, _ = stoker("ps", "--json", "--phase", "failed", "--all")
    assert code == 0 and [one["id"] for one in json.loads(out)] == [jobs[3], jobs[2], jobs[1]]
    assert "no governor drives these jobs" in stoker("ps")[1]
    store.put(keys.governor("here"), b"{}")
    out = stoker("ps")[1]
    assert "no governor drives these jobs" not in out and "a governor last looked" in out
    assert stoker("ps", "--phase", "flying")[0] == 2


def test_ps_reads_only_what_it_shows(store: Store) -> None:
    for number in range(5):
        job = submit(store, f"job-{number}")
        append(store, job, Ended(outcome="failed", rule="test"))
    reindex(store)
    store.delete([meta.key for meta in store.list(keys.ACTIVE)])
    read: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def get(self, key: str, *, limit: int | None = None) -> object:
            read.append(key)
            return store.get(key, limit=limit)

    list_jobs(Counting(), 2)  # type: ignore[arg-type]
    assert len(read) == 2


def test_ps_shows_a_job_that_is_not_indexed_yet(stoker: Stoker, store: Store) -> None:
    job = submit(store)
    assert job_index.read_index(store, job) is None
    assert f"{job}  queued" in stoker("ps")[1]


def test_show_json_has_every_field(stoker: Stoker, store: Store) -> None:
    job = submit(store)
    offering = Offering(provider="local", machine="local", zone="this-computer", spot=True, price=0.1)
    append(store, job, Claimed(offering=offering, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "i-1"),)))
    code, out, _ = stoker("show", "train", "--json")
    shown = json.loads(out)
    wanted = "id name phase outcome reason attempts interruptions last_checkpoint exit_code metrics cost tags code"
    assert code == 0 and set(wanted.split()) <= set(shown)
    assert shown["outcome"] is None and shown["last_checkpoint"] is None
    of_attempt = "n provider machine zone spot started_at ended_at outcome reason restored_from nodes"
    (attempt,) = shown["attempts"]
    assert set(of_attempt.split()) <= set(attempt) and attempt["ended_at"] is None
    assert attempt["nodes"][0]["rank"] == 0 and attempt["nodes"][0]["instance"] == "i-1"


def test_explain_tells_each_decision_and_what_comes(stoker: Stoker, store: Store) -> None:
    job = submit(store)
    code, out, _ = stoker("explain", job)
    assert code == 0
    assert out.splitlines()[0].split("  ")[1:2] == ["submitted"]
    assert "next: launch: first attempt" in out
    decisions = json.loads(stoker("explain", job, "--json")[1])["decisions"]
    assert [decision["what"] for decision in decisions] == ["submitted"]


def test_govern_dry_run_does_nothing(stoker: Stoker, store: Store) -> None:
    job = submit(store)
    code, out, _ = stoker("govern", "--dry-run")
    assert code == 0 and f"{job}: launch: first attempt" in out
    state = job_log.read(store, job)
    assert state is not None and state.seq == 1


# ── following ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_prefixed_only_with_several_nodes() -> None:
    for prefix, expected in ((True, "[1] hello\r\n"), (False, "hello\r\n")):
        out = StringIO()
        TerminalScreen(out, prefix=prefix, live=False).line(
            LogLine(attempt=1, rank=1, at=0.0, text="hello", end="\r\n")
        )
        assert out.getvalue() == expected


def test_a_progress_bar_does_not_fill_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = StringIO()
    screen = TerminalScreen(out, prefix=False, live=True)
    for percent in (10, 20):
        screen.line(LogLine(attempt=1, rank=0, at=0.0, text=f"{percent}%", end="\r"))
        screen.status("running")
    assert out.getvalue() == "" and "running │ 20%" in capsys.readouterr().err
    screen.line(LogLine(attempt=1, rank=0, at=0.0, text="done", end="\n"))
    assert out.getvalue() == "done\n"


def test_old_decisions_are_not_told_again(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = submit(store)
    append(store, job, Claimed(offering=SPOT, nodes=1))
    state = job_log.read(store, job)
    assert state is not None
    append(store, job, Ended(outcome="stopped", rule="stop"))
    Follower(store, job, TerminalScreen(StringIO(), prefix=False, live=False), since=state.seq).run()
    assert capsys.readouterr().err == "[stoker] stopped: test\n"


def test_who_leaves_the_log_is_told_how_to_come_back(
    stoker: Stoker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: object, _tail: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "run", interrupted)
    job = submit(store)
    code, _, err = stoker("logs", "-f", job)
    assert code == 130 and f"stoker logs -f {job}" in err


def test_tables_have_no_blanks_at_the_end() -> None:
    assert table(("JOB", ""), [["a", ""], ["long-name", "why"]]).splitlines()[0].endswith("JOB\x1b[0m")


def test_nothing_to_delete_is_said(stoker: Stoker, store: Store) -> None:
    submit(store)
    assert stoker("rm", "--older-than", "1d")[2] == "no job ended so long ago; nothing is deleted\n"


def test_compare_says_why_it_draws_nothing(stoker: Stoker, store: Store) -> None:
    job = submit(store, "mine")
    assert "train.report" in stoker("compare", job)[2]
    found = json.loads(stoker("compare", job, "--json")[1])
    assert [(one["id"], one["name"]) for one in found] == [(job, "mine")]


def test_logs_are_narrowed_to_nodes_and_attempts(store: Store) -> None:
    job = submit(store)
    offering = Offering(provider="local", machine="local", zone="z", spot=True)
    nodes = (NodeRef(0, "a"), NodeRef(1, "b"))
    append(store, job, Claimed(offering=offering, nodes=2), Launched(claim=2, nodes=nodes))
    append(store, job, Claimed(offering=offering, nodes=2), Launched(claim=4, nodes=nodes))
    state = job_log.read(store, job)
    assert state is not None
    assert [(node.attempt, node.rank) for node in node_logs(state)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [(node.attempt, node.rank) for node in node_logs(state, rank=1, attempt=2)] == [(2, 1)]
