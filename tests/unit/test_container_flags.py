"""What a job file says about containers, as the engine's flags, and as the image that is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.container import create_command, host_devices
from stoker.agent.container.create_command import ContainerPlan, arguments, visible_gpus
from stoker.agent.container.host_devices import HostCapabilities
from stoker.agent.runtime import BindMount
from stoker.jobfile.parse import parse_layers
from stoker.jobfile.settings_tree import layer_of
from stoker.model import dlc_images
from stoker.model.docker_flags import flags, problem
from stoker.model.errors import SpecError

PLAIN = HostCapabilities(uid=0, gid=0, gpus=0, toolkit=False, shm_bytes=1 << 30, selinux=False)
GPUS = HostCapabilities(uid=0, gid=0, gpus=8, toolkit=True, shm_bytes=1 << 30, selinux=False)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"shm_size": "16g"}, ["--shm-size=16g"]),
        ({"shm-size": "16g"}, ["--shm-size=16g"]),
        ({"ipc": "host"}, ["--ipc=host"]),
        ({"privileged": True}, ["--privileged=true"]),
        ({"oom_kill_disable": False}, ["--oom-kill-disable=false"]),
        ({"cap_add": ["SYS_ADMIN", "NET_RAW"]}, ["--cap-add=SYS_ADMIN", "--cap-add=NET_RAW"]),
        ({"ulimits": {"memlock": -1, "stack": 67108864}}, ["--ulimit=memlock=-1", "--ulimit=stack=67108864"]),
        ({"cpus": 1.5}, ["--cpus=1.5"]),
        ({"volumes": ["/a:/b:ro", "cache:/c"]}, ["--volume=/a:/b:ro", "--volume=cache:/c"]),
        ({"volumes": {"/a": "/b"}}, ["--volume=/a:/b"]),
        ({"tmpfs": {"/scratch": "size=1g"}}, ["--tmpfs=/scratch:size=1g"]),
        ({"extra_hosts": {"here": "127.0.0.1"}}, ["--add-host=here:127.0.0.1"]),
        (
            {"mounts": [{"type": "bind", "source": "/a", "target": "/b", "readonly": True}]},
            ["--mount=type=bind,source=/a,target=/b,readonly=true"],
        ),
        ({"sysctls": {"net.core.somaxconn": 1024}}, ["--sysctl=net.core.somaxconn=1024"]),
        ({"user": "1000:1000", "network": "host"}, ["--user=1000:1000", "--network=host"]),
        ({"gpus": "all"}, ["--gpus=all"]),
        ({"gpus": 2}, ["--gpus=2"]),
        ({"gpus": [0, 3]}, ['--gpus="device=0,3"']),
        ({"gpus": "device=0,3"}, ['--gpus="device=0,3"']),
        ({"gpus": False}, []),
        ({"gpus": "none"}, []),
    ],
)
def test_a_flag_is_what_was_written(run: dict[str, Any], expected: list[str]) -> None:
    assert list(flags(run, "docker")) == expected
    assert [problem(name, value) for name, value in run.items()] == [None] * len(run)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("all", ["--device=nvidia.com/gpu=all"]),
        (2, ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
        ([3], ["--device=nvidia.com/gpu=3"]),
        ("device=1,2", ["--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=2"]),
        (False, []),
    ],
)
def test_podman_has_gpus_as_devices(value: Any, expected: list[str]) -> None:
    assert list(flags({"gpus": value}, "podman")) == expected


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("name", "mine", "finds it by its name"),
        ("detach", True, "starts the container and removes it"),
        ("rm", True, "starts the container and removes it"),
        ("restart", "always", "see `retry`"),
        ("entrypoint", "/x", "container.entrypoint: true"),
        ("env", {"A": "b"}, "`env` or `secrets` of the job"),
        ("env_file", "x", "`env` or `secrets` of the job"),
        ("workdir", "/x", "code folder"),
        ("init", False, "puts an init"),
        ("help", True, "creates no container"),
        ("version", True, "creates no container"),
        ("v", "/a:/b", "long name"),
        ("--shm-size", "1g", "without dashes"),
        ("shm size", "1g", "name of a flag"),
        ("volumes", [["a"]], "a list or a mapping"),
    ],
)
def test_flags_that_are_not_the_users_are_refused_by_name(name: str, value: Any, word: str) -> None:
    told = problem(name, value)
    assert told is not None and word in told
    document = {"run": "true", "environment": {"container": {"image": "x", "run": {name: value}}}}
    with pytest.raises(SpecError, match=r"environment\.container\.run\."):
        parse_layers([layer_of(document, "a test")])


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ({}, True),
        ({"network": "none"}, True),
        ({"hostname": "mine"}, False),
        ({"uts": "host"}, False),
        ({"pod": "p"}, False),
        ({"network": "container:other"}, False),
        ({"net": "container:other"}, False),
    ],
)
def test_a_container_of_a_gang_has_a_name_unless_the_user_decides(run: dict[str, Any], named: bool) -> None:
    plan = ContainerPlan("docker", "x", "image", Path("/pipes"), run=run, hostname="vm-2")
    assert ("--hostname=vm-2" in arguments(plan, PLAIN)) is named
    assert not [word for word in arguments(replace(plan, hostname="", run={}), PLAIN) if "hostname" in word[:11]]


def test_the_command_line_that_makes_a_container() -> None:
    plan = ContainerPlan(
        engine="docker",
        name="stoker-x",
        image="sha256:1",
        pipes=Path("/n/pipes"),
        labels={"stoker.job": "j-1"},
        folders=tuple(map(Path, ("/n/code", "/n/code/checkpoints", "/data,set", "/n/code", "/n/train.log"))),
        read=(Path("/n"), Path("/n/inputs/a"), Path("/home/me/data"), Path("/home/me/data/b")),
        mounts=(BindMount(Path("/n/ml"), "/opt/ml"), BindMount(Path("/d"), "/opt/ml/input/data/d", read_only=True)),
        run={"shm_size": "16g", "cap_add": ["SYS_ADMIN"]},
    )
    assert arguments(plan, GPUS) == [
        "create",
        "--name=stoker-x",
        "--label=stoker.job=j-1",
        "--init",
        "--rm",
        "--pull=never",
        "--log-driver=none",
        "--mount=type=bind,source=/n/pipes,target=/run/stoker,readonly",
        '--mount=type=bind,"source=/data,set","target=/data,set"',
        "--mount=type=bind,source=/n,target=/n,readonly",
        "--mount=type=bind,source=/n/code,target=/n/code",
        "--mount=type=bind,source=/n/train.log,target=/n/train.log",
        "--mount=type=bind,source=/home/me/data,target=/home/me/data,readonly",
        "--mount=type=bind,source=/n/ml,target=/opt/ml",
        "--mount=type=bind,source=/d,target=/opt/ml/input/data/d,readonly",
        "--network=host",
        "--gpus=all",
        "--shm-size=16g",
        "--cap-add=SYS_ADMIN",
        "--entrypoint=sh",
        "sha256:1",
        "-c",
        create_command.IDLE_SCRIPT,
        "stoker",
        "/run/stoker/alive",
        "/run/stoker/begun",
    ]


def _defaults(engine: str, around: HostCapabilities, **run: Any) -> list[str]:
    plan = ContainerPlan(engine=engine, name="n", image="i", pipes=Path("/d"), run=run)
    words = arguments(plan, around)
    return words[words.index("--log-driver=none") + 2 : words.index("--entrypoint=sh")]


def test_a_container_has_what_a_training_on_the_machine_would_have() -> None:
    assert _defaults("docker", PLAIN) == ["--network=host", f"--shm-size={1 << 30}"]
    assert _defaults("docker", PLAIN, network="none", ipc="host") == ["--network=none", "--ipc=host"]
    assert "--gpus=all" in _defaults("docker", GPUS)
    assert "--device=nvidia.com/gpu=all" in _defaults("podman", GPUS)
    assert not [word for word in _defaults("docker", GPUS, gpus=False) if "gpu" in word]
    no_toolkit = HostCapabilities(uid=0, gid=0, gpus=8, toolkit=False, shm_bytes=0, selinux=True)
    assert _defaults("docker", no_toolkit) == ["--network=host", "--security-opt=label=disable"]
    no_gpu = HostCapabilities(uid=0, gid=0, gpus=0, toolkit=True, shm_bytes=0, selinux=False)
    assert _defaults("docker", no_gpu) == ["--network=host"]
    theirs = HostCapabilities(uid=1000, gid=100, gpus=0, toolkit=False, shm_bytes=0, selinux=False)
    assert _defaults("docker", theirs) == ["--network=host", "--user=1000:100"]
    assert _defaults("podman", theirs) == ["--network=host"]
    assert _defaults("docker", replace(theirs, rootless=True)) == ["--network=host"]
    assert _defaults("docker", theirs, user="0") == ["--network=host", "--user=0"]


@pytest.mark.parametrize(
    ("run", "seen"), [({}, 8), ({"gpus": False}, 0), ({"gpus": 2}, 2), ({"gpus": [1, 3, 4]}, 3), ({"gpus": "all"}, 8)]
)
def test_as_many_processes_as_gpus_are_seen(run: dict[str, Any], seen: int) -> None:
    assert visible_gpus(run, GPUS) == seen
    assert visible_gpus({"device": "nvidia.com/gpu=all"}, GPUS) == 8, "the person has asked for them by another flag"
    assert visible_gpus({"gpus": 9}, GPUS) == 8, "no more than there are"
    assert visible_gpus({"gpus": True}, GPUS) == 8
    assert visible_gpus({}, HostCapabilities(0, 0, 8, False, 0, False)) == 0


@pytest.mark.parametrize(
    ("alias", "region", "image"),
    [
        (
            "dlc/pytorch:2.5-py311",
            "us-west-2",
            "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5-gpu-py311",
        ),
        (
            "dlc/pytorch:2.5-py311-cpu",
            None,
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5-cpu-py311",
        ),
        (
            "dlc/tensorflow:2.18.0-py310@eu-south-1",
            "us-west-2",
            "692866216735.dkr.ecr.eu-south-1.amazonaws.com/tensorflow-training:2.18.0-gpu-py310",
        ),
        (
            "dlc/pytorch:2.5-py311",
            "cn-north-1",
            "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.5-gpu-py311",
        ),
        (
            "dlc/pytorch:2.5-py311",
            "europe-west4",
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.5-gpu-py311",
        ),
        ("pytorch/pytorch:2.5.1", "us-west-2", "pytorch/pytorch:2.5.1"),
    ],
)
def test_an_alias_names_the_image_of_the_machines_own_region(alias: str, region: str | None, image: str) -> None:
    assert dlc_images.problem(alias) is None
    assert dlc_images.resolve(alias, region) == image


@pytest.mark.parametrize(
    ("image", "word"),
    [
        ("dlc/pytorch", "such as dlc/pytorch:2.5-py311"),
        ("dlc/pytorch:latest", "such as dlc/pytorch:2.5-py311"),
        ("dlc/jax:0.4-py311", "there are pytorch, tensorflow"),
        ("dlc/pytorch:2.5-py311@mars-1", "name another region"),
        ("docker://x", "not the name of an image"),
        ("--privileged", "not the name of an image"),
        ("Foo:x", "'Foo:x' is not the name of an image (names are in lower case)"),
        ("a//b", "not the name of an image"),
        ("a:b:c", "not the name of an image"),
        ("a@sha256:12", "not the name of an image"),
    ],
)
def test_an_image_that_cannot_be_one_is_refused_before_anything_starts(image: str, word: str) -> None:
    document = {"run": "true", "environment": {"container": {"image": image}}}
    with pytest.raises(SpecError, match=r"environment\.container\.image") as refused:
        parse_layers([layer_of(document, "a test")])
    assert word in str(refused.value)


@pytest.mark.parametrize(
    "image",
    [
        "debian",
        "debian:12-slim",
        "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
        "localhost:5000/team/some__image-name.x:V1_2",
        "Registry.example:5000/a/b",
        "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train@sha256:" + "0a" * 32,
        "europe-docker.pkg.dev/project/repo/image:tag@sha256:" + "0a" * 32,
        "sha256:" + "0a" * 32,
    ],
)
def test_what_an_engine_takes_for_an_image(image: str) -> None:
    document = {"run": "true", "environment": {"container": {"image": image}}}
    container = parse_layers([layer_of(document, "job.yaml")]).spec.environment.container
    assert container is not None and container.image == image


FABRIC = replace(GPUS, devices=("/dev/infiniband",))


def given(host: HostCapabilities, run: dict[str, Any] | None = None, engine: str = "docker") -> list[str]:
    plan = ContainerPlan(engine, "n", "i", Path("/p"), run=run or {})
    return [word for word in arguments(plan, host) if word.startswith(("--device=", "--ulimit="))]


def test_a_container_on_a_fast_network_may_use_it() -> None:
    """ "docker run --device=/dev/infiniband/… --ulimit memlock=-1": libfabric registers memory, which it locks."""
    assert given(FABRIC) == ["--device=/dev/infiniband", "--ulimit=memlock=-1"]
    assert given(FABRIC, engine="podman")[:1] == ["--device=nvidia.com/gpu=all"]
    assert given(FABRIC, engine="podman")[1:] == ["--device=/dev/infiniband", "--ulimit=memlock=-1"]
    assert given(GPUS) == [] == given(PLAIN)


def test_what_the_user_wrote_of_devices_and_limits_stands() -> None:
    assert given(FABRIC, {"privileged": True}) == []
    assert given(FABRIC, {"ulimits": {"memlock": 65536}}) == ["--device=/dev/infiniband", "--ulimit=memlock=65536"]
    assert given(FABRIC, {"ulimits": {"nofile": 9}})[-1] == "--ulimit=nofile=9"
    assert "--ulimit=memlock=-1" in given(FABRIC, {"ulimits": {"nofile": 9}})
    one = {"devices": ["/dev/infiniband/uverbs0"]}
    assert given(FABRIC, one) == ["--ulimit=memlock=-1", "--device=/dev/infiniband/uverbs0"]


def test_only_root_may_lock_more_memory() -> None:
    user = replace(FABRIC, uid=1000)
    assert "--ulimit=memlock=-1" not in given(user, engine="podman")
    assert "--ulimit=memlock=-1" not in given(replace(user, rootless=True))
    assert "--ulimit=memlock=-1" in given(user)


def test_neuron_devices_are_in_the_container(tmp_path: Path) -> None:
    for name in ("neuron0", "neuron10", "neuron2", "neuron_helper", "nvidia0"):
        (tmp_path / name).touch()
    assert host_devices._find_devices(tmp_path) == tuple(f"{tmp_path}/neuron{n}" for n in (0, 2, 10))
    (tmp_path / "infiniband").mkdir()
    assert host_devices._find_devices(tmp_path)[0] == f"{tmp_path}/infiniband"
    inferentia = replace(PLAIN, devices=("/dev/neuron0", "/dev/neuron1"))
    assert given(inferentia) == ["--device=/dev/neuron0", "--device=/dev/neuron1"]
