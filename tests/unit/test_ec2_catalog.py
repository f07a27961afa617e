"""The table of EC2's machine types: what is in it, and which of them serve a job."""

from __future__ import annotations

import gzip
import json
from importlib import resources as package
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model.errors import UserError
from stoker.model.resources import Gpus, Resources
from stoker.providers import machine_types
from stoker.providers.ec2 import catalog

GIB = 1024**3


def names(**asked: Any) -> list[str]:
    return [machine.name for machine in catalog.fitting(Resources(provider="ec2", **asked))]


class TestTheTable:
    @pytest.mark.parametrize(
        ("name", "cpus", "memory_gib", "gpu", "gpus", "gpu_memory_gib", "efa", "arch"),
        [
            ("p4d.24xlarge", 96, 1152, "A100-40GB", 8, 40, 4, "x86_64"),
            ("p4de.24xlarge", 96, 1152, "A100-80GB", 8, 80, 4, "x86_64"),
            ("p5.48xlarge", 192, 2048, "H100", 8, 80, 32, "x86_64"),
            ("g4dn.xlarge", 4, 16, "T4", 1, 16, 0, "x86_64"),
            ("g5g.xlarge", 4, 8, "T4g", 1, 16, 0, "arm64"),
            ("trn1.32xlarge", 128, 512, "Trainium", 16, 32, 8, "x86_64"),
            ("m7g.large", 2, 8, None, 0, 0, 0, "arm64"),
            ("c7i.large", 2, 4, None, 0, 0, 0, "x86_64"),
        ],
    )
    def test_facts_of_well_known_types(
        self,
        name: str,
        cpus: int,
        memory_gib: int,
        gpu: str | None,
        gpus: int,
        gpu_memory_gib: int,
        efa: int,
        arch: str,
    ) -> None:
        machine = catalog.find(name)
        assert machine is not None
        assert (machine.cpus, machine.memory_bytes) == (cpus, memory_gib * GIB)
        assert (machine.gpu, machine.gpus, machine.gpu_memory_bytes) == (gpu, gpus, gpu_memory_gib * GIB)
        assert (machine.efa_interfaces, machine.arch, machine.spot) == (efa, arch, True)

    @pytest.mark.parametrize(
        ("name", "disks_gb"),
        [
            ("p4d.24xlarge", 8000),
            ("p5.48xlarge", 30_400),
            ("g4dn.xlarge", 125),
            ("g5.xlarge", 250),
            ("trn1.32xlarge", 7600),
            ("c6id.large", 118),
            ("p3.2xlarge", 0),
            ("c7i.large", 0),
        ],
    )
    def test_instance_disks_of_well_known_types(self, name: str, disks_gb: int) -> None:
        assert catalog.facts(name).disks_gb == disks_gb

    def test_disks_that_are_no_nvme_devices_do_not_count(self) -> None:
        """ "InstanceStorageInfo": {"NvmeSupport": "unsupported"}, as of h1.2xlarge."""
        data = package.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
        assert catalog.described(json.loads(gzip.decompress(data))["h1.2xlarge"]).disks_gb == 0

    def test_what_is_not_there_is_none(self) -> None:
        assert catalog.find("p99.48xlarge") is None
        assert not any(".metal" in name for name in catalog.table())

    @pytest.mark.parametrize(
        "family", ["p4d", "p5", "p5en", "g4dn", "g5", "g6", "g6e", "gr6", "trn1", "inf2", "c7i", "t4g"]
    )
    def test_the_families_that_people_train_on(self, family: str) -> None:
        assert any(name.partition(".")[0] == family for name in catalog.table())

    def test_the_table_is_what_the_fake_of_ec2_tells(self) -> None:
        data = package.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
        described = json.loads(gzip.decompress(data))
        # EC2 describes no Neuron devices of this one.
        described["trn2u.48xlarge"]["NeuronInfo"] = described["trn2.48xlarge"]["NeuronInfo"]
        for name, machine in catalog.table().items():
            if name not in described:
                # Types that moto does not know, because it asks two regions.
                assert name.partition(".")[0] in ("dl1", "g4ad", "p3")
                continue
            told = catalog.described(described[name])
            assert (told.cpus, told.memory_bytes, told.gpus) == (machine.cpus, machine.memory_bytes, machine.gpus)
            assert (told.arch, told.efa_interfaces, told.spot) == (machine.arch, machine.efa_interfaces, machine.spot)
            assert (told.efa_card, told.maker, told.clusters) == (machine.efa_card, machine.maker, machine.clusters)
            assert told.disks_gb == machine.disks_gb

    def test_a_name_alone_tells_the_processor(self) -> None:
        for name, machine in catalog.table().items():
            family, _, size = name.partition(".")
            assert catalog.facts(f"{family}.999{size}").arch == machine.arch, name


