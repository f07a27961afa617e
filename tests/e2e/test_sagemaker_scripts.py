"""Scripts written for SageMaker run as they are: by themselves, under SageMaker's own toolkit, on several nodes,
through a reclaim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import World, fields, until

ENVIRONMENT = {"contract": "sagemaker"}
TOOLKIT = Path(sys.prefix) / "sagemaker"
needs_toolkit = pytest.mark.skipif(not (TOOLKIT / ".installed").exists(), reason="SageMaker's toolkit is not installed")


@pytest.fixture
def script(world: World) -> World:
    world.script("sagemaker_script.py")
    data = world.root / "data"
    data.mkdir()
    (data / "one.txt").write_text("first")
    (data / "two.txt").write_text("second")
    return world


def told(world: World, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(record.text) for record in world.journal(kind) if record.rank == rank]


def test_a_script_runs_as_it_is(script: World) -> None:
    summary = script.run(
        params={"epochs": 2, "learning-rate": 3e-4, "use-cuda": True, "name": "a b"},
        inputs={"train": str(script.root / "data")},
        metrics={"loss": "loss=([0-9.]+)"},
        environment=ENVIRONMENT,
    )
    assert summary.outcome == "succeeded", script.story(summary.id)
    (start,) = told(script, "start")
    assert start["cwd"] == "/opt/ml/code"
    expected = ["--epochs", "2", "--learning-rate", "0.0003", "--name", "a b", "--use-cuda", "True"]
    assert start["argv"] == expected
    kept = script.outputs(summary.id)
    assert json.loads((kept / "model" / "model.json").read_text()) == {"epochs": 2, "name": "a b"}
    assert (kept / "data" / "report-algo-1.txt").read_text() == "done"
    assert script.checkpoints(summary.id)[-1].complete
    assert not Path("/opt/ml").exists(), "nobody else ever sees it"


def test_outputs_may_name_a_folder_besides(world: World) -> None:
    world.write(
        "import os\n"
        "open('figures/one', 'w').write('1')\n"
        "open(os.environ['STOKER_OUTPUT_DIR'] + '/two', 'w').write('2')\n"
        "open('/opt/ml/model/three', 'w').write('3')\n"
    )
    summary = world.run(outputs="figures", environment=ENVIRONMENT)
    kept = world.outputs(summary.id)
    found = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert found == {"outputs/one", "outputs/two", "model/three"}, world.story(summary.id)


def test_what_it_wrote_about_its_failure_is_the_reason(script: World) -> None:
    summary = script.run(params={"epochs": 3, "fail-at": 2}, environment=ENVIRONMENT)
    assert summary.outcome == "failed"
    (reason,) = [attempt.reason for attempt in summary.attempts]
    assert reason == "the command ended with exit code 3: the loss is not a number: epoch 2", script.story(summary.id)


@pytest.mark.parametrize("cgroups", [True, False])
def test_a_reclaim_goes_on_from_the_checkpoint(script: World, cgroups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_NO_CGROUP", "" if cgroups else "1")
    job = script.submit(
        params={"epochs": 4, "wait-at": 2}, inputs={"train": str(script.root / "data")}, environment=ENVIRONMENT
    )
    script.training(job, step=2)
    script.interrupt(job, grace_s=20)
    summary = script.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], script.story(job)
    first, second = told(script, "start")
    assert first["saved"] == []
    assert second["saved"] == ["epoch-001.json", "epoch-002.json"]
    assert [record.step for record in script.journal("leave")] == [2]
    assert (script.outputs(job) / "model" / "model.json").exists()


def test_two_nodes_of_one_computer_each_see_their_own(script: World) -> None:
    script.write(
        (script.code / "train.py").read_text()
        + "import socket\n"
        + "say('found', 0, hosts={h: socket.gethostbyname(h) for h in args.hosts}, model=os.listdir('/opt/ml/model'))\n"
    )
    summary = script.run(nodes=2, params={"epochs": 1, "name": "two"}, environment=ENVIRONMENT)
    assert summary.outcome == "succeeded", script.story(summary.id)
    for rank in (0, 1):
        (found,) = told(script, "found", rank)
        assert found == {"hosts": {"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}, "model": ["model.json"]}
    kept = script.outputs(summary.id)
    assert (kept / "data" / "report-algo-1.txt").exists()
    assert (kept / "rank-1" / "data" / "report-algo-2.txt").exists()
    assert not (kept / "data" / "report-algo-2.txt").exists()


def test_what_it_is_still_writing_when_its_time_is_over_is_not_kept(world: World) -> None:
    """The agent knows the folder by another name than the training does."""
    world.write(
        "import os, signal, time\n"
        "found = open(os.environ['TRUTH'] + '/found-' + os.environ['STOKER_ATTEMPT'], 'w')\n"
        "print(sorted(os.listdir('/opt/ml/checkpoints')), file=found, flush=True)\n"
        "if os.environ['STOKER_ATTEMPT'] != '1': raise SystemExit\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for name in ('done', 'growing'): os.mkdir('/opt/ml/checkpoints/' + name)\n"
        "open('/opt/ml/checkpoints/done/whole', 'w').write('whole')\n"
        "time.sleep(3)\n"
        "file = open('/opt/ml/checkpoints/growing/part', 'wb', buffering=0)\n"
        "for _ in range(100000):\n"
        "    file.write(b'x' * 4096)\n"
        "    time.sleep(0.01)\n"
    )
    job = world.submit(environment=ENVIRONMENT)
    until(lambda: list(world.home.glob("nodes/*/*/ml/checkpoints/growing/part")), "it writes")
    world.interrupt(job, grace_s=3)
    assert world.ended(job).outcome == "succeeded", world.story(job)
    assert (world.truth / "found-2").read_text() == "['done']\n", world.story(job)


@needs_toolkit
@pytest.mark.parametrize("nodes", [1, 2])
def test_under_sagemakers_own_toolkit(script: World, nodes: int) -> None:
    """`train` is the program that SageMaker's images run. It finds the script, its arguments and the hosts itself."""
    summary = script.run(
        run=[str(TOOLKIT / "bin" / "train")],
        nodes=nodes,
        params={"sagemaker_program": "train.py", "epochs": 2, "batch-size": 8, "name": "kit"},
        inputs={"train": str(script.root / "data")},
        environment=ENVIRONMENT,
    )
    assert summary.outcome == "succeeded", script.story(summary.id)
    for rank in range(nodes):
        (start,) = told(script, "start", rank)
        assert start["argv"] == ["--batch-size", "8", "--epochs", "2", "--name", "kit"]
    assert (script.outputs(summary.id) / "model" / "model.json").exists()
    assert any("Reporting training SUCCESS" in line for line in script.lines(summary.id))


