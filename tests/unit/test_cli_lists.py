"""Lists that a person narrows down and keeps open, what a shell completes, and what `run --json` prints."""

from __future__ import annotations

import functools
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from command_line import Stoker, stoker, store

from stoker import client
from stoker.cli import cli, ps
from stoker.cli.follow_and_govern import come_back_hint
from stoker.governor import background
from stoker.jobfile import Job
from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Offering
from stoker.read import govern_while_following
from stoker.read.format import width
from stoker.read.job_list import Filter, list_jobs
from stoker.store import job_log
from stoker.store.base import Store

__all__ = ["stoker", "store"]

pytestmark = pytest.mark.slow

HERE = Offering(provider="local", machine="local", zone="this-computer", spot=False, price=0.0)
PATIENCE_S = 60.0


def submit(store: Store, name: str, *events: Event, **tags: str) -> str:
    job = client.submit(Job(run="python train.py", name=name, tags=tags), store=store)
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        assert job_log.append(
            store, job, state.seq + 1, Record(token=job_log.new_token(), by="t", reason="test", event=event)
        )
    return job


def end_all(store: Store, *jobs: str) -> None:
    reindex(store)
    store.delete([meta.key for meta in store.list(keys.ACTIVE) if meta.key.split("/")[1] in jobs])


FAILED = Ended(outcome="failed", rule="test")
SUCCEEDED = Ended(outcome="succeeded", rule="finished")
RUNNING = (Claimed(offering=HERE, nodes=1), Launched(2, (NodeRef(0, "here-1"),)))


# ── ps ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ps_filters_by_tag_and_name(stoker: Stoker, store: Store) -> None:
    small = submit(store, "gpt-small", team="nlp", user="jane")
    large = submit(store, "gpt-large", FAILED, team="nlp-2")
    other = submit(store, "resnet", team="vision")
    end_all(store, large)

    def listed(*arguments: str) -> set[str]:
        code, out, err = stoker("ps", "--json", *arguments)
        assert code == 0, err
        return {one["id"] for one in json.loads(out)}

    assert listed("--tag", "team=nlp") == {small}
    assert listed("--tag", "team=nlp*") == {small, large}
    assert listed("--tag", "user") == {small}
    assert listed("--tag", "team=nlp", "--tag", "user=bob") == set()
    assert listed("--name", "gpt*") == {small, large}
    assert listed("--name", "resnet", "--name", small) == {small, other}
    assert listed("--name", "gpt*", "--phase", "failed") == {large}
    assert stoker("ps", "--tag", "team=none")[1].splitlines()[-1] == "no job fits"
    code, _, err = stoker("ps", "--tag", "=nlp")
    assert (code, err.count("\n")) == (2, 1) and "--tag =nlp: write it as name=value" in err
    assert "did you mean running?" in stoker("ps", "--phase", "runing")[2]


def test_a_filter_looks_beyond_the_latest_jobs(store: Store) -> None:
    old = submit(store, "old", FAILED, team="nlp")
    rest = [submit(store, "new", FAILED) for _ in range(3)]
    end_all(store, old, *rest)
    for wanted in (Filter(tags=("team=nlp",)), Filter(names=("old",))):
        assert [each.id for each in list_jobs(store, 1, wanted).summaries] == [old]
    assert len(list_jobs(store, 2, Filter(names=("new",))).summaries) == 2
    assert len(list_jobs(store).summaries) == 4


def test_as_many_jobs_as_wanted_are_listed_however_they_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.read.job_list._PORTION", 1)
    for team in ("nlp", "nlp", "vision", "nlp"):
        end_all(store, submit(store, "gpt", FAILED, team=team))
    listed = list_jobs(store, 2, Filter(tags=("team=nlp",))).summaries
    assert [each.tags["team"] for each in listed] == ["nlp", "nlp"]


def environ(store: Store) -> dict[str, str]:
    return {**os.environ, "STOKER_STORE": store.url, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}


def test_watching_on_a_terminal_redraws_and_ends_with_ctrl_c(store: Store) -> None:
    job = submit(store, "first")
    pid, screen = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(sys.executable, [sys.executable, "-m", "stoker.cli", "ps", "--watch"], environ(store))
    os.set_blocking(screen, False)
    text = ""

    def shows(words: str) -> bool:
        nonlocal text
        try:
            while data := os.read(screen, 65536):
                text += data.decode(errors="replace")
        except OSError:
            pass
        return words in text

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    until(lambda: shows(job))
    assert "\x1b[H" in text
    later = submit(store, "later")
    until(lambda: shows(later))
    os.write(screen, b"\x03")
    status: list[int] = []
    until(lambda: status or (status.extend(os.waitpid(pid, os.WNOHANG)) or status.pop(0) or status.clear()))
    shows("")
    os.close(screen)
    assert os.waitstatus_to_exitcode(status[0]) == 0
    assert "Traceback" not in text and "Aborted" not in text


