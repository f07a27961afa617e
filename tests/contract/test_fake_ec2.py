"""The EC2 for tests boots what it is asked to boot, and answers as EC2 does. All else about ec2 rests on this."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ec2 import IMAGES, PROFILE, Ec2Cloud, ec2_cloud, why_no_machines
from tests.support.ec2.images import OWN_ACCOUNT, RECORDS
from tests.support.servers import isolated, pytest_isolated

BULLSEYE, BOOKWORM, TRIXIE = IMAGES[:3]
UP = "the user data has run"
HELLO = f"#!/bin/bash\necho {UP}\n"

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


@pytest.fixture(scope="module")
def shared() -> Iterator[Ec2Cloud]:
    if not isolated():
        pytest.skip("runs in isolation, through the test above")
    with ec2_cloud() as cloud:
        yield cloud


@pytest.fixture
def cloud(shared: Ec2Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Cloud]:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in shared.env.items():
        monkeypatch.setenv(name, value)
    yield shared
    shared.clear()


@pytest.fixture
def ec2(cloud: Ec2Cloud) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("ec2", config=Config(retries={"mode": "standard", "total_max_attempts": 1}))


def ask(**more: Any) -> dict[str, Any]:
    """A launch of one small machine, with more."""
    usual = {
        "ImageId": BOOKWORM.ami,
        "InstanceType": "m5.large",
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": HELLO,
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    return {**usual, **more}


def launch(ec2: Any, **more: Any) -> list[dict[str, Any]]:
    return list(ec2.run_instances(**ask(**more))["Instances"])


def ids(instances: list[dict[str, Any]]) -> list[str]:
    return [instance["InstanceId"] for instance in instances]


def seen(ec2: Any, **about: Any) -> list[dict[str, Any]]:
    found = ec2.describe_instances(**about)["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def refused(call: Callable[[], Any]) -> tuple[str, int]:
    """The error code and status that a call was refused with."""
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


def metadata(cloud: Ec2Cloud, instance: str, path: str) -> str:
    """What a machine is told about itself; "" where there is nothing, "401" where it may not ask."""
    script = """
        import sys, urllib.error, urllib.request as web
        at = open("/etc/environment").read().strip().removeprefix("AWS_EC2_METADATA_SERVICE_ENDPOINT=")
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = web.urlopen(web.Request(at + "/latest/api/token", method="PUT", headers=ttl)).read().decode()
        headers = {"X-aws-ec2-metadata-token": token if not sys.argv[2:] else sys.argv[2]}
        try:
            print(web.urlopen(web.Request(at + "/latest/" + sys.argv[1], headers=headers)).read().decode(), end="")
        except urllib.error.HTTPError as error:
            print({404: ""}.get(error.code, error.code), end="")
    """
    return cloud.machine(instance).run("python3", "-c", textwrap.dedent(script), *path.split())


def test_a_machine_boots_and_runs_its_user_data(cloud: Ec2Cloud, ec2: Any) -> None:
    tags = [{"Key": "stoker:job", "Value": "job-1"}, {"Key": "Name", "Value": "job-1-0"}]
    (made,) = launch(
        ec2,
        UserData=f"#!/bin/bash\nset -e\nwhoami\necho at=$AWS_EC2_METADATA_SERVICE_ENDPOINT\necho {UP}\n",
        IamInstanceProfile={"Name": PROFILE},
        MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 30, "VolumeType": "gp3"}}],
    )
    assert made["State"]["Name"] == "pending"
    machine = cloud.machine(made["InstanceId"])
    machine.wait_console(UP)
    assert "root" in machine.console()
    assert "at=http://127.0.0.1:" in machine.console()

    assert metadata(cloud, machine.id, "meta-data/instance-id") == machine.id
    assert metadata(cloud, machine.id, "meta-data/ami-launch-index") == "0"
    assert metadata(cloud, machine.id, "meta-data/local-ipv4") == made["PrivateIpAddress"] == machine.address
    assert metadata(cloud, machine.id, "meta-data/placement/region") == "us-east-1"
    assert metadata(cloud, machine.id, "meta-data/tags/instance/stoker:job") == "job-1"
    role = metadata(cloud, machine.id, "meta-data/iam/security-credentials/")
    keys = json.loads(metadata(cloud, machine.id, f"meta-data/iam/security-credentials/{role}"))
    assert role == PROFILE
    assert keys["Token"]
    assert metadata(cloud, machine.id, "meta-data/spot/instance-action") == ""
    assert metadata(cloud, machine.id, "meta-data/instance-id wrong-token") == "401"
    assert made["PrivateIpAddress"] in machine.run("ip", "-4", "addr", "show", "eth0")

    # A real client reads what was launched.
    cli = [str(Path(sys.executable).parent / "aws"), "ec2", "describe-instances", "--output", "json"]
    told = subprocess.run([*cli, "--instance-ids", machine.id], capture_output=True, text=True, check=True).stdout
    (read,) = json.loads(told)["Reservations"][0]["Instances"]
    assert read["State"]["Name"] == "running"
    assert read["PrivateIpAddress"] == machine.address
    assert read["IamInstanceProfile"]["Arn"].endswith(f"instance-profile/{PROFILE}")
    assert {"Key": "Name", "Value": "job-1-0"} in read["Tags"]
    (volume,) = ec2.describe_volumes(Filters=[{"Name": "tag:stoker:job", "Values": ["job-1"]}])["Volumes"]
    assert (volume["Size"], volume["VolumeType"]) == (30, "gp3")
    assert UP in ec2.get_console_output(InstanceId=machine.id)["Output"]

    # It powers off by itself, and EC2 deletes it. Whoever still runs a command inside is no obstacle.
    machine.run("sh", "-c", "systemctl poweroff; sleep 600", limit_s=120, check=False)
    machine.wait_gone()
    (gone,) = seen(ec2, InstanceIds=[machine.id])
    assert gone["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert UP in ec2.get_console_output(InstanceId=machine.id)["Output"]
    assert not cloud.left()
    with pytest.raises(LookupError):
        machine.run("true")


def test_two_machines_reach_each_other_and_the_store(cloud: Ec2Cloud, ec2: Any) -> None:
    ec2.create_placement_group(GroupName="gang", Strategy="cluster")
    made = launch(ec2, MinCount=2, MaxCount=2, Placement={"GroupName": "gang"}, IamInstanceProfile={"Name": PROFILE})
    assert sorted(each["AmiLaunchIndex"] for each in made) == [0, 1]
    assert len({each["Placement"]["AvailabilityZone"] for each in made}) == 1
    one, two = (cloud.machine(each) for each in ids(made))
    for machine in (one, two):
        machine.wait_console(UP)
    assert metadata(cloud, two.id, "meta-data/ami-launch-index") == "1"
    assert metadata(cloud, two.id, "meta-data/iam/security-credentials/") == PROFILE

    one.run("systemd-run", "python3", "-m", "http.server", "8000", "--bind", one.address)
    fetch = "import sys, urllib.request as web; print(web.urlopen(sys.argv[1], timeout=5).status)"
    one.wait_until(lambda _: "8000" in one.run("ss", "-ltn"), "to listen")
    assert two.run("python3", "-c", fetch, f"http://{one.address}:8000/") == "200\n"
    with urllib.request.urlopen(f"http://{one.address}:8000/", timeout=5) as answer:
        assert answer.status == 200
    bucket = f"{cloud.s3_endpoint}/{cloud.new_bucket()}"
    assert two.run("python3", "-c", fetch, bucket) == "200\n"

    # The store fails for machines alone, then no more; then the cable is out.
    cloud.faults.shut_store("machines")
    assert "HTTP Error 500" in two.run("python3", "-c", fetch, bucket, check=False)
    with urllib.request.urlopen(bucket, timeout=5) as answer:
        assert answer.status == 200
    cloud.faults.shut_store("nobody")
    assert two.run("python3", "-c", fetch, bucket) == "200\n"
    two.connect(False)
    assert "200" not in two.run("python3", "-c", fetch, bucket, check=False)
    two.connect(True)

    assert refused(lambda: ec2.delete_placement_group(GroupName="gang")) == ("InvalidPlacementGroup.InUse", 400)
    ended = ec2.terminate_instances(InstanceIds=[one.id, two.id])["TerminatingInstances"]
    assert {each["CurrentState"]["Name"] for each in ended} == {"shutting-down"}
    for machine in (one, two):
        machine.wait_gone()
        # It was asked to go, and went.
        assert "Powering off" in machine.console()
    assert ec2.terminate_instances(InstanceIds=[one.id])["TerminatingInstances"][0]["CurrentState"]["Code"] == 48
    ec2.delete_placement_group(GroupName="gang")
    assert not cloud.left()


def test_spot_machines_are_told_and_taken(cloud: Ec2Cloud, ec2: Any) -> None:
    spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    told, killed = (cloud.machine(each) for each in ids(launch(ec2, MaxCount=2, InstanceMarketOptions=spot)))
    for machine in (told, killed):
        machine.wait_console(UP)
    kept = seen(ec2, Filters=[{"Name": "instance-lifecycle", "Values": ["spot"]}])
    assert {each["InstanceId"] for each in kept if each["State"]["Name"] == "running"} == {told.id, killed.id}
    assert kept[0]["InstanceLifecycle"] == "spot"

    told.rebalance()
    told.maintenance("instance-stop")
    assert "noticeTime" in metadata(cloud, told.id, "meta-data/events/recommendations/rebalance")
    events = json.loads(metadata(cloud, told.id, "meta-data/events/maintenance/scheduled"))
    assert events[0]["Code"] == "instance-stop"
    assert told.state() == "running"

    interrupt(told.id)
    assert "terminate" in metadata(cloud, told.id, "meta-data/spot/instance-action")
    told.notice(in_s=3)
    action = json.loads(metadata(cloud, told.id, "meta-data/spot/instance-action"))
    assert action["action"] == "terminate"
    assert metadata(cloud, killed.id, "meta-data/spot/instance-action") == ""
    killed.kill()
    killed.wait_gone()
    assert "Powering off" not in killed.console()
    told.wait_gone()
    assert time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) >= action["time"]
    reasons = {each["InstanceId"]: each["StateReason"]["Code"] for each in seen(ec2, InstanceIds=[told.id, killed.id])}
    assert set(reasons.values()) == {"Server.SpotInstanceTermination"}
    assert not cloud.left()


def interrupt(instance: str) -> None:
    """As the Fault Injection Service does."""
    import boto3

    fis = boto3.client("fis")
    template = fis.create_experiment_template(
        description="interrupt",
        roleArn=f"arn:aws:iam::123456789012:role/{PROFILE}",
        stopConditions=[{"source": "none"}],
        targets={
            "them": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [f"arn:aws:ec2:us-east-1:123456789012:instance/{instance}"],
                "selectionMode": "ALL",
            }
        },
        actions={
            "take": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": "PT2M"},
                "targets": {"SpotInstances": "them"},
            }
        },
    )["experimentTemplate"]
    fis.start_experiment(experimentTemplateId=template["id"])


def test_every_debian_boots(cloud: Ec2Cloud, ec2: Any) -> None:
    pythons = {BULLSEYE: "Python 3.9.", TRIXIE: "Python 3.13."}
    script = f"#!/bin/bash\npython3 --version\necho {UP}\nsystemctl poweroff\n"
    machines = {}
    for image in pythons:
        (made,) = launch(ec2, ImageId=image.ami, UserData=script, InstanceInitiatedShutdownBehavior="stop")
        machines[image] = cloud.machine(made["InstanceId"])
    for image, machine in machines.items():
        machine.wait_until(lambda each: each.state() == "stopped", "to power off")
        assert pythons[image] in machine.console()
        # What is stopped is still there, with its volume.
        assert machine.id in cloud.left().instances
        ec2.terminate_instances(InstanceIds=[machine.id])
    assert not cloud.left()


def test_a_token_launches_once(cloud: Ec2Cloud, ec2: Any) -> None:
    from botocore.exceptions import ConnectionClosedError

    first = ask(ClientToken="one", Placement={"AvailabilityZone": "us-east-1a"})
    cloud.faults.lose_replies("RunInstances")
    with pytest.raises(ConnectionClosedError):
        ec2.run_instances(**first)
    cloud.faults.listing_lag(3600)
    (made,) = ec2.run_instances(**first)["Instances"]
    assert seen(ec2, Filters=[{"Name": "client-token", "Values": ["one"]}]) == []
    assert refused(lambda: seen(ec2, InstanceIds=ids([made])))[0] == "InvalidInstanceID.NotFound"
    cloud.faults.listing_lag(0)
    assert ids(seen(ec2, Filters=[{"Name": "client-token", "Values": ["one"]}])) == [made["InstanceId"]]
    assert cloud.calls()["RunInstances"] == 2

    changed = {**first, "InstanceType": "m5.xlarge"}
    assert refused(lambda: ec2.run_instances(**changed)) == ("IdempotentParameterMismatch", 400)
    # A request that names its zone has its token in that zone alone.
    elsewhere = {**first, "Placement": {"AvailabilityZone": "us-east-1b"}}
    assert ids(ec2.run_instances(**elsewhere)["Instances"]) != [made["InstanceId"]]

    cloud.machine(made["InstanceId"]).kill()
    cloud.machine(made["InstanceId"]).wait_gone()
    assert refused(lambda: ec2.run_instances(**first)) == ("IdempotentInstanceTerminated", 400)
    cloud.faults.dead_tokens_answer(instances=True)
    (again,) = ec2.run_instances(**first)["Instances"]
    assert (again["InstanceId"], again["State"]["Name"]) == (made["InstanceId"], "terminated")


def test_capacity_by_zone_type_and_lifecycle(cloud: Ec2Cloud, ec2: Any) -> None:
    dry = cloud.faults.no_capacity(zone="us-east-1a", machine="m5.large")
    in_a = {"AvailabilityZone": "us-east-1a"}
    assert refused(lambda: launch(ec2, Placement=in_a)) == ("InsufficientInstanceCapacity", 500)
    # Where the request names none, EC2 takes a zone that has some.
    (made,) = launch(ec2)
    assert made["Placement"]["AvailabilityZone"] == "us-east-1b"
    cloud.faults.clear(dry)
    cloud.faults.no_capacity(available=1)
    assert refused(lambda: launch(ec2, MinCount=2, MaxCount=2)) == ("InsufficientInstanceCapacity", 500)
    assert len(launch(ec2, MinCount=1, MaxCount=2)) == 1
    cloud.faults.clear()

    spot = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.02"}}
    cloud.set_spot_price("m5.large", 0.03)
    cloud.set_spot_price("m5.large", 0.01, "us-east-1c")
    refusals = [refused(lambda: launch(ec2, InstanceMarketOptions=spot, Placement=in_a))]
    (made,) = launch(ec2, InstanceMarketOptions=spot)
    assert made["Placement"]["AvailabilityZone"] == "us-east-1c"
    for code in ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"):
        cloud.faults.refuse_launch(code, lifecycle="spot", times=1)
        refusals.append(refused(lambda: launch(ec2, InstanceMarketOptions=spot)))
    assert refusals == [
        ("SpotMaxPriceTooLow", 400),
        ("VcpuLimitExceeded", 400),
        ("MaxSpotInstanceCountExceeded", 400),
    ]
    found = ec2.describe_spot_price_history(InstanceTypes=["m5.large"], ProductDescriptions=["Linux/UNIX"])
    prices = {each["AvailabilityZone"]: float(each["SpotPrice"]) for each in found["SpotPriceHistory"]}
    assert (prices["us-east-1a"], prices["us-east-1c"]) == (0.03, 0.01)


def test_calls_fail_when_they_are_told_to(cloud: Ec2Cloud, ec2: Any) -> None:
    import boto3

    assert refused(lambda: ec2.run_instances(**ask(DryRun=True))) == ("DryRunOperation", 412)
    for ebs, code in (
        ({"VolumeSize": 7}, "InvalidBlockDeviceMapping"),
        ({"VolumeType": "gp3", "Throughput": 751}, "InvalidParameterValue"),
    ):
        volumes = [{"DeviceName": "/dev/xvda", "Ebs": ebs}]
        assert refused(lambda: ec2.run_instances(**ask(BlockDeviceMappings=volumes))) == (code, 400)  # noqa: B023 - called at once
    cloud.faults.unauthorized("RunInstances")
    assert refused(lambda: ec2.run_instances(**ask(DryRun=True))) == ("UnauthorizedOperation", 403)
    cloud.faults.clear()
    cloud.faults.throttle(times=1)
    assert refused(ec2.describe_instances) == ("RequestLimitExceeded", 503)
    cloud.faults.internal_error(for_s=0.3)
    assert refused(ec2.describe_instances) == ("InternalError", 500)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            ec2.describe_instances()
            break
        except ec2.exceptions.ClientError:
            time.sleep(0.05)
    else:
        pytest.fail("the fault did not end")
    assert cloud.instances() == dict.fromkeys(cloud.instances(), "terminated")
    boto3.client("sts").get_caller_identity()
    assert cloud.calls()["sts:GetCallerIdentity"] == 1
    assert cloud.calls(reset=True)["RunInstances (dry)"] == 2
    assert cloud.calls() == {}


def test_what_ec2_refuses_is_refused(cloud: Ec2Cloud, ec2: Any) -> None:
    assert refused(lambda: launch(ec2, UserData="#" * 16385)) == ("InvalidParameterValue", 400)
    assert refused(lambda: launch(ec2, ImageId="ami-0123456789abcdef0"))[0] == "InvalidAMIID.NotFound"
    assert refused(lambda: launch(ec2, InstanceType="m5.huge"))[0].startswith("InvalidInstanceType")
    assert refused(lambda: launch(ec2, Placement={"GroupName": "none"}))[0] == "InvalidPlacementGroup.Unknown"
    assert refused(lambda: launch(ec2, MinCount=3, MaxCount=2))[0] == "InvalidParameterValue"
    unknown = "i-0123456789abcdef0"
    for call in (ec2.terminate_instances, ec2.describe_instances):
        assert refused(lambda call=call: call(InstanceIds=[unknown])) == ("InvalidInstanceID.NotFound", 400)  # type: ignore[misc]
    assert not cloud.left()


def test_placement_groups(cloud: Ec2Cloud, ec2: Any) -> None:
    tags = [{"Key": "stoker:store", "Value": "s3://one/two"}]
    made = ec2.create_placement_group(
        GroupName="mine", Strategy="cluster", TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}]
    )["PlacementGroup"]
    ec2.create_placement_group(GroupName="other", Strategy="spread")
    assert refused(lambda: ec2.create_placement_group(GroupName="mine", Strategy="cluster")) == (
        "InvalidPlacementGroup.Duplicate",
        400,
    )
    (found,) = ec2.describe_placement_groups(Filters=[{"Name": "tag:stoker:store", "Values": ["s3://one/*"]}])[
        "PlacementGroups"
    ]
    assert (found["GroupName"], found["State"], found["Tags"]) == ("mine", "available", tags)
    assert found["GroupId"] == made["GroupId"]
    assert cloud.left().placement_groups == ("mine", "other")
    for name in ("mine", "other"):
        ec2.delete_placement_group(GroupName=name)
    assert refused(lambda: ec2.delete_placement_group(GroupName="mine"))[0] == "InvalidPlacementGroup.Unknown"
    assert not cloud.left()


def test_images_by_name_and_alias(cloud: Ec2Cloud, ec2: Any) -> None:
    import boto3

    for image in IMAGES:
        (found,) = ec2.describe_images(Filters=[{"Name": "name", "Values": [image.name]}])["Images"]
        assert found["ImageId"] == image.ami
        for alias in image.aliases:
            assert boto3.client("ssm").get_parameter(Name=alias)["Parameter"]["Value"] == image.ami
    (made,) = launch(ec2, ImageId=f"resolve:ssm:{TRIXIE.aliases[0]}")
    assert made["ImageId"] == TRIXIE.ami
    assert refused(lambda: launch(ec2, ImageId="resolve:ssm:/aws/service/none"))[0] == "InvalidParameterValue"


def test_images_have_owners_and_are_deprecated(ec2: Any) -> None:
    def found(**asked: Any) -> set[str]:
        answer = ec2.describe_images(Filters=[{"Name": "name", "Values": ["docker-12-amd64-*"]}], **asked)
        return {image["ImageId"] for image in answer["Images"]}

    ours = {IMAGES[3].ami, *(record.ami for record in RECORDS if record.owner == OWN_ACCOUNT)}
    assert found(Owners=["self"]) == ours == found(Owners=["self", "amazon"])
    assert len(found()) == len(ours) + 1 and len(found(IncludeDeprecated=True)) == len(RECORDS) + 1
    (gone,) = (record for record in RECORDS if record.deprecated and record.owner == OWN_ACCOUNT)
    (told,) = ec2.describe_images(ImageIds=[gone.ami])["Images"]
    assert told["DeprecationTime"] == gone.deprecated and told["CreationDate"] == gone.created


DIES = """
import os, signal
import boto3
from tests.support.ec2 import IMAGES, ec2_cloud
with ec2_cloud() as cloud:
    os.environ.update(cloud.env)
    asked = {"ImageId": IMAGES[1].ami, "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1}
    (made,) = boto3.client("ec2").run_instances(**asked)["Instances"]
    cloud.machine(made["InstanceId"]).wait_console("Welcome to Debian")
    print(made["InstanceId"], cloud.gateway, cloud.s3.endpoint, flush=True)
    signal.pause()
"""


def test_nothing_outlives_a_test_that_dies(cloud: Ec2Cloud) -> None:
    process = subprocess.Popen([sys.executable, "-c", DIES], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    instance, gateway, s3 = process.stdout.readline().split()
    assert machines_named(instance)
    assert answers(s3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while machines_named(instance) or gateway in addresses() or answers(s3):
        assert time.monotonic() < deadline, f"{instance} at {gateway} is still there: {machines_named(instance)}"
        time.sleep(0.05)


def machines_named(instance: str) -> list[str]:
    """The processes here that run a machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes()
        except OSError:
            continue  # it ended while we looked
        if instance.encode() in command:
            found.append(file.parent.name)
    return found


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def addresses() -> str:
    return subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=True).stdout
