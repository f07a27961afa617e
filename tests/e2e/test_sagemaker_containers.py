"""The same scripts in a container, by a real docker: the tree is inside, and an image's own `train` is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import World, fields

from stoker.sagemaker import Estimator
from tests.support.engines import IMAGE, Docker, why_no_docker

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")


def contained(world: World) -> dict[str, Any]:
    run = {"volumes": [f"{world.truth}:{world.truth}"]}
    return {"contract": "sagemaker", "container": {"image": IMAGE, "run": run}}


def test_a_script_runs_in_a_container_through_a_reclaim(world: World, engine: Docker) -> None:
    world.script("sagemaker_script.py")
    data = world.root / "data"
    data.mkdir()
    (data / "one.txt").write_text("first")
    job = world.submit(
        run=["python3", "train.py"],
        params={"epochs": 4, "wait-at": 2},
        inputs={"train": str(data)},
        environment=contained(world),
    )
    world.training(job, step=2)
    world.interrupt(job, grace_s=20)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    first, second = (json.loads(record.text) for record in world.journal("start"))
    assert first["cwd"] == "/opt/ml/code"
    assert second["saved"] == ["epoch-001.json", "epoch-002.json"]
    kept = world.outputs(job)
    assert (kept / "model" / "model.json").exists()
    assert (kept / "data" / "report-algo-1.txt").exists()
    assert not Path("/opt/ml").exists()


def test_two_containers_find_each_other_and_see_their_own(world: World, engine: Docker) -> None:
    world.write(
        "import json, os, pathlib, socket\n"
        "hosts = json.loads(os.environ['SM_HOSTS'])\n"
        "found = {host: socket.gethostbyname(host) for host in hosts}\n"
        "here = os.environ['SM_CURRENT_HOST']\n"
        "pathlib.Path('/opt/ml/model', here).write_text(json.dumps(found))\n"
        "pathlib.Path(os.environ['TRUTH'], here).write_text(str(os.listdir('/opt/ml/model')))\n"
    )
    summary = world.run(run=["python3", "train.py"], nodes=2, environment=contained(world))
    assert summary.outcome == "succeeded", world.story(summary.id)
    for rank, host in enumerate(("algo-1", "algo-2")):
        assert (world.truth / host).read_text() == str([host])
        kept = world.outputs(summary.id) / (f"rank-{rank}" if rank else "") / "model" / host
        assert json.loads(kept.read_text()) == {"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}


def test_what_it_wrote_about_its_failure_is_the_reason(world: World, engine: Docker) -> None:
    world.write("open('/opt/ml/output/failure', 'w').write('out of data')\nraise SystemExit(2)\n")
    summary = world.run(run=["python3", "train.py"], environment=contained(world))
    assert summary.attempts[0].reason == "the command ended with exit code 2: out of data", world.story(summary.id)


def test_an_image_runs_its_own_program(world: World, engine: Docker) -> None:
    """As SageMaker does: the image's entry point, and `train` behind it."""
    program = world.root / "train"
    program.write_text(
        "#!/usr/bin/env python3\n"
        "import json, os, sys\n"
        "hps = json.load(open('/opt/ml/input/config/hyperparameters.json'))\n"
        "seen = {'argv': sys.argv[1:], 'lr': hps['lr'], 'entry': os.environ.get('FROM_ENTRY')}\n"
        "json.dump(seen, open('/opt/ml/model/seen.json', 'w'))\n"
    )
    program.chmod(0o755)
    estimator = Estimator(
        IMAGE,
        instance_type="local",
        hyperparameters={"lr": 0.5},
        stoker={"environment": {"container": {"run": {"volumes": [f"{program}:/usr/local/bin/train"]}}}},
    )
    estimator.fit(logs=False)
    assert estimator.latest_training_job is not None
    seen = json.loads((world.outputs(estimator.latest_training_job.name) / "model" / "seen.json").read_text())
    assert seen == {"argv": [], "lr": "0.5", "entry": "train"}
