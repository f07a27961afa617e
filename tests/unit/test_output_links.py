"""Links among the outputs: which are kept, and where they lead when they are pulled."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write

from stoker import client
from stoker.agent import job_folders
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.jobfile import Job
from stoker.model import codec, keys
from stoker.model.errors import UserError
from stoker.model.log_entries import Claimed, Closed, Event, Launched, NodeRef, Record
from stoker.model.node_config import NodePaths
from stoker.model.node_facts import Exit, Heartbeat, OmittedOutput, OutputLink, SavedOutputs
from stoker.model.spec import Spec
from stoker.read.outputs import list_outputs, pull_outputs
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import SPOT_A

LIMIT_S = 30.0
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def report(files: OutputFiles) -> SavedOutputs:
    sync = OutputSync(memory_store(), JOB, 1, 0, files)
    assert sync.final(LIMIT_S)
    return sync.report()


def links(report: SavedOutputs) -> dict[str, str]:
    return {link.path: link.target for link in report.links}


def whys(report: SavedOutputs) -> dict[str, str]:
    return {one.path: one.why for one in report.named}


# ── On the machine ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_links_beside_the_code_are_kept_as_links(tmp_path: Path) -> None:
    write(tmp_path / "packed.csv", "data")
    (tmp_path / "packed-link").symlink_to("packed.csv")
    baseline = Baseline.take([tmp_path])
    write(tmp_path / "beside.csv", "1")
    write(tmp_path / "epoch-7/model.pt", "2")
    for name, target in {
        "lnk.csv": "beside.csv",
        "best": "epoch-7/",
        "absolute": str(tmp_path / "epoch-7"),
        "again": "best",
        "through": "best/model.pt",
        "epoch-7/up": "../beside.csv",
        "up-and-down": "epoch-7/../beside.csv",
        "old.csv": "packed.csv",
        "dangling": "nothing",
        "loop": "loop",
        "away": "/etc",
        "sideways": "../other",
    }.items():
        (tmp_path / name).symlink_to(target)
    found = report(OutputFiles([], OutputSource(tmp_path), baseline))
    assert links(found) == {
        "lnk.csv": "beside.csv",
        "best": "epoch-7",
        "absolute": "epoch-7",
        "again": "best",
        "through": "best/model.pt",
        "epoch-7/up": "../beside.csv",
        "up-and-down": "beside.csv",
    }
    assert whys(found) == {
        "old.csv": "a link to what is not kept",
        "dangling": "a link to nothing",
        "loop": "a link to nothing",
        "away": "a link out of the folder",
        "sideways": "a link out of the folder",
    }
    assert found.files == 2


@pytest.mark.parametrize(("outputs", "inside"), [(None, ""), ("art", ""), (["art", "more"], "art/")])
def test_links_to_folders_in_declared_folders_are_kept(
    tmp_path: Path, outputs: str | list[str] | None, inside: str
) -> None:
    paths, spec = NodePaths(tmp_path / "node"), Spec(name="job", run="true", outputs=outputs)
    paths.code.mkdir(parents=True)
    baseline = job_folders.output_files(paths, spec, Baseline()) and Baseline()
    folder = job_folders.output_folder(paths, spec)
    write(folder / "sub/x", "1")
    (folder / "subl").symlink_to("sub")
    (folder / "file").symlink_to("sub/x")
    # From beside the code into the folder, whose files may have other paths in the store.
    (paths.code / "best").symlink_to(folder / "sub")
    found = report(job_folders.output_files(paths, spec, baseline))
    assert links(found) == {f"{inside}subl": "sub", "best": f"{inside}sub"}
    assert (found.files, found.left_out) == (2, 0), "a link to a file in a declared folder is kept as a file"


def test_links_beyond_the_limit_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.agent.output_links.MOST_LINKS", 1)
    write(tmp_path / "d/x", "1")
    (tmp_path / "a").symlink_to("d")
    (tmp_path / "b").symlink_to("d")
    found = report(OutputFiles([], OutputSource(tmp_path)))
    assert (links(found), whys(found)) == ({"a": "d"}, {"b": "more than 1 links"})


# ── At the pull ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    write(tmp_path / "code/train.py", "pass")
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


def append(store: Store, job: str, *events: Event) -> None:
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        record = Record(token=job_log.new_token(), by="t", reason="test", event=event)
        assert job_log.append(store, job, state.seq + 1, record)


@pytest.fixture
def job(store: Store) -> str:
    """Two attempts, claims 2 and 4."""
    found = client.submit(Job(run="python train.py"), store=store)
    for claim in (2, 4):
        launched = Launched(claim=claim, nodes=(NodeRef(0, f"i-{claim}"),))
        append(store, found, Claimed(offering=SPOT_A, nodes=1), launched)
    return found


def put(store: Store, job: str, claim: int, files: dict[str, str], **kept: str) -> None:
    """Store the outputs of a claim, and its exit with the links in `kept`."""
    for name, text in files.items():
        store.put(f"{keys.outputs(job, claim)}{name}", text.encode())
    node = keys.node(job, claim, 0, keys.boot(f"i-{claim}", 0))
    outputs = SavedOutputs(links=tuple(OutputLink(name.replace("__", "/"), target) for name, target in kept.items()))
    store.put(keys.heartbeat(node), codec.dumps(Heartbeat(1, "flushing", AT, 1.0)))
    store.put(keys.exit_(node), codec.dumps(Exit("failed", "finished", AT, outputs=outputs)))


def pulled(store: Store, job: str, target: Path, attempt: int | None = None) -> dict[str, str]:
    pull_outputs(store, list_outputs(store, job, attempt).files, target)
    return {
        path.relative_to(target).as_posix(): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in target.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_links_are_pulled_as_links(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, {"epoch-7/model": "7"}, best="epoch-7", epoch__x="../epoch-7/model")
    assert pulled(store, job, tmp_path / "all") == {
        "epoch-7/model": "7",
        "best": "-> epoch-7",
        "epoch/x": "-> ../epoch-7/model",
    }
    assert (tmp_path / "all/best/model").read_text() == "7"
    assert (tmp_path / "all/epoch/x").read_text() == "7"


def test_of_a_link_that_several_attempts_made_the_last_counts(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, {"e1/m": "1", "folder/m": "1"}, best="e1", later="e1")
    put(store, job, 4, {"e2/m": "2", "later/m": "2"}, best="e2", folder="e2")
    first = pulled(store, job, tmp_path / "all", 1)
    assert first == {"e1/m": "1", "folder/m": "1", "best": "-> e1", "later": "-> e1"}
    merged = {"e1/m": "1", "e2/m": "2", "later/m": "2", "best": "-> e2", "folder": "-> e2"}
    assert pulled(store, job, tmp_path / "merged") == merged


def test_a_link_of_an_earlier_pull_is_replaced_and_not_followed(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, {"e1/m": "1"}, best="e1")
    put(store, job, 4, {"best/m": "2"})
    pulled(store, job, tmp_path / "all", 1)
    assert pulled(store, job, tmp_path / "all") == {"e1/m": "1", "best/m": "2"}
    (tmp_path / "other").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there/best").symlink_to(tmp_path / "other")
    assert pulled(store, job, tmp_path / "there", 1) == {"e1/m": "1", "best": "-> e1"}


def test_a_file_that_a_link_replaces_is_named(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, {"e1/m": "1"}, best="e1", latest="e1")
    write(tmp_path / "all/best", "my own")
    (tmp_path / "all/latest").symlink_to("/etc")
    replaced: list[str] = []
    pull_outputs(store, list_outputs(store, job).files, tmp_path / "all", replaced=replaced)
    assert replaced == ["best"]
    write(tmp_path / "other/best/m", "my own")
    with pytest.raises(UserError, match="best is a folder"):
        pull_outputs(store, list_outputs(store, job).files, tmp_path / "other")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("out", "/etc"),
        ("out", "../elsewhere"),
        ("a__out", "../../elsewhere"),
        ("out", "e1/../../elsewhere"),
        ("out", ""),
        ("..__out", "e1"),
        ("__etc__out", "e1"),
        # In the place of a file or a folder of the same attempt, or below a file or another link.
        ("e1", "e2"),
        ("e1__m", "../e2"),
        ("e1__m__x", "../../e2"),
        ("best__x", "../e1"),
        # To nothing that is pulled.
        ("out", "absent"),
        ("out", "out"),
    ],
)
def test_links_that_a_machine_only_claims_are_not_made(
    store: Store, job: str, tmp_path: Path, path: str, target: str
) -> None:
    put(store, job, 2, {"e1/m": "1", "e2/m": "1"}, **{"best": "e1", path: target})
    assert pulled(store, job, tmp_path / "all") == {"e1/m": "1", "e2/m": "1", "best": "-> e1"}


# ── Saves that are perhaps unfinished ─────────────────────────────────────────────────────────────────────────────────

TORN = {"perhaps-unfinished/ck/ckpt.pt": "torn"}


def closed(claim: int, outcome: str = "failed", checkpoint: str | None = None) -> Closed:
    return Closed(claim=claim, outcome=outcome, rule="r", restart=True, checkpoint=checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "checkpoint", "passed"),
    [
        (closed(4, "succeeded"), False, True),
        (closed(4, "failed", "00000004/000001-ckpt"), False, True),
        (closed(4, "failed"), True, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_a_torn_save_is_left_out_once_a_later_attempt_went_further(
    store: Store, job: str, tmp_path: Path, end: Closed | None, checkpoint: bool, passed: bool
) -> None:
    put(store, job, 2, TORN | {"log": "1"})
    put(store, job, 4, {"result": "2"})
    append(store, job, closed(2), *([end] if end is not None else []))
    if checkpoint:
        store.put(f"{keys.checkpoints(job)}{keys.checkpoint_key(4, 1, 'ckpt')}.json", b"{}")
    assert pulled(store, job, tmp_path / "all") == {"log": "1", "result": "2"} | ({} if passed else TORN)
    assert [file.path for file in list_outputs(store, job).passed] == (list(TORN) if passed else [])
    assert pulled(store, job, tmp_path / "one", 1) == TORN | {"log": "1"}, "nothing vanishes"


def test_the_report_survives_the_fact() -> None:
    found = SavedOutputs(1, 2, 3, 4, (OmittedOutput("a", 5, "b"),), (OutputLink("best", "e1"),), 1)
    left = Exit("failed", "finished", AT, outputs=found)
    assert codec.loads(Exit, codec.dumps(left), where="exit") == left
