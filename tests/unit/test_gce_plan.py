"""The plan of a job on Compute Engine: what a dry run tells without asking anybody, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import main
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers.gce import catalog, places, settings
from stoker.providers.gce.client import Api
from stoker.submit import agent_bundle
from stoker.submit.agent_bundle import AgentArchive
from tests.support.gcs.tokens import make_account

pytestmark = pytest.mark.slow

Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without any settings of Google's, and without a way to ask for them."""
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_ACTIVE_CONFIG_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))

    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a dry run asks nobody")

    for name in ("send", "default_project"):
        monkeypatch.setattr(Api, name, asked)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """A dry run in a folder with a job file; answers the exit code, stdout and stderr."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", "gs://bucket/team")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-central1")
    monkeypatch.setattr(agent_bundle, "build_archive", lambda tag, **_: AgentArchive(tag, "d" * 64, Path(), 1))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("stoker.yaml").write_text(
        "run: python3 train.py\nlimits: {max_runtime: 1h}\n"
        "resources: {provider: gce, machine: n2-standard-8, spot: prefer}\n"
    )

    def run(*sets: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["run", "--dry-run", *flags, *(word for text in sets for word in ("--set", text))])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return run


def refused(told: tuple[int, str, str]) -> str:
    code, out, err = told
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err


def write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


# ── The project ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TestTheProject:
    def test_a_key_names_its_own(self, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        key = tmp_path / "key.json"
        write(key, make_account().key_file | {"project_id": "key-project"})
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        code, out, err = plan(flags=("--json",))
        assert code == 0, err
        assert json.loads(out)["offering"]["region"] == "key-project/us-central1"
        assert json.loads(out)["requests"][0]["path"].startswith("/compute/v1/projects/key-project/")

    def test_what_is_named_or_set_comes_first(
        self, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = tmp_path / "key.json"
        write(key, make_account().key_file | {"project_id": "key-project"})
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "set-project")
        assert json.loads(plan(flags=("--json",))[1])["offering"]["region"] == "set-project/us-central1"
        named = plan("resources.gce.project=named-project", flags=("--json",))
        assert json.loads(named[1])["offering"]["region"] == "named-project/us-central1"

    def test_without_any_it_is_asked_for(self, plan: Plan) -> None:
        assert "resources.gce.project: name your Google Cloud project" in refused(plan())

    def test_a_login_is_used_in_the_project_that_gcloud_is_set_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "gcloud"
        write(folder / "configurations/config_default", "[core]\nproject = first-project\n")
        # Without a login, it is nobody's.
        assert settings.project() is None
        write(folder / "application_default_credentials.json", {"type": "authorized_user", "quota_project_id": "paid"})
        assert settings.project() == "first-project"
        write(folder / "configurations/config_work", "[compute]\nregion = us-east1\n[core]\nproject=50%-project\n")
        write(folder / "active_config", "work\n")
        assert settings.project() == "50%-project"
        monkeypatch.setenv("CLOUDSDK_ACTIVE_CONFIG_NAME", "default")
        assert settings.project() == "first-project"
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "nothing.json"))
        assert settings.project() is None

    @pytest.mark.parametrize("content", ["", "no json", "[]", "{}", '{"project_id": 7}', "\udcff"])
    def test_files_that_are_no_settings(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "gcloud/application_default_credentials.json"
        file.parent.mkdir()
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        write(tmp_path / "gcloud/configurations/config_default", "no settings at all")
        assert settings.project() is None


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestNames:
    @pytest.fixture(autouse=True)
    def project(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "vision-1")

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [
            ("us-centrall1", "us-central1"),
            ("us-cental1", "us-central1"),
            ("eurpoe-west4", "europe-west4"),
            ("europe-wset4", "europe-west4"),
            ("us-central1-a", "us-central1"),
            ("us-central-1", "us-central1"),
            ("US-CENTRAL1", None),
        ],
    )
    def test_a_region_that_is_almost_one(self, plan: Plan, wrong: str, meant: str | None) -> None:
        told = refused(plan(f"resources.region={wrong}"))
        assert f"resources.region: Compute Engine has no region '{wrong}'; " in told
        assert f"did you mean {meant}?" in told if meant else "name one such as us-central1" in told

    @pytest.mark.parametrize("region", ["us-central7", "europe-southeast1", "us-northwest1", "mars-north1"])
    def test_a_region_that_may_be_new_is_told_in_one_line(self, plan: Plan, region: str) -> None:
        code, _, err = plan(f"resources.region={region}")
        assert code == 0
        line = f"resources.region: {region} is not in Stoker's table, so it was not checked"
        assert err.count(line) == 1

    def test_every_region_and_zone_of_the_table_is_known(self) -> None:
        for region in places._table()["regions"]:
            places.check_region(region, places.zones_of(region))
            assert places.zones_of(region) and places.unchecked(region, places.zones_of(region)) == ()

    def test_zones(self, plan: Plan) -> None:
        code, _, err = plan("resources.zones=[us-central1-d]")
        told = "resources.zones: us-central1-d is not in Stoker's table, so it was not checked; us-central1 has us-"
        assert code == 0 and told in err
        assert "us-central1-1 is not in us-central1" in refused(plan("resources.zones=[us-central1-1]"))
        code, _, err = plan("resources.zones=[us-central1-ai9a]")
        assert code == 0 and "resources.zones: us-central1-ai9a is not in Stoker's table, so it was not checked" in err
        assert "table" not in plan("resources.zones=[us-central1-f]")[2]

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [
            ("n2-standrad-8", "n2-standard-8"),
            ("n1-higmem-8", "n1-highmem-8"),
            ("a2-highgup-1g", "a2-highgpu-1g"),
            ("n1-standard-8+nvidia-tesla-t5:1", "n1-standard-8+nvidia-tesla-t4:1"),
        ],
    )
    def test_a_machine_that_is_almost_one(self, plan: Plan, wrong: str, meant: str) -> None:
        told = refused(plan(f"resources.machine=[{wrong}]"))
        assert f"resources.machine: Compute Engine has no machine type '{wrong}'; choose one of: " in told
        assert meant in told

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("n2-standard-10", "n2-standard-80"),
            ("c4d-standard-8", "c4-standard-8"),
            ("a3-edgegpu-8g", "a3-megagpu-8g"),
            ("x4-960-16384-metal", None),
            ("n1-standard-8+nvidia-tesla-t4:3", "n1-standard-8+nvidia-tesla-t4:4"),
        ],
    )
    def test_a_machine_that_may_be_new_is_told_in_one_line(self, plan: Plan, name: str, near: str | None) -> None:
        code, _, err = plan(f"resources.machine=[{name}]")
        assert code == 0
        (line,) = [line for line in err.splitlines() if "not in Stoker's table" in line]
        also = f"; the nearest that is: {near}" if near else ""
        assert line.endswith(f"resources.machine: {name} is not in Stoker's table, so it was not checked{also}")

    def test_machines_of_the_table_need_no_word(self, plan: Plan) -> None:
        assert "not in Stoker's table" not in plan()[2]
        everything = Resources(provider="gce", machine=tuple(catalog.table()))
        assert catalog.unchecked(everything) == ()
        assert len(catalog.fitting(everything)) == len(catalog.table())

    def test_a_slip_is_told_where_the_cloud_is_asked_too(self) -> None:
        with pytest.raises(UserError, match="has no machine type 'n2-standrad-8'"):
            catalog.fitting(Resources(provider="gce", machine=("n2-standrad-8",)))


def test_machines_that_are_sold_in_another_way(plan: Plan) -> None:
    """Compute Engine sells A3 Ultra and A4 machines by spot, flex-start and reservation alone."""
    asked = ("resources.gce.project=vision-1", "resources.spot=false", "resources.machine=a3-ultragpu-8g")
    said = refused(plan(*asked))
    advice = "spot ones do: set resources.spot to true, or resources.gce.flex_start to true; "
    assert f"gce has no on-demand offering that fits; {advice}" in said
    assert plan(*asked, "resources.gce.flex_start=true")[0] == 0
