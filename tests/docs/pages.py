"""The pages that people read, taken apart: code blocks, spans and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = frozenset({"cli.md", "job-file.md", "environment.md"})

_FENCE = re.compile(r"^(?P<fence>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A command ends where the shell would end it, or the quotation of it.
_STOKER = re.compile(r"(?<![\w./@-])stoker(?P<rest>(?:[ \t]+[^\s|;&`()]+)*)")
_NO_COMMANDS = ("python", "yaml", "toml", "json")
_SHELLS = ("console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """`stoker …` as a page has it. `typed`: to be typed like this, not only spoken of."""

    where: str
    words: tuple[str, ...]
    typed: bool

    def __str__(self) -> str:
        return f"{self.where} stoker {shlex.join(self.words)}"


def page_files() -> list[Path]:
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(name_of(path), text.count("\n", 0, match.start()) + 1, match["language"].strip(), match["text"])
        for match in _FENCE.finditer(text)
    ]


def prose(path: Path) -> str:
    """The page without its blocks and comments, line for line."""
    text = path.read_text(encoding="utf-8")
    blank = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    return re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), blank, flags=re.DOTALL)


def spans(path: Path) -> list[tuple[str, str]]:
    """Every `code span` of the text, with its place."""
    text = prose(path)
    return [
        (f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1}", match[1]) for match in _SPAN.finditer(text)
    ]


def all_blocks() -> list[Block]:
    return [block for path in page_files() for block in blocks(path)]


def commands(path: Path) -> list[Command]:
    found = [command for block in blocks(path) for command in _in_block(block)]
    for where, span in spans(path):
        found += [Command(where, words, typed=False) for words in _in_text(span)]
    return found


def _in_block(block: Block) -> Iterator[Command]:
    if block.language.startswith(_NO_COMMANDS):
        return
    console = block.language == "console"
    for number, line in enumerate(block.text.splitlines(), start=1):
        if console and not line.startswith("$ "):
            continue  # What was printed.
        text = line.removeprefix("$ ")
        # Elsewhere a line is a command when it begins with one; a drawing may speak of it anywhere.
        if console or re.match(r"\s*(?:\w+=\S*\s+)*stoker\s", text):
            for words in _in_text(text):
                # A block without a language may show how a command is used: `stoker show [OPTIONS] JOB`.
                yield Command(f"{block.page}:{block.line + number}", words, typed=block.language in _SHELLS)


def _in_text(text: str) -> Iterator[tuple[str, ...]]:
    for match in _STOKER.finditer(text):
        if re.search(r"\s--?[\w-]+\s+$", text[: match.start()]):
            continue  # What another program's option is told, such as a name.
        rest = re.split(r" #| [|>] ", match["rest"])[0]
        try:
            words = tuple(shlex.split(rest))
        except ValueError:
            words = tuple(rest.split())
        if words:
            yield words
