"""A job that gets more GPUs than it asked for is told so before it pays: in the plan, in a warning and in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.cli.plan_view import offering_rows
from stoker.model.offerings import Offering
from stoker.model.resources import Gpus, Resources, idle_gpus
from stoker.model.spec import Spec
from stoker.submit import agent_bundle
from stoker.submit.agent_bundle import AgentArchive
from stoker.submit.choose_offerings import idle_gpus_warning

ONE = Offering("p", "small", "z", False, price=11.0, gpu="H100", gpus=1)
EIGHT = replace(ONE, machine="large", price=88.0, gpus=8)


def spec(count: int, nodes: int = 1) -> Spec:
    return Spec(name="x", run="x", nodes=nodes, resources=Resources(provider="p", gpus=Gpus("H100", count)))


@pytest.mark.parametrize(
    ("asked", "offering", "idle"),
    [
        (Gpus("H100", 1), EIGHT, 7),
        (Gpus("H100", 3), EIGHT, 5),
        (Gpus("H100", 8), EIGHT, 0),
        (Gpus("H100", 1), ONE, 0),
        # No number was asked for.
        (Gpus("", 0), EIGHT, 0),
        (None, EIGHT, 0),
    ],
)
def test_what_was_not_asked_for_is_idle(asked: Gpus | None, offering: Offering, idle: int) -> None:
    assert idle_gpus(asked, offering.gpus) == idle


def test_a_row_of_the_plan_says_what_is_bought_and_what_is_idle() -> None:
    assert offering_rows((EIGHT,), 1, Gpus("H100", 1))[0][:3] == ["large in z", "8 × H100, 7 idle", "on-demand"]
    # Where nothing is idle, the plan is as short as ever.
    assert offering_rows((EIGHT,), 1, Gpus("H100", 8))[0][:2] == ["large in z", "on-demand"]
    rows = offering_rows((ONE, EIGHT), 1, Gpus("H100", 1))
    assert [row[1] for row in rows] == ["1 × H100", "8 × H100, 7 idle"]


def test_the_warning_names_the_machine_its_price_and_the_bound() -> None:
    (line,) = idle_gpus_warning(spec(1), (EIGHT,))
    assert line == (
        "resources.gpus: H100:1 was asked for, and large on-demand has 8 × H100 at $88.00/h: 7 of 8 GPUs stay idle, "
        "and are paid for; resources.max_price bounds the price"
    )
    assert "on each of 2 nodes" in idle_gpus_warning(spec(1, nodes=2), (EIGHT,))[0]
    assert idle_gpus_warning(spec(8), (EIGHT,)) == ()
    assert idle_gpus_warning(spec(1), (ONE,)) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cloud", "region", "store", "gpus", "bought"),
    [("gce", "us-central1", "gs://bucket/team", "H100:1", 8), ("ec2", "us-east-1", "s3://bucket/team", "A100:1", 8)],
)
def test_one_gpu_does_not_silently_buy_eight(
    cloud: str,
    region: str,
    store: str,
    gpus: str,
    bought: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", store)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "vision-1")
    monkeypatch.setattr(agent_bundle, "build_archive", lambda tag, **_: AgentArchive(tag, "d" * 64, Path(), 1))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("stoker.yaml").write_text(
        "run: python3 train.py\nlimits: {max_runtime: 1h}\n"
        f"resources: {{provider: {cloud}, region: {region}, gpus: '{gpus}', spot: false}}\n"
    )

    def dry_run(*flags: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main(["run", "--dry-run", *flags])
        captured = capsys.readouterr()
        assert left.value.code == 0, captured.err
        return captured.out, captured.err

    out, _ = dry_run("--json")
    assert json.loads(out)["gpus"] == {"asked": 1, "bought": bought, "idle": bought - 1}
    _, err = dry_run()
    assert f"{bought - 1} idle" in err and f"{bought - 1} of {bought} GPUs stay idle" in err
    if cloud == "gce":
        # Sold as spot and by flex-start alone: https://cloud.google.com/compute/docs/gpus#h100-gpus
        assert "a3-highgpu-1g has 1 × H100" in err and "resources.gce.flex_start" in err
