"""The plain path: a job from a file, from flags and from Python, its outputs as plain files, its exit codes."""

from __future__ import annotations

import json

from harness import World, chain

JOB_FILE = """\
name: counting
run: python train.py
params: {steps: 12, pause: 0.01, every: 5, sure: 1}
outputs: artifacts
checkpoints: {keep: 2}
"""


def test_from_a_file(world: World) -> None:
    world.script("counter.py")
    (world.code / "stoker.yaml").write_text(JOB_FILE)
    done = world.cli("run", "--env", f"TRUTH={world.truth}")
    assert done.returncode == 0, done.stderr
    assert f"finished {chain(12)}" in done.stdout

    listed = json.loads(world.cli("ps", "--json", "--all").stdout or "[]")
    (job,) = [row["id"] for row in listed]
    assert (world.outputs(job) / "result.txt").read_text() == chain(12)
    shown = json.loads(world.cli("show", job, "--json").stdout)
    assert (shown["phase"], shown["outcome"], shown["exit_code"]) == ("succeeded", "succeeded", 0)
    assert shown["last_checkpoint"]["name"] == "step-10"
    assert shown["attempts"][0]["nodes"][0]["rank"] == 0
    assert [line for line in world.lines(job) if not line.startswith("[stoker]")] == [
        record.text for record in world.journal("line")
    ]
    assert [one.name for one in world.checkpoints(job)] == ["step-5", "step-10"]


def test_from_flags_alone(world: World) -> None:
    world.script("counter.py")
    done = world.cli("run", "--env", f"TRUTH={world.truth}", "--", "python", "train.py", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert f"finished {chain(3)}" in done.stdout


def test_from_python(world: World) -> None:
    import stoker

    world.script("counter.py")
    job = stoker.submit(world.job(params={"steps": 3, "pause": 0}, outputs="out"))
    summary = stoker.wait(job, timeout=120)
    assert (summary.phase, summary.exit_code, len(summary.attempts)) == ("succeeded", 0, 1)
    assert (world.outputs(job) / "result.txt").read_text() == chain(3)


def test_a_failing_script_is_told_apart(world: World) -> None:
    world.write("print('about to fail')\nraise SystemExit(3)\n")
    done = world.cli("run", "--", "python", "train.py")
    assert done.returncode == 1
    assert "about to fail" in done.stdout


def test_a_followed_run_prints_its_summary_as_json_and_the_log_beside_it(world: World) -> None:
    world.write("print('hello')\n")
    done = world.cli("run", "--json", "--name", "mine", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["name"], told["phase"], told["exit_code"]) == ("mine", "succeeded", 0)
    said = done.stderr.splitlines()
    assert said.index("hello") < said.index("[stoker] succeeded: the training finished"), "the end comes last"
