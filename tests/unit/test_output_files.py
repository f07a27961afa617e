"""Which files of a node are kept as outputs, and what is said about the others."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import JOB, memory_store, write

from stoker.agent import job_folders, output_files, output_walk
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.confinement import Confinement, opened_folder
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource, SkippedFile, without_caches
from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Environment, Spec

LIMIT_S = 60.0


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path / "node")
    write(found.code / "train.py", "code")
    write(found.code / "config.json", "as packed")
    return found


def spec(**fields: object) -> Spec:
    return Spec(name="job", run="python train.py", **fields)  # type: ignore[arg-type]


def kept(paths: NodePaths, job: Spec, baseline: Baseline) -> dict[str, str]:
    files = job_folders.output_files(paths, job, baseline)
    declared = files.declared()
    beside, _ = files.beside(declared)
    return {path: output.source.read_text() for path, output in {**declared, **beside}.items()}


def began(paths: NodePaths, job: Spec) -> Baseline:
    for folder in job_folders.written(paths, job):
        folder.mkdir(parents=True, exist_ok=True)
    return Baseline.take(job_folders.watched(paths, job))


def touch_later(path: Path, text: str, at: float) -> None:
    write(path, text)
    os.utime(path, (at, at))


def test_without_a_word_everything_new_is_kept(paths: NodePaths) -> None:
    job = spec()
    baseline = began(paths, job)
    write(paths.code / "out/ckpt.pt", "model")
    write(paths.code / "config.json", "changed")
    write(paths.code / "outputs/loss.csv", "1")
    write(paths.code / "checkpoints/step-1/model", "is safe already")
    for name in ("__pycache__/a.pyc", ".git/x", "venv/pyvenv.cfg", "venv/lib/a.py", "half.tmp"):
        write(paths.code / name, "x")
    assert kept(paths, job, baseline) == {"out/ckpt.pt": "model", "config.json": "changed", "loss.csv": "1"}


def test_what_the_setup_made_is_no_result(paths: NodePaths) -> None:
    job = spec(outputs="artifacts")
    write(paths.code / "data/train.bin", "made by setup")
    baseline = began(paths, job)
    write(paths.code / "artifacts/a", "1")
    assert kept(paths, job, baseline) == {"a": "1"}


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ("artifacts", {"a", "plot.png", "runs/x", "cache/y"}),
        (["artifacts", "*.png"], {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
        (["artifacts", "!cache"], {"artifacts/a", "plot.png", "runs/x"}),
        (["!**", "runs"], {"runs/x"}),
        (".", {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
        ("runs/*", {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
    ],
)
def test_patterns(paths: NodePaths, outputs: str | list[str], expected: set[str]) -> None:
    job = spec(outputs=outputs if isinstance(outputs, str) else tuple(outputs))
    baseline = began(paths, job)
    for name in ("artifacts/a", "plot.png", "runs/x", "cache/y", "checkpoints/z"):
        write(paths.code / name, "1")
    assert set(kept(paths, job, baseline)) == expected


def test_declared_files_are_synced_while_it_trains_and_others_are_not(paths: NodePaths) -> None:
    job = spec(outputs=("*.png", "runs"))
    files = job_folders.output_files(paths, job, began(paths, job))
    for name in ("plot.png", "runs/x", "other"):
        write(paths.code / name, "1")
    assert set(files.declared()) == {"plot.png", "runs/x"}


def test_an_absolute_folder_keeps_what_others_had_in_it_to_itself(paths: NodePaths, tmp_path: Path) -> None:
    write(tmp_path / "mine/old.txt", "private")
    job = spec(outputs=str(tmp_path / "mine"))
    baseline = began(paths, job)
    write(tmp_path / "mine/new.txt", "result")
    assert kept(paths, job, baseline) == {"new.txt": "result"}


def test_two_files_of_one_name(paths: NodePaths) -> None:
    job = spec(outputs="artifacts")
    baseline = began(paths, job)
    write(paths.code / "artifacts/model.txt", "declared")
    write(paths.code / "model.txt", "beside")
    assert kept(paths, job, baseline) == {"model.txt": "declared", "work/model.txt": "beside"}


def test_code_that_has_a_file_called_outputs(paths: NodePaths) -> None:
    write(paths.code / "outputs", "a file of the code")
    job = spec()
    baseline = began(paths, job)
    top = job_folders.output_folder(paths, job)
    assert top.is_dir()
    write(top / "a", "1")
    assert kept(paths, job, baseline) == {"a": "1"}
    assert (paths.code / "outputs").read_text() == "a file of the code"


def test_checkpoints_beside_the_code(paths: NodePaths) -> None:
    """A pattern's files are safe in checkpoints; the code is in neither."""
    job = spec(checkpoints=Checkpoints(dir=("*.pt", "state.json")))
    baseline = began(paths, job)
    write(paths.code / "model.pt", "1")
    write(paths.code / "state.json", "1")
    write(paths.code / "plot.png", "1")
    selection = job_folders.checkpoint_selection(paths, job, baseline)
    assert set(selection.scan(paths.code)) == {"model.pt", "state.json"}
    assert kept(paths, job, baseline) == {"plot.png": "1"}
    everything = spec(checkpoints=Checkpoints(dir="."), outputs="artifacts")
    baseline = Baseline.take([paths.code]).without([paths.code / name for name in ("model.pt", "plot.png")])
    write(paths.code / "artifacts/result", "1")
    selection = job_folders.checkpoint_selection(paths, everything, baseline)
    assert set(selection.scan(paths.code)) == {"model.pt", "plot.png"}


