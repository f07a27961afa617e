"""Where settings come from; environment files; the file that `stoker init` writes."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.jobfile import (
    defaults_layer,
    env_file,
    find_job_file,
    job_layer,
    job_layers,
    parse_job,
    read_layer,
    shared_layers,
    template,
    user_file,
    user_layer,
)
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.testing.memory_store import MemoryStore


def test_the_job_file_is_found_by_itself(tmp_path: Path) -> None:
    assert find_job_file(tmp_path) is None
    (tmp_path / "stoker.yaml").mkdir()
    assert find_job_file(tmp_path) is None
    (tmp_path / "stoker.yml").write_text("run: x\n")
    assert find_job_file(tmp_path) == tmp_path / "stoker.yml"
    (tmp_path / "stoker.yaml").rmdir()
    (tmp_path / "stoker.yaml").write_text("run: y\n")
    assert find_job_file(tmp_path) == tmp_path / "stoker.yaml"


def test_the_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert user_file(environ) == tmp_path / "stoker" / "config.yaml"
    assert user_layer(environ) is None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_file({}) == tmp_path / "home" / ".config" / "stoker" / "config.yaml"
    assert user_file({"XDG_CONFIG_HOME": "relative"}) == user_file({})
    path = user_file(environ)
    path.parent.mkdir()
    path.write_text("tags: {a: b}\n")
    layer = user_layer(environ)
    assert layer is not None
    assert layer.root.origin.shared


def test_all_layers_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "config.yaml").write_text("tags: {who: user, a: user, b: user, c: user, d: user}\n")
    (tmp_path / "job.yaml").write_text("run: python train.py\ntags: {b: job, c: job, d: job}\n")
    store = MemoryStore(lambda: datetime.now(timezone.utc))
    store.put(keys.DEFAULTS, b"tags: {a: store, b: store, c: store, d: store}\n")
    own = job_layers(tmp_path / "job.yaml", ["tags.c=set", "tags.d=set"], {"tags": {"d": "flag"}, "nodes": None})
    assert parse_job((*shared_layers(store), *own)).tags == {
        "who": "user",
        "a": "store",
        "b": "job",
        "c": "set",
        "d": "flag",
    }
    assert parse_job((*shared_layers(None), *own)).tags["a"] == "user"
    assert defaults_layer(b"").root.origin.shared


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        job_layer(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="is a folder"):
        job_layer(tmp_path)


def test_env_files(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        """\
# a comment

A=1
export B=two words
C = spaced
D="quoted # not a comment\\n\\"x\\"" # a comment
E='single $A \\n'
F=a#b # comment
G=
H=#nothing
I=a=b
HOME
"""
    )
    assert env_file(path, {"HOME": "/home/me"}) == {
        "A": "1",
        "B": "two words",
        "C": "spaced",
        "D": 'quoted # not a comment\n"x"',
        "E": "single $A \\n",
        "F": "a#b",
        "G": "",
        "H": "",
        "I": "a=b",
        "HOME": "/home/me",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\n1A=2\n", ":2: expected KEY=VALUE"),
        ("two words\n", ":1: expected KEY=VALUE"),
        ("A='x\n", ":1: A: the quote does not end"),
        ('A="x" y\n', ":1: A: the quote does not end, or something follows it"),
        ("NOBODY_SET_THIS\n", ":1: NOBODY_SET_THIS: is not set in your environment"),
    ],
)
def test_bad_env_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "env"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        env_file(path, {})
    assert str(caught.value).startswith(f"{path}{message}")


def test_an_env_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        env_file(tmp_path / "none")


def test_the_template_parses() -> None:
    spec = parse_job([read_layer(template(), "stoker.yaml")])
    assert spec.run == "python train.py\n"
    assert spec.name == "train"
    words = parse_job([read_layer(template(["python", "a b.py", "--x: y"]), "stoker.yaml")])
    assert words.run == "python 'a b.py' '--x: y'\n"


@settings(deadline=None)
@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), min_size=1))
def test_the_template_takes_any_command(command: str) -> None:
    if not command.strip() or command.strip().startswith("#"):
        return
    assert parse_job([read_layer(template(command), "stoker.yaml")]).run == command.strip() + "\n"


def test_importing_costs_no_yaml() -> None:
    code = (
        "import sys, stoker.jobfile, stoker.submit.pack_code; "
        "print(sorted({'yaml', 'pathspec', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_agents_side_needs_neither_the_job_file_nor_yaml() -> None:
    unwanted = "{'yaml', 'pathspec', 'click', 'stoker.jobfile', 'stoker.submit.pack_code'}"
    code = (
        f"import sys, stoker.model.command_line, stoker.agent.unpack_code; print(sorted({unwanted} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
