"""Settings with their places: YAML, `--set` and Python values as one kind of tree.

YAML scalars follow expectations rather than YAML 1.1: `3e-4` is a number; `yes`, `no`, `on` and `off`, dates and `1:30`
are text; quoted values are text. Each scalar keeps its written form, so that `1.10` can still become the text `1.10`
where text is wanted.
"""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stoker.model.errors import SpecError

if TYPE_CHECKING:
    import yaml

# Far more than any job file needs. The limit keeps multiplying aliases from filling the memory.
MAX_NODES = 100_000

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Marks a scalar without quotes and without a tag, whose type `scalar` finds.
_PLAIN = "plain"
_STANDARD = "tag:yaml.org,2002:"
_TEXT = _STANDARD + "str"


@dataclass(frozen=True)
class Origin:
    """The place of a setting. `shared` layers hold settings for many jobs, on many providers."""

    source: str
    line: int | None = None
    shared: bool = False

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def error(self, path: str, problem: str) -> SpecError:
        return SpecError(f"{self}: {path}: {problem}" if path else f"{self}: {problem}")


Value = bool | int | float | str | tuple["SettingNode", ...] | dict[str, "SettingNode"] | None


@dataclass(frozen=True)
class SettingNode:
    """A value with its origin. `text` is the written form of a scalar; None for values from Python."""

    value: Value
    origin: Origin
    text: str | None = None

    @property
    def nothing(self) -> bool:
        """A key without a value, which differs from an explicit null."""
        return self.value is None and self.text == ""


@dataclass(frozen=True)
class Layer:
    """One source of settings. `folder` is the base of its relative paths, if it has one."""

    root: SettingNode
    folder: Path | None = None

    @property
    def source(self) -> str:
        return self.root.origin.source


def read_layer(
    data: bytes | str,
    source: str,
    *,
    shared: bool = False,
    folder: Path | None = None,
    such_as: str = "run: python train.py",
) -> Layer:
    """Parse YAML. Raises SpecError, in one line with `source:line`, for anything but one mapping. The message
    shows `such_as`, a possible field, as an example."""
    root = _read(data, Origin(source, shared=shared))
    if root.value is None:
        root = replace(root, value={})
    if not isinstance(root.value, dict):
        raise root.origin.error("", f"expected fields such as `{such_as}`, found {describe(root)}")
    return Layer(root, folder)


def layer_of(values: Mapping[str, Any], source: str) -> Layer:
    """Settings from Python: flags, or the arguments of `stoker.Job`. A None at the top means not given."""
    given = {key: value for key, value in values.items() if value is not None}
    return Layer(_from_python(given, Origin(source), ""))


def assignments(texts: Iterable[str] | str, source: str = "--set") -> Layer:
    """A layer from `a.b=value` texts, later ones winning.

    A value is read as a plain YAML scalar; one that begins with `[`, `{` or a quote is read as YAML where
    it is valid YAML, and as text otherwise. A single text is one assignment. Raises SpecError for a text without `=` or
    without a name.
    """
    root = SettingNode({}, Origin(source))
    for text in (texts,) if isinstance(texts, str) else texts:
        path, equals, value = text.partition("=")
        keys = _split_path(path.strip())
        if not equals or not all(keys):
            raise SpecError(f"{source} {text}: write it as field=value, such as resources.spot=true")
        origin = Origin(source)
        node = _assigned(value.strip(), origin)
        for key in reversed(keys):
            node = SettingNode({key: node}, origin)
        root = merge(root, node)
    return Layer(root)


def merge(earlier: SettingNode, later: SettingNode) -> SettingNode:
    """Merge two trees: mappings deeply, other values by replacement. An empty section changes nothing."""
    if isinstance(earlier.value, dict) and isinstance(later.value, dict):
        joined = dict(earlier.value)
        for key, node in later.value.items():
            joined[key] = merge(joined[key], node) if key in joined else node
        return replace(later, value=joined)
    if isinstance(earlier.value, dict) and later.nothing:
        return earlier
    return later


def merge_layers(layers: Sequence[Layer]) -> SettingNode:
    """Merge all layers into one tree, later ones winning; each part keeps its own origin.

    The origin of the whole, which errors about missing fields name, is the job file where there is one.
    """
    root = SettingNode({}, Origin("job"))
    for layer in layers:
        root = merge(root, layer.root)
    files = [layer.root.origin for layer in layers if layer.folder is not None]
    # Without a line: a missing field has none.
    return replace(root, origin=replace(files[-1], line=None)) if files else root


