"""How `run` and `params` become an argv. Where a shell is involved, a real bash has the last word."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.jobfile import Job, parse_job, read_layer
from stoker.model.command_line import command_argv, input_variable, params_json, shell_argv
from stoker.model.errors import UserError
from stoker.model.spec import Scalar, Spec


def spec(run: str | tuple[str, ...], **params: Scalar) -> Spec:
    return Spec(name="a", run=run, params=params)


def text(run: str, **params: Scalar) -> str:
    argv = command_argv(spec(run, **params))
    assert argv[:4] == ("bash", "-eo", "pipefail", "-c")
    return argv[4]


def printed(argv: tuple[str, ...]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_appended_in_the_order_and_spelling_they_were_written() -> None:
    job = parse_job([read_layer("run: python train.py\nparams: {lr: 3e-4, layers: 12, v: 1.10}\n", "f")])
    assert command_argv(job)[-1] == "python train.py --lr 3e-4 --layers 12 --v 1.10"
    changed = dataclasses.replace(job, params={**job.params, "lr": 0.001})
    assert command_argv(changed)[-1] == "python train.py --lr 0.001 --layers 12 --v 1.10"


def test_flags() -> None:
    assert text("x", a=True, b=False, c=None, d="") == "x --a --d ''"
    assert text("x", b=False) == "x"
    assert text("x", a="two words; rm -rf $HOME") == "x --a 'two words; rm -rf $HOME'"


def test_placed() -> None:
    assert text("x --rate={lr} {other} ${lr} {a,b}", lr=1) == "x --rate=1 {other} ${lr} {a,b}"
    assert text("x {a} {b} {c}", a=True, b=False, c=None) == "x true false "
    assert text("x {lr}", lr=1, n=2) == "x 1 --n 2"
    assert text("x {a}", a="it's") == "x 'it'\"'\"'s'"


def test_values_are_not_taken_for_placeholders() -> None:
    assert text("x {a}", a="{b}", b="{a}") == "x '{b}' --b '{a}'"


def test_lists_need_no_shell() -> None:
    assert command_argv(spec(("python", "t.py", "--lr={lr}", "{b}"), lr=1, b="x y", n=2.5)) == (
        "python",
        "t.py",
        "--lr=1",
        "x y",
        "--n",
        "2.5",
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("a\nb\n", "a\nb --n 1\n"),
        ("a\nb\n\n# done\n", "a\nb --n 1\n\n# done\n"),
        ("a # why\n", "a --n 1 # why\n"),
        ("a '# no comment'", "a '# no comment' --n 1"),
        ("a x#y", "a x#y --n 1"),
        ("cd d && a", "cd d && a --n 1"),
        ("a \\\n  b\n", "a \\\n  b --n 1\n"),
        ("a > log.txt", "a > log.txt --n 1"),
        ("python -c 'import x\nx.y(1)'", "python -c 'import x\nx.y(1)' --n 1"),
        ("b | c\na", "b | c\na --n 1"),
        ("a --tag $(date)", "a --tag $(date) --n 1"),
        ("a <(b (c))", "a <(b (c)) --n 1"),
        ("a ${x}", "a ${x} --n 1"),
        ("a 'x | y'", "a 'x | y' --n 1"),
        ("for i in 1; do\n b\ndone\na", "for i in 1; do\n b\ndone\na --n 1"),
        ("cat <<EOF\nit's\nEOF\na # c", "cat <<EOF\nit's\nEOF\na # c --n 1"),
    ],
)
def test_where_flags_are_appended(run: str, expected: str) -> None:
    assert text(run, n=1) == expected


@pytest.mark.parametrize(
    "run",
    [
        "a | tee log",
        "a || true",
        "a |& b",
        "for i in 1; do a; done",
        "if a; then\n b\nfi\n",
        "{ a; }",
        "(a)",
        "a &",
        "a;",
        "a \\",
        "python - <<'EOF'\nprint(1)\nEOF\n",
        "a && b | c # d",
    ],
)
def test_where_nothing_can_be_appended_placeholders_are_asked_for(run: str) -> None:
    with pytest.raises(UserError, match=r"place them in the text: \{n\}, \{m\}$"):
        command_argv(spec(run, n=1, m=2, no=False))
    assert text(run) == run
    assert text(run.replace("a", "a {n}"), no=None) is not None


def test_bash_sees_what_was_meant() -> None:
    assert printed(command_argv(spec("printf '%s\\n' {a} ${UNSET:-x}", a="q'\"$x"))) == "q'\"$x\nx\n"
    assert printed(command_argv(spec("true\nprintf '%s,' # end\n", a="b c"))) == "--a,b c,"


def test_bash_stops_at_the_first_failure_also_in_a_pipe() -> None:
    assert subprocess.run(shell_argv("false; true"), check=False).returncode == 1
    assert subprocess.run(shell_argv("false | true"), check=False).returncode == 1


_values = st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.integers() | st.booleans()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c_d", "e.f"]), _values))
def test_text_and_list_mean_the_same(params: dict[str, Any]) -> None:
    shell = Job(run="printf '%s\\0' {a} --", params={"a": "", **params}).spec()
    words = Job(run=["printf", "%s\\0", "{a}", "--"], params={"a": "", **params}).spec()
    if shell.params["a"] == "":
        # Placed in a text, nothing is nothing; in a list it is an empty word.
        return
    assert printed(command_argv(shell)) == printed(command_argv(words))


def test_what_the_training_is_told() -> None:
    assert json.loads(params_json(spec("x", lr=3e-4, b=None, c="ü"))) == {"lr": 3e-4, "b": None, "c": "ü"}
    assert input_variable("my-data") == "STOKER_INPUT_MY_DATA"