def test_files_of_a_script_for_sagemaker(paths: NodePaths) -> None:
    job = spec(environment=Environment(contract="sagemaker"))
    baseline = began(paths, job)
    write(job_folders.artifacts(paths) / "model/weights", "1")
    write(paths.code / "beside.txt", "2")
    assert kept(paths, job, baseline) == {"model/weights": "1", "code/beside.txt": "2"}


def test_over_the_bound_results_come_before_caches_and_the_newest_first(tmp_path: Path) -> None:
    work = tmp_path / "work"
    touch_later(work / ".cache/newest", "x" * 10, 4000.0)
    touch_later(work / "old.pt", "x" * 10, 1000.0)
    touch_later(work / "new.pt", "x" * 10, 2000.0)
    touch_later(work / "small", "x", 500.0)
    files = OutputFiles([], OutputSource(work), most_bytes=21)
    found, left_out = files.beside({})
    assert set(found) == {"new.pt", "old.pt", "small"}
    assert left_out == [SkippedFile(".cache/newest", 10, "more than 2.1e-08 GB in all")]
    found, left_out = OutputFiles([], OutputSource(work), most_files=1).beside({})
    assert set(found) == {"new.pt"} and len(left_out) == 3


@pytest.mark.parametrize("crowd", ["samples/{}.png", "{}", "samples/{}/image.png", "model-{}.json", "samples/step.{}"])
def test_a_crowd_of_files_does_not_push_out_the_model(tmp_path: Path, crowd: str) -> None:
    work = tmp_path / "work"
    touch_later(work / "out/model.pt", "the model", 1_000_000)
    touch_later(work / "metrics.csv", "1,2", 1_000_001)
    for number in range(700):
        touch_later(work / crowd.format(number), "x", 1_000_010 + number)
    found, left_out = OutputFiles([], OutputSource(work), most_files=500).beside({})
    assert {"out/model.pt", "metrics.csv"} <= set(found) and (len(found), len(left_out)) == (500, 202)
    assert crowd.format(699) in found, "of a crowd the newest come first"


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "fine", "1")
    write(work / "core.123", b"\x7fELF and more")
    write(work / "core.py", "code")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(work)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    (work / "data").symlink_to("/etc")
    (work / "latest").symlink_to("fine")
    write(work / "env/pyvenv.cfg", "x")
    found, left_out = OutputFiles([], OutputSource(work)).beside({})
    assert set(found) == {"fine", "core.py"}
    assert {one.path: one.why for one in left_out} == {
        "core.123": "a core dump",
        "pipe": "not a regular file",
        "socket": "not a regular file",
        "data": "a link out of the folder",
        "env": "a Python environment",
    }


