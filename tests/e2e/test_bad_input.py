"""Every mistake of a new user's first ten minutes: one line that says what to do, exit code 2, and nothing left behind.

The real program, as a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker.client import submit
from stoker.jobfile import Job
from stoker.processes import process_table

RUN = ("run", "--", "python", "train.py")


@dataclass(frozen=True)
class Mistake:
    """What was typed, with the job file that was there, and words that the answer must have."""

    arguments: tuple[str, ...]
    words: tuple[str, ...]
    job_file: str | None = None
    environ: dict[str, str] = field(default_factory=dict)


MISTAKES = {
    # The job file.
    "no job file and no command": Mistake(("run",), ("stoker.yaml", "stoker init", "stoker run -- ")),
    "missing file": Mistake(("run", "jbo.yaml"), ("jbo.yaml", "no such file")),
    "a folder instead of a file": Mistake(("run", "."), ("folder",)),
    "bad YAML": Mistake(("run",), ("stoker.yaml:2", "not valid YAML"), "run: python train.py\nparams: {lr: 1]\n"),
    "tabs in YAML": Mistake(("run",), ("stoker.yaml:2", "spaces"), "resources:\n\tspot: true\n"),
    "not a mapping": Mistake(("run",), ("stoker.yaml", "run: python train.py"), "python train.py\n"),
    "wrong type": Mistake(("run",), ("stoker.yaml:2", "nodes", "whole number"), "run: python train.py\nnodes: two\n"),
    "unknown field": Mistake(("run",), ("stoker.yaml:2", "node", "nodes"), "run: python train.py\nnode: 2\n"),
    "field in the wrong place": Mistake(
        ("run",), ("stoker.yaml:2", "gpus", "resources.gpus"), "run: python train.py\ngpus: 1\n"
    ),
    "no command": Mistake(("run",), ("run", "is missing", "python train.py"), "name: x\n"),
    "empty command": Mistake(("run",), ("run", "empty", "python train.py"), "run: ''\n"),
    "empty command behind the dashes": Mistake(("run", "--"), ("run", "empty", "python train.py")),
    "bad name": Mistake(("run",), ("name", "lower-case"), "run: python train.py\nname: My Job\n"),
    "bad duration": Mistake(
        ("run",), ("stoker.yaml:2", "limits.max_runtime", "24h"), "run: python train.py\nlimits: {max_runtime: soon}\n"
    ),
    "bad size": Mistake(
        ("run",), ("stoker.yaml:2", "resources.memory", "64GiB"), "run: python train.py\nresources: {memory: 64}\n"
    ),
    "negative": Mistake(("run",), ("nodes", "at least 1"), "run: python train.py\nnodes: 0\n"),
    "not in UTF-8": Mistake(("run", "latin.yaml"), ("latin.yaml", "UTF-8")),
    # What it asks for.
    "unknown provider": Mistake(("run", "--provider", "ec3", "--", "true"), ("resources.provider", "ec3", "local")),
    "unknown machine": Mistake(
        ("run", "--set", "resources.machine=p9.huge", "--", "true"), ("resources.machine", "p9.huge", "stoker offers")
    ),
    "more than there is": Mistake(("run", "--set", "resources.cpus=9999", "--", "true"), ("resources.cpus", "9999")),
    "GPUs that are not there": Mistake(
        ("run", "--set", "resources.gpus=H100:8", "--", "true"), ("resources.gpus", "H100:8")
    ),
    "a field this provider cannot honour": Mistake(
        ("run", "--set", "resources.region=us-east-1", "--", "true"), ("resources.region", "local")
    ),
    "a price that is not to be had": Mistake(
        ("run", "--set", "resources.max_price=0.5", "--set", "resources.local.price=1", "--", "true"),
        ("resources.max_price",),
    ),
    # What it refers to.
    "script that is not there": Mistake(("run", "--", "python", "trian.py"), ("run", "trian.py")),
    "script in a text that is not there": Mistake(("run",), ("run", "gone.py"), "run: torchrun gone.py\n"),
    "folder that is not there": Mistake(("run", "--set", "code=nowhere", "--", "true"), ("code", "nowhere")),
    "a file as the folder": Mistake(("run", "--set", "code=train.py", "--", "true"), ("code", "not a folder")),
    "input that is not there": Mistake(("run", "--set", "inputs.data=./nope", "--", "true"), ("inputs.data", "nope")),
    "python that is not there": Mistake(
        ("run", "--set", "environment.python=/no/python", "--", "true"), ("environment.python", "/no/python")
    ),
    "python that is none": Mistake(
        ("run", "--set", "environment.python=/bin/ls", "--", "true"), ("environment.python", "/bin/ls", "no Python")
    ),
    "packages that cannot be read": Mistake(
        ("run", "--set", "environment.requirements=broken.txt", "--", "true"), ("broken.txt:1", "torch 2.1")
    ),
    "packages that cannot be read, in a dry run": Mistake(
        ("run", "--dry-run", "--set", "environment.requirements=broken.txt", "--", "true"), ("broken.txt:1",)
    ),
    "input that is no bucket": Mistake(("run", "--set", "inputs.data=s3://", "--", "true"), ("inputs.data", "bucket")),
    "more shards than files": Mistake(
        ("run", "--nodes", "2", "--set", "inputs.data={from: train.py, shard: true}", "--", "true"),
        ("inputs.data.shard", "2 nodes"),
    ),
    "image that is none": Mistake(
        ("run", "--set", "environment.container.image=Foo:x", "--", "true"), ("container.image", "lower case")
    ),
    "variable of the contract": Mistake(("run", "--env", "STOKER_JOB=x", "--", "true"), ("env.STOKER_JOB", "own")),
    "secret that is not set": Mistake(
        ("run", "--set", "secrets.NO_SUCH_TOKEN=env", "--", "true"), ("secrets.NO_SUCH_TOKEN", "export")
    ),
    "resume from nothing": Mistake(("run", "--set", "resume_from=nobody", "--", "true"), ("resume_from", "nobody")),
    # The command line.
    "--set without a value": Mistake(("run", "--set", "nodes", "--", "true"), ("--set nodes", "field=value")),
    "--set of an unknown field": Mistake(("run", "--set", "nods=2", "--", "true"), ("nods", "nodes")),
    "--set of a wrong type": Mistake(("run", "--set", "nodes=two", "--", "true"), ("--set", "nodes", "whole number")),
    "--nodes of a wrong type": Mistake(("run", "--nodes", "two", "--", "true"), ("--nodes", "two")),
    "--param without a value": Mistake(("run", "--param", "lr", "--", "true"), ("--param lr", "name=value")),
    "--env that is not set": Mistake(("run", "--env", "NO_SUCH_VARIABLE", "--", "true"), ("NO_SUCH_VARIABLE",)),
    "--env-file that is not there": Mistake(("run", "--env-file", "nope.env", "--", "true"), ("nope.env", "no such")),
    "unknown option": Mistake(("run", "--sopt", "--", "true"), ("--sopt",)),
    "unknown command": Mistake(("rnu",), ("rnu", "run")),
    "a command without the dashes": Mistake(("run", "python", "train.py"), ("stoker run -- python train.py",)),
    "a script for a job file": Mistake(("run", "train.py"), ("train.py", "stoker run -- python train.py")),
    # The store.
    "store under a file": Mistake(("--store", "FILE/store", *RUN), ("store", "is a file")),
    "store that is a file": Mistake(("--store", "FILE", *RUN), ("store", "is a file")),
    "store that cannot be made": Mistake(("--store", "/proc/stoker/store", *RUN), ("store", "--store")),
    "store from the environment": Mistake(RUN, ("store", "is a file"), environ={"STOKER_STORE": "FILE/store"}),
    "bad bucket on Google": Mistake(("--store", "gs://A_B", *RUN), ("A_B", "bucket")),
    "no such scheme": Mistake(("--store", "ftp://host/x", *RUN), ("ftp://", "s3://")),
    "file:// with two slashes": Mistake(("--store", "file://data/x", *RUN), ("file://data/x", "three slashes")),
    "bad bucket": Mistake(("--store", "s3://A_B", *RUN), ("A_B", "bucket")),
    "empty store": Mistake(("--store", "", *RUN), ("store",)),
    # Jobs.
    **{
        f"{command} of no job": Mistake((command, "nobody"), ("nobody", "no job"))
        for command in ("show", "logs", "checkpoints", "pull", "stop", "resume", "clone", "rm", "interrupt", "explain")
    },
    "compare of no job": Mistake(("compare", "nobody", "noone"), ("nobody", "no job")),
    "rm of nothing": Mistake(("rm",), ("--older-than",)),
    "rm with a bad age": Mistake(("rm", "--older-than", "old"), ("--older-than", "duration")),
    "check of no provider": Mistake(("check", "ec3"), ("ec3", "local")),
}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Type = Callable[..., Answer]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('hello')\n")
    (code / "broken.txt").write_text("torch 2.1\n")
    (code / "latin.yaml").write_bytes("name: caf\xe9\n".encode("latin-1"))
    (tmp_path / "file").write_text("in the way\n")
    return tmp_path


@pytest.fixture
def type_in(place: Path) -> Type:
    """Type a command line, in the folder with the code."""

    def type_it(*arguments: str, **environ: str) -> Answer:
        def at(text: str) -> str:
            return text.replace("FILE", str(place / "file"))

        env = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "NO_SUCH"))}
        env |= {"STOKER_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "config")}
        env |= {name: at(value) for name, value in environ.items()}
        done = subprocess.run(
            [sys.executable, "-m", "stoker.cli", *map(at, arguments)],
            cwd=place / "code",
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return type_it


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(name: str, place: Path, type_in: Type) -> None:
    mistake = MISTAKES[name]
    if mistake.job_file is not None:
        (place / "code" / "stoker.yaml").write_text(mistake.job_file)
    before = tree(place)
    answer = type_in(*mistake.arguments, **mistake.environ)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("stoker: ") and answer.err.count("\n") == 1 and answer.err.endswith("\n"), answer.err
    for word in mistake.words:
        assert word in answer.err
    assert "Traceback" not in answer.err
    assert tree(place) == before, "nothing is left behind"
    assert processes_about(place) == []


def tree(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if "__pycache__" not in path.parts)


def processes_about(place: Path) -> list[str]:
    """Command lines and folders of processes that have to do with this test."""
    found = []
    for pid in set(process_table()) - {os.getpid()}:
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            continue
        if str(place) in text or where.startswith(str(place)):
            found.append(text)
    return found


# ── with jobs in the store ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_ambiguous_name_lists_the_candidates(place: Path, type_in: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("STOKER_HOME", str(place / "home"))
    monkeypatch.chdir(place / "code")
    jobs = sorted(submit(Job(run="python train.py"), store=str(place / "store")) for _ in range(2))
    before = tree(place)
    for command in ("show", "logs", "stop", "resume", "rm", "explain"):
        answer = type_in("--store", str(place / "store"), command, "train")
        assert answer.code == 2 and answer.err.count("\n") == 1
        assert f"{jobs[0]}, {jobs[1]}" in answer.err
    nearest = type_in("--store", str(place / "store"), "show", "trian")
    assert nearest.code == 2 and "did you mean train-" in nearest.err
    assert tree(place) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resume",), "has not ended"),
        (("rm",), "stoker stop"),
        (("interrupt",), "has no machine now"),
        (("pull",), "no checkpoint yet"),
        (("pull", "--outputs"), "no outputs yet"),
        (("logs", "--node", "7"), "--node 7"),
        (("logs", "--attempt", "7"), "--attempt 7"),
        (("clone", "--set", "nods=2"), "nodes"),
    ],
)
def test_what_a_job_cannot_do_is_one_line(
    arguments: tuple[str, ...], words: str, place: Path, type_in: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    monkeypatch.setenv("STOKER_HOME", str(place / "home"))
    monkeypatch.chdir(place / "code")
    submit(Job(run="python train.py"), store=str(place / "store"))
    before = tree(place)
    answer = type_in(*arguments[:1], "train", *arguments[1:], "--store", str(place / "store"))
    assert answer.code == 2 and answer.err.count("\n") == 1 and words in answer.err, answer
    assert tree(place) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written(place: Path, type_in: Type) -> None:
    (place / "closed").mkdir(mode=0o500)
    answer = type_in("--store", str(place / "closed" / "store"), *RUN)
    assert answer.code == 2 and "cannot be written" in answer.err
