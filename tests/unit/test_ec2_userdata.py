"""A plain machine becomes a node: the user-data as text, and run for real against services on loopback."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from aws_services import SECRET, TOKEN, Bucket, Metadata, bucket_service, metadata_service

from stoker.model import codec, keys
from stoker.model.errors import UserError
from stoker.model.node_config import NodeConfig
from stoker.providers import boot as boot_package
from stoker.providers.boot.agent_service import agent_unit
from stoker.providers.boot.install import unpack
from stoker.providers.boot.install_paths import InstallPaths
from stoker.providers.boot.retry import BootFailed, RetryableFailure
from stoker.providers.boot.script import BootSettings
from stoker.providers.ec2.bootstrap import Ec2BootBucket
from stoker.providers.ec2.userdata import MOST_BYTES, payload, render
from stoker.providers.image_info import newer_image
from stoker.submit import agent_bundle
from stoker.submit.agent_bundle import local_tag

pytestmark = pytest.mark.slow

TAG = local_tag()
INSTANCE = "i-0123456789abcdef0"
STORE = "s3://bucket/team/stoker"
OUTPUT = "bucket/team/stoker/" + keys.boot_output(keys.node("train-abcd", 7, 1, keys.boot(INSTANCE, 0)))


def a_boot(**changes: object) -> BootSettings:
    told: dict[str, object] = {
        "store": STORE,
        "job": "train-abcd",
        "claim": 7,
        "nodes": 2,
        "bundles": {TAG: "0" * 64},
        "provider": "ec2",
        "environ": {"AWS_DEFAULT_REGION": "us-east-1"},
        "max_life_s": 7200.0,
    }
    return BootSettings(**(told | changes))  # type: ignore[arg-type]


# ── As text ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_what_ec2_takes_even_when_everything_is_long() -> None:
    tags = ("cp310-arm64", "cp310-x86_64", "cp311-arm64", "cp311-x86_64")
    environ = {"AWS_ENDPOINT_URL_S3": "https://" + "e" * 80, "AWS_REGION": "ap-southeast-3", "AWS_ALLOW_HTTP": "true"}
    script = render(
        a_boot(
            store="s3://" + "b" * 63 + "/" + "p" * 150,
            job="n" * 40 + "-abcd",
            bundles=dict.fromkeys(tags, "f" * 64),
            environ=environ,
            more={"disk_bytes": 64 * 10**12, "own_disks": True},
        )
    )
    assert len(script.encode()) <= MOST_BYTES
    assert script.startswith("#!/bin/bash\n")


def test_more_than_ec2_takes_is_refused() -> None:
    with pytest.raises(UserError, match="EC2 takes 16384"):
        render(a_boot(store="s3://bucket/" + "p" * 4000))


def test_it_is_pure() -> None:
    assert render(a_boot()) == render(a_boot())
    assert payload() == payload()


def test_a_store_that_machines_cannot_reach_is_refused() -> None:
    with pytest.raises(UserError, match="s3://"):
        render(a_boot(store="file:///data"))


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "DB_PASSWORD"])
def test_no_credential_is_ever_in_it(name: str) -> None:
    with pytest.raises(ValueError, match="must not be in a boot script"):
        render(a_boot(environ={name: "x"}))


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("life_s", [None, 86400.0])
def test_shellcheck_has_nothing_to_say(tmp_path: Path, life_s: float | None) -> None:
    script = tmp_path / "user-data"
    script.write_text(render(a_boot(max_life_s=life_s)))
    ran = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_what_travels_runs_on_python_3_6() -> None:
    with zipfile.ZipFile(io.BytesIO(gzip.decompress(payload()))) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(sources) == {
        "__main__.py",
        "stoker/__init__.py",
        "stoker/cloudapi/__init__.py",
        "stoker/cloudapi/aws/__init__.py",
        "stoker/cloudapi/aws/imds.py",
        "stoker/cloudapi/aws/sigv4.py",
        "stoker/providers/__init__.py",
        "stoker/providers/boot/__init__.py",
        "stoker/providers/boot/install.py",
        "stoker/providers/boot/install_paths.py",
        "stoker/providers/boot/retry.py",
    }
    for name, text in sources.items():
        tree = ast.parse(text, name, feature_version=(3, 6))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        # Neither is there in 3.6.
        assert not imported & {"__future__", "dataclasses"}, name
        ours = {part for part in imported if part and part.startswith("stoker")}
        assert all(part.startswith(("stoker.cloudapi.aws", "stoker.providers.boot")) for part in ours), name


OLD = sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python")) + [
    Path(found) for name in ("python3.6", "python3.7", "python3.8", "python3.9") if (found := shutil.which(name))
]


@pytest.mark.skipif(not OLD, reason="needs a Python older than 3.10")
def test_it_really_does(tmp_path: Path) -> None:
    program = tmp_path / "boot.pyz"
    program.write_bytes(gzip.decompress(payload()))
    config = tmp_path / "boot.json"
    config.write_text(json.dumps({"environ": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}}))
    ran = subprocess.run(
        [str(OLD[0]), str(program), str(config), "--failed", "too old — take another"],
        env={"STOKER_BOOT_ROOT": str(tmp_path), "STOKER_BOOT_PATIENCE_S": "0.1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=False,
    )
    if b"command not found" in ran.stderr:
        pytest.skip("that Python does not run")
    assert ran.stdout.decode().startswith("stoker: boot failed: too old — take another\n"), ran.stderr
    assert ran.returncode == 1


# ── Run for real ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Machine:
    """A folder that stands in for a machine, with the programs that would switch it off replaced."""

    root: Path
    metadata: Metadata
    bucket: Bucket
    bundles: dict[str, str] = field(default_factory=dict)
    pythons: str = sys.executable
    patience_s: float = 30.0
    environ: dict[str, str] = field(default_factory=dict)

    def boot(self, **changes: object) -> subprocess.CompletedProcess[str]:
        environ = {"AWS_ENDPOINT_URL_S3": self.bucket.endpoint}
        script = self.root / "user-data"
        script.write_text(render(a_boot(bundles=self.bundles, environ=environ, **changes)))
        return subprocess.run(
            ["bash", str(script)],
            env={
                # What is on the machine is found after what is in this folder.
                "PATH": f"{self.root}/stubs:{os.environ['PATH']}",
                "HOME": str(self.root),
                "STOKER_BOOT_ROOT": str(self.root),
                "STOKER_BOOT_PYTHONS": self.pythons,
                "STOKER_BOOT_PATIENCE_S": str(self.patience_s),
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint,
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

    def stub(self, name: str, text: str) -> Path:
        path = self.root / "stubs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def bring(self, files: Mapping[str, bytes], tag: str = TAG) -> str:
        """An agent in the bucket."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        self.bundles[tag] = digest
        self.bucket.objects[f"bucket/team/stoker/{keys.bundle(digest)}"] = buffer.getvalue()
        return digest


