"""check, iam, exec, ssh and interrupt against the EC2 for tests, whose machines are real ones with an ssh server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker import Job, client
from stoker.governor.loop import Governor
from stoker.model.errors import StokerError
from stoker.providers.ec2 import iam, role_names
from stoker.store.base import open_store
from tests.support.ec2 import Ec2Cloud, ec2_cloud, why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


# Boots, on two busy cores with other tests' boots beside them.
PATIENCE_S = 240.0
KEY = "visitors"
SCRIPT = """\
import http.server, threading, time
from stoker import train
server = http.server.ThreadingHTTPServer(("127.0.0.1", 6006), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("going", flush=True)
while not train.interrupted():
    time.sleep(0.05)
"""


class World:
    """A home with a key, a bucket, and a folder of code."""

    def __init__(self, root: Path, cloud: Ec2Cloud) -> None:
        self.cloud = cloud
        self.url = f"s3://{cloud.new_bucket()}/team"
        self.role = role_names.node_role(self.url)
        cloud.make_profile(self.role)
        self.code = root / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(SCRIPT)
        (root / ".ssh").mkdir()
        self.key = root / ".ssh" / f"{KEY}.pem"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)

    def stoker(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stoker.cli", *arguments]
        return subprocess.run(command, cwd=self.code, capture_output=True, text=True, check=False, timeout=120, **more)

    def submit(self, **resources: Any) -> str:
        job = Job(
            name="train",
            run=["python3", "train.py"],
            code=str(self.code),
            env={"MASTER_PORT": "29600", "COLOUR": "green"},
            limits={"max_runtime": "1h"},
            resources={
                "provider": "ec2",
                "machine": ["c7i.large"],
                "image": "debian/12",
                "ec2": {"key": KEY},
            }
            | resources,
        )
        return client.submit(job, store=self.url)

    @contextmanager
    def governed(self) -> Iterator[None]:
        stop = threading.Event()

        def loop() -> None:
            governor = Governor(open_store(self.url))
            while not stop.wait(0.3):
                try:
                    governor.run_pass()
                except StokerError:
                    continue

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[Ec2Cloud]:
    if not isolated():
        pytest.skip("runs in isolation, through the test above")
    with ec2_cloud() as cloud:
        yield cloud


@pytest.fixture
def world(shared: Ec2Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in os.environ:
        if name.startswith(("AWS_", "SSH_")):
            monkeypatch.delenv(name)
    made = World(tmp_path, shared)
    environ = {
        **shared.env,
        "HOME": str(tmp_path),
        "STOKER_HOME": str(tmp_path / "stoker"),
        "STOKER_STORE": made.url,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made.code)
    yield made
    shared.clear()


@pytest.fixture
def ec2(world: World) -> Any:
    import boto3

    return boto3.client("ec2")


def until(holds: Callable[[], Any], what: str) -> Any:
    give_up = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < give_up, f"waited for {what}"
        time.sleep(0.1)
    return found


def import_key(world: World, ec2: Any) -> None:
    if not ec2.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [KEY]}])["KeyPairs"]:
        ec2.import_key_pair(KeyName=KEY, PublicKeyMaterial=world.key.with_suffix(".pem.pub").read_bytes())


def running(world: World, job: str) -> str:
    """The machine on which the script has started."""

    def trains() -> str | None:
        for attempt in client.summary(job, world.url).attempts:
            if attempt.ended_at is None and attempt.nodes:
                instance = attempt.nodes[0].instance
                told = world.cloud.machine(instance).run("cat", "/var/lib/stoker/node/train.log", check=False)
                return instance if "going" in told else None
        return None

    def tried() -> str | None:
        try:
            return trains()
        except LookupError:
            return None  # not up yet

    return str(until(tried, "the training"))


def test_exec_and_ssh_on_a_machine(world: World, ec2: Any) -> None:
    import_key(world, ec2)
    world.cloud.calls(reset=True)
    job = world.submit()
    with world.governed():
        machine = running(world, job)
        calls = {name.removesuffix(" (dry)") for name in world.cloud.calls() if ":" not in name}

        script = 'pwd; echo "$COLOUR $STOKER_JOB"; echo "$MASTER_PORT $PET_MASTER_PORT"; echo "a  b" >&2; exit 7'
        told = world.stoker("exec", job, "--", "sh", "-c", script)
        assert told.returncode == 7, told.stderr
        assert told.stdout == f"/var/lib/stoker/node/code\ngreen {job}\n29600 29600\n"
        assert "a  b\n" in told.stderr
        # What is written to it goes there.
        assert world.stoker("exec", job, "--", "wc", "-c", input="12345").stdout == "5\n"
        assert world.stoker("ssh", job, input="whoami; exit 3\n").returncode == 3

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        forward = [sys.executable, "-m", "stoker.cli", "ssh", job, "-L", f"{port}:127.0.0.1:6006", "--", "-N"]
        with subprocess.Popen(forward, cwd=world.code) as ssh:

            def answers() -> bytes | None:
                try:
                    with closing(socket.create_connection(("127.0.0.1", port), timeout=5)) as open_port:
                        open_port.sendall(b"GET /train.py HTTP/1.0\r\n\r\n")
                        return open_port.makefile("rb").read()
                except OSError:
                    return None

            assert b"http.server" in until(answers, "the forwarded port")
            # The ssh that it started goes with it, and so does the port.
            ssh.terminate()
            ssh.wait(timeout=60)
        assert answers() is None

        # A key that the machine does not know is refused, and the exit status is ssh's own, with a hint.
        other = world.code / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
        refused = world.stoker("exec", job, "--identity", str(other), "--", "true")
        assert refused.returncode == 255 and "--via" in refused.stderr and "Permission denied" in refused.stderr

        # What a governor did to get here is what its policy allows.
        (governor,) = [grant for grant in iam.grants(world.url).grants if grant.name == "governor"]
        allowed = json.dumps(governor.policy)
        assert {"RunInstances", "DescribeInstances"} <= calls
        assert [name for name in calls if f'"ec2:{name}"' not in allowed] == []

        # It is no spot machine: it is ended, and that is said.
        ended = world.stoker("interrupt", job)
        assert ended.returncode == 0 and f"{machine} was ended at once, without a notice" in ended.stderr, ended.stderr
        world.cloud.machine(machine).wait_gone(PATIENCE_S)
        client.stop(job, world.url)
        until(lambda: client.summary(job, world.url).outcome, "the end")


def test_a_rehearsed_reclaim_gives_a_notice(world: World, ec2: Any) -> None:
    import_key(world, ec2)
    job = world.submit(spot=True)
    with world.governed():
        machine = running(world, job)
        told = world.stoker("interrupt", job, "--grace", "2m")
        assert told.returncode == 0, told.stderr
        assert f"the Fault Injection Service takes {machine} away in 2 minutes" in told.stderr
        until(lambda: len(client.summary(job, world.url).attempts) > 1, "the hand-over")
        first = client.summary(job, world.url).attempts[0]
        until(lambda: client.summary(job, world.url).attempts[0].outcome, "the verdict")
        assert first.nodes[0].instance == machine
        assert client.summary(job, world.url).attempts[0].outcome == "reclaimed"
        client.stop(job, world.url)
        until(lambda: client.summary(job, world.url).outcome, "the end")


def findings(world: World, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    told = world.stoker("check", "ec2", "--json", *arguments)
    assert told.stdout, told.stderr
    return told.returncode, {each["name"]: each for each in json.loads(told.stdout)}


def test_check_finds_nothing_wrong_and_makes_nothing(world: World, ec2: Any) -> None:
    """moto's own default group lets nobody in, so nodes cannot reach each other at first."""
    code, found = findings(world)
    assert code == 0, [each for each in found.values() if each["ok"] is False]
    for name in ("store", "credentials", "region", "offers", "instance profile", "image", "subnet"):
        assert found[name]["ok"] is True, found[name]
    for name in ("ec2:RunInstances", "ec2:CreatePlacementGroup", "ec2:DescribeInstances"):
        assert found[name]["ok"] is True, found[name]
    # Nothing was there to try these on, and IAM could not be asked.
    assert found["ec2:TerminateInstances"]["ok"] is None
    assert not world.cloud.left()
    assert not world.cloud.instances() or set(world.cloud.instances().values()) == {"terminated"}

    (group,) = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=_vpc(ec2))["GroupId"].split()
    several = ("--set", "nodes=2", "--set", f"resources.ec2.security_groups=[{group}]")
    code, found = findings(world, *several)
    between = found["between nodes"]
    assert code == 2 and between["ok"] is False and "29500" in between["detail"]
    # The fix is a command, and it is one.
    assert between["fix"].startswith("aws ec2 authorize-security-group-ingress")
    subprocess.run(between["fix"], shell=True, check=True, capture_output=True)
    code, found = findings(world, *several, "--set", "env.MASTER_PORT=29600")
    assert code == 0 and found["between nodes"]["ok"] is True and "29600" in found["between nodes"]["detail"]


