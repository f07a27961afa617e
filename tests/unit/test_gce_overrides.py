"""Overrides are told apart by what Compute Engine takes, to the depth of it; and the table of that is Google's own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.cli import main
from stoker.model.errors import UserError
from stoker.providers.gce import overrides

ROOT = Path(__file__).parents[2]


LABELS = "labels are lower-case letters, digits, _ and -, 63 at most, and names begin with a letter"


def said(given: dict[str, Any], nodes: int = 1) -> str:
    with pytest.raises(UserError) as raised:
        overrides.check(given, nodes)
    (line,) = str(raised.value).splitlines()
    return line.removeprefix("resources.gce.overrides")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"minCpuPlatfrm": "x"}, ".minCpuPlatfrm: Compute Engine has no such field; did you mean minCpuPlatform?"),
        (
            {"min_cpu_platform": "x"},
            ".min_cpu_platform: Compute Engine has no such field; did you mean minCpuPlatform?",
        ),
        (
            {"scheduling": {"onHostMaintainance": "TERMINATE"}},
            ".scheduling.onHostMaintainance: Compute Engine has no such field; did you mean onHostMaintenance?",
        ),
        (
            {"networkInterfaces": [{"nicType": "GVNIC"}, {"accessConfigs": [{"natIp": "10.0.0.7"}]}]},
            ".networkInterfaces[1].accessConfigs[0].natIp: Compute Engine has no such field; did you mean natIP?",
        ),
        (
            {"disks": [{"initializeParams": {"diskSizeGB": "9"}, "autoDelete": True}]},
            ".disks[0].initializeParams.diskSizeGB: Compute Engine has no such field; did you mean diskSizeGb?",
        ),
        (
            {"metadata": {"items": [{"key": "a", "Value": "b"}]}},
            ".metadata.items[0].Value: Compute Engine has no such field; did you mean value?",
        ),
        ({"status": "RUNNING"}, ".status: is set by Compute Engine alone; leave it out"),
        ({"tags": ["a"]}, ".tags: must be a mapping, as Compute Engine takes it"),
        ({"tags": {"items": "a"}}, ".tags.items: must be a list, as Compute Engine takes it"),
        (
            {"tags": {"items": [{"a": "b"}]}},
            ".tags.items[0]: must be one value, no list and no mapping, as Compute Engine takes it",
        ),
        (
            {"labels": {"team": ["vision"]}},
            ".labels.team: must be one value, no list and no mapping, as Compute Engine takes it",
        ),
        ({"disks": ["data"]}, ".disks[0]: must be a mapping, as Compute Engine takes it"),
        ({"labels": {"Team": "Vision"}}, f".labels.Team: Compute Engine's {LABELS}; write team: vision"),
        ({"labels": {"7": "x"}}, f".labels.7: Compute Engine's {LABELS}; write tag-7: x"),
        ({"labels": {"team": "a b"}}, f".labels.team: Compute Engine's {LABELS}; write team: a-b"),
        ({"labels": {"team": 7}}, ".labels.team: must be text, found 7; put it into quotes"),
        (
            {"disks": [{"autoDelete": True, "initializeParams": {"labels": {"stoker-job": "x"}}}]},
            ".disks[0].initializeParams.labels.stoker-job: is Stoker's own; leave it out",
        ),
        (
            {"disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": "global/images/x"}}]},
            ".disks: resources.image names what the machine boots; write it there",
        ),
        (
            {"disks": [{"boot": True, "autoDelete": True, "source": "zones/z/disks/mine"}]},
            ".disks: resources.image names what the machine boots; write it there",
        ),
    ],
)
def test_what_is_refused(given: dict[str, Any], line: str) -> None:
    assert said(given) == line


def test_several_nodes_are_asked_for_with_other_fields() -> None:
    hostname, tags = {"hostname": "a.example.com"}, {"resourceManagerTags": {"tagKeys/1": "tagValues/2"}}
    overrides.check(hostname, 1)
    overrides.check(tags, 2)
    assert (
        said(hostname, 2) == ".hostname: Compute Engine has no such field for several nodes, only for one; leave it out"
    )
    assert said(tags, 1).endswith("has no such field for one node, only for several; leave it out")
    assert said({"minCpuPlatfrm": "x"}, 2).endswith("did you mean minCpuPlatform?")


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_fine(nodes: int) -> None:
    whole: dict[str, Any] = {
        "minCpuPlatform": "Intel Ice Lake",
        "labels": {"cost-centre": "7", "team": None, "größe": "ü_1", "empty": ""},
        "tags": {"items": ["training"]},
        "advancedMachineFeatures": {"threadsPerCore": 1},
        "metadata": {"items": [{"key": "enable-oslogin", "value": "TRUE"}]},
        "networkInterfaces": [{"subnetwork": "regions/us-central1/subnetworks/a", "nicType": "GVNIC"}],
        "scheduling": {"nodeAffinities": [{"key": "a", "operator": "IN", "values": ["b"]}], "minNodeCpus": 8},
        "disks": [{"type": "SCRATCH", "autoDelete": True, "initializeParams": {"diskType": "local-ssd"}}],
    }
    overrides.check(whole, nodes)
    overrides.check({}, nodes)
    # Like nothing that the table has: newer than the table, or Compute Engine's to refuse.
    overrides.check({"xyzzy": {"anything": [1]}}, nodes)
    for schema, fields in overrides._table().items():
        near = [name for name in fields if list(overrides._unknown(f"{name}AndMore{name[::-1]}", schema))]
        assert near == [], "a new field beside an old one is no slip"


def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any cloud or store is asked."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "vision-1")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-central1")
    monkeypatch.chdir(tmp_path)
    asked = "resources={provider: gce, machine: n2-standard-4, gce: {overrides: {minCpuPlatfrm: Intel Ice Lake}}}"
    with pytest.raises(SystemExit) as left:
        main(["run", "--dry-run", "--store", "gs://bucket/team", "--set", asked, "--", "true"])
    told = capsys.readouterr()
    assert left.value.code == 2 and told.out == ""
    (line,) = told.err.splitlines()
    assert "resources.gce.overrides.minCpuPlatfrm: Compute Engine has no such field; did you mean" in line


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_gce_fields", ROOT / "scripts" / "write_gce_fields.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_googles_document_says() -> None:
    pytest.importorskip("googleapiclient")
    written = script()
    assert written.PATH.read_text(encoding="utf-8") == written.render(), "run: python scripts/write_gce_fields.py"


def test_the_table_ends_nowhere() -> None:
    """Every schema that a field names is there, and none that no field names."""
    schemas = json.loads(script().PATH.read_text(encoding="utf-8"))["schemas"]
    named = {kind.strip("[]{}") for fields in schemas.values() for kind in fields.values()} - {"", "-"}
    assert named | {"Instance", "InstanceProperties"} == set(schemas)


def test_the_table_is_read_by_nobody_who_overrides_nothing() -> None:
    program = (
        "from stoker.providers import packaged_data\n"
        "from stoker.providers.gce import overrides, provider\n"
        "overrides.check({}, 1)\n"
        "assert packaged_data.read_table.cache_info().misses == 0\n"
        "overrides.check({'tags': {'items': []}}, 1)\n"
        "assert packaged_data.read_table.cache_info().misses == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
