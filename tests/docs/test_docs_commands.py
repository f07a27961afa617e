"""Every command in the pages and examples exists, with those options; every command is in some page."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import click
import pytest
from pages import DOCS, GENERATED, ROOT, Command, commands, page_files

from stoker.cli import COMMANDS, cli
from stoker.jobfile import assignments, layer_of, parse_job
from stoker.model.errors import StokerError

ROOT_CONTEXT = click.Context(cli, info_name="stoker")


def load(name: str) -> click.Command:
    command = cli.get_command(ROOT_CONTEXT, name)
    assert command is not None
    return command


def known_options(command: click.Command) -> set[str]:
    options = {"-h", "--help"}
    for param in command.params:
        if isinstance(param, click.Option):
            options |= {*param.opts, *param.secondary_opts}
    return options


def problem_of(words: tuple[str, ...], *, typed: bool) -> str | None:
    """What is wrong with `stoker <words>`; None when nothing is."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option not in known_options(cli) | {"--version"}:
            return f"stoker has no {option}"
        if option == "--store" and rest:
            rest.pop(0)
    if not rest:
        return None
    name, *arguments = rest
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    command = load(name)
    if isinstance(command, click.Group):
        part = arguments.pop(0) if arguments else ""
        if part not in command.commands:
            return f"{name} has no {part!r}"
        command = command.commands[part]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    options = {word.partition("=")[0].rstrip(",") for word in own if word.startswith("-") and word not in ("-", "--")}
    if unknown := options - known_options(command):
        return f"{name} has no {', '.join(sorted(unknown))}"
    return _cannot_be_typed(command, arguments) if typed and not options & {"-h", "--help"} else None


def _cannot_be_typed(command: click.Command, arguments: list[str]) -> str | None:
    """Parse it as the command line would, up to the fields that it sets."""
    try:
        parent = click.Context(cli, info_name="stoker")
        context = command.make_context(command.name, list(arguments), parent=parent)
        sets = context.params.get("sets") or ()
        if sets:
            parse_job([layer_of({"run": "true"}, "a page"), assignments(sets)])
    except (click.ClickException, StokerError) as error:
        return str(getattr(error, "message", error))
    return None


ALL = [command for path in page_files() for command in commands(path)]


@pytest.mark.parametrize("command", ALL, ids=str)
def test_a_command_in_a_page_exists(command: Command) -> None:
    problem = problem_of(command.words, typed=command.typed)
    assert problem is None, f"{command.where}: {problem}"


def test_commands_are_found_at_all() -> None:
    typed = [command for command in ALL if command.typed]
    assert len(typed) > 30
    assert len(ALL) - len(typed) > 50


@pytest.mark.parametrize(
    "words",
    [
        ("fly",),
        ("show",),
        ("show", "job", "--colour"),
        ("run", "--sett", "a=b"),
        ("run", "--set", "resorces.spot=true"),
        ("logs", "job", "--node", "one"),
        ("stop", "job", "--grace", "3s"),
        ("--stor", "x", "ps"),
        ("policy", "test", "--polcy", "x"),
        ("policy", "tests"),
        ("policy", "set"),
    ],
)
def test_what_is_wrong_is_found(words: tuple[str, ...]) -> None:
    assert problem_of(words, typed=True) is not None


def test_every_command_is_explained_somewhere() -> None:
    written = {
        command.words[0]
        for path in page_files()
        if path.parent == DOCS and path.name not in GENERATED
        for command in commands(path)
    }
    assert sorted(set(COMMANDS) - written) == []


def _calls(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """`self.stoker("show", …)` and `[STOKER, "govern", …]`: the words that are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stoker":
            parts: list[ast.expr] = node.args
        elif isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Name):
            parts = node.elts[1:] if node.elts[0].id == "STOKER" else []
        else:
            continue
        words = tuple(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        if words:
            yield words


def test_the_examples_call_commands_that_exist() -> None:
    found = [
        (path.name, words)
        for path in sorted((ROOT / "examples").rglob("*.py"))
        for words in _calls(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 5
    assert [(name, problem) for name, words in found if (problem := problem_of(words, typed=False))] == []