def _vpc(ec2: Any) -> str:
    return str(ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"][0]["VpcId"])


def test_check_says_what_is_missing_and_what_to_do(world: World) -> None:
    world.cloud.faults.unauthorized("RunInstances", "DescribeVolumes")
    told = world.stoker("check", "ec2", "--set", "resources.ec2.profile=nobody")
    assert told.returncode == 2
    lines = told.stdout.splitlines()
    for name, word in (
        ("ec2:RunInstances", f'"aws:RequestTag/stoker:store":"{world.url}"'),
        ("ec2:DescribeVolumes", '"Action":"ec2:DescribeVolumes"'),
        ("instance profile", "stoker iam ec2"),
    ):
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"✗ {name}:")]
        assert word in lines[at + 1], lines[at + 1]
    # What is allowed is one line, and what cannot be tried is another.
    (fine,) = [line for line in lines if line.startswith("✓ may: ")]
    allowed, needed = (int(word) for word in fine.split() if word.isdecimal())
    assert 0 < allowed < needed, fine
    (untried,) = [line for line in lines if "cannot be tried before this store has a machine" in line]
    assert "ec2:TerminateInstances, ec2:DeleteVolume" in untried
    assert len(lines) < 40, told.stdout
    world.cloud.faults.clear()

    world.cloud.faults.throttle("DescribeVolumes")
    code, found = findings(world)
    assert code == 0 and found["ec2:DescribeVolumes"]["ok"] is None
    world.cloud.faults.clear()


