"""Results are kept: wherever a script writes them, however it ends, over all its attempts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from harness import World, until

from stoker import client
from stoker.model.errors import UserError

# A script that knows nothing of Stoker, as nanoGPT is.
PLAIN = """
import os, pathlib
out = pathlib.Path("out"); out.mkdir(exist_ok=True)
(out / "ckpt.pt").write_text("model")
pathlib.Path("config.json").write_text("changed")
pathlib.Path(os.environ["STOKER_OUTPUT_DIR"], "loss.csv").write_text("1,2")
pathlib.Path("__pycache__").mkdir(exist_ok=True)
pathlib.Path("__pycache__/x.pyc").write_text("x")
os.mkfifo("pipe")
print("wrote")
"""

# One that trains until it is told to leave, and then until it is told to end.
WAITS = """
import os, pathlib, signal, time
attempt = os.environ["STOKER_ATTEMPT"]
gone = []
signal.signal(signal.SIGTERM, lambda *_: gone.append(1))
saves = pathlib.Path(os.environ["STOKER_CHECKPOINT_DIR"])
def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp"); draft.write_text(text); draft.replace(path)
{body}
print("ready", attempt, flush=True)
while not gone and not pathlib.Path(os.environ["TRUTH"], "end" + attempt).exists(): time.sleep(0.05)
{last}
"""


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".stokerignore"
    }


def ready(world: World, job: str, attempt: int) -> None:
    until(lambda: f"ready {attempt}" in world.lines(job), f"attempt {attempt} trains\n{world.story(job)}")


def restart(world: World, job: str, attempt: int) -> None:
    """Reclaim the attempt, and wait for the next."""
    world.interrupt(job, grace_s=30)
    ready(world, job, attempt + 1)


def test_what_a_script_wrote_beside_its_code_is_kept(world: World, tmp_path: Path) -> None:
    (world.code / "config.json").write_text("as packed")
    (world.code / "data.txt").write_text("unchanged")
    world.write(PLAIN)
    summary = world.run()
    assert summary.outcome == "succeeded", world.story(summary.id)
    target = tmp_path / "pulled"
    # It has no checkpoint, so its results are the outputs.
    pulled = world.cli("pull", summary.id, str(target))
    assert pulled.returncode == 0, pulled.stderr
    assert files(target) == {"out/ckpt.pt": "model", "config.json": "changed", "loss.csv": "1,2"}
    assert summary.outputs is not None
    assert (summary.outputs.files, summary.outputs.left_out) == (3, 1)
    shown = world.cli("show", summary.id).stdout
    assert f"3 files, 15 B kept; `stoker pull {summary.id} --outputs`" in shown
    assert "1 file not kept" in shown and "pipe: not a regular file" in shown
    told = json.loads(world.cli("show", summary.id, "--json").stdout)
    assert told["outputs"]["files"] == 3
    assert told["outputs"]["named"] == [{"path": "pipe", "size": 0, "why": "not a regular file"}]


def test_the_end_of_run_says_what_was_kept(world: World) -> None:
    world.write(PLAIN)
    ended = world.cli("run", "--", "python", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "3 files, 15 B kept; `stoker pull" in ended.stderr
    assert "pipe: not a regular file" in ended.stderr


@pytest.mark.parametrize("way", ["failed", "stopped"])
def test_results_are_kept_however_it_ends(world: World, tmp_path: Path, way: str) -> None:
    last = "raise SystemExit(3)" if way == "failed" else ""
    world.write(WAITS.format(body="write(pathlib.Path('out/trace.txt'), 'so far')", last=last))
    job = world.submit()
    ready(world, job, 1)
    if way == "failed":
        (world.truth / "end1").touch()
    else:
        client.stop(job, world.url)
    summary = world.ended(job)
    assert summary.outcome == way, world.story(job)
    assert client.pull_outputs(job, tmp_path / "pulled", store=world.url) == tmp_path / "pulled"
    assert files(tmp_path / "pulled") == {"out/trace.txt": "so far"}


@pytest.mark.parametrize("folder", ["checkpoints", "."])
def test_a_last_save_that_is_no_checkpoint_is_kept_as_an_output(world: World, tmp_path: Path, folder: str) -> None:
    """A script that saves its model and then fails: nobody knows whether the save is whole, and it is not deleted."""
    world.write(f"open({f'{folder}/final.bin'!r}, 'w').write('the model')\nraise SystemExit(3)")
    summary = world.run(checkpoints={"dir": folder})
    assert summary.outcome == "failed"
    assert client.checkpoints(summary.id, store=world.url) == []
    name = f"perhaps-unfinished/{'' if folder == '.' else 'checkpoints/'}final.bin"
    assert f"kept as outputs, perhaps unfinished, since no checkpoint has them: {name}" in world.story(summary.id)
    pulled = files(client.pull_outputs(summary.id, tmp_path / "pulled", store=world.url))
    assert pulled == {name: "the model"}
    told = "1 file of attempt 1 is perhaps unfinished"
    assert told in world.cli("show", summary.id).stdout
    assert told in world.cli("pull", summary.id, str(tmp_path / "again")).stderr


def test_files_beside_saves_of_stoker_train_are_kept_as_outputs(world: World, tmp_path: Path) -> None:
    world.write(
        "from stoker import train\n"
        "with train.checkpoint('step-1', step=1) as folder: (folder / 'model').write_text('1')\n"
        "(train.checkpoint_dir() / 'best.pt').write_text('the best model')\n"
        "(train.checkpoint_dir() / 'step-1/eval.json').write_text('{}') if train.wait_durable(60) else None\n"
    )
    summary = world.run()
    assert summary.outcome == "succeeded", world.story(summary.id)
    assert summary.outputs is not None and (summary.outputs.files, summary.outputs.left_out) == (2, 0)
    told = "kept as outputs, since no checkpoint has them: checkpoints/best.pt, checkpoints/step-1/eval.json"
    assert f"[stoker] {told}" in world.lines(summary.id)
    assert world.cli("pull", summary.id, "--outputs", str(tmp_path / "outputs")).returncode == 0
    assert files(tmp_path / "outputs") == {
        "checkpoints/best.pt": "the best model",
        "checkpoints/step-1/eval.json": "{}",
    }


def test_outputs_of_all_attempts_are_pulled_as_one_disk(world: World, tmp_path: Path) -> None:
    body = """
