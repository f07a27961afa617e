"""The table of Compute Engine's machine types: what is in it, which of them serve a job, and where they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model.errors import UserError
from stoker.model.resources import Gpus, Resources
from stoker.providers import machine_types
from stoker.providers.gce import catalog, places

GIB = 1024**3


def names(**asked: Any) -> list[str]:
    return [machine.name for machine in catalog.fitting(Resources(provider="gce", **asked))]


class TestTheTable:
    @pytest.mark.parametrize(
        ("name", "cpus", "memory_gib", "gpu", "gpus", "gpu_memory_gib"),
        [
            ("a2-highgpu-8g", 96, 680, "A100-40GB", 8, 40),
            ("a2-megagpu-16g", 96, 1360, "A100-40GB", 16, 40),
            ("a2-ultragpu-1g", 12, 170, "A100-80GB", 1, 80),
            ("a3-highgpu-8g", 208, 1872, "H100", 8, 80),
            ("a3-ultragpu-8g", 224, 2952, "H200", 8, 141),
            ("a4-highgpu-8g", 224, 3968, "B200", 8, 180),
            ("g2-standard-4", 4, 16, "L4", 1, 24),
            ("g2-standard-96", 96, 384, "L4", 8, 24),
            ("n1-standard-8+nvidia-tesla-t4:1", 8, 30, "T4", 1, 16),
            ("n1-highmem-96+nvidia-tesla-v100:8", 96, 624, "V100", 8, 16),
            ("e2-standard-4", 4, 16, None, 0, 0),
            ("c4-highmem-8", 8, 62, None, 0, 0),
            ("n1-highcpu-96", 96, 86.4, None, 0, 0),
        ],
    )
    def test_facts(
        self, name: str, cpus: int, memory_gib: float, gpu: str | None, gpus: int, gpu_memory_gib: int
    ) -> None:
        machine = catalog.find(name)
        assert machine is not None
        assert (machine.cpus, machine.gpu, machine.gpus) == (cpus, gpu, gpus)
        assert machine.memory_bytes == pytest.approx(memory_gib * GIB, abs=2**20)
        assert machine.gpu_memory_bytes == gpu_memory_gib * GIB

    @pytest.mark.parametrize("series", ["a2", "a3", "a4", "g2", "n1", "n2", "n2d", "e2", "c2", "c3", "c4", "t2d"])
    def test_the_families_that_people_train_on(self, series: str) -> None:
        assert any(name.partition("-")[0] == series for name in catalog.table())

    def test_a_processor_is_told_by_the_name(self) -> None:
        arm = {name.partition("-")[0] for name, machine in catalog.table().items() if machine.arch == "arm64"}
        assert arm == {"t2a", "c4a"}
        assert catalog.facts("c4a-standard-999").arch == "arm64"

    def test_gpus_are_attached_to_no_more_cpus_than_google_allows(self) -> None:
        most = {("T4", 1): 48, ("V100", 1): 12, ("V100", 8): 96, ("P100", 2): 32, ("P4", 1): 24}
        for machine in catalog.table().values():
            if "+" in machine.name and (machine.gpu, machine.gpus) in most:
                assert (machine.cpus or 0) <= most[machine.gpu or "", machine.gpus], machine.name


class TestNames:
    def test_what_is_attached(self) -> None:
        assert catalog.split_name("n1-standard-8+nvidia-tesla-t4:2") == ("n1-standard-8", "nvidia-tesla-t4", 2)
        assert catalog.split_name("g2-standard-8") == ("g2-standard-8", None, 0)

    def test_a_combination_that_the_table_does_not_have(self) -> None:
        machine = catalog.facts("n1-highcpu-16+nvidia-tesla-t4:2")
        assert (machine.cpus, machine.gpu, machine.gpus) == (16, "T4", 2)
        new = catalog.facts("n1-standard-8+nvidia-x9-200gb:4")
        assert (new.cpus, new.gpu, new.gpus) == (8, "X9-200GB", 4)

    def test_a_custom_machine_says_how_large_it_is(self) -> None:
        machine = catalog.facts("n2-custom-6-20480")
        assert (machine.cpus, machine.memory_bytes, machine.known) == (6, 20 * GIB, True)
        assert names(machine=("n2-custom-6-20480",), cpus=8) == []

    def test_a_type_newer_than_the_table_is_taken_as_it_is(self) -> None:
        (machine,) = catalog.fitting(Resources(machine=("a9x-maxgpu-16g",), gpus=Gpus("X9", 16), cpus=10**6))
        assert (machine.name, machine.known, machine.gpu) == ("a9x-maxgpu-16g", False, None)

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("G2-standard-8", "g2-standard-8"),
            ("g2_standard_8", "g2-standard"),
            ("A100", "a2-highgpu-1g"),
            ("p5.48xlarge", "choose one of"),
            ("n1-standard-8+nvidia-tesla-t4", "n1-standard-8+nvidia-tesla-t4:1"),
            ("n1-standard-8+t4:1", "n1-standard-8"),
        ],
    )
    def test_a_name_that_cannot_be_is_the_persons_mistake(self, name: str, near: str) -> None:
        with pytest.raises(UserError, match=r"^resources\.machine: Compute Engine has no machine type") as caught:
            names(machine=("g2-standard-4", name))
        assert near in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_families(self) -> None:
        assert catalog.family("a2-highgpu-8g") == "a2-highgpu"
        assert catalog.family("n1-standard-8+nvidia-tesla-t4:1") == "n1+nvidia-tesla-t4"


class TestFitting:
    def test_any_a100(self) -> None:
        found = names(gpus=Gpus("A100", 8))
        assert found == ["a2-highgpu-8g", "a2-ultragpu-8g", "a2-megagpu-16g"]
        assert names(gpus=Gpus("A100-80GB", 8)) == ["a2-ultragpu-8g"]
        assert names(gpus=Gpus("NVIDIA H100", 8)) == ["a3-highgpu-8g", "a3-megagpu-8g"]

    def test_the_smallest_first(self) -> None:
        assert names(gpus=Gpus("L4", 1))[:2] == ["g2-standard-4", "g2-standard-8"]
        assert names(gpus=Gpus("T4", 1))[0] == "n1-standard-4+nvidia-tesla-t4:1"

    def test_without_gpus_machines_have_none(self) -> None:
        found = [catalog.facts(name) for name in names(cpus=16)]
        assert found
        assert not [machine.name for machine in found if machine.gpu or machine.arch != "x86_64" or machine.burstable]

    def test_named_machines_come_as_they_are_named(self) -> None:
        asked = ("a3-highgpu-8g", "n1-standard-8+nvidia-tesla-t4:1", "t2a-standard-4")
        assert names(machine=asked) == list(asked)

    @given(
        gpus=st.sampled_from([None, Gpus("", 1), Gpus("A100", 8), Gpus("L4", 2), Gpus("T4", 4), Gpus("H100", 1)]),
        cpus=st.none() | st.integers(1, 256),
        memory=st.none() | st.integers(1, 3 * 10**12),
    )
    @settings(max_examples=60, deadline=None)
    def test_everything_that_fits_has_what_was_asked_for(
        self, gpus: Gpus | None, cpus: int | None, memory: int | None
    ) -> None:
        resources = Resources(provider="gce", gpus=gpus, cpus=cpus, memory_bytes=memory)
        found = catalog.fitting(resources)
        for machine in found:
            assert cpus is None or (machine.cpus or 0) >= cpus
            assert memory is None or (machine.memory_bytes or 0) >= memory
            assert machine.gpus >= (gpus.count if gpus else 0)
            assert gpus is None or machine_types.same_gpu(gpus.name, machine)
        why = catalog.why_none(resources)
        assert (why == "") == bool(found)
        assert not why or (why.startswith("resources.") and "\n" not in why)

    @pytest.mark.parametrize(
        ("asked", "field", "said"),
        [
            ({"gpus": Gpus("A10G", 1)}, "gpus", "Compute Engine has no A10G"),
            ({"gpus": Gpus("H100", 16)}, "gpus", "at most 8"),
            ({"cpus": 5000}, "cpus", "5000"),
            ({"gpus": Gpus("L4", 1), "memory_bytes": 10**13}, "memory", "L4:1 and 10000 GB"),
            ({"machine": ("g2-standard-4",), "cpus": 8}, "cpus", "g2-standard-4 has 4"),
            ({"machine": ("e2-standard-4",), "gpus": Gpus("", 1)}, "gpus", "no whole GPU"),
        ],
    )
    def test_why_there_is_none(self, asked: dict[str, Any], field: str, said: str) -> None:
        why = catalog.why_none(Resources(provider="gce", **asked))
        assert why.startswith(f"resources.{field}: ")
        assert said in why


class TestWhatGoogleTells:
    def test_a_type_with_gpus(self) -> None:
        told = {
            "name": "a9-highgpu-4g",
            "guestCpus": 100,
            "memoryMb": 1048576,
            "accelerators": [{"guestAcceleratorType": "nvidia-b200", "guestAcceleratorCount": 4}],
            "architecture": "X86_64",
        }
        machine = catalog.from_api(told)
        assert (machine.cpus, machine.memory_bytes, machine.gpu, machine.gpus) == (100, 1024 * GIB, "B200", 4)
        assert machine.known and machine.maker == "nvidia"

    def test_shared_cores_arm_and_tpus(self) -> None:
        plain = {"guestCpus": 2, "memoryMb": 1024}
        assert catalog.from_api({"name": "e2-micro", "isSharedCpu": True, **plain}).burstable
        assert catalog.from_api({"name": "x9-standard-2", "architecture": "ARM64", **plain}).arch == "arm64"
        tpu = {"accelerators": [{"guestAcceleratorType": "ct5lp", "guestAcceleratorCount": 4}]}
        assert catalog.from_api({"name": "ct5lp-hightpu-4t", **plain, **tpu}).maker == "google"


class TestZones:
    def test_of_a_region(self) -> None:
        assert places.zones_of("us-central1") == tuple(f"us-central1-{letter}" for letter in "abcf")
        assert places.zones_of("us-east1") == ("us-east1-b", "us-east1-c", "us-east1-d")
        assert places.zones_of("mars-north1") == ()

    def test_with_gpus(self) -> None:
        assert places.zones_with("a3-ultragpu", "us-central1") == ("us-central1-b",)
        assert places.zones_with("nvidia-tesla-p4", "us-central1") == ("us-central1-a", "us-central1-c")
        assert places.zones_with("a3-ultragpu", "us-east1") == ()
        assert places.zones_with("e2-standard", "us-east1") == places.zones_of("us-east1")

    def test_what_has_gpus_is_in_zones_that_there_are(self) -> None:
        for name in catalog.table():
            for region in ("us-central1", "us-east1", "us-west1", "europe-west1", "europe-west4"):
                kind = catalog.split_name(name)[1] or catalog.family(name)
                assert set(places.zones_with(kind, region)) <= set(places.zones_of(region))