def test_declared_files_that_cannot_be_kept_are_told_as_well(paths: NodePaths) -> None:
    job = spec(outputs=["artifacts", "*.png"])
    write(paths.code / "old.png.tmp", "packed with the code")
    baseline = began(paths, job)
    write(paths.code / "artifacts/fine", "1")
    (paths.code / "artifacts/latest").symlink_to("fine")
    os.mkfifo(paths.code / "artifacts/pipe")
    write(paths.code / "artifacts/model.pt.tmp", "half")
    write(paths.code / "artifacts/part.partial", "half")
    (paths.code / "artifacts/null").symlink_to("/dev/null")
    os.mkfifo(paths.code / "pipe.png")
    write(paths.code / "beside.tmp", "half")
    write(paths.code / "run.pyc", "made again")
    sync = OutputSync(memory_store(), JOB, 1, 0, job_folders.output_files(paths, job, baseline))
    assert sync.final(LIMIT_S)
    report = sync.report()
    unfinished = "its name says that it is unfinished"
    assert {one.path: one.why for one in report.named} == {
        "artifacts/pipe": "not a regular file",
        "artifacts/model.pt.tmp": unfinished,
        "artifacts/part.partial": unfinished,
        "artifacts/null": "a link out of the folder",
        "pipe.png": "not a regular file",
        "beside.tmp": unfinished,
    }
    assert (report.files, report.left_out) == (2, 6)


def test_what_could_not_be_kept_before_the_training_either_is_not_told(tmp_path: Path) -> None:
    """A link that was packed with the code, and one whose target is kept by its own name, stand before a new pipe."""
    (tmp_path / "a-packed").symlink_to("/dev/null")
    write(tmp_path / "model/weights", "1")
    baseline = Baseline.take([tmp_path])
    (tmp_path / "latest").symlink_to("model")
    write(tmp_path / "none-of-them/weights", "1")
    os.mkfifo(tmp_path / "pipe")
    takes = OutputSource(tmp_path, takes=lambda path: not path.startswith("none"))
    whole = OutputSource(tmp_path, takes_all=True)
    pipe = SkippedFile("pipe", 0, "not a regular file")
    link = SkippedFile("a-packed", len("/dev/null"), "a link out of the folder")
    assert OutputFiles([takes], baseline=baseline).unstorable({}) == [pipe]
    assert OutputFiles([whole], baseline=baseline).unstorable({}) == [link, pipe], "all of it is the job's own"
    assert OutputFiles([takes, whole], baseline=baseline).unstorable({}) == [pipe, link]


def test_of_an_output_folder_everything_but_what_cannot_be_is_kept(paths: NodePaths) -> None:
    baseline = began(paths, spec())
    write(paths.code / "outputs/env/pyvenv.cfg", "x")
    write(paths.code / "outputs/.git/config", "x")
    os.mkfifo(paths.code / "outputs/pipe")
    sync = OutputSync(memory_store(), JOB, 1, 0, job_folders.output_files(paths, spec(), baseline))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert report.files == 2 and [one.path for one in report.named] == ["pipe"]