output = pathlib.Path(os.environ["STOKER_OUTPUT_DIR"])
write(output / f"events.{attempt}", attempt)
write(output / "last", attempt)
write(pathlib.Path("beside") / f"only-{attempt}", attempt)
"""
    world.write(WAITS.format(body=body, last=""))
    job = world.submit(outputs="artifacts")
    ready(world, job, 1)
    restart(world, job, 1)
    (world.truth / "end2").touch()
    summary = world.ended(job)
    assert summary.outcome == "succeeded", world.story(job)
    merged = {"events.1": "1", "events.2": "2", "last": "2", "beside/only-1": "1", "beside/only-2": "2"}
    assert world.cli("pull", job, str(tmp_path / "all"), "--outputs").returncode == 0
    assert files(tmp_path / "all") == merged
    assert world.cli("pull", job, str(tmp_path / "first"), "--attempt", "1").returncode == 0
    assert files(tmp_path / "first") == {"events.1": "1", "last": "1", "beside/only-1": "1"}
    wrong = world.cli("pull", job, str(tmp_path / "none"), "--attempt", "3")
    assert wrong.returncode == 2 and "has no attempt 3; it has had 2" in wrong.stderr
    assert files(client.pull_outputs(job, tmp_path / "client", store=world.url)) == merged


def test_a_folder_of_ones_own_is_never_emptied(world: World, tmp_path: Path) -> None:
    """An absolute checkpoint folder that holds other files, over three restarts."""
    shared = tmp_path / "shared"
    (shared / "notes").mkdir(parents=True)
    (shared / "notes" / "thesis.txt").write_text("precious")
    (shared / "old.pt").write_text("of another year")
    body = """
found = sorted(path.name for path in saves.glob("step-*"))
write(pathlib.Path(os.environ["TRUTH"], "found" + attempt), " ".join(found))
write(saves / f"step-{attempt}" / "model", attempt)
"""
    # Of each attempt one save is committed; it is killed in the middle of another.
    last = """
if gone:
    half = (saves / f"step-{attempt}9").open("w"); half.write("half " + attempt); half.flush()
    time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)
