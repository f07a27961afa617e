"""Write the table of the fields that Compute Engine takes for a machine, for `resources.gce.overrides`.

The facts are those of Google's discovery document, which google-api-python-client packages: run this after that was
upgraded.

    python scripts/write_gce_fields.py
"""

from __future__ import annotations

import json
import re
import sys
from importlib import resources as package
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "src/stoker/providers/gce/data/gce_fields.json"
# The body of `instances.insert`, and the one that a bulk insert takes for each of its machines.
ROOTS = ("Instance", "InstanceProperties")
OUTPUT_ONLY = "-"
_OUTPUT_ONLY = re.compile(r"\[?output only\b", re.IGNORECASE)


def main() -> int:
    """Write the file, and say what is in it."""
    text = render()
    PATH.write_text(text, encoding="utf-8")
    print(f"{PATH}: {sum(len(fields) for fields in json.loads(text)['schemas'].values())} fields")
    return 0


def render() -> str:
    """The table by the document that is installed: a line for each schema.

    Of each field it says what is in it: nothing for a plain value, `-` for what Compute Engine alone tells, else the
    name of a schema; in `[]` where it is a list, in `{}` where it is a mapping of names that people choose.
    """
    document = _document()
    found = _Found(document["schemas"])
    for name in ROOTS:
        found.add(name, document["schemas"][name])
    source = f"{document['id']}, revision {document['revision']}"
    rows = (f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(found.schemas.items()))
    return f'{{"source": {json.dumps(source)}, "schemas": {{\n' + ",\n".join(rows) + "\n}}\n"


class _Found:
    """The schemas that were met, each by its name: they name one another, and some are met often."""

    def __init__(self, described: dict[str, Any]) -> None:
        self._described = described
        self.schemas: dict[str, dict[str, str]] = {}

    def add(self, name: str, schema: dict[str, Any]) -> str:
        if name not in self.schemas:
            fields = self.schemas[name] = {}
            for field, about in sorted(schema["properties"].items()):
                fields[field] = OUTPUT_ONLY if _output_only(about) else self._inside(f"{name}.{field}", about)
        return name

    def _inside(self, where: str, about: dict[str, Any]) -> str:
        if "$ref" in about:
            return self.add(about["$ref"], self._described[about["$ref"]])
        if about["type"] == "array":
            return f"[{self._inside(where, about['items'])}]"
        if "additionalProperties" in about:
            return f"{{{self._inside(where, about['additionalProperties'])}}}"
        # A schema that has no name of its own is called by its place.
        return self.add(where, about) if "properties" in about else ""


def _output_only(about: dict[str, Any]) -> bool:
    return bool(about.get("readOnly")) or _OUTPUT_ONLY.match(about.get("description", "")) is not None


def _document() -> Any:
    file = package.files("googleapiclient") / "discovery_cache/documents/compute.v1.json"
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
