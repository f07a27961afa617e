"""What a container is made of: its image, and what is set inside."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import JOB
from container_yard import AROUND, IMAGE, OTHER, Yard, timed, yard

from stoker.agent.container import images
from stoker.agent.container.container import ContainerRuntime
from stoker.agent.container.host_devices import detect_host
from stoker.agent.runtime import BindMount, RuntimeView
from stoker.model import codec, keys
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import ImageFact
from stoker.model.spec import Container as ContainerSpec
from stoker.model.spec import Environment, Spec
from stoker.model.submission import Submission
from stoker.processes.container_sweep import container_name, read_record

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes everywhere")

__all__ = ["yard"]

# ── The image ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_image_of_the_first_node_is_recorded_for_all(yard: Yard) -> None:
    container = yard.make()
    assert container.image is None
    container.open(timed)
    assert container.image == "repo/x@sha256:d1"
    found = yard.world.store.get(keys.image(JOB))
    assert found is not None
    fact = codec.loads(ImageFact, found.data, where="test")
    assert fact == ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    assert "[stoker] container: repo/x:1 (repo/x@sha256:d1)\n" in yard.said
    record = read_record(yard.node.paths.root)
    assert record is not None and record.engine == "docker"


def test_a_later_node_takes_the_image_of_the_first(yard: Yard) -> None:
    fact = ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    yard.world.store.put(keys.image(JOB), codec.dumps(fact))
    yard.engine.has(**{"repo/x:1": OTHER, "sha256:1": IMAGE, "repo/x@sha256:d1": IMAGE})
    container = yard.make()
    container.open(timed)
    assert container.image == "repo/x@sha256:d1"
    recorded = yard.world.store.get(keys.image(JOB))
    assert recorded is not None and recorded.data == codec.dumps(fact)


@pytest.mark.parametrize("same", [True, False])
def test_of_two_nodes_that_record_at_once_the_first_counts(yard: Yard, same: bool) -> None:
    yard.engine.has(**{"repo/x:1": IMAGE, "repo/x@sha256:d2": OTHER, "repo/x@sha256:d1": IMAGE})
    first = ImageFact("repo/x:1", "sha256:1", "repo/x@sha256:d1")
    if not same:
        first = ImageFact("repo/x:1", "sha256:2", "repo/x@sha256:d2")
    store = yard.node.store
    create = store.create

    def late(key: str, data: bytes) -> bool:
        yard.world.store.put(key, codec.dumps(first))
        return create(key, data)

    store.create = late  # type: ignore[method-assign]
    container = yard.make()
    container.open(timed)
    assert container.image == first.digest


def test_an_image_that_is_named_by_its_digest_is_told_once(yard: Yard) -> None:
    container = yard.make(image="repo/x@sha256:d1")
    container.open(timed)
    assert "[stoker] container: repo/x@sha256:d1\n" in yard.said


def test_gpus_that_a_container_would_not_see_are_told_before_it_is_made(yard: Yard) -> None:
    yard.around = replace(AROUND, gpus=2, toolkit=False)
    with pytest.raises(SetupFailed, match="the container would see no GPU") as failed:
        yard.make(gpus=1).open(timed)
    assert failed.value.user
    yard.make().open(timed)  # A job that asks for none.
    yard.around = replace(AROUND, gpus=2, toolkit=True)
    container = yard.make(gpus=1)
    container.open(timed)
    assert container.gpus == 2


def test_a_registry_password_is_had_anew_for_each_pull(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, str]] = []

    def fetch(field: str, reference: str, _environ: object) -> str:
        fetched.append((field, reference))
        return "me:word"

    monkeypatch.setattr(images, "fetch", fetch)
    login = yard.make(secret="env:TOKEN")._job_image._login("own.registry/x:1")
    assert login is not None and (login.registry, login.user, login.password) == ("own.registry", "me", "word")
    assert fetched == [("environment.container.secret", "env:TOKEN")]
    ecr = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
    assert yard.make()._job_image._login("own.registry/x:1") is None, "the machine's identity is of no use there"
    login = yard.make()._job_image._login(f"{ecr}/x:1")
    assert (
        login is not None
        and login.user == "AWS"
        and fetched[-1] == ("environment.container.image", "aws-ecr:eu-west-1")
    )
    monkeypatch.setattr(images.registry_login, "has_login", lambda where, _environ: where == ecr)
    assert yard.make()._job_image._login(f"{ecr}/x:1") is None and len(fetched) == 2, "the person has logged in already"


# ── What is set inside ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_set_inside_is_the_images_and_the_submitters(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("https_proxy", "http://proxy")
    monkeypatch.setenv("UNRELATED", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    container = yard.make()
    assert "A" not in container.environ({})
    container.open(timed)
    found = container.environ(
        {"PATH": "/mine", "VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda", "MINE": "1", "A": "own"}
    )
    assert found["PATH"] == "/image/bin:/usr/bin:/bin" and found["MINE"] == "1" and found["A"] == "own"
    assert found["AWS_REGION"] == "eu-west-1" and found["https_proxy"] == "http://proxy"
    assert not {"UNRELATED", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "HOME"} & found.keys()
    container._host = replace(AROUND, gpus=2, toolkit=True)
    assert container.environ({})["CUDA_VISIBLE_DEVICES"] == "1"
    container._host = replace(AROUND, uid=1000, gid=1000)
    assert container.environ({})["HOME"] == str(yard.node.paths.root / "home")


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_DEFAULT_REGION", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_REGION"),
        *("GCE_METADATA_HOST", "GCE_METADATA_IP"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    ],
)
def test_where_the_machines_services_are_means_the_same_inside(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "of-the-machine")
    assert yard.make().environ({})[name] == "of-the-machine"
    assert yard.make().environ({name: "of-the-submitter"})[name] == "of-the-submitter"


def test_what_is_around_a_container_is_what_this_machine_has(yard: Yard) -> None:
    yard.make()
    spec = ContainerSpec(image="repo/x:1")
    whole = Spec(name="job", run=("true",), environment=Environment(container=spec))
    made = ContainerRuntime(yard.node, Submission(JOB, whole, "test"), lambda question: question(), lambda: None)
    assert made._host == detect_host("docker")


@pytest.mark.parametrize("region", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_an_alias_is_of_the_machines_own_region(yard: Yard, monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(region, "us-west-2")
    name = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5-gpu-py311"
    yard.engine.has(**{name: IMAGE})
    container = yard.make(image="dlc/pytorch:2.5-py311")
    container.open(timed)
    assert f"container: {name} (" in yard.said


def test_the_command_that_makes_it_names_the_node_and_all_that_is_seen(yard: Yard, tmp_path: Path) -> None:
    for name in ("out", "data", "environments"):
        (tmp_path / name).mkdir()
    view = RuntimeView(
        written=(tmp_path / "out",),
        read=(tmp_path / "data",),
        environments=tmp_path / "environments",
        mounts=(BindMount(tmp_path / "data", "/opt/data"),),
    )
    yard.entered(view, run={"env": {"X": "1"}})
    [words] = yard.engine.asked("create")
    root = yard.node.paths.root
    assert f"--name={container_name(root)}" in words and "sha256:1" in words and "--env=X=1" in words
    for label in (f"stoker.job={JOB}", f"stoker.node={yard.node.config.instance}", "stoker.rank=0"):
        assert f"--label={label}" in words
    paths = yard.node.paths
    written = (paths.code, paths.channel, paths.inputs, paths.environments, paths.train_log)
    for folder in (*written, tmp_path / "out", tmp_path / "environments"):
        assert f"--mount=type=bind,source={folder},target={folder}" in words and folder.exists()
    assert f"--mount=type=bind,source={root},target={root},readonly" in words, "the rest is the agent's"
    assert f"--mount=type=bind,source={tmp_path / 'data'},target={tmp_path / 'data'},readonly" in words
    assert f"--mount=type=bind,source={tmp_path / 'data'},target=/opt/data" in words


def test_links_out_of_an_input_are_seen_inside(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    yard.entered(RuntimeView(read=(tmp_path / "data",), in_place=(tmp_path / "data",)))
    [words] = yard.engine.asked("create")
    target = tmp_path / "elsewhere"
    assert f"--mount=type=bind,source={target},target={target},readonly" in words and "inputs: only" not in yard.said
    monkeypatch.setattr("stoker.agent.container.symlinks.MAX_SCANNED", 0)
    yard.entered(RuntimeView(in_place=(tmp_path / "data",)))
    assert "inputs: only the first" in yard.said
