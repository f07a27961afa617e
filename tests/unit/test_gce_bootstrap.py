"""A plain machine of Compute Engine becomes a node: the boot script, run for real against services on loopback."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google_services import (
    ACCOUNT,
    EMAIL,
    NAME,
    NUMBER,
    PROJECT,
    ZONE,
    Bucket,
    Compute,
    Metadata,
    bucket_service,
    compute_service,
    metadata_server,
)
from test_ec2_userdata import AGENT

from stoker.model import codec, keys
from stoker.model.node_config import NodeConfig
from stoker.providers.boot import script
from stoker.providers.boot.script import BootSettings
from stoker.providers.gce import startup
from stoker.submit.agent_bundle import local_tag

pytestmark = pytest.mark.slow

TAG = local_tag()
INSTANCE = f"{ZONE}.{NUMBER}"
STORE = "gs://bucket/team/stoker"
NAMES = ["stoker-train-abcd-7-0", "stoker-train-abcd-7-1"]
OUTPUT = "bucket/team/stoker/" + keys.boot_output(keys.node("train-abcd", 7, 1, keys.boot(INSTANCE, 0)))
PAYLOAD = startup.payload()


def a_boot(**changes: object) -> BootSettings:
    told: dict[str, object] = {
        "store": STORE,
        "job": "train-abcd",
        "claim": 7,
        "nodes": 2,
        "bundles": {TAG: "0" * 64},
        "provider": "gce",
        "environ": {},
        "max_life_s": 7200.0,
        "more": {"names": NAMES, "project": PROJECT},
    }
    return BootSettings(**(told | changes))  # type: ignore[arg-type]


def render(boot: BootSettings) -> str:
    return script.render(boot, PAYLOAD, gives_back=True)


@dataclass
class Machine:
    """A folder that stands in for a machine, with the programs that would switch it off replaced."""

    root: Path
    metadata: Metadata
    bucket: Bucket
    compute: Compute
    bundles: dict[str, str] = field(default_factory=dict)
    pythons: str = sys.executable
    patience_s: float = 30.0
    environ: dict[str, str] = field(default_factory=dict)

    def boot(self, **changes: object) -> subprocess.CompletedProcess[str]:
        environ = {
            "STORAGE_EMULATOR_HOST": self.bucket.endpoint,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": self.compute.endpoint,
        }
        path = self.root / "startup-script"
        path.write_text(render(a_boot(**({"bundles": self.bundles, "environ": environ} | changes))))
        return self.run("bash", str(path))

    def leave(self) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.root / "opt/stoker/boot/leave"))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={
                # What is on the machine is found after what is in this folder.
                "PATH": f"{self.root}/stubs:{os.environ['PATH']}",
                "HOME": str(self.root),
                "STOKER_BOOT_ROOT": str(self.root),
                "STOKER_BOOT_PYTHONS": self.pythons,
                "STOKER_BOOT_PATIENCE_S": str(self.patience_s),
                "GCE_METADATA_HOST": self.metadata.host,
                "GCE_METADATA_IP": self.metadata.host,
                **self.environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    @property
    def calls(self) -> list[str]:
        """What was asked of systemd, in order."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def is_off(self) -> bool:
        return "systemctl --no-block poweroff" in self.calls

    @property
    def is_deleted(self) -> bool:
        return not self.compute.machines

    def stub(self, name: str, text: str) -> Path:
        path = self.root / "stubs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def bring(self, files: Mapping[str, bytes]) -> None:
        """An agent in the bucket."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        # Of the second generation: the first was collected once.
        self.bundles[TAG] = keys.shared_name(digest, 2)
        self.bucket.objects[f"bucket/team/stoker/{keys.bundle(self.bundles[TAG])}"] = buffer.getvalue()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with metadata_server() as metadata, bucket_service(metadata) as bucket, compute_service(metadata) as compute:
        made = Machine(tmp_path, metadata, bucket, compute)
        for name in ("systemctl", "shutdown", "poweroff"):
            made.stub(name, f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        made.bring(AGENT)
        yield made


# ── As text ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    path = tmp_path / "startup-script"
    path.write_text(render(a_boot()))
    leaving = tmp_path / "leave"
    leaving.write_text(f"#!/bin/sh\nroot=''\n{script._LEAVE}echo $root\n")
    ran = subprocess.run(["shellcheck", "-e", "SC2086", path, leaving], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def sources() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(gzip.decompress(PAYLOAD))) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_what_travels_runs_on_python_3_6() -> None:
    assert set(sources()) == {
        "__main__.py",
        "stoker/__init__.py",
        "stoker/providers/__init__.py",
        "stoker/providers/boot/__init__.py",
        "stoker/providers/boot/install.py",
        "stoker/providers/boot/install_paths.py",
        "stoker/providers/boot/retry.py",
        "stoker/cloudapi/__init__.py",
        "stoker/cloudapi/google/__init__.py",
        "stoker/cloudapi/google/metadata.py",
    }
    for name, text in sources().items():
        tree = ast.parse(text, name, feature_version=(3, 6))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        # Neither is there in 3.6.
        assert not imported & {"__future__", "dataclasses"}, name
        ours = {part for part in imported if part and part.startswith("stoker")}
        assert all(part.startswith(("stoker.cloudapi.google", "stoker.providers.boot")) for part in ours), name


def test_nothing_that_travels_subscripts_what_old_pythons_cannot() -> None:
    """`Callable[…]`, `dict[…]` and `X | None` are for annotations in quotes alone."""
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            named = node.value if isinstance(node, ast.Subscript) else None
            if isinstance(named, ast.Name):
                assert named.id not in {"Callable", "Mapping", "dict", "list", "tuple", "set", "type"}, name


# ── A node ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_becomes_the_node_that_its_name_tells(machine: Machine) -> None:
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    config = codec.loads(NodeConfig, (machine.root / "var/lib/stoker/node/node.json").read_bytes())
    assert config == NodeConfig(
        store=STORE,
        provider="gce",
        job="train-abcd",
        claim=7,
        rank=1,
        nodes=2,
        instance=INSTANCE,
        max_life_s=7200.0,
    )
    assert machine.calls == [
        "systemctl start stoker-life.timer",
        "systemctl start stoker-boot.timer",
        "systemctl enable --now --job-mode=ignore-dependencies stoker-agent.service",
    ]
    assert f"{INSTANCE} in {ZONE} is rank 1 of train-abcd" in ran.stdout
    assert machine.compute.asked == []


def test_its_service_finds_its_cloud_and_keeps_no_secret(machine: Machine) -> None:
    machine.boot()
    unit = (machine.root / "etc/systemd/system/stoker-agent.service").read_text()
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        assert f'Environment="{name}={machine.metadata.host}"' in unit
    assert f'Environment="STORAGE_EMULATOR_HOST={machine.bucket.endpoint}"' in unit
    everything = "".join(path.read_text(errors="replace") for path in machine.root.rglob("*") if path.is_file())
    assert machine.metadata.token not in everything


def test_every_later_boot_only_starts_the_agent(machine: Machine) -> None:
    """Startup scripts run at every boot, also when somebody starts a stopped machine again."""
    machine.boot()
    before, asked = list(machine.calls), len(machine.metadata.asked)
    assert machine.boot().returncode == 0
    assert machine.calls == [*before, "systemctl start stoker-agent.service"]
    assert len(machine.metadata.asked) == asked and machine.compute.asked == []


def test_what_comes_late_is_waited_for(machine: Machine) -> None:
    machine.metadata.trouble = [0, 503, 0]
    machine.bucket.trouble = [0, 503, 401, 429]
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    assert machine.metadata.trouble == machine.bucket.trouble == []


def test_a_bucket_is_named_with_or_without_http(machine: Machine) -> None:
    environ = {"STORAGE_EMULATOR_HOST": machine.bucket.endpoint.removeprefix("http://")}
    assert machine.boot(environ=environ).returncode == 0


# ── Failures: one clear line, the whole output in the bucket, and the machine is gone ─────────────────────────────────


def check_failed(machine: Machine, what: str, *more: str, reported: bool = True, deleted: bool = True) -> None:
    ran = machine.boot()
    lines = [line for line in ran.stdout.splitlines() if "boot failed" in line]
    assert len(lines) == 1 and lines[0].startswith("stoker: boot failed: "), ran.stdout
    for text in (what, " — ", *more):
        assert text in lines[0]
    assert ran.returncode != 0 and machine.is_off
    assert not (machine.root / "var/lib/stoker/node/node.json").exists()
    if reported:
        assert lines[0] in machine.bucket.objects[OUTPUT].decode().splitlines()
    else:
        assert OUTPUT not in machine.bucket.objects and "nor can this be brought to the bucket" in ran.stdout
    assert machine.is_deleted is deleted


def test_a_name_that_nobody_asked_for(machine: Machine) -> None:
    machine.metadata.values["instance/name"] = "somebody-elses"
    machine.compute.machines = {f"projects/{PROJECT}/zones/{ZONE}/instances/somebody-elses"}
    check_failed(machine, "somebody-elses is none of the machines that were asked for", reported=False)


def test_no_metadata(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.environ = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), "127.0.0.1:1")
    check_failed(machine, "the metadata server does not answer", reported=False, deleted=False)


def test_no_service_account(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.metadata.has_account = False
    what = ("the machine has no service account", "resources.gce.service_account")
    check_failed(machine, *what, reported=False, deleted=False)


def test_a_scope_that_is_missing(machine: Machine) -> None:
    machine.metadata.values[ACCOUNT + "scopes"] = "https://www.googleapis.com/auth/devstorage.read_only\n"
    what = ("the machine lacks the scope of Cloud Storage", "auth/cloud-platform to resources.gce.scopes")
    check_failed(machine, *what, reported=False, deleted=False)


def test_a_bucket_that_denies(machine: Machine) -> None:
    machine.patience_s = 0.3
    key = f"bucket/team/stoker/{keys.bundle(machine.bundles[TAG])}"
    machine.bucket.denied.add(key)
    check_failed(
        machine, f"gs://{key} is denied (AccessDenied)", f"give {EMAIL} storage.objects.get", "`stoker iam gce`"
    )


def test_an_agent_that_is_not_there(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.bucket.objects.clear()
    check_failed(machine, "is not there (NoSuchKey)")


def test_no_network(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.bucket.endpoint = "http://127.0.0.1:1"
    check_failed(machine, "127.0.0.1:1 does not answer", "Private Google Access", "Cloud NAT", reported=False)


def test_an_agent_that_does_not_run(machine: Machine) -> None:
    machine.bring({**AGENT, "obstore/__init__.py": b"raise ImportError('GLIBC_9.99 not found')"})
    check_failed(machine, "ImportError: GLIBC_9.99 not found")


# ── Leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def left(machine: Machine) -> list[str]:
    """What was said when the machine left. It is off in any case."""
    assert machine.boot().returncode == 0
    ran = machine.leave()
    assert machine.is_off, ran.stdout
    return [line for line in ran.stdout.splitlines() if line.startswith("stoker: ")]


def test_a_machine_deletes_itself_by_its_number(machine: Machine) -> None:
    assert left(machine) == []
    assert machine.compute.asked == [f"DELETE projects/{PROJECT}/zones/{ZONE}/instances/{NAME}"]
    assert machine.is_deleted


def test_one_that_is_gone_already_is_gone(machine: Machine) -> None:
    machine.compute.machines.clear()
    assert left(machine) == []
    assert len(machine.compute.asked) == 1


def test_one_that_may_not_says_what_is_missing_once(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.compute.denied = True
    (line,) = left(machine)
    assert line.startswith("stoker: the machine cannot give itself back: ")
    assert f"{EMAIL} lacks compute.instances.delete" in line and "the next governor deletes it" in line


def test_one_whose_scopes_are_too_small_says_so(machine: Machine) -> None:
    machine.patience_s = 0.3
    assert machine.boot().returncode == 0
    machine.metadata.values[ACCOUNT + "scopes"] = "https://www.googleapis.com/auth/devstorage.read_write\n"
    said = machine.leave().stdout
    assert said.count("stoker: ") == 1 and "lacks the scope of Compute Engine" in said
    assert machine.is_off


def test_what_stands_in_the_way_for_a_moment_is_waited_for(machine: Machine) -> None:
    machine.compute.trouble = [503, 401, 0]
    assert left(machine) == []
    assert machine.is_deleted


def test_a_python_that_does_not_run_is_not_the_end_of_it(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    machine.stub("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (machine.root / "opt/stoker/boot/python").write_text("/nowhere/python\n")
    machine.leave()
    assert machine.is_deleted and machine.is_off


def test_the_project_is_asked_for_where_nobody_told_it(machine: Machine) -> None:
    assert machine.boot(more={"names": NAMES}).returncode == 0
    machine.leave()
    assert machine.is_deleted


def test_a_machine_without_a_rank_can_leave(machine: Machine) -> None:
    assert machine.boot().returncode == 0
    config = machine.root / "opt/stoker/boot/boot.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"names": []}))
    machine.leave()
    assert machine.is_deleted