def test_check_names_the_field_that_is_wrong(world: World, ec2: Any) -> None:
    import_key(world, ec2)
    code, found = findings(world, "--set", f"resources.ec2.key={KEY}")
    assert code == 0 and found["key"]["ok"] is True

    wrong = {"subnet": "subnet-0123", "security_groups": "[sg-0123]", "key": "nobodys"}
    for name, seen in (
        ("subnet", ("subnet", "offers")),
        ("security_groups", ("security groups", "ec2:RunInstances")),
        ("key", ("key", "ec2:RunInstances")),
    ):
        code, found = findings(world, "--set", f"resources.ec2.{name}={wrong[name]}")
        failed = {each["name"]: each["fix"] for each in found.values() if each["ok"] is False}
        assert code == 2 and set(failed) <= set(seen) and seen[0] in failed, failed
        assert all(f"resources.ec2.{name}" in fix for fix in failed.values()), failed


def test_without_credentials_there_is_one_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_STORE", str(world.code / "store"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, found = findings(world)
    assert code == 2
    assert [name for name, each in found.items() if each["ok"] is False] == ["credentials"]


def test_the_script_of_iam_is_taken_by_aws_as_often_as_one_likes(world: World) -> None:
    import boto3

    client_of_iam = boto3.client("iam")
    script = world.stoker("iam", "ec2", "--job", "vision").stdout
    for _ in range(3):
        ran = subprocess.run(["sh", "-eu"], input=script, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    (role,) = client_of_iam.get_instance_profile(InstanceProfileName=f"{world.role}-vision")["InstanceProfile"]["Roles"]
    written = client_of_iam.get_role_policy(RoleName=role["RoleName"], PolicyName="stoker")["PolicyDocument"]
    policies = {grant.name: grant.policy for grant in iam.grants(world.url, job="vision").grants}
    assert written == policies["node"]
    # What it says is to be done next can be done.
    client_of_iam.create_user(UserName="jane")
    for line in ran.stdout.splitlines():
        subprocess.run(line.partition(": ")[2].replace("NAME", "jane"), shell=True, check=True)
    attached = client_of_iam.list_attached_user_policies(UserName="jane")["AttachedPolicies"]
    names = {role_names.policy_name(kind, world.url): kind for kind in ("person", "governor")}
    assert {each["PolicyName"] for each in attached} == set(names)
    for each in attached:
        # One more would be one more each time, and there may be five.
        assert len(client_of_iam.list_policy_versions(PolicyArn=each["PolicyArn"])["Versions"]) == 2
        version = client_of_iam.get_policy(PolicyArn=each["PolicyArn"])["Policy"]["DefaultVersionId"]
        found = client_of_iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId=version)["PolicyVersion"]
        assert found["Document"] == policies[names[each["PolicyName"]]]
    code, found = findings(world, "--set", f"resources.ec2.profile={world.role}-vision")
    assert code == 0 and found["instance profile"]["ok"] is True


def test_the_first_steps_of_the_page_are_true(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty account to a check that fails nowhere, in a shell set up as the page says and no other."""
    page = (Path(__file__).parents[2] / "docs" / "ec2.md").read_text(encoding="utf-8")
    steps = page[page.index("**1. ") : page.index("**4. ")]
    typed = [line.removeprefix("$ ") for line in steps.splitlines() if line.startswith("$ ")]
    assert typed[0].startswith("export STOKER_STORE=s3://") and typed[-1] == "stoker check ec2"
    monkeypatch.delenv("STOKER_STORE")
    ran = subprocess.run(
        ["sh", "-eux"],
        input="\n".join(line.replace("| less", "| cat") for line in typed),
        capture_output=True,
        text=True,
        check=False,
        cwd=world.code,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr
    assert "✗" not in ran.stdout and "✓ instance profile: stoker-node" in ran.stdout