"""
    world.write(WAITS.format(body=body, last=last))
    job = world.submit(checkpoints={"dir": str(shared)})
    for attempt in (1, 2, 3):
        ready(world, job, attempt)
        until(
            lambda: any(
                blob.path == f"step-{attempt}/model"  # noqa: B023 - asked at once
                for one in world.checkpoints(job)
                for blob in one.manifests[0].files
            ),
            f"attempt {attempt} commits\n{world.story(job)}",
        )
        restart(world, job, attempt)
    (world.truth / "end4").touch()
    summary = world.ended(job)
    assert summary.outcome == "succeeded", world.story(job)
    assert (shared / "notes" / "thesis.txt").read_text() == "precious"
    assert (shared / "old.pt").read_text() == "of another year"
    assert (world.truth / "found4").read_text() == "step-1 step-2 step-3"
    # What was in no checkpoint is not deleted either.
    assert (tmp_path / ".shared.replaced" / "step-19").read_text() == "half 1"
    committed = {blob.path for one in world.checkpoints(job) for blob in one.manifests[0].files}
    assert not any("thesis" in path or "old.pt" in path for path in committed)


def test_saves_beside_the_code(world: World, tmp_path: Path) -> None:
    """`checkpoints: {dir: .}`: everything that it writes, and nothing of the code, is saved and restored."""
    (world.code / "package").mkdir()
    (world.code / "package" / "settings.txt").write_text("as packed")
    body = """
there = sorted(str(path) for path in pathlib.Path(".").rglob("*") if path.is_file() and "pycache" not in str(path))
write(pathlib.Path(os.environ["TRUTH"], "there" + attempt), " ".join(there))
write(pathlib.Path("model.pt"), attempt)
write(pathlib.Path("log/steps.txt"), attempt)
"""
    world.write(WAITS.format(body=body, last=""))
    job = world.submit(checkpoints={"dir": "."})
    ready(world, job, 1)
    until(lambda: bool(world.checkpoints(job)), "the first commit")
    restart(world, job, 1)
    (world.truth / "end2").touch()
    summary = world.ended(job)
    assert summary.outcome == "succeeded", world.story(job)
    code = "package/settings.txt train.py"
    assert (world.truth / "there1").read_text() == code
    assert (world.truth / "there2").read_text() == f"log/steps.txt model.pt {code}"
    for one in world.checkpoints(job):
        assert {blob.path for blob in one.manifests[0].files} == {"model.pt", "log/steps.txt"}


def test_patterns(world: World, tmp_path: Path) -> None:
    """Saves and outputs in one folder, told apart by patterns."""
    body = """
write(pathlib.Path("out/ckpt.pt"), attempt)
write(pathlib.Path("out/plot.png"), attempt)
write(pathlib.Path("runs/a/events"), attempt)
write(pathlib.Path("cache/huge"), attempt)
"""
    world.write(WAITS.format(body=body, last=""))
    job = world.submit(checkpoints={"dir": "out/*.pt"}, outputs=["out/*.png", "runs/**", "!cache"])
    ready(world, job, 1)
    until(lambda: bool(world.checkpoints(job)), "the first commit")
    (world.truth / "end1").touch()
    summary = world.ended(job)
    assert summary.outcome == "succeeded", world.story(job)
    assert {blob.path for blob in world.checkpoints(job)[-1].manifests[0].files} == {"ckpt.pt"}
    client.pull_outputs(job, tmp_path / "pulled", store=world.url)
    assert files(tmp_path / "pulled") == {"out/plot.png": "1", "runs/a/events": "1"}


def test_folders_that_are_refused(world: World, tmp_path: Path) -> None:
    world.write("pass")
    home = Path("~").expanduser()
    for fields, message in (
        ({"checkpoints": {"dir": str(tmp_path / "x")}, "nodes": 2}, "2 nodes on this computer would all write there"),
        ({"outputs": str(tmp_path / "x"), "nodes": 2}, "2 nodes on this computer would all write there"),
        ({"checkpoints": {"dir": str(home)}}, "name a folder of "),
        ({"checkpoints": {"dir": str(world.code)}}, "holds the code"),
        ({"outputs": str(world.folder / "out")}, "must be apart from each other"),
    ):
        with pytest.raises(UserError, match=message):
            world.submit(**fields)  # type: ignore[arg-type]
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(UserError, match="belongs to the system"):
        world.submit(checkpoints={"dir": str(tmp_path / "link")})


def test_two_jobs_do_not_share_a_folder(world: World, tmp_path: Path) -> None:
    world.write(WAITS.format(body="", last=""))
    shared = {"dir": str(tmp_path / "shared")}
    first = world.submit(checkpoints=shared)
    ready(world, first, 1)
    second = world.ended(world.submit(checkpoints=shared))
    assert second.outcome == "failed"
    assert f"checkpoints.dir: {tmp_path / 'shared'} is used by {first}" in second.reason
    (world.truth / "end1").touch()
    assert world.ended(first).outcome == "succeeded"


# Attempt 1 fails in the middle of a save, and leaves half a zip archive. Attempt 2 saves it whole.
TORN = """
import io, os, pathlib, sys, time, zipfile
saves = pathlib.Path("ck"); saves.mkdir(exist_ok=True)
data = io.BytesIO()
with zipfile.ZipFile(data, "w") as archive: archive.writestr("weights", b"w" * 4000)
whole = data.getvalue()
if os.environ["STOKER_ATTEMPT"] == "1":
    (saves / "ckpt.pt").write_bytes(whole[:3000])
    sys.exit(3)