@pytest.mark.parametrize(
    ("saves", "outputs", "expected"),
    [
        ("checkpoints", "checkpoints/best.pt", {"checkpoints/best.pt"}),
        ("checkpoints", "checkpoints/*.pt", {"checkpoints/best.pt", "checkpoints/last.pt"}),
        ("checkpoints", ["checkpoints/*.pt", "!checkpoints/last*"], {"checkpoints/best.pt"}),
        ("checkpoints", "**/*.pt", set()),
        ("checkpoints", "**", set()),
        (["*.ckpt", "checkpoints/**"], "model.ckpt", {"model.ckpt"}),
        (["*.ckpt", "checkpoints/**"], "*.ckpt", set()),
    ],
)
def test_a_checkpoint_that_outputs_names_is_kept_as_an_output_too(
    paths: NodePaths, saves: str | list[str], outputs: str | list[str], expected: set[str]
) -> None:
    job = spec(
        outputs=outputs if isinstance(outputs, str) else tuple(outputs),
        checkpoints=Checkpoints(dir=saves if isinstance(saves, str) else tuple(saves)),
    )
    baseline = began(paths, job)
    for name in ("checkpoints/best.pt", "checkpoints/last.pt", "checkpoints/log", "model.ckpt"):
        write(paths.code / name, name)
    found = set(kept(paths, job, baseline)) - ({"model.ckpt"} if saves == "checkpoints" else set())
    assert found == expected


@pytest.mark.parametrize(
    ("saves", "expected"),
    [("checkpoints", "checkpoints/last.bin"), (".", "last.bin"), ("/absolute", "absolute/last.bin")],
)
def test_saves_that_no_commit_has_can_be_kept(paths: NodePaths, tmp_path: Path, saves: str, expected: str) -> None:
    job = spec(checkpoints=Checkpoints(dir=saves.replace("/absolute", str(tmp_path / "absolute"))))
    baseline, folder = began(paths, job), job_folders.checkpoint_folder(paths, job)
    write(folder / "last.bin", "the model")
    files = job_folders.output_files(paths, job, baseline)
    assert files.beside({}) == ({}, [])
    files.keep_saves(folder, {"last.bin": scan(folder)["last.bin"]})
    found, left_out = files.beside({})
    assert {path: output.source for path, output in found.items()} == {keys.UNFINISHED + expected: folder / "last.bin"}
    assert left_out == []


def test_the_report_of_the_end(tmp_path: Path) -> None:
    store = memory_store()
    work = tmp_path / "work"
    write(work / "a", "12")
    write(work / "b", "3456")
    os.mkfifo(work / "pipe")
    sync = OutputSync(store, JOB, 1, 0, OutputFiles([], OutputSource(work)))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert (report.files, report.size, report.left_out) == (2, 6, 1)
    assert {meta.key for meta in store.list(keys.outputs(JOB, 1))} == {
        f"{keys.outputs(JOB, 1)}a",
        f"{keys.outputs(JOB, 1)}b",
    }


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    memory = memory_store()
    client = memory.client()
    client.outage(True)
    write(tmp_path / "work/a", "12")
    sync = OutputSync(client, JOB, 1, 0, OutputFiles([], OutputSource(tmp_path / "work")))
    assert not sync.final(0.3)
    report = sync.report()
    assert (report.files, report.left_out, report.left_out_size) == (0, 1, 2)
    assert report.named[0].path == "a" and report.named[0].why


def test_a_file_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store()
    write(tmp_path / "out/a", "secret")
    write(tmp_path / "out/b", "1")
    real = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        # A file is held open while it is read, and named by its handle.
        named = self.readlink() if self.is_relative_to("/proc/self/fd") else self
        if named.name == "a":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    sync = OutputSync(store, JOB, 1, 0, tmp_path / "out")
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert report.files == 1
    assert [(one.path, one.why) for one in report.named] == [("a", "cannot be read (Permission denied)")]


def test_the_baseline_is_there_for_the_next_agent(paths: NodePaths) -> None:
    assert Baseline.read(paths.baseline) is None
    baseline = Baseline.take([paths.code])
    baseline.write(paths.baseline)
    assert Baseline.read(paths.baseline) == baseline
    paths.baseline.write_text("torn")
    assert Baseline.read(paths.baseline) is None


