"""Folders and patterns that people write for `outputs` and `checkpoints.dir`. Pure: touches no disk.

A pattern is matched against paths relative to the code folder, as a shell with `globstar` does: `*`, `?` and `[…]`
stay inside one part of a path, `**` stands for any number of folders. A pattern that matches a folder takes everything
in it. In a list, `!PATTERN` excludes paths that an earlier entry matched; the last matching entry decides.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

_MAGIC = re.compile(r"[*?\[]")
# A plain entry with such an ending is a file, and no folder is created for it.
_FILE_ENDINGS = frozenset(
    {
        *("bin", "ckpt", "gguf", "h5", "hdf5", "joblib", "keras", "model", "msgpack", "npy", "npz", "onnx", "pb"),
        *("pickle", "pkl", "pt", "pth", "safetensors", "tflite"),
        *("csv", "db", "html", "jpeg", "jpg", "json", "jsonl", "log", "md", "parquet", "pdf", "png", "sqlite", "svg"),
        *("gz", "tar", "tsv", "txt", "yaml", "yml", "zip"),
    }
)


def entries_of(written: str | Sequence[str] | None) -> tuple[str, ...]:
    """The entries of a field that holds one text or a list of them, each without `./` and a slash at its end."""
    if written is None:
        return ()
    texts = (written,) if isinstance(written, str) else tuple(written)
    return tuple(_normal(text) for text in texts)


def as_written(written: str | Sequence[str] | None) -> str:
    """The field as text for a sentence."""
    return written if isinstance(written, str) else ", ".join(written or ())


def is_pattern(entry: str) -> bool:
    """Return whether an entry is not a plain folder: a pattern, or a file such as `out/model.pt`."""
    ending = posixpath.basename(entry).rpartition(".")
    return entry.startswith("!") or _MAGIC.search(entry) is not None or (bool(ending[0]) and ending[2] in _FILE_ENDINGS)


def has_wildcard(entry: str) -> bool:
    """Return whether an entry may match more than one name."""
    return _MAGIC.search(entry) is not None


def base_of(entry: str) -> str:
    """The folder that contains everything an entry can match: `out` for `out/*.pt`, itself for a plain folder."""
    if not is_pattern(entry):
        return entry
    parts: list[str] = []
    for part in entry.removeprefix("!").split("/")[:-1]:
        if _MAGIC.search(part):
            break
        parts.append(part)
    return "/".join(parts) or ("/" if entry.startswith("/") else ".")


def common_base(entries: Iterable[str]) -> str:
    """The deepest folder that contains everything the entries can match. Absolute and relative ones are never mixed."""
    bases = [base_of(entry) for entry in entries if not entry.startswith("!")]
    if len(bases) == 1:
        return bases[0]
    if any(base == "." for base in bases) or not bases:
        return "."
    return posixpath.commonpath(bases) or "."


def _normal(text: str) -> str:
    negated = "!" if text.startswith("!") else ""
    return negated + posixpath.normpath(text.removeprefix("!"))


@dataclass(frozen=True)
class PathFilter:
    """Selects relative paths by a list of entries. Without an entry nothing is selected."""

    entries: tuple[str, ...]

    def takes(self, path: str) -> bool:
        parts = path.split("/")
        taken = False
        for negated, compiled in self._compiled:
            if taken is negated and _matches(compiled, parts):
                taken = not negated
        return taken

    @property
    def everything(self) -> bool:
        return self.entries in ((".",), ("**",))

    @cached_property
    def _compiled(self) -> tuple[tuple[bool, tuple[re.Pattern[str] | None, ...]], ...]:
        return tuple((entry.startswith("!"), _compile(entry.removeprefix("!"))) for entry in self.entries)


def below(entries: Iterable[str], base: str) -> tuple[str, ...]:
    """The same entries relative to `base`, which contains all of them (see `common_base`)."""
    found = []
    for entry in entries:
        negated, plain = ("!", entry[1:]) if entry.startswith("!") else ("", entry)
        if base not in (".", plain) and plain.startswith(f"{base.rstrip('/')}/"):
            plain = plain[len(base.rstrip("/")) + 1 :]
        elif plain == base:
            plain = "."
        found.append(negated + plain)
    return tuple(found)


def _compile(pattern: str) -> tuple[re.Pattern[str] | None, ...]:
    """One expression for each part; None for `**`. The expressions of fnmatch do not backtrack across each other."""
    if pattern == ".":
        return (None,)
    return tuple(None if part == "**" else re.compile(translate(part)) for part in pattern.split("/"))


def _matches(pattern: tuple[re.Pattern[str] | None, ...], parts: list[str]) -> bool:
    """Return whether the pattern matches the path or a folder above it. Linear in both for each `**`."""
    reached = {0}
    for part in parts:
        following: set[int] = set()
        for state in _with_skips(pattern, reached):
            if state == len(pattern):
                return True  # It matched a folder above, which includes everything in it.
            expression = pattern[state]
            if expression is None:
                following.add(state)
            elif expression.match(part):
                following.add(state + 1)
        reached = following
    return len(pattern) in _with_skips(pattern, reached)


def _with_skips(pattern: tuple[re.Pattern[str] | None, ...], states: set[int]) -> set[int]:
    """Add the states after each `**`, which may match no folder at all."""
    found = set(states)
    for state in sorted(states):
        while state < len(pattern) and pattern[state] is None:
            state += 1
            found.add(state)
    return found