(saves / "ckpt.pt").write_bytes(whole)
pathlib.Path(os.environ["STOKER_OUTPUT_DIR"], "result").write_text("done")
"""


def test_a_torn_save_of_an_earlier_attempt_is_no_result(world: World, tmp_path: Path) -> None:
    world.write(TORN)
    summary = world.run(checkpoints={"dir": "ck"}, retry={"user_errors": 1}, outputs="artifacts")
    assert (summary.outcome, len(summary.attempts)) == ("succeeded", 2), world.story(summary.id)
    merged = world.cli("pull", summary.id, str(tmp_path / "merged"), "--outputs")
    assert files(tmp_path / "merged") == {"result": "done"}, merged.stderr
    left_out = (
        "1 file of attempt 1, perhaps unfinished, left out because a later attempt went further; --attempt 1 gives it"
    )
    assert left_out in merged.stderr
    shown = world.cli("show", summary.id).stdout
    assert "outputs     1 file, 4 B kept in 2 attempts" in shown
    assert f"1 file of attempt 1 is perhaps unfinished: `stoker pull {summary.id} --attempt 1`" in shown
    assert world.cli("pull", summary.id, str(tmp_path / "first"), "--attempt", "1").returncode == 0
    assert [path.relative_to(tmp_path / "first").as_posix() for path in (tmp_path / "first").rglob("*.pt")] == [
        "perhaps-unfinished/ck/ckpt.pt"
    ]


LINKS = """
import os, pathlib
def make(folder):
    (folder / "epoch-7").mkdir(parents=True); (folder / "epoch-7/model").write_text("weights")
    (folder / "best").symlink_to("epoch-7"); (folder / "latest").symlink_to("best/model")
make(pathlib.Path("runs")); make(pathlib.Path(os.environ["STOKER_OUTPUT_DIR"]))
pathlib.Path("beside.csv").write_text("1"); pathlib.Path("lnk.csv").symlink_to("beside.csv")
pathlib.Path("away").symlink_to("/etc"); pathlib.Path("dangling").symlink_to("nothing")
"""


def test_links_are_pulled_or_reported(world: World, tmp_path: Path) -> None:
    world.write(LINKS)
    summary = world.run()
    assert summary.outcome == "succeeded", world.story(summary.id)
    target = tmp_path / "pulled"
    assert world.cli("pull", summary.id, str(target), "--outputs").returncode == 0
    for folder in (target / "runs", target):
        assert str((folder / "best").readlink()) == "epoch-7"
        assert (folder / "best/model").read_text() == (folder / "latest").read_text() == "weights"
    assert (target / "lnk.csv").read_text() == "1"
    assert not os.path.lexists(target / "away") and not os.path.lexists(target / "dangling")
    shown = world.cli("show", summary.id).stdout
    assert "2 files not kept" in shown
    assert "away (4 B): a link out of the folder" in shown and "dangling: a link to nothing" in shown


# Saves elsewhere for as long as the agent needs to notice it.
ELSEWHERE = """
import os, pathlib, sys, time
out = pathlib.Path("out"); out.mkdir(exist_ok=True)
until = time.monotonic() + 18
while time.monotonic() < until:
    (out / "ckpt.pt").write_bytes(os.urandom(100)); time.sleep(0.5)
sys.exit(int(os.environ["CODE"]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_saves_in_another_folder_are_warned_of_however_the_job_ended(world: World, code: int) -> None:
    world.write(ELSEWHERE)
    summary = world.run(env={"CODE": str(code)})
    assert summary.outcome == ("failed" if code else "succeeded"), world.story(summary.id)
    what = "nothing was saved" if code else "no checkpoint was made"
    advice = "out/ckpt.pt looks like a save: write `checkpoints: {dir: out}` in the job file"
    warning = f"{what}: no file was written to checkpoints/; {advice}"
    assert warning in world.story(summary.id)
    assert f"warning: attempt 1: {warning}" in world.cli("show", summary.id).stdout
    assert (what in world.cli("ps", "--all").stdout) is (code == 0)
