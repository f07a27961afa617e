"""Files of environment variables, for `--env-file`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stoker.jobfile.named_file import read_named_file
from stoker.model.errors import UserError

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*(?P<equals>=\s*(?P<value>.*))?")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def env_file(path: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the variables of a file of `KEY=VALUE` lines.

    Empty lines, `# comments` and a leading `export` are allowed. Single quotes keep everything as it is;
    double quotes know `\\n`, `\\t`, `\\"` and `\\\\`; without quotes, a comment begins at ` #`. A name
    alone takes its value from the environment. Nothing is expanded. Raises UserError with `file:line`.
    """
    environ = os.environ if environ is None else environ
    try:
        text = read_named_file(path, open_files=True).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in UTF-8") from None
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise UserError(f"{path}:{number}: expected KEY=VALUE")
        name = match["name"]
        if match["equals"] is not None:
            found[name] = _value(match["value"], f"{path}:{number}: {name}")
        elif name in environ:
            found[name] = environ[name]
        else:
            raise UserError(f"{path}:{number}: {name}: is not set in your environment; write {name}=VALUE")
    return found


def _value(text: str, where: str) -> str:
    if text[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    match = (_SINGLE if text[0] == "'" else _DOUBLE).fullmatch(text)
    if match is None:
        raise UserError(f"{where}: the quote does not end, or something follows it")
    if text[0] == "'":
        return match[1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[1])