def test_a_file_whose_name_is_a_folder_of_declared_ones_moves_aside(tmp_path: Path) -> None:
    for name in ("out/a", "out/sub/b"):
        write(tmp_path / name, "declared")
    for name in ("work/a/x", "work/sub", "work/c/sub"):
        write(tmp_path / name, "beside")
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)], OutputSource(tmp_path / "work"))
    found, left_out = files.beside(files.declared())
    assert {path: output.source.relative_to(tmp_path).as_posix() for path, output in found.items()} == {
        "work/a/x": "work/a/x",
        "work/sub": "work/sub",
        "c/sub": "work/c/sub",
    }
    assert {output.file.path for output in found.values()} == set(found) and left_out == []


def test_what_programs_make_again_is_no_output(tmp_path: Path) -> None:
    for name in (
        *("a", "__pycache__/b", "sub/.git/c", "d.pyc", "env/pyvenv.cfg", "env/lib/e", "conda/conda-meta/history"),
        *("conda/bin/f", "environment/g", "sub/node_modules/h/i"),
    ):
        write(tmp_path / name, "1")
    assert set(without_caches(scan(tmp_path))) == {"a", "environment/g"}
    assert set(OutputFiles([OutputSource(tmp_path)]).declared()) == {"a", "environment/g"}
    found, _ = OutputFiles([], OutputSource(tmp_path)).beside({})
    assert set(found) == {"a", "environment/g"}
    assert len(OutputFiles([OutputSource(tmp_path, takes_all=True)]).declared()) == 10, (
        "an output folder is kept as it is"
    )


@pytest.mark.parametrize(
    "made",
    [
        *("__pycache__/a", ".git/HEAD", ".stoker/a", ".mypy_cache/a", ".pytest_cache/a", ".ruff_cache/a"),
        *(".hypothesis/a", ".ipynb_checkpoints/a.ipynb", ".tox/a", ".nox/a", ".triton/a", ".nv/a", "node_modules/a"),
        *(".DS_Store", "module.pyc", "env/pyvenv.cfg", "env/conda-meta/history"),
    ],
)
def test_caches_of_usual_tools_are_neither_declared_nor_kept_beside_the_code(tmp_path: Path, made: str) -> None:
    for name in ("result", made, f"below/{made}", f"not-{made}"):
        write(tmp_path / name, "1")
    expected = {"result", f"not-{made}"} if "env/" not in made and not made.endswith(".pyc") else {"result"}
    assert set(OutputFiles([OutputSource(tmp_path)]).declared()) == expected
    found, left_out = OutputFiles([], OutputSource(tmp_path)).beside({})
    assert set(found) == expected
    told = {"env", "below/env", "not-env"} if "env/" in made else set()
    assert {one.path for one in left_out} == told, "only an environment is told: a person may miss it"


@pytest.mark.parametrize("place", [".hidden/a", "cache/a", "caches/a", "tmp/a", "temp/a", "sub/tmp/a", ".a"])
def test_where_there_is_not_room_for_everything_temporary_files_come_last(tmp_path: Path, place: str) -> None:
    touch_later(tmp_path / place, "1", 3000.0)
    touch_later(tmp_path / "tmp.txt", "1", 2000.0)
    touch_later(tmp_path / "old", "1", 1000.0)
    found, left_out = OutputFiles([], OutputSource(tmp_path), most_files=2).beside({})
    assert set(found) == {"tmp.txt", "old"} and [one.path for one in left_out] == [place]


def test_a_saved_file_that_is_declared_is_not_kept_twice(tmp_path: Path) -> None:
    write(tmp_path / "work/saves/last", "1")
    write(tmp_path / "work/saves/best", "1")
    files = OutputFiles(
        [OutputSource(tmp_path / "work", takes=lambda path: path == "saves/best")],
        OutputSource(tmp_path / "work", takes=lambda path: not path.startswith("saves/")),
    )
    files.keep_saves(tmp_path / "work/saves", scan(tmp_path / "work/saves"))
    found, _ = files.beside(files.declared())
    assert set(found) == {"perhaps-unfinished/saves/last"}
    files.keep_saves(tmp_path / "work/saves", scan(tmp_path / "work/saves"), {"best"})
    assert files.declared() == {}, "a torn file never looks like a result"
    found, _ = files.beside({})
    assert set(found) == {"perhaps-unfinished/saves/last", "perhaps-unfinished/saves/best"}