class TestGpus:
    @pytest.mark.parametrize(
        ("wanted", "machine", "same"),
        [
            ("A100", "p4d.24xlarge", True),
            ("A100", "p4de.24xlarge", True),
            ("A100-80GB", "p4de.24xlarge", True),
            ("A100-80GB", "p4d.24xlarge", False),
            ("a100 40gb", "p4d.24xlarge", True),
            ("NVIDIA H100", "p5.48xlarge", True),
            ("H100-80GB", "p5.48xlarge", True),
            ("L4", "g6.xlarge", True),
            ("L4-24GB", "g6.xlarge", True),
            ("L4", "g6e.xlarge", False),
            ("L40S", "g6e.xlarge", True),
            ("T4", "g5g.xlarge", False),
            ("A10", "g5.xlarge", False),
            ("", "g5.xlarge", True),
            ("", "trn1.2xlarge", False),
            ("Trainium", "trn1.2xlarge", True),
            ("", "m5.large", False),
        ],
    )
    def test_a_name_means_what_people_mean(self, wanted: str, machine: str, same: bool) -> None:
        assert machine_types.same_gpu(wanted, catalog.facts(machine)) is same

    def test_exactly_as_many_come_before_more(self) -> None:
        found = names(gpus=Gpus("A10G", 1))
        assert found[:2] == ["g5.xlarge", "g5.2xlarge"]
        counts = [catalog.facts(name).gpus for name in found]
        assert counts == sorted(counts)
        assert set(counts) == {1, 4, 8}

    def test_any_kind_is_one_that_runs_cuda_on_a_usual_processor(self) -> None:
        found = names(gpus=Gpus("", 1))
        assert {"g4dn.xlarge", "g5.xlarge", "p5.48xlarge"} <= set(found)
        assert not [name for name in found if name.startswith(("trn", "inf", "g5g"))]

    def test_a_slice_of_a_gpu_is_no_gpu(self) -> None:
        assert not [name for name in names(gpus=Gpus("L4", 1)) if name.startswith(("g6f", "gr6f"))]
        assert names(machine=("g6f.large",)) == ["g6f.large"]

    def test_what_needs_its_own_software_is_found_by_the_name_of_its_chip(self) -> None:
        assert names(gpus=Gpus("T4g", 2)) == ["g5g.16xlarge"]
        assert names(gpus=Gpus("Trainium", 16)) == ["trn1.32xlarge", "trn1n.32xlarge"]


class TestFitting:
    def test_without_gpus_machines_have_none(self) -> None:
        found = [catalog.facts(name) for name in names(cpus=16)]
        assert found
        assert not [machine.name for machine in found if machine.gpu or machine.arch != "x86_64" or machine.burstable]
        assert min(machine.cpus or 0 for machine in found) == 16

    def test_what_is_not_asked_for_is_still_enough_to_train_on(self) -> None:
        assert all((catalog.facts(name).memory_bytes or 0) >= 4 * GIB for name in names())
        assert "c7a.medium" not in names()
        assert "c7a.medium" in names(memory_bytes=10**9)

    def test_named_machines_come_as_they_are_named_and_once(self) -> None:
        assert names(machine=("p5.48xlarge", "t4g.large", "p5.48xlarge", "g5.xlarge")) == [
            "p5.48xlarge",
            "t4g.large",
            "g5.xlarge",
        ]

    def test_named_machines_must_have_what_is_asked_for(self) -> None:
        assert names(machine=("g5.xlarge", "g5.2xlarge"), cpus=8) == ["g5.2xlarge"]

    def test_a_type_newer_than_the_table_is_taken_as_it_is(self) -> None:
        (machine,) = catalog.fitting(Resources(machine=("p9x-b900.96xlarge",), gpus=Gpus("X9", 8), cpus=10**6))
        assert (machine.name, machine.known, machine.cpus, machine.gpu) == ("p9x-b900.96xlarge", False, None, None)

    @pytest.mark.parametrize(
        ("name", "near"),
        [("p5.huge", "p5"), ("g5xlarge", "g5.xlarge"), ("A100", "g5.xlarge"), ("G5.xlarge", "g5.xlarge")],
    )
    def test_a_name_that_cannot_be_is_the_persons_mistake(self, name: str, near: str) -> None:
        with pytest.raises(UserError, match=r"^resources\.machine: EC2 has no machine type") as caught:
            names(machine=("g5.xlarge", name))
        assert near in str(caught.value)
        assert "\n" not in str(caught.value)

    @given(
        gpus=st.sampled_from([None, Gpus("", 1), Gpus("", 8), Gpus("A100", 8), Gpus("L4", 2), Gpus("H100", 1)]),
        cpus=st.none() | st.integers(1, 256),
        memory=st.none() | st.integers(1, 3 * 10**12),
    )
    @settings(max_examples=60, deadline=None)
    def test_everything_that_fits_has_what_was_asked_for(
        self, gpus: Gpus | None, cpus: int | None, memory: int | None
    ) -> None:
        resources = Resources(provider="ec2", gpus=gpus, cpus=cpus, memory_bytes=memory)
        found = catalog.fitting(resources)
        for machine in found:
            assert cpus is None or (machine.cpus or 0) >= cpus
            assert memory is None or (machine.memory_bytes or 0) >= memory
            assert machine.gpus >= (gpus.count if gpus else 0)
            assert gpus is None or machine_types.same_gpu(gpus.name, machine)
        why = catalog.why_none(resources)
        assert (why == "") == bool(found)
        assert not why or why.startswith("resources.")


class TestWhyNone:
    @pytest.mark.parametrize(
        ("asked", "field", "said"),
        [
            ({"gpus": Gpus("A10", 1)}, "gpus", "A10G"),
            ({"gpus": Gpus("H100", 16)}, "gpus", "at most 8"),
            ({"gpus": Gpus("A10G", 1), "cpus": 500}, "cpus", "A10G:1"),
            ({"cpus": 5000}, "cpus", "5000"),
            ({"memory_bytes": 10**15}, "memory", "1000000 GB"),
            ({"machine": ("g5.xlarge",), "cpus": 8}, "cpus", "g5.xlarge has 4"),
            ({"machine": ("g5.xlarge",), "memory_bytes": 10**11}, "memory", "g5.xlarge"),
            ({"machine": ("m5.large",), "gpus": Gpus("", 1)}, "gpus", "no whole GPU"),
            ({"machine": ("p9.huge",)}, "machine", "p9.huge"),
        ],
    )
    def test_the_field_is_named(self, asked: dict[str, Any], field: str, said: str) -> None:
        why = catalog.why_none(Resources(provider="ec2", **asked))
        assert why.startswith(f"resources.{field}: ")
        assert said in why
        assert "\n" not in why