def scalar(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar. Numbers that Python cannot hold stay text."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text) and len(text) < 1000:
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def describe(node: SettingNode) -> str:
    """Describe a value in an error message: short, one line."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    if isinstance(value, str):
        return "text " + repr(short(value))
    return f"the number {short(node.text or str(value))}"


def short(text: str) -> str:
    """Shorten a written value for an error message."""
    return text if len(text) <= 40 else text[:37] + "..."


def plain(node: SettingNode) -> Any:
    """The bare value, for mappings that are passed on as they are."""
    if isinstance(node.value, dict):
        return {key: plain(part) for key, part in node.value.items()}
    if isinstance(node.value, tuple):
        return [plain(part) for part in node.value]
    return node.value


def _split_path(path: str) -> list[str]:
    # Names of parameters and tags may have dots themselves.
    head, dot, rest = path.partition(".")
    if dot and head in ("params", "env", "tags", "metrics", "secrets"):
        return [head, rest]
    return path.split(".")


def _assigned(text: str, origin: Origin) -> SettingNode:
    if text[:1] in ("[", "{", '"', "'"):
        try:
            return _unlined(_read(text, origin))
        except SpecError:
            return SettingNode(text, origin, text)
    return SettingNode(scalar(text), origin, text)


def _unlined(node: SettingNode) -> SettingNode:
    """Remove line numbers, which mean nothing on a command line."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _unlined(part) for key, part in value.items()}
    elif isinstance(value, tuple):
        value = tuple(map(_unlined, value))
    return SettingNode(value, replace(node.origin, line=None), node.text)


def _from_python(value: Any, origin: Origin, path: str) -> SettingNode:
    if value is None or isinstance(value, (bool, str)):
        return SettingNode(value, origin)
    if isinstance(value, numbers.Integral):
        return SettingNode(int(value), origin)
    if isinstance(value, numbers.Real):
        number = float(value)
        # JSON has neither infinity nor NaN; as text, a script's own float() still reads them.
        return SettingNode(number if math.isfinite(number) else repr(number), origin)
    if isinstance(value, os.PathLike):
        return SettingNode(os.fspath(value), origin)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise origin.error(path, f"expected text as names, found {key!r}")
        return SettingNode(
            {key: _from_python(part, origin, f"{path}.{key}" if path else key) for key, part in value.items()},
            origin,
        )
    if isinstance(value, (list, tuple)):
        return SettingNode(tuple(_from_python(part, origin, path) for part in value), origin)
    raise origin.error(path, f"expected text, a number, a list or a mapping, found a {type(value).__name__}")


# ── YAML ────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=1)
def _loader() -> type[yaml.SafeLoader]:
    # Imported here because most commands read no job file, and the import takes longer than all their work.
    import yaml

    class Loader(yaml.SafeLoader):
        """Leave the type of a scalar to `scalar`, and distinguish plain scalars from quoted ones."""

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if kind is yaml.ScalarNode and implicit[0]:
                return _PLAIN
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    return Loader


def _read(data: bytes | str, origin: Origin) -> SettingNode:
    import yaml

    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        raise origin.error("", "is not text in UTF-8") from None
    try:
        loader = _loader()(text)
        try:
            tree = loader.get_single_node()
        finally:
            loader.dispose()
        if tree is None:
            return SettingNode(None, origin, "")
        return _Composer(origin).node(tree)
    except yaml.YAMLError as error:
        _fail(error, origin)
    except RecursionError:
        raise origin.error("", "is nested too deeply") from None


def _fail(error: yaml.YAMLError, origin: Origin) -> NoReturn:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    problem = " ".join(str(problem).split())
    if "'\\t'" in problem:
        problem = "indent with spaces; YAML does not allow tabs"
    elif "mapping values are not allowed" in problem:
        problem += " (put text that holds `: ` in quotes)"
    elif "expected a single document" in str(error):
        problem = "holds more than one document (`---`); leave one"
    line = replace(origin, line=mark.line + 1) if mark is not None else origin
    raise line.error("", f"not valid YAML: {problem}") from None


class _Composer:
    """Convert YAML's nodes to SettingNodes. Bounded, because aliases can make a small file endless."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._count = 0
        self._open: set[int] = set()

    def node(self, tree: yaml.Node) -> SettingNode:
        origin = self._at(tree)
        self._count += 1
        if id(tree) in self._open or self._count > MAX_NODES:
            raise origin.error("", "refers to itself, or repeats itself too often, through aliases")
        self._open.add(id(tree))
        try:
            return self._inner(tree, origin)
        finally:
            self._open.discard(id(tree))

    def _inner(self, tree: yaml.Node, origin: Origin) -> SettingNode:
        import yaml

        if isinstance(tree, yaml.ScalarNode):
            if tree.tag not in (_PLAIN, _TEXT):
                tag = tree.tag.replace(_STANDARD, "!!")
                raise origin.error("", f"the tag {tag} is not allowed; write the value without it")
            return SettingNode(scalar(tree.value) if tree.tag == _PLAIN else tree.value, origin, tree.value)
        if isinstance(tree, yaml.SequenceNode):
            return SettingNode(tuple(map(self.node, tree.value)), origin)
        assert isinstance(tree, yaml.MappingNode)
        return SettingNode(self._mapping(tree), origin)

    def _mapping(self, tree: yaml.MappingNode) -> dict[str, SettingNode]:
        import yaml

        merged: dict[str, SettingNode] = {}
        own: dict[str, SettingNode] = {}
        for key_tree, value_tree in tree.value:
            origin = self._at(key_tree)
            if not isinstance(key_tree, yaml.ScalarNode) or key_tree.value == "":
                raise origin.error("", "expected a name before the colon")
            key = key_tree.value
            value = self.node(value_tree)
            if key == "<<" and key_tree.tag == _PLAIN:
                sources = value.value if isinstance(value.value, tuple) else (value,)
                for source in reversed(sources):
                    if not isinstance(source.value, dict):
                        raise origin.error("<<", f"expected a mapping to merge, found {describe(source)}")
                    merged.update(source.value)
            elif key in own:
                raise origin.error(key, f"is written twice; first in line {own[key].origin.line}")
            else:
                own[key] = replace(value, origin=origin)
        return {**merged, **own}

    def _at(self, tree: yaml.Node) -> Origin:
        return replace(self._origin, line=tree.start_mark.line + 1)
