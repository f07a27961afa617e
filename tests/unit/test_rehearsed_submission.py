"""What a cloud says beforehand is asked for each kind of offering, and a refusal leaves nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.core.acceptable_offerings import MAX_COST
from stoker.core.policy_rules import EffectiveLimits
from stoker.model.errors import InvalidRequest, PolicyRefused, QuotaExceeded, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Checkpoints, Environment, Input, Limits, Spec
from stoker.model.submission import Code, Submission
from stoker.policy import versions
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.store.base import Store, open_store
from stoker.submit import choose_offerings, identity, launch_requests, node_packages, node_programs, prepare
from stoker.submit.prepared_job import PreparedJob

RESOURCES = Resources(gpus=Gpus("A100", 2), spot="prefer", region="mars-1")


def sold(*, spot: bool, gpus: int = 2) -> Offering:
    return Offering("local", "big", "mars-1a", spot, region="mars-1", price=1.0, gpu="A100", gpus=gpus)


class Cloud:
    """Lends machines with two GPUs, spot and on demand, and says beforehand what `answer` says."""

    name = "local"

    def __init__(self, answer: Callable[[], None]) -> None:
        self.capabilities = registry.capabilities("local")
        self.answer = answer
        self.asked: list[bool] = []

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        return (sold(spot=True), sold(spot=True), sold(spot=False))

    def build(self, order: LaunchOrder) -> tuple[Any, ...]:
        return (order,)

    def preflight(self, *launches: tuple[Any, ...]) -> None:
        self.asked = [order.offering.spot for (order,) in launches]
        self.answer()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("code", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "train.py").write_text("pass\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def prepare_on(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    cloud: Cloud,
    *,
    offline: bool = False,
    original: prepare.Original | None = None,
    **fields: Any,
) -> PreparedJob:
    def connect(_spec: Spec, _store: Store, *, offline: bool = False) -> Cloud:
        return cloud

    for module in (prepare, launch_requests):
        monkeypatch.setattr(module, "connect", connect)
    spec = Spec(**{"name": "job", "run": ("python", "train.py"), "resources": RESOURCES, **fields})
    return prepare.prepare(
        spec, open_store(str(place / "store")), folder=place / "code", offline=offline, original=original
    )


def test_the_best_of_each_kind_is_asked_about(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(lambda: None)
    with prepare_on(place, monkeypatch, cloud):
        assert cloud.asked == [True, False]
        assert list((place / "temporary").iterdir()) != []
    assert list((place / "temporary").iterdir()) == []


def test_who_cannot_be_asked_refuses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> None:
        raise QuotaExceeded("for now")

    with prepare_on(place, monkeypatch, Cloud(answer)) as prepared:
        assert prepared.offerings


@pytest.mark.parametrize("error", [InvalidRequest("no such network"), UserError("no such network"), KeyError("oh")])
def test_a_refusal_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def answer() -> None:
        raise error

    with pytest.raises(KeyError if isinstance(error, KeyError) else UserError):
        prepare_on(place, monkeypatch, Cloud(answer))
    assert list((place / "temporary").iterdir()) == []
    assert not (place / "store").exists()


@pytest.mark.parametrize("clone", [False, True])
def test_what_the_plan_had_is_frozen(place: Path, monkeypatch: pytest.MonkeyPatch, clone: bool) -> None:
    """Of a clone too: the number of GPUs in the plan is no field of a job file, so its spec does not bring it along."""
    submission = Submission("job-1", Spec(name="job", run="true"), "jane", code=Code("0" * 64, 1, 1))
    original = prepare.Original("job-1", submission) if clone else None
    with prepare_on(place, monkeypatch, Cloud(lambda: None), original=original) as prepared:
        assert prepared.spec.resources.gpus == Gpus("A100", 2, most=2)
        assert prepared.spec.resources.region == "mars-1"


def test_what_should_be_known_is_in_the_plan(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Remarking(Cloud):
        def remarks(self, spec: Spec) -> tuple[str, ...]:
            return (f"of {spec.name}",)

    with prepare_on(place, monkeypatch, Remarking(lambda: None)) as prepared:
        assert prepared.warnings[-1] == "of job"


class Thorough(Cloud):
    """Checks jobs, knows limits and tables, is at one place, and explains itself."""

    place = "mars"

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.calls: list[object] = []

    def check(self, spec: Spec) -> None:
        self.calls.append(("check", spec.name))

    def check_quota(self, offerings: Sequence[Offering], nodes: int) -> None:
        self.calls.append(("limits", len(offerings), nodes))

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        return (f"no table has {resources.region}",)

    def why_none(self, resources: Resources) -> str:
        return "it is closed today"


def test_a_provider_is_asked_all_that_it_knows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Thorough()
    with prepare_on(place, monkeypatch, cloud, nodes=3) as prepared:
        assert cloud.calls == [("check", "job"), ("limits", 3, 3)] and cloud.asked == [True, False]
        assert (prepared.place, len(prepared.all_offerings)) == ("mars", 3)
        assert prepared.warnings == () and prepared.limits is not None
        assert prepared.environ is not None and "PATH" in prepared.environ


def test_a_dry_run_asks_no_cloud(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Thorough()
    with prepare_on(place, monkeypatch, cloud, offline=True) as prepared:
        assert cloud.calls == [("check", "job")] and cloud.asked == []
        assert prepared.warnings == ("no table has mars-1",)
        assert prepared.notes == () and prepared.limits is not None, "a folder can be asked for its rules"


def test_a_provider_that_is_at_no_one_place_names_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with prepare_on(place, monkeypatch, Cloud(lambda: None)) as prepared:
        assert prepared.place is None


@pytest.mark.parametrize("explains", [True, False])
def test_why_nothing_is_offered_is_the_providers_to_say(
    place: Path, monkeypatch: pytest.MonkeyPatch, explains: bool
) -> None:
    cloud = Thorough() if explains else Cloud(lambda: None)
    monkeypatch.setattr(cloud, "offerings", lambda _resources: ())
    with pytest.raises(UserError, match=r"; `stoker offers` lists the machines on offer$") as refused:
        prepare_on(place, monkeypatch, cloud)
    assert ("it is closed today" in str(refused.value)) == explains
    assert list((place / "temporary").iterdir()) == []


def test_what_does_not_fit_is_not_for_the_provider_to_explain(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Thorough()
    monkeypatch.setattr(cloud, "offerings", lambda _resources: (sold(spot=True),))
    with pytest.raises(UserError) as refused:
        prepare_on(place, monkeypatch, cloud, resources=replace(RESOURCES, spot="never"))
    assert "it is closed today" not in str(refused.value)


def test_everything_that_is_refused_is_told_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy refuses whatever the machines, and that no machine fits."""
    cloud = Cloud(lambda: None)
    monkeypatch.setattr(cloud, "offerings", lambda _resources: (sold(spot=True),))
    never = replace(RESOURCES, spot="never")
    with pytest.raises(UserError) as refused:
        prepare_on(place, monkeypatch, cloud, resources=never)
    assert not isinstance(refused.value, PolicyRefused)
    why = str(refused.value)
    versions.write(open_store(str(place / "store")), "rules: [{max_nodes: 1}]", "jane")
    with pytest.raises(PolicyRefused, match="2 nodes are more than 1") as refused:
        prepare_on(place, monkeypatch, cloud, resources=never, nodes=2)
    assert str(refused.value).endswith(f"; {why}")


