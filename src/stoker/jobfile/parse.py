"""From layers of settings to a validated Spec. Every mistake is one line: where, what, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from stoker.jobfile import field_values, plain_values, value_forms
from stoker.jobfile.cross_field_rules import check_rules
from stoker.jobfile.default_name import default_name
from stoker.jobfile.field_table import Field, fields_of, provider_sections, walk
from stoker.jobfile.settings_tree import Layer, Origin, SettingNode, describe, merge_layers, short
from stoker.model.resources import Resources
from stoker.model.spec import Input, Spec

# Field names of other tools.
_OTHER_WORDS = {
    "command": "run",
    "cmd": "run",
    "script": "run",
    "entrypoint": "run",
    "hyperparameters": "params",
    "args": "params",
    "envs": "env",
    "num_nodes": "nodes",
    "cloud": "provider",
    "instance_type": "machine",
    "accelerators": "gpus",
    "use_spot": "spot",
    "timeout": "max_runtime",
    "labels": "tags",
}


@dataclass(frozen=True)
class ParsedJob:
    """A spec with where each of its fields was written, by dotted public name."""

    spec: Spec
    origins: dict[str, Origin]

    def where(self, path: str) -> Origin | None:
        """The place of a field, or of the nearest section around it; None if it was not written."""
        while path not in self.origins:
            path, dot, _ = path.rpartition(".")
            if not dot:
                return None
        return self.origins[path]


def parse_job(layers: Sequence[Layer], *, folder: Path | None = None) -> Spec:
    """Build the spec from the layers, later ones winning. Raises SpecError for the first mistake.

    Parts of `resources` that belong to another provider are left out where they come from shared layers,
    and kept (for `check_honoured` to refuse) where the job itself has them. A job without a name is called
    after its script, else after `folder`, which is the job file's folder or the current one by default.
    """
    return parse_layers(layers, folder=folder).spec


def parse_layers(
    layers: Sequence[Layer], *, folder: Path | None = None, without: frozenset[str] = frozenset()
) -> ParsedJob:
    """As `parse_job`, with the origin of each field; the dotted fields in `without` are removed first."""
    root = merge_layers(layers)
    for path in without:
        root = _replaced(root, path.split("."), None)
    return _read_job(_own_sections(root), folder or base_folder(layers))


def _read_job(root: SettingNode, folder: Path) -> ParsedJob:
    assert isinstance(root.value, dict)
    reader = SectionReader()
    found = reader.fields(Spec, root, "")
    if "name" not in found:
        found["name"] = default_name(found["run"], folder / found.get("code", "."))
    parsed = ParsedJob(
        Spec(**found, params_written=field_values.params_as_written(root.value.get("params"))), reader.origins
    )
    check_rules(parsed.spec, lambda path: parsed.where(path) or root.origin)
    return parsed


def base_folder(layers: Sequence[Layer]) -> Path:
    """The base of the job's relative paths: the job file's folder, or the current one."""
    folders = [layer.folder for layer in layers if layer.folder is not None]
    return folders[-1] if folders else Path.cwd()


def _replaced(node: SettingNode, keys: list[str], part: SettingNode | None) -> SettingNode:
    """Replace the part at this place of the tree, or remove it."""
    if not isinstance(node.value, dict) or keys[0] not in node.value:
        return node
    parts = dict(node.value)
    inner = part if len(keys) == 1 else _replaced(parts[keys[0]], keys[1:], part)
    if inner is None:
        del parts[keys[0]]
    else:
        parts[keys[0]] = inner
    return replace(node, value=parts)


def _own_sections(root: SettingNode) -> SettingNode:
    """Remove settings of shared layers for providers that this job does not use."""
    resources = root.value.get("resources") if isinstance(root.value, dict) else None
    if resources is None or not isinstance(resources.value, dict):
        return root
    chosen = resources.value.get("provider")
    provider = fields_of(Resources)["provider"].default if chosen is None else chosen.value
    for section, node in resources.value.items():
        if section in provider_sections() and section != provider:
            root = _replaced(root, ["resources", section], _unshared(node))
    return root


def _unshared(node: SettingNode) -> SettingNode | None:
    if not isinstance(node.value, dict) or not node.value:
        return None if node.origin.shared else node
    kept = {key: part for key, child in node.value.items() if (part := _unshared(child)) is not None}
    return replace(node, value=kept) if kept else None


@dataclass
class SectionReader:
    """Reads dataclasses made of `part`s, and remembers where each field was written, by its dotted name."""

    # The type of the whole file: a name that is unknown here may be known in another section.
    root: type = Spec
    # True if a null is a mistake, because there is no other layer from which it could take anything back.
    alone: bool = False
    origins: dict[str, Origin] = field(default_factory=dict)
    # True if a duration needs its unit: a policy for all jobs seldom means 72 seconds.
    units: bool = False

    def section(self, cls: type, node: SettingNode, path: str) -> Any:
        if not isinstance(node.value, dict):
            names = ", ".join([*list(fields_of(cls))[:4], "…"])
            raise plain_values.wrong(node, path, f"fields ({names})")
        return cls(**self.fields(cls, node, path))

    def fields(self, cls: type, node: SettingNode, path: str) -> dict[str, Any]:
        assert isinstance(node.value, dict)
        infos = fields_of(cls)
        for key, part in node.value.items():
            if key not in infos:
                raise part.origin.error(_join(path, key), f"unknown field; {_nearest(self.root, cls, key)}")
        found: dict[str, Any] = {}
        for key, info in infos.items():
            dotted = _join(path, key)
            child = node.value.get(key)
            if self.alone and child is not None and child.value is None and not _meant(info, child, path):
                raise child.origin.error(dotted, f"{plain_values.NULL}, or write a value")
            # A null takes back an earlier layer's value, unless null is a value of this field.
            if child is None or child.nothing or (child.value is None and not info.optional):
                if info.required and dotted != "name":
                    raise (child or node).origin.error(dotted, f"is missing{_missing(info, dotted)}")
                continue
            self.origins[dotted] = child.origin
            found[info.name] = None if child.value is None else self._value(info, child, dotted)
        return found

    def _value(self, info: Field, node: SettingNode, path: str) -> Any:
        if info.section is not None:
            return self.section(info.section, node, path)
        if info.form == "inputs":
            return self._inputs(node, path)
        if info.form == "sections":
            return self._sections(info, node, path)
        if info.choices and not info.form:
            if node.value in info.choices:
                return node.value
            raise plain_values.wrong(node, path, " or ".join(info.choices))
        reader = field_values.FORMS[info.form] if info.form else field_values.TYPES[info.hint]
        value = reader(node, path)
        if self.units and info.form == "duration":
            plain_values.check_unit(node, path)
        if isinstance(node.value, dict):
            self.origins.update({f"{path}.{key}": child.origin for key, child in node.value.items()})
        if info.least is not None and value is not None and value < info.least:
            raise node.origin.error(path, f"must be at least {info.least:g}, found {_shown(node)}")
        if info.above is not None and value is not None and value <= info.above:
            raise node.origin.error(path, f"must be more than {info.above:g}, found {_shown(node)}")
        if info.most is not None and value is not None and value > info.most:
            raise node.origin.error(path, f"must be at most {_most(info)}, found {_shown(node)}")
        return value

    def _sections(self, info: Field, node: SettingNode, path: str) -> tuple[Any, ...]:
        (cls, _) = get_args(info.hint)
        if isinstance(node.value, str) and hasattr(cls, "SHORT"):
            return (self._one(cls, node, path),)
        if not isinstance(node.value, tuple):
            raise plain_values.wrong(node, path, "a list")
        return tuple(self._one(cls, each, f"{path}[{number}]") for number, each in enumerate(node.value))

    def _one(self, cls: type, node: SettingNode, path: str) -> Any:
        """Read a section; a bare value stands for its first field where the section allows that."""
        short = getattr(cls, "SHORT", None)
        if short is None or isinstance(node.value, dict):
            return self.section(cls, node, path)
        self.origins[path] = node.origin
        return cls(**{short: self._value(fields_of(cls)[short], node, path)})

    def _inputs(self, node: SettingNode, path: str) -> dict[str, Input]:
        found = {}
        for key, dotted, child in plain_values.input_items(node, path):
            self.origins[dotted] = child.origin
            if isinstance(child.value, dict):
                found[key] = self.section(Input, child, dotted)
            elif isinstance(child.value, str):
                found[key] = Input(source=plain_values.text(child, dotted))
            else:
                raise plain_values.wrong(child, dotted, "a URL or path, or {from: …, mode: …}")
        return found


def _meant(info: Field, null: SettingNode, path: str) -> bool:
    """True if a null differs from the default. At the top, an empty list is often left behind."""
    if null.nothing:
        return not path
    return info.optional and info.default is not None


def _missing(info: Field, dotted: str) -> str:
    """The remedy for a missing field."""
    if dotted == "run":
        return "; say what to run, such as `run: python train.py`"
    *most, last = info.choices or ("",)
    return f"; write {', '.join(most)} or {last}" if most else ""


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(node: SettingNode) -> str:
    return short(node.text) if node.text else describe(node).removeprefix("the number ")


def _most(info: Field) -> str:
    """The largest value, as people write it."""
    assert info.most is not None
    if info.form == "duration":
        return f"{info.most / (365 * 86400):g} years"
    return value_forms.write_size(int(info.most)) if info.form == "size" else f"{info.most:.0f}"


def nearest_field(key: str) -> str:
    """A hint for an unknown top-level field: the nearest name, or the right place."""
    return _nearest(Spec, Spec, key)


def _nearest(root: type, cls: type, key: str) -> str:
    here = list(fields_of(cls))
    wanted = _OTHER_WORDS.get(key, key)
    # The name may be right and the place wrong, such as `gpus` at the top.
    elsewhere = [dotted for dotted, info in walk(root) if info.key == wanted]
    close = [wanted] if wanted in here else elsewhere or get_close_matches(key, here, n=1)
    if close and close[0] not in here and "." not in close[0]:
        # For `tags` below `resources`, "did you mean tags?" would not help.
        return f"`{close[0]}` stands at the top level of the job file"
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(here)}"