def test_watching_without_a_terminal_prints_what_has_changed(store: Store, tmp_path: Path) -> None:
    job = submit(store, "first")
    output = tmp_path / "out"
    with output.open("wb") as file:
        watching = subprocess.Popen(
            [sys.executable, "-m", "stoker.cli", "ps", "--watch"], env=environ(store), stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while job not in output.read_text():
            assert time.monotonic() < deadline and watching.poll() is None
            time.sleep(0.02)
        later = submit(store, "later")
        while later not in output.read_text():
            assert time.monotonic() < deadline and watching.poll() is None
            time.sleep(0.02)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()
    said = output.read_text()
    assert "\x1b" not in said and "Traceback" not in said
    assert said.count("SUBMITTED") == 2, "once for each state of the list"


# ── Completion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def completed(*words: str) -> list[str]:
    environ = {
        **os.environ,
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("stoker", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-m", "stoker.cli"], env=environ, capture_output=True, text=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_offers_the_jobs_that_a_command_can_work_on(store: Store) -> None:
    queued = submit(store, "queued", team="nlp")
    running = submit(store, "running", *RUNNING)
    failed = submit(store, "failed", FAILED, team="vision")
    done = submit(store, "done", SUCCEEDED)
    end_all(store, failed, done)
    assert completed("interrupt", "") == [running]
    assert completed("exec", "") == [running]
    assert set(completed("stop", "")) == {queued, running}
    assert completed("stop", queued, "") == [running], "what was typed is not offered again"
    assert completed("resume", "") == [failed]
    assert set(completed("rm", "")) == {failed, done}
    assert set(completed("show", "")) == {queued, running, failed, done}
    assert completed("ps", "--phase", "s") == ["stopping", "succeeded", "stopped"]
    assert completed("ps", "--tag", "team=") == ["team=nlp", "team=vision"]
    assert completed("ps", "--name", "fa") == ["failed"]
    assert completed("costs", "--by", "") == ["day", "job", "provider", "machine", "submitter", "team"]
    assert completed("logs", running, "--attempt", "") == ["1"]
    assert completed("logs", "--attempt", "") == [], "of which job?"
    assert completed("logs", running, "--node", "") == ["0"]


def test_completion_knows_providers_fields_and_files() -> None:
    for words in (("run", "--provider"), ("offers", "--provider"), ("prices", "--provider"), ("check",), ("iam",)):
        assert {"ec2", "gce", "local", "sagemaker"} <= set(completed(*words, "")), words
    assert completed("run", "--provider", "l") == ["local"]
    assert completed("run", "--set", "resou") == ["resources."]
    assert {"resources.spot=", "resources.local."} <= set(completed("clone", "x", "--set", "resources."))
    assert completed("run", "--set", "resources.local.pr") == ["resources.local.price="]
    assert completed("run", "job") == ["job"], "a file, which the shell lists"


def test_every_option_that_takes_something_known_completes() -> None:
    """What is free text, a number, a URL or a moment has nothing to offer; the rest must."""
    free = {
        *(
            "--name",
            "--nodes",
            "--env",
            "--param",
            "--store",
            "--limit",
            "--tail",
            "--since",
            "--grace",
            "-L",
            "--user",
        ),
        *("--older-than", "--note", "--version", "--region", "--events-from", "--notify", "--pass-role", "--kms-key"),
        *("--forget", "--project", "--service-account", "--bucket", "--job", "--input", "--logs", "--secret", "--via"),
        *("addresses", "--alert", "--until", "--why", "--clone-role", "--clone-machine"),
    }

    def silent(command: click.Command, path: str) -> list[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = {name: command.get_command(context, name) for name in command.list_commands(context)}
            return [each for name, one in found.items() if one is not None for each in silent(one, f"{path} {name}")]
        return [
            f"{path} {param.opts[0]}"
            for param in command.params
            if not getattr(param, "is_flag", False)
            and not isinstance(param.type, (click.Choice, click.Path))
            and param._custom_shell_complete is None
            and not free & set(param.opts)
        ]

    assert silent(cli, "stoker") == ["stoker iam --policy"], "whose names depend on the other arguments"


def test_completion_says_nothing_where_it_cannot_know(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(store, "one")
    monkeypatch.setenv("STOKER_STORE", "nonsense://x")
    assert completed("stop", "") == [] and completed("pull", "one", "--checkpoint", "") == []


# ── run --json ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_detached_run_prints_one_json_object(stoker: Stoker, store: Store) -> None:
    code, out, _ = stoker("run", "--detach", "--json", "--name", "gpt", "--", "python", "train.py")
    told = json.loads(out)
    assert code == 0 and told["id"].startswith("gpt-")
    job = {"id": told["id"], "name": "gpt", "store": store.url, "phase": "queued"}
    assert told == job | {"detached": True, "governed": True}
    assert job_log.read(store, told["id"]) is not None


def test_a_detached_run_without_a_governor_says_so_and_still_names_the_job(
    stoker: Stoker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = background.GovernorChoice(problem="no governor runs: oh; keep `govern` running", is_governed=False)
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: none)
    code, out, err = stoker("run", "--detach", "--name", "gpt", "--", "python", "train.py")
    assert code == 0 and job_log.read(store, out.strip()) is not None
    assert "warning: no governor runs: oh; keep `govern` running" in err and "its governor runs" not in err
    _, out, _ = stoker("run", "--detach", "--json", "--name", "gpt", "--", "python", "train.py")
    assert json.loads(out)["governed"] is False


def test_a_job_that_nothing_governs_does_not_go_on() -> None:
    none = background.GovernorChoice(problem="oh", is_governed=False)
    assert come_back_hint("x-aaaa", none).startswith("x-aaaa is submitted, and no governor runs. Come back: ")
    assert come_back_hint("x-aaaa", background.GovernorChoice()).startswith("x-aaaa goes on. ")


@pytest.mark.parametrize("governed", [True, False])
def test_the_guard_tries_again_where_a_job_could_not_be_handed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, governed: bool
) -> None:
    """On a closed terminal nothing can be said: then the guard writes to the governor's log."""
    did: list[str] = []
    guard = SimpleNamespace(close=lambda: did.append("close"))
    choice = background.GovernorChoice(is_governed=governed)
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: choice)
    assert govern_while_following._hand_over(store, "x-aaaa", guard) is choice  # type: ignore[arg-type]
    assert did == ([] if governed else ["close"])


def test_a_line_of_wide_characters_is_cropped_to_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((20, 10)))
    rows = ps._fitting(["失" * 30, "a" * 30, "short"])
    assert [width(row) for row in rows] == [19, 20, 5]
    assert rows[0] == "失" * 9 + "…"


def test_a_person_who_says_no_is_told_that_nothing_is_deleted(store: Store) -> None:
    done = submit(store, "done", SUCCEEDED)
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "stoker.cli", "rm", done], environ(store))
    text = ""
    os.write(screen, b"n\n")
    try:
        while data := os.read(screen, 65536):
            text += data.decode(errors="replace")
    except OSError:
        pass  # The other side of a terminal is closed.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert "nothing is deleted" in text and "interrupted" not in text, text
    assert job_log.read(store, done) is not None