def test_too_little_money_is_said_without_advice_about_machines(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"limits.max_cost") as refused:
        prepare_on(place, monkeypatch, Cloud(lambda: None), limits=Limits(max_cost=0.01))
    assert "stoker offers" not in str(refused.value)


class Remote(Cloud):
    """Machines elsewhere, with disks that the plan describes."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.capabilities = replace(self.capabilities, runs_locally=False)

    def disk_note(self, _spec: Spec, _offering: Offering, inputs_bytes: int) -> str:
        return f"{inputs_bytes} bytes"


def test_the_disks_are_planned_for_the_inputs_that_are_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "data").mkdir()
    for name in ("1", "2", "3"):
        (place / "data" / name).write_bytes(b"12345")
    data = str(place / "data")
    for inputs, size in (
        ({"data": Input(data)}, 15),
        ({"data": Input(data), "more": Input(data)}, 30),
        # Each of two nodes has its share of the files, and room for the larger share.
        ({"data": Input(data, shard=True), "more": Input(f"{data}/1")}, 8 + 5),
        ({"data": Input(data, mode="mount")}, 0),
        ({"data": Input("s3://bucket/x")}, 0),
    ):
        with prepare_on(place, monkeypatch, Remote(), offline=True, nodes=2, inputs=inputs) as prepared:
            assert (prepared.inputs_bytes, prepared.notes[-1]) == (size, f"{size} bytes")


def test_an_address_that_machines_cannot_reach_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def environ(_url: str) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": "http://localhost:9000", "AWS_REGION": "x"}

    monkeypatch.setattr(prepare, "store_environ", environ)
    said = "AWS_ENDPOINT_URL=http://localhost:9000 goes with the job, and means the machine itself there; give an "
    said += "address that machines reach"
    with pytest.raises(UserError) as refused:
        prepare_on(place, monkeypatch, Remote())
    assert str(refused.value) == said
    with prepare_on(place, monkeypatch, Remote(), offline=True) as prepared:
        assert said in prepared.warnings and prepared.environ == environ("")


def test_what_is_wrong_with_the_environment_leaves_nothing_packed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError):
        prepare_on(place, monkeypatch, Thorough(), environment=Environment(requirements="none-there.txt"))
    assert list((place / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("gpus", "machine", "most"), [(Gpus("A100", 1), None, 2), (Gpus("A100", 1), "big", None), (None, None, None)]
)
def test_how_many_gpus_a_machine_may_have_is_agreed_on_where_no_machine_is_named(
    gpus: Gpus | None, machine: str | None, most: int | None
) -> None:
    resources = Resources(gpus=gpus, machine=machine)
    made = choose_offerings._frozen_resources(resources, (sold(spot=True), sold(spot=False, gpus=1)))
    assert (made.gpus.most if made.gpus else None, made.region) == (most, "mars-1")
    assert choose_offerings._frozen_resources(resources, ()) == resources


def test_a_place_without_a_region_changes_none(place: Path) -> None:
    offering = replace(sold(spot=True), region=None)
    assert choose_offerings._frozen_resources(RESOURCES, (offering,)).region == "mars-1"


def test_what_the_first_launch_would_ask_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Thorough()
    with prepare_on(place, monkeypatch, cloud, nodes=2) as prepared:
        (order,) = launch_requests.launch_requests(prepared, open_store(str(place / "store")))
    assert isinstance(order, LaunchOrder)
    assert (order.job, order.name, order.claim, order.attempt, order.nodes) == ("job-0000", "job", 2, 1, 2)
    assert (order.offering, order.spec, order.store) == (sold(spot=True), prepared.spec, f"file://{place}/store")
    assert order.environ == prepared.environ and "@" in order.submitter


@pytest.mark.parametrize("offline", [True, False])
def test_providers_are_told_whether_they_may_ask(place: Path, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    asked: list[tuple[str, registry.Context]] = []
    monkeypatch.setattr(registry, "connect", lambda name, context: asked.append((name, context)))
    store, spec = open_store(str(place / "store")), Spec(name="job", run="true")
    choose_offerings.connect(spec, store, offline=offline)
    choose_offerings.connect(spec, store)
    assert [(name, context.store, context.offline) for name, context in asked] == [
        ("local", store.url, offline),
        ("local", store.url, False),
    ]


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unnamed() -> str:
        raise KeyError("no such user")

    monkeypatch.setattr(identity.getpass, "getuser", unnamed)
    monkeypatch.setattr(identity.os, "getuid", lambda: 4321)
    assert identity.user_at_host().startswith("4321@")


@pytest.mark.parametrize(
    ("spot", "rule", "told"),
    [("prefer", None, True), ("prefer", "dear", True), ("never", None, False), ("only", None, False)],
)
def test_spot_without_a_price_is_missed_only_by_jobs_that_prefer_it(spot: Any, rule: str | None, told: bool) -> None:
    spec = Spec(name="x", run="true", resources=Resources(spot=spot), limits=Limits(max_cost=5.0))
    unpriced = replace(sold(spot=True), price=None)
    limits = EffectiveLimits(spec, {"max_cost": rule} if rule else {})
    lines = choose_offerings.spot_left_out(limits, (sold(spot=False),), (unpriced, sold(spot=False)))
    assert bool(lines) == told
    if lines:
        whose = f"policy {rule}" if rule else MAX_COST
        assert lines[0].startswith(f"spot is left out: {whose} needs a known price; `stoker prices --provider local")
        assert ("limits.max_runtime" in lines[0]) == (rule is None)
    assert (
        choose_offerings.spot_left_out(limits, (sold(spot=False),), (sold(spot=True), replace(unpriced, spot=False)))
        == ()
    )


@pytest.mark.parametrize(
    ("pythons", "oldest"), [({0: (3, 11), 2: (3, 10)}, (3, 10)), ({0: (3, 11), 2: None}, None), ({}, None)]
)
def test_an_agent_is_for_the_oldest_python_that_all_machines_are_known_to_have(
    monkeypatch: pytest.MonkeyPatch, pythons: dict[int, Any], oldest: object
) -> None:
    images = SimpleNamespace(python_of=lambda _image, gpus, _gpu: pythons[gpus])
    monkeypatch.setattr(registry, "images", lambda _provider: images)
    spec = Spec(name="x", run="true")
    assert node_packages._oldest_python(spec, tuple(sold(spot=True, gpus=gpus) for gpus in pythons)) == oldest
    monkeypatch.setattr(registry, "images", lambda _provider: None)
    assert node_packages._oldest_python(spec, (sold(spot=True),)) is None


def test_what_runs_make_is_not_code() -> None:
    spec = Spec(name="x", run="true", checkpoints=Checkpoints(dir="saves"), outputs=("out", "logs/*.txt"))
    found = prepare._results_of_runs(spec)
    assert found == [("checkpoints.dir", "saves"), ("outputs", "out")], "a pattern may match code as well"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"code": "none"}, "code: .*/none: there is no such folder; name the folder that holds the script"),
        ({"code": "train.py"}, "code: .*/train.py: is not a folder; name the folder that holds the script"),
        ({"run": ("python", "other.py")}, "run: there is no other.py in .*/code; correct `run`, or `code`"),
    ],
)
def test_code_that_is_not_there_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        prepare_on(place, monkeypatch, Thorough(), **fields)


# ── Programs for the machines ─────────────────────────────────────────────────────────────────────────────────────────


class Bundled(Cloud):
    """Lends machines of two architectures that install their own agents."""

    def __init__(self, *, bundled: bool = True) -> None:
        super().__init__(lambda: None)
        self.capabilities = replace(self.capabilities, bundled=bundled)

    def architectures(self, offerings: Sequence[Offering]) -> set[str]:
        return {"arm64", "x86_64"}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, set[str], bool]]:
    """What was asked to be built: each program, for which machines, and whether without asking an index."""
    found: list[tuple[Any, set[str], bool]] = []

    def build_all(program: Any, arches: Any, *, offline: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found.append((program, set(arches), offline))
        return (f"built {program.name}",), (f"no {program.name}",)

    monkeypatch.setattr(node_programs, "build_program_files", build_all)
    return found


def job_with(requirements: str | None) -> Spec:
    return Spec(name="job", run=("true",), resources=RESOURCES, environment=Environment(requirements=requirements))


def machines_of(provider: Cloud, *, offline: bool = False) -> node_packages.TargetMachines:
    return node_packages.TargetMachines(provider, provider.capabilities, (), offline)  # type: ignore[arg-type]


def test_machines_that_install_packages_get_uv_and_all_get_a_program_that_looks_at_stalls(built: list[Any]) -> None:
    both = {"arm64", "x86_64"}
    found = node_packages.pack_tools(machines_of(Bundled()), job_with("requirements.txt"))
    assert built == [(node_programs.SPY, both, False), (node_programs.UV, both, False)]
    spy, uv = node_programs.SPY.name, node_programs.UV.name
    assert found == ((f"built {spy}", f"built {uv}"), (f"no {uv}",)), "nothing is missed that no job needs"
    built.clear()
    found = node_packages.pack_tools(machines_of(Bundled(), offline=True), job_with(None))
    assert built == [(node_programs.SPY, both, True)] and found == ((f"built {spy}",), ())


def test_machines_that_have_an_agent_get_no_programs(built: list[Any]) -> None:
    here = machines_of(Bundled(bundled=False))
    assert node_packages.pack_tools(here, job_with("requirements.txt")) == ((), ())
    assert node_packages.pack_agents(here, job_with(None)) == ((), ()) and built == []


def test_machines_are_of_the_usual_architecture_where_a_provider_tells_none(built: list[Any]) -> None:
    plain = Cloud(lambda: None)
    plain.capabilities = replace(plain.capabilities, bundled=True)
    node_packages.pack_tools(machines_of(plain), job_with(None))
    assert [arches for _, arches, _ in built] == [{"x86_64"}]