@needs_toolkit
def test_the_toolkits_word_about_a_failure_is_the_reason(world: World) -> None:
    world.write("raise ValueError('no such thing')")
    summary = world.run(
        run=[str(TOOLKIT / "bin" / "train")], params={"sagemaker_program": "train.py"}, environment=ENVIRONMENT
    )
    assert summary.outcome == "failed"
    reason = summary.attempts[0].reason
    assert reason.startswith("the command ended with exit code 1: "), reason
    assert "ExitCode 1" in reason and "train.py" in reason


@needs_toolkit
def test_the_toolkit_goes_on_from_the_checkpoint_after_a_reclaim(script: World) -> None:
    job = script.submit(
        run=[str(TOOLKIT / "bin" / "train")],
        params={"sagemaker_program": "train.py", "epochs": 4, "wait-at": 2},
        environment=ENVIRONMENT,
    )
    script.training(job, step=2)
    script.interrupt(job, grace_s=5)
    summary = script.ended(job)
    assert fields(summary, "outcome")[-1] == ("succeeded",), script.story(job)
    assert told(script, "start")[-1]["saved"][:2] == ["epoch-001.json", "epoch-002.json"]


def test_without_rights_to_mount_one_line_says_what_to_do(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be without rights on purpose")
    world.write("")
    none = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin --inh-caps=-all "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", none, "sh"]
    job = ["--set", "environment.contract=sagemaker", "--", "python", "train.py"]
    ran = subprocess.run(
        [*prefix, sys.executable, "-m", "stoker.cli", "run", *job],
        cwd=world.code,
        env=world.environ(),
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    said = ran.stdout + ran.stderr
    assert "environment.contract: no /opt/ml here: a user namespace: not allowed; be root, allow user" in said, said