def test_links_of_a_container_are_read_as_the_file_inside_that_they_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(folder / "sub/real", "1")
    for name, target in {
        "one": "sub/real",
        "sub/two": "../one",
        "loop": "pool",
        "pool": "loop",
        "gone": "nowhere",
    }.items():
        (folder / name).symlink_to(target)
    files = OutputFiles(
        [OutputSource(folder, "x/", takes_all=True)], confinement=Confinement((tmp_path,), lambda _: None)
    )
    found = files.declared()
    assert {path: output.source for path, output in found.items()} == {
        f"x/{name}": folder / "sub/real" for name in ("sub/real", "one", "sub/two")
    }
    assert all(output.file.path == path and output.file.link is None for path, output in found.items())


def test_links_that_lead_out_of_the_output_folder_are_left_out_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    write(tmp_path / "secret", "content")
    write(folder / "runs/1/model", "1")
    for name, target in (
        ("abs", tmp_path / "secret"),
        ("up", "../secret"),
        ("second", "abs"),
        ("passwd", "/etc/passwd"),
        ("zero", "/dev/zero"),
        ("kmsg", "/proc/kmsg"),
        ("root", "/"),
        ("runs/latest", "1"),
        ("model", "runs/latest/model"),
    ):
        (folder / name).symlink_to(target)
    outputs = OutputFiles([OutputSource(folder, takes_all=True)])
    found = outputs.declared()
    assert sorted(found) == ["model", "runs/1/model"] and found["model"].source.read_text() == "1"
    left_out = {one.path: one.why for one in outputs.unstorable(found)}
    named = ("abs", "up", "second", "passwd", "zero", "kmsg", "root")
    assert left_out == dict.fromkeys(named, "a link out of the folder")


def test_a_new_file_by_a_link_out_of_the_folder_is_data_of_others(tmp_path: Path) -> None:
    write(tmp_path / "data", "theirs")
    write(tmp_path / "work/a", "1")
    (tmp_path / "work/b").symlink_to(tmp_path / "data")
    (tmp_path / "work/c").symlink_to("a")
    assert set(OutputFiles([OutputSource(tmp_path / "work")]).declared()) == {"a", "c"}


def walked(folder: Path) -> dict[str, str | None]:
    return {found.path: found.problem for found in output_walk.walk_files(folder, None, output_walk.OUTPUTS)}


def test_a_folder_that_cannot_be_looked_into_is_told_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "file", "1")
    assert walked(tmp_path / "missing") == {}
    assert walked(tmp_path / "file") == {".": "cannot be read (Not a directory)"}
    for name in ("work/a", "work/closed/b", "work/gone/c", "work/open/d"):
        write(tmp_path / name, "1")
    own = os.open

    def refuse(path: Any, *arguments: Any, **more: Any) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        if path == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return own(path, *arguments, **more)

    monkeypatch.setattr(output_files.os, "open", refuse)
    expected = {"a": None, "closed": "cannot be read (Permission denied)", "open/d": None}
    assert walked(tmp_path / "work") == expected
    _, left_out = OutputFiles([], OutputSource(tmp_path / "work", "pre/")).beside({})
    assert left_out == [SkippedFile("pre/closed", 0, "cannot be read (Permission denied)")]
    unkept = OutputFiles([OutputSource(tmp_path / "work", "pre/")]).unstorable({})
    assert unkept == left_out


