"""TPU machines of Compute Engine: what is offered, the request, and the variables that JAX and PyTorch/XLA read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_gce_request import PLACE, machine_of, order

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Spec
from stoker.providers.gce import catalog, images, offers, quotas, request, startup, tpu
from stoker.providers.gce.places import ProjectRegion

V6E = Offering("gce", "ct6e-standard-4t", "us-central1-b", False, PLACE, None, None, "", 180, 720 << 30, "TPU-v6e", 4)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


def spec(machine: str | None = None, gpus: Gpus | None = None, nodes: int = 1) -> Spec:
    resources = Resources(provider="gce", machine=(machine,) if machine else (), gpus=gpus, region=PLACE)
    return Spec(name="x", run="x", nodes=nodes, resources=resources)


@pytest.mark.parametrize(
    ("name", "count", "machine"),
    [
        ("TPU-v5e", 1, "ct5lp-hightpu-1t"),
        ("TPU-v5e", 4, "ct5lp-hightpu-4t"),
        ("TPU-v5e", 8, "ct5lp-hightpu-8t"),
        ("TPU-v5p", 4, "ct5p-hightpu-4t"),
        ("tpu-v6e", 4, "ct6e-standard-4t"),
        ("TPU-v6e", 8, "ct6e-standard-8t"),
    ],
)
def test_a_job_names_chips_or_the_machine(name: str, count: int, machine: str) -> None:
    place = ProjectRegion.of(PLACE)
    found = offers.offline(spec(gpus=Gpus(name, count)).resources, place)
    assert {each.machine for each in found} == {machine}
    assert {each.machine for each in offers.offline(spec(machine).resources, place)} == {machine}


def test_programs_for_gpus_get_no_tpu() -> None:
    found = offers.offline(spec(gpus=Gpus("", 4)).resources, ProjectRegion.of(PLACE))
    assert found and not [each for each in found if catalog.is_tpu(each.gpu or "")]


def test_the_request_is_one_that_google_would_understand() -> None:
    pytest.importorskip("googleapiclient")
    from tests.support.gce import PROJECT, check_request
    from tests.support.gce.drafts import drafted
    from tests.support.gce.links import Links

    (built,) = request.build(order(V6E))
    assert check_request(built.method, built.path, None, built.body) == []
    body = json.loads(json.dumps(built.body).replace("vision-1", PROJECT))
    assert drafted(body, PROJECT, V6E.zone, Links("http://compute"), lambda _: None).machine.name == V6E.machine
    # The chips belong to the machine type, and none is an NVIDIA GPU.
    assert "guestAccelerators" not in built.body
    assert "install-nvidia-driver" not in {each["key"] for each in built.body["metadata"]["items"]}
    assert built.body["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert built.body["networkInterfaces"][0]["nicType"] == "GVNIC"


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        ("ct5lp-hightpu-4t", "pd-balanced"),
        ("ct5p-hightpu-4t", "pd-balanced"),
        ("ct6e-standard-4t", "hyperdisk-balanced"),
    ],
)
def test_it_boots_the_image_with_the_driver_from_a_disk_that_is_large_enough(machine: str, kind: str) -> None:
    """The family and its project are those of `gcloud compute images list`; its own size is 10 GB."""
    made = machine_of(order(replace(V6E, machine=machine)))["disks"][0]["initializeParams"]
    family = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    assert made["sourceImage"] == family and made["diskSizeGb"] == "100"
    assert made["diskType"].endswith(f"/{kind}")
    assert machine_of(order(V6E, disk_bytes=10**12))["disks"][0]["initializeParams"]["diskSizeGb"] == "1000"
    assert images.python_of(None, 4, "TPU-v6e") == (3, 10) and images.is_known(family)
    assert machine_of(order(V6E, image="tpu/ubuntu-22.04"))["disks"][0]["initializeParams"]["sourceImage"] == family


@pytest.mark.parametrize(
    ("machine", "kind", "topology", "bounds"),
    [
        ("ct5lp-hightpu-1t", "v5litepod-1", "1x1", "1,1,1"),
        ("ct5lp-hightpu-4t", "v5litepod-4", "2x2", "2,2,1"),
        ("ct5lp-hightpu-8t", "v5litepod-8", "2x4", "2,4,1"),
        # "v5p-8" has eight cores: four chips.
        ("ct5p-hightpu-4t", "v5p-8", "2x2x1", "2,2,1"),
        ("ct6e-standard-4t", "v6e-4", "2x2", "2,2,1"),
        ("ct6e-standard-8t", "v6e-8", "2x4", "2,4,1"),
    ],
)
def test_the_training_is_told_of_its_slice(machine: str, kind: str, topology: str, bounds: str) -> None:
    """The variables that GKE's device plugin sets, for the same reason: https://cloud.google.com/tpu/docs/v5e"""
    told = startup.boot(order(replace(V6E, machine=machine))).environ
    assert dict(told) == {
        "PJRT_DEVICE": "TPU",
        "TPU_ACCELERATOR_TYPE": kind,
        "TPU_CHIPS_PER_HOST_BOUNDS": bounds,
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_TOPOLOGY": topology,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    assert startup.startup_script(order(replace(V6E, machine=machine)))


def test_other_machines_are_told_of_no_tpu() -> None:
    assert dict(startup.boot(order()).environ) == {}
    assert tpu.slice_of("n2-standard-4") is None and tpu.slice_of("ct6e-standard-2t") is None


@pytest.mark.parametrize("wrong", [spec("ct6e-standard-4t", nodes=2), spec(gpus=Gpus("TPU-v5e", 4), nodes=2)])
def test_a_slice_of_several_machines_is_refused(wrong: Spec) -> None:
    with pytest.raises(UserError, match=r"^nodes: .* is for one node: .* made by the Cloud TPU API and GKE alone"):
        request.check(wrong)
    request.check(replace(wrong, nodes=1))


@pytest.mark.parametrize(("name", "most"), [("TPU-v5e", 8), ("tpu-v5p", 4), ("TPU-v6e", 8)])
def test_more_chips_than_a_machine_has_are_refused_with_the_reason(name: str, most: int) -> None:
    request.check(spec(gpus=Gpus(name, most)))
    with pytest.raises(UserError) as raised:
        request.check(spec(gpus=Gpus(name, 2 * most)))
    told = str(raised.value)
    assert told.startswith(f"resources.gpus: a machine has {most} × {name} at most, and slices of several are made by")
    assert "\n" not in told


@pytest.mark.parametrize("region", ["us-central1", "us-east5", "europe-west4"])
@pytest.mark.parametrize("name", ["TPU-v5e", "TPU-v5p", "TPU-v6e"])
def test_its_price_is_known_so_that_limits_on_the_cost_hold(name: str, region: str) -> None:
    wanted = Resources(provider="gce", gpus=Gpus(name, 4), region=f"vision-1/{region}", spot="prefer")
    found = offers.offline(wanted, ProjectRegion("vision-1", region))
    assert {each.kind for each in found} == {"spot", "on-demand"}
    for each in found:
        assert each.price is not None and each.on_demand_price is not None
        assert 0 < each.price <= each.on_demand_price and "TPU chips" in each.price_source


def test_what_is_not_documented_is_said() -> None:
    """ "TPU v5e is supported using Google Kubernetes Engine and the Cloud TPU API"
    https://docs.cloud.google.com/tpu/docs/v5e"""
    assert len(tpu.remarks(spec("ct5lp-hightpu-4t"))) == len(tpu.remarks(spec(gpus=Gpus("TPU-v5e", 4)))) == 1
    assert tpu.remarks(spec("ct6e-standard-4t")) == ()


def test_a_quota_of_gpus_says_nothing_about_tpus() -> None:
    known = quotas.limits({"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 0}]})
    assert quotas.needs(V6E, 1, known) == {}