def bash_completes(script: str, *split: str, line: str) -> list[str]:
    """What bash would put in place of the last of `split`: the words of the line, as it splits them."""
    words = " ".join(shlex.quote(word) for word in split)
    call = (
        f"{script}\ncompopt() {{ :; }}\nCOMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:'\nCOMP_LINE={shlex.quote(line)}\n"
        f"COMP_POINT=${{#COMP_LINE}}\nCOMP_WORDS=({words})\nCOMP_CWORD={len(split) - 1}\n"
        '_stoker_completion stoker\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_behind_an_equals_sign(
    stoker: Stoker, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bash splits words at `=` and `:`, too, and replaces the last part alone."""
    for name, team in (("one", "nlp"), ("two", "vision")):
        submit(store, name, team=team)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "stoker"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m stoker.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    script = stoker("completion", "bash")[1]
    ask = functools.partial(bash_completes, script)
    assert ask("stoker", "ps", "--tag", "te", line="stoker ps --tag te") == ["team=nlp", "team=vision"]
    assert ask("stoker", "ps", "--tag", "team", "=", line="stoker ps --tag team=") == ["nlp", "vision"]
    assert ask("stoker", "ps", "--tag", "team", "=", "v", line="stoker ps --tag team=v") == ["vision"]
    assert ask("stoker", "ps", "--tag", "=", "te", line="stoker ps --tag=te") == ["team=nlp", "team=vision"]
    assert ask("stoker", "ps", "--tag", "=", "team", "=", "v", line="stoker ps --tag=team=v") == ["vision"]
    assert ask("stoker", "ps", "--phase", "", line="stoker ps --phase ")[:2] == ["queued", "launching"]
    assert ask("stoker", "run", "--name", '"a b"', "--prov", line='stoker run --name "a b" --prov') == ["--provider"]