# What starts the agent is in its archive.
START = Path(boot_package.__file__).parent
AGENT = {
    "__main__.py": b"",
    "stoker/__init__.py": b"",
    "stoker/providers/__init__.py": b"",
    "stoker/providers/boot/__init__.py": b"",
    **{f"stoker/providers/boot/{name}": (START / name).read_bytes() for name in agent_bundle._START},
    "stoker/agent/__init__.py": b"",
    "stoker/agent/main.py": b"",
    "obstore/__init__.py": b"",
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with metadata_service() as metadata, bucket_service() as bucket:
        made = Machine(tmp_path, metadata, bucket)
        for name in ("systemctl", "shutdown", "poweroff"):
            made.stub(name, f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        made.bring(AGENT)
        yield made


def told(machine: Machine) -> str:
    """What reached the bucket."""
    return machine.bucket.objects[OUTPUT].decode()


def test_a_machine_becomes_a_node(machine: Machine) -> None:
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    node = machine.root / "var/lib/stoker/node"
    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    config = codec.loads(NodeConfig, (node / "node.json").read_bytes())
    assert config == NodeConfig(
        store=STORE,
        provider="ec2",
        job="train-abcd",
        claim=7,
        rank=1,
        nodes=2,
        instance=INSTANCE,
        max_life_s=7200.0,
    )
    assert (machine.root / "opt/stoker/agent/stoker/agent/main.py").exists()
    assert machine.calls == [
        "systemctl start stoker-life.timer",
        "systemctl start stoker-boot.timer",
        "systemctl enable --now --job-mode=ignore-dependencies stoker-agent.service",
    ]
    assert machine.bucket.refused == []
    assert "rank 1 of train-abcd" in ran.stdout
    assert (machine.root / "var/log/stoker-boot.log").read_text().count("stoker: ") >= 3


def test_its_service_runs_the_agent_and_keeps_no_secret(machine: Machine) -> None:
    machine.boot()
    unit = (machine.root / "etc/systemd/system/stoker-agent.service").read_text()
    root = machine.root
    assert f'ExecStart="{sys.executable}" "{root}/opt/stoker/agent" "{root}/var/lib/stoker/node"' in unit
    assert f'Environment="AWS_ENDPOINT_URL_S3={machine.bucket.endpoint}"' in unit
    assert f'Environment="AWS_EC2_METADATA_SERVICE_ENDPOINT={machine.metadata.endpoint}"' in unit
    # The agent's library is nobody else's: it would stand before that of the training.
    assert "PYTHONPATH" not in unit
    everything = "".join(path.read_text(errors="replace") for path in root.rglob("*") if path.is_file())
    assert SECRET not in everything and TOKEN not in everything


def test_the_timers_are_set_first_and_survive_a_reboot(machine: Machine) -> None:
    machine.boot()
    units = machine.root / "etc/systemd/system"
    assert "OnBootSec=7200\n" in (units / "stoker-life.timer").read_text()
    assert "OnBootSec=900\n" in (units / "stoker-boot.timer").read_text()
    for name in ("stoker-life", "stoker-boot"):
        assert (units / "timers.target.wants" / f"{name}.timer").resolve() == units / f"{name}.timer"
        assert f"ExecStart={machine.root}/opt/stoker/boot/leave" in (units / f"{name}.service").read_text()
    # The second one is for machines that never got an agent.
    node = machine.root / "var/lib/stoker/node/node.json"
    assert f"ConditionPathExists=!{node}\n" in (units / "stoker-boot.service").read_text()
    assert "Condition" not in (units / "stoker-life.service").read_text()


def test_without_a_longest_life_there_is_no_timer_for_it(machine: Machine) -> None:
    assert machine.boot(max_life_s=None).returncode == 0
    assert "systemctl start stoker-life.timer" not in machine.calls


def test_without_systemd_the_machine_is_bounded_all_the_same(machine: Machine) -> None:
    calls = machine.root / "calls"
    machine.stub("systemctl", f'#!/bin/sh\necho "systemctl $*" >>"{calls}"\nexit 1\n')
    ran = machine.boot()
    assert (
        "stoker: boot failed: `systemctl enable --now --job-mode=ignore-dependencies stoker-agent.service` failed"
        in ran.stdout
    )
    assert "shutdown -P +15" in machine.calls and machine.calls[-1] == "shutdown -P now"


def test_a_second_run_only_starts_the_agent(machine: Machine) -> None:
    machine.boot()
    before = list(machine.calls)
    asked = len(machine.metadata.asked)
    assert machine.boot().returncode == 0
    assert machine.calls == [*before, "systemctl start stoker-agent.service"]
    assert len(machine.metadata.asked) == asked


def test_what_comes_late_is_waited_for(machine: Machine) -> None:
    machine.metadata.trouble = [0, 503, 0]
    machine.bucket.trouble = [0, 503, 500, 0]
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    assert machine.metadata.trouble == machine.bucket.trouble == []


def test_the_python_that_some_agent_serves_is_chosen(machine: Machine) -> None:
    other = machine.stub("other-python", "#!/bin/sh\necho cp39-x86_64 3.9.2 1\n")
    broken = machine.stub("broken-python", "#!/bin/sh\nexit 1\n")
    machine.pythons = f"{broken} {other} no-such-python {sys.executable}"
    ran = machine.boot()
    assert ran.returncode == 0, ran.stdout
    assert f"found {other} (3.9.2, cp39-x86_64)" in ran.stdout and str(broken) not in ran.stdout
    assert f'"{sys.executable}"' in (machine.root / "etc/systemd/system/stoker-agent.service").read_text()


# ── Failures: one clear line, the whole output in the bucket, off ─────────────────────────────────────────────────────


def check_failed(machine: Machine, ran: subprocess.CompletedProcess[str], what: str, *, reported: bool = True) -> None:
    lines = [line for line in ran.stdout.splitlines() if "boot failed" in line]
    assert len(lines) == 1 and lines[0].startswith("stoker: boot failed: "), ran.stdout
    assert what in lines[0] and " — " in lines[0]
    assert ran.returncode != 0
    assert machine.is_off
    assert not (machine.root / "var/lib/stoker/node/node.json").exists() or "systemctl enable" in what
    if reported:
        assert lines[0] in told(machine).splitlines()
    else:
        assert OUTPUT not in machine.bucket.objects
        assert "nor can this be brought to the bucket" in ran.stdout


def test_an_old_python(machine: Machine) -> None:
    # It answers as 3.9 does, and runs what is given to it.
    old = machine.stub(
        "old-python", f'#!/bin/sh\n[ "$1" = -c ] && echo cp39-x86_64 3.9.2 1 && exit\nexec "{sys.executable}" "$@"\n'
    )
    machine.pythons = str(old)
    ran = machine.boot()
    check_failed(machine, ran, f"found {old} (3.9.2)")
    # The same as a plan says, and no older Python than an agent was packed for.
    assert newer_image(machine.bundles) in told(machine)
    assert f"found {old} (3.9.2, cp39-x86_64)" in told(machine)


def test_no_python_at_all(machine: Machine) -> None:
    machine.pythons = "no-such-python"
    ran = machine.boot()
    assert "stoker: boot failed: no Python that an agent was packed for" in ran.stdout and "found none" in ran.stdout
    assert machine.is_off


def test_a_python_that_no_agent_was_packed_for(machine: Machine) -> None:
    machine.bundles = {"cp311-mips": "0" * 64}
    check_failed(machine, machine.boot(), "no Python that an agent was packed for (cp311-mips): found")


def test_no_metadata(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1"
    check_failed(machine, machine.boot(), "the metadata service does not answer", reported=False)


def test_no_role(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.metadata.values = {
        path: text for path, text in machine.metadata.values.items() if "security-credentials" not in path
    }
    check_failed(machine, machine.boot(), "the machine has no instance profile", reported=False)


def test_no_network(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.bucket.endpoint = "http://127.0.0.1:1"
    check_failed(machine, machine.boot(), "127.0.0.1:1 does not answer", reported=False)


def test_a_bucket_that_denies(machine: Machine) -> None:
    machine.patience_s = 0.3
    key = f"bucket/team/stoker/{keys.bundle(machine.bundles[TAG])}"
    machine.bucket.denied.add(key)
    ran = machine.boot()
    check_failed(machine, ran, f"s3://{key} is denied (AccessDenied)")
    assert "s3:GetObject" in told(machine)


KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        # As S3 answers, for instance https://github.com/ministryofjustice/modernisation-platform/pull/11726
        (
            f"User: arn:aws:sts::1:assumed-role/x/i-1 is not authorized to perform: kms:Decrypt on resource: {KEY}",
            f"kms:Decrypt and kms:GenerateDataKey on {KEY}",
        ),
        # As KMS answers for a key of another account.
        (
            "The ciphertext refers to a customer master key that does not exist, does not exist in this region, or …",
            "kms:Decrypt and kms:GenerateDataKey on the KMS key of the bucket",
        ),
    ],
)
def test_a_bucket_whose_key_may_not_be_used(machine: Machine, message: str, advice: str) -> None:
    machine.patience_s = 0.3
    key = f"bucket/team/stoker/{keys.bundle(machine.bundles[TAG])}"
    machine.bucket.denied.add(key)
    machine.bucket.message = message
    check_failed(machine, machine.boot(), f"s3://{key} is denied (AccessDenied)")
    assert advice in told(machine) and "stoker iam ec2 --kms-key" in told(machine)
    assert "s3:GetObject" not in told(machine)


def test_an_agent_that_is_not_there(machine: Machine) -> None:
    machine.patience_s = 0.3
    machine.bucket.objects.clear()
    check_failed(machine, machine.boot(), "is not there (NoSuchKey)")


def test_an_agent_that_is_not_the_one(machine: Machine) -> None:
    machine.patience_s = 0.3
    key = f"bucket/team/stoker/{keys.bundle(machine.bundles[TAG])}"
    machine.bucket.objects[key] += b" and something more"
    check_failed(machine, machine.boot(), "is not what was submitted")
    assert not (machine.root / "opt/stoker/agent").exists()


def test_an_agent_that_does_not_run(machine: Machine) -> None:
    machine.bring({**AGENT, "obstore/__init__.py": b"raise ImportError('GLIBC_9.99 not found')"})
    ran = machine.boot()
    check_failed(machine, ran, "ImportError: GLIBC_9.99 not found")
    assert "Traceback" in told(machine)


def test_a_rank_too_many(machine: Machine) -> None:
    check_failed(machine, machine.boot(nodes=1), "rank 1 is one too many")


def test_a_service_that_does_not_start(machine: Machine) -> None:
    calls = machine.root / "calls"
    machine.stub(
        "systemctl", f'#!/bin/sh\necho "systemctl $*" >>"{calls}"\n[ "$1" != enable ] || {{ echo no; exit 1; }}\n'
    )
    check_failed(
        machine,
        machine.boot(),
        "`systemctl enable --now --job-mode=ignore-dependencies stoker-agent.service` failed: no",
    )


def test_a_fault_of_ours(machine: Machine) -> None:
    (machine.root / "etc/systemd/system/stoker-agent.service").mkdir(parents=True)
    ran = machine.boot()
    check_failed(machine, ran, "IsADirectoryError")
    assert "Traceback" in told(machine)


# ── Parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "./a", "a//b"])
def test_nothing_is_unpacked_elsewhere(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(BootFailed, match="submit the job again"):
        unpack(archive, tmp_path / "agent")
    assert not (tmp_path / "agent").exists()


def test_links_are_not_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(link)
    with pytest.raises(BootFailed):
        unpack(archive, tmp_path / "agent")


class Who:
    """An identity that nobody is asked for."""

    domain = "amazonaws.com"


class Answer(io.BytesIO):
    """An answer of S3."""

    def __init__(self, status: int, code: str, **headers: str) -> None:
        super().__init__(f"<Error><Code>{code}</Code></Error>".encode())
        self.status = status
        self.headers = {name.replace("_", "-").lower(): value for name, value in headers.items()}

    def getheader(self, name: str) -> str | None:
        return self.headers.get(name.lower())


def a_bucket(name: str = "bucket", **environ: str) -> Ec2BootBucket:
    return Ec2BootBucket(name, environ, "us-east-1", Who())  # type: ignore[arg-type]


def test_where_a_bucket_is() -> None:
    assert a_bucket()._url("a b/c") == "https://bucket.s3.us-east-1.amazonaws.com/a%20b/c"
    # The certificate of S3 is for one name in front, not two.
    assert a_bucket("my.bucket")._url("c") == "https://s3.us-east-1.amazonaws.com/my.bucket/c"
    assert a_bucket(AWS_ENDPOINT_URL="http://10.0.0.1:9000/")._url("c") == "http://10.0.0.1:9000/bucket/c"


def test_a_bucket_in_another_region_is_followed_there() -> None:
    bucket = a_bucket()
    with pytest.raises(RetryableFailure):
        bucket._refused("GET", "c", Answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1"))  # type: ignore[arg-type]
    assert bucket.region == "eu-west-1"
    assert bucket._url("c") == "https://bucket.s3.eu-west-1.amazonaws.com/c"


def test_a_clock_that_is_wrong_is_set_by_the_buckets() -> None:
    bucket = a_bucket()
    answer = Answer(403, "RequestTimeTooSkewed", Date="Wed, 01 May 2030 12:00:00 GMT")
    with pytest.raises(RetryableFailure):
        bucket._refused("GET", "c", answer)  # type: ignore[arg-type]
    ahead = datetime.now(timezone.utc) + bucket._clock_offset
    assert abs(ahead - datetime(2030, 5, 1, 12, tzinfo=timezone.utc)) < timedelta(minutes=1)


def test_an_environment_survives_the_service_file() -> None:
    unit = agent_unit("job", "/usr/bin/python3", InstallPaths(), {"ODD": 'a "b" \\ 100%'})
    assert r'Environment="ODD=a \"b\" \\ 100%%"' in unit
    for line in (
        "OnFailure=stoker-leave.service",
        "Restart=on-failure",
        "KillMode=mixed",
        "Delegate=yes",
        "After=network.target docker.service",
    ):
        assert line in unit.splitlines()
    assert "ExecStopPost=" in unit and "/opt/stoker/boot/leave" in unit
    # They would fire before the restart that flushes.
    assert "FailureAction" not in unit and "SuccessAction" not in unit
