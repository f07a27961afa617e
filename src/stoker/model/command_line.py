"""Build the argv that a node starts from `run` and `params`. Needs the standard library only: agents use it.

Parameters that the command names as `{lr}` are placed there; the others are appended as `--lr 3e-4`, in the
order they were written. `true` appends `--flag` alone; `false` and null append nothing; placed, they are
`true`, `false` and nothing. Numbers appear as they were written. Braces that name no parameter stay
unchanged, and so does `${lr}`: both have a meaning in a shell.

Text is run by bash, so values are quoted for it; a placeholder must not be inside quotes of its own.
With `contract: sagemaker`, arguments are formatted as by SageMaker's toolkit (`stoker.model.hyperparameters`).
Arguments are appended to the last line that is neither empty nor a comment. After a pipe, the end of a loop or a
here-document that would be wrong, and is an error that asks for placeholders.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from stoker.model import hyperparameters
from stoker.model.errors import UserError
from stoker.model.spec import Scalar, Spec

# Stops at the first command that fails, also inside a pipe.
SHELL = ("bash", "-eo", "pipefail", "-c")

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
# A line with such an end is not the end of a simple command.
_COMPOUND_END = re.compile(r"(?:^|[\s;])(?:fi|done|esac|[{}])$|[;&|(\\]$")


def command_argv(spec: Spec) -> tuple[str, ...]:
    """Build the command to execute in the code folder. Raises UserError if parameters cannot be appended."""
    values = param_texts(spec)
    parts: Sequence[str] = (spec.run,) if isinstance(spec.run, str) else spec.run
    placed = {name for part in parts for name in _PLACEHOLDER.findall(part) if name in values}
    flags = _flags(spec, values, placed)
    words = [word for flag in flags.values() for word in flag]
    if not isinstance(spec.run, str):
        return (*(_place(part, values, quote=False) for part in parts), *words)
    # The place to append is found before values are placed: a value may look like a pipe, a comment or a placeholder.
    end = _appending_point(spec.run, tuple(flags)) if words else len(spec.run)
    head = _place(spec.run[:end], values, quote=True)
    tail = _place(spec.run[end:], values, quote=True)
    return shell_argv(" ".join([head, *map(shlex.quote, words)]) + tail)


def shell_argv(text: str) -> tuple[str, ...]:
    """The argv that runs a text of shell commands, for `run` and `setup`."""
    return (*SHELL, text)


def param_texts(spec: Spec) -> dict[str, str]:
    """Every parameter as text, numbers as they were written."""
    return {name: _text(name, value, spec) for name, value in spec.params.items()}


def params_json(spec: Spec) -> str:
    """The value of STOKER_PARAMS."""
    return json.dumps(spec.params, ensure_ascii=False)


def input_variable(name: str) -> str:
    """Name of the variable with the path of an input."""
    return "STOKER_INPUT_" + name.upper().replace("-", "_")


def number_text(value: int | float) -> str:
    """The text of a number without an original text."""
    return str(int(value)) if isinstance(value, int) else float.__repr__(value)


def _text(name: str, value: Scalar, spec: Spec) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    written = spec.params_written.get(name)
    # If the value was changed after parsing, the original text does not apply any more.
    return written if written is not None and _same(written, value) else number_text(value)


def _same(written: str, value: int | float) -> bool:
    try:
        return float(written) == value
    except (ValueError, OverflowError):
        return False


def _flag(name: str, value: Scalar, text: str) -> tuple[str, ...]:
    return (f"--{name}",) if value is True else (f"--{name}", text)


def _flags(spec: Spec, values: dict[str, str], placed: set[str]) -> Mapping[str, tuple[str, ...]]:
    """The appended arguments, by name of the parameter."""
    left = {name: value for name, value in spec.params.items() if name not in placed}
    if spec.environment.contract == "sagemaker":
        own, _ = hyperparameters.split(left)
        return hyperparameters.flags(own) if hyperparameters.takes_arguments(spec) else {}
    return {
        name: _flag(name, value, values[name])
        for name, value in left.items()
        if value is not None and value is not False
    }


def _place(part: str, values: dict[str, str], *, quote: bool) -> str:
    def value(match: re.Match[str]) -> str:
        text = values.get(match[1])
        if text is None:
            return match[0]
        return shlex.quote(text) if quote and text else text

    return _PLACEHOLDER.sub(value, part)


def _appending_point(text: str, names: tuple[str, ...]) -> int:
    end = _end_of_last_command(text)
    line = text[:end].rpartition("\n")[2].strip()
    terminators = {match[2] for match in _HERE_DOCUMENT.finditer(text)}
    if _COMPOUND_END.search(line) or _subshell(line) or line in terminators or _pipes(line):
        places = ", ".join("{" + name + "}" for name in names)
        raise UserError(f"run: params cannot be appended after `{line[-40:]}`; place them in the text: {places}")
    return end


def _end_of_last_command(text: str) -> int:
    """The end of the last line with a command: before a comment, without trailing spaces."""
    commented, balanced = _comments(text)
    if not balanced:
        # A here-document may hold unbalanced quotes. Then only whole lines that begin with # count as comments.
        commented = [(match.start(), match.end()) for match in re.finditer(r"^[ \t]*#[^\n]*", text, re.MULTILINE)]
    bare = list(text)
    for start, stop in commented:
        bare[start:stop] = " " * (stop - start)
    return len("".join(bare).rstrip())


def _comments(text: str) -> tuple[list[tuple[int, int]], bool]:
    """The spans of comments, and whether every quote was closed."""
    spans: list[tuple[int, int]] = []
    quote = ""
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and quote != "'":
            index += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (index == 0 or text[index - 1] in " \t\n;&|()"):
            end = text.find("\n", index)
            end = len(text) if end < 0 else end
            spans.append((index, end))
            index = end
            continue
        index += 1
    return spans, not quote


def _subshell(line: str) -> bool:
    """Return whether the line ends a group in parentheses, which takes no arguments; `$(…)` and `<(…)` are words."""
    depth = 0
    for index in range(len(line) - 1, -1, -1) if line.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(line[index], 0)
        if depth == 0:
            return line[index - 1 : index] not in ("$", "<", ">")
    return depth != 0


def _pipes(line: str) -> bool:
    """Return whether the last command of the line only handles the output or failure of an earlier one."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars="|&;")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return False
    joints = [word for word in words if word and set(word) <= set("|&;")]
    return bool(joints) and joints[-1] in ("|", "||", "|&")