def test_folders_on_another_disk_are_told_unless_everything_is_wanted(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    write(tmp_path / "sub/b", "1")
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        here = os.fstat(handle).st_dev
        other, same, every = (
            {found.path: found.problem for found in output_walk._walk_in(handle, "", output_walk.OUTPUTS, device)}
            for device in (here + 1, here, None)
        )
    finally:
        os.close(handle)
    assert other == {"a": None, "sub": "lies on another disk"}
    assert same == every == {"a": None, "sub/b": None}


def test_unfinished_folders_are_told_and_hold_nothing_of_the_baseline(tmp_path: Path) -> None:
    write(tmp_path / "step-1.tmp/model", "half")
    write(tmp_path / ".stoker-x/y", "own")
    write(tmp_path / "a", "1")
    assert walked(tmp_path) == {"a": None, "step-1.tmp": "its name says that it is unfinished"}
    assert set(Baseline.take([tmp_path]).files) == {str(tmp_path / "a"), str(tmp_path / ".stoker-x/y")}


def test_no_handle_stays_open_after_a_walk(tmp_path: Path) -> None:
    write(tmp_path / "sub/deep/a", "1")
    write(tmp_path / "env/pyvenv.cfg", "1")

    def handles() -> int:
        found = []
        for handle in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found.append(str(handle.readlink()))
        return sum(one.startswith(str(tmp_path)) for one in found)

    walked(tmp_path)
    assert handles() == 0


def test_a_file_that_is_gone_or_closed_is_no_core_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "core", b"\x7fELF")
    write(tmp_path / "scored", b"\x7fELF")
    status = (tmp_path / "core").stat()
    with opened_folder(tmp_path) as folder:
        assert output_walk.find_problem(folder, "sub/core", status) == "a core dump"
        assert output_walk.find_problem(folder, "scored", status) is None
        assert output_walk.find_problem(folder, "core.77", status) is None, "it is gone by now"
        write(tmp_path / "core.1", b"text")
        assert output_walk.find_problem(folder, "core.1", status) is None
        assert output_walk.find_problem(folder, "not\udcffutf-8", status) == "its name is not UTF-8; choose another one"
        # Put in its place since it was found: neither is opened.
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("scored")
        assert output_walk.find_problem(folder, "pipe", status) == "cannot be read (is not a plain file)"
        assert "symbolic links" in (output_walk.find_problem(folder, "link", status) or "")

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(output_walk, "open_plain", refuse)
        assert output_walk.find_problem(folder, "scored", status) == "cannot be read (Permission denied)"


def test_the_baseline_has_the_markers_of_saves(paths: NodePaths) -> None:
    spec_ = spec(checkpoints=Checkpoints(dir="."), outputs="artifacts")
    write(paths.code / "step-1/.stoker-checkpoint.json", '{"number": 1}')
    baseline = Baseline.take([paths.code])
    assert job_folders.checkpoint_selection(paths, spec_, baseline).scan(paths.code) == {}


def test_a_baseline_with_names_that_are_no_text_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "work" / os.fsdecode(b"caf\xe9"), "1")
    baseline = Baseline.take([tmp_path / "work"])
    baseline.write(tmp_path / "baseline.json")
    assert Baseline.read(tmp_path / "baseline.json") == baseline and len(baseline.files) == 1


def test_a_baseline_knows_a_file_by_its_size_and_time(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, "1")
        os.utime(tmp_path / name, (1000, 1000))
    baseline = Baseline.take([tmp_path, tmp_path / "missing"])
    os.utime(tmp_path / "b", (1001, 1001))
    write(tmp_path / "c", "22")
    os.utime(tmp_path / "c", (1000, 1000))
    assert {path: baseline.has_file(tmp_path, file) for path, file in scan(tmp_path).items()} == {
        "a": True,
        "b": False,
        "c": False,
    }
    assert set(baseline.without([tmp_path / "a"]).files) == {str(tmp_path / "b"), str(tmp_path / "c")}
    for text in ("[]", '{"a": 1}', '{"a": [1]}', '{"a": ["x", 2]}'):
        write(tmp_path / "baseline", text)
        assert Baseline.read(tmp_path / "baseline") is None
