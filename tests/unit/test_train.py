"""What a training script may import: metrics, interruption, atomic saves."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker import train
from stoker.agent.checkpoints.save_protocol import MARKER, Save
from stoker.agent.training_environment import ask_to_save

LIMIT_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "it never came about"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("STOKER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train._Metrics, "path", "")
    monkeypatch.setattr(train._Metrics, "is_torn", False)
    monkeypatch.setattr(train._Notice, "seen", False)
    monkeypatch.setattr(train._Notice, "next_check_at", 0.0)
    monkeypatch.setattr(train._SaveRequest, "newest", 0)
    monkeypatch.setattr(train._SaveRequest, "next_check_at", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    train._Notice.installed_in, train._Notice.handler = 0, None


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "channel"
    folder.mkdir()
    monkeypatch.setenv("STOKER_CHANNEL", str(folder))
    monkeypatch.setenv("STOKER_CHECKPOINT_DIR", str(tmp_path / "saves"))
    return folder


def run_script(code: str, **env: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# ── Importing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_importing_pulls_in_nothing_that_takes_time() -> None:
    code = """
        import sys
        import stoker
        before = set(sys.modules)
        import stoker.train
        print(*sorted(set(sys.modules) - before))
    """
    process = run_script(code)
    out, _ = process.communicate(timeout=LIMIT_S)
    new = set(out.split())
    assert "stoker.train" in new
    assert new <= {"stoker.train", "errno", "time", "os"}


# ── Metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Scalar:
    """As numpy's and torch's are: not numbers, but they can be made one."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("no value")


def lines(channel: Path) -> list[dict[str, object]]:
    text = (channel / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_report_writes_one_line_with_numbers_only(channel: Path) -> None:
    train.report(step=3, loss=Scalar(0.5), worst=float("nan"), far=float("inf"), name="x", bad=Broken(), none=None)
    (line,) = lines(channel)
    assert line["step"] == 3
    assert line["loss"] == 0.5
    assert line["worst"] != line["worst"]
    assert line["far"] == float("inf")
    assert set(line) == {"t", "step", "loss", "worst", "far"}


@pytest.mark.parametrize("step", [None, float("nan"), "three", Broken(), 10**400])
def test_a_step_that_is_no_number_is_left_out(channel: Path, step: object) -> None:
    train.report(step, loss=1)
    assert "step" not in lines(channel)[0]


def test_a_step_may_be_any_kind_of_number(channel: Path) -> None:
    train.report(Scalar(7.0))
    assert lines(channel)[0]["step"] == 7


def test_many_metrics_at_once_become_lines_a_reader_takes(channel: Path) -> None:
    train.report(step=1, **{f"metric_{number}": number for number in range(1000)})
    found = lines(channel)
    assert max(len(json.dumps(line)) for line in found) < 16 * 1024
    assert {name for line in found for name in line} >= {f"metric_{number}" for number in range(1000)}
    assert all(line["step"] == 1 for line in found)


def test_report_outside_stoker_does_nothing(tmp_path: Path) -> None:
    train.report(step=1, loss=2)
    assert list(tmp_path.iterdir()) == []


def test_report_survives_a_channel_that_is_gone(channel: Path) -> None:
    channel.rmdir()
    train.report(step=1)


def _report_many(channel: str, who: int) -> None:
    os.environ["STOKER_CHANNEL"] = channel
    for step in range(200):
        train.report(step, **{f"from_{who}": step})


def test_lines_of_several_processes_never_mix(channel: Path) -> None:
    train.report(step=0)  # The file is open before the fork.
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_report_many, args=(str(channel), who)) for who in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_S)
    found = lines(channel)
    for who in range(4):
        assert [line["step"] for line in found if f"from_{who}" in line] == list(range(200))


def test_a_line_after_a_torn_one_begins_anew(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[:5]))
        train.report(step=1)
    train.report(step=2)
    last = (channel / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 2


# ── Interruption ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_notice_file_interrupts(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not train.interrupted()
    assert train.time_left() is None
    deadline = time.monotonic() + 1000
    (channel / "notice.json").write_text(json.dumps({"deadline_monotonic": deadline, "grace_s": 1000}))
    wait_for(train.interrupted)
    left = train.time_left()
    assert left is not None and 0 < left <= 1000


def test_looking_is_cheap(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = os.path.exists

    def exists(path: str) -> bool:
        nonlocal looks
        looks += 1
        return real(path)

    monkeypatch.setattr(os.path, "exists", exists)
    monkeypatch.setattr(train, "_CHECK_EVERY_S", 3600.0)
    for _ in range(1000):
        train.interrupted()
    assert looks == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"deadline_monotonic": "soon"}', "{}"])
def test_a_notice_without_a_time_still_interrupts(channel: Path, content: str) -> None:
    (channel / "notice.json").write_text(content)
    assert train.interrupted()
    assert train.time_left() is None


def test_time_left_is_never_negative(channel: Path) -> None:
    (channel / "notice.json").write_text('{"deadline_monotonic": 0}')
    assert train.time_left() == 0


def test_a_script_that_polls_is_not_killed_by_the_signal(channel: Path) -> None:
    process = run_script(
        """
        import time
        from stoker import train
        assert not train.interrupted()
        print("ready", flush=True)
        while not train.interrupted():
            time.sleep(0.01)
        print("saved")
        """,
        STOKER_CHANNEL=str(channel),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode) == ("saved\n", 0)


def test_outside_stoker_the_signal_keeps_its_default() -> None:
    process = run_script(
        """
        import time
        from stoker import train
        train.interrupted()
        print("ready", flush=True)
        time.sleep(100)
        """
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_a_handler_of_the_scripts_own_is_left_alone(channel: Path) -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
    train.interrupted()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(lambda: seen == ["mine"])
    assert not train._Notice.seen


def test_on_interrupt_works_outside_stoker_and_calls_what_was_there() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
    train.interrupted()
    train.on_interrupt()
    train.on_interrupt()
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for(train.interrupted)
    assert seen == ["mine"]


def test_another_thread_neither_installs_nor_fails(channel: Path) -> None:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(train.interrupted()))
    thread.start()
    thread.join(LIMIT_S)
    assert answers == [False]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train._Notice.next_check_at = 0.0
    train.interrupted()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def _sleep() -> None:
    time.sleep(LIMIT_S)


def test_a_forked_worker_still_dies_by_the_signal(channel: Path) -> None:
    train.interrupted()
    worker = multiprocessing.get_context("fork").Process(target=_sleep)
    worker.start()
    worker.terminate()
    worker.join(LIMIT_S)
    assert worker.exitcode == -signal.SIGTERM


# ── Where things are ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_places_and_parameters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert train.checkpoint_dir() == Path("checkpoints") and train.checkpoint_dir().is_dir()
    assert train.output_dir() == Path("outputs")
    assert train.params() == {}
    assert train.attempt() is None
    monkeypatch.setenv("STOKER_CHECKPOINT_DIR", str(tmp_path / "deep" / "er"))
    monkeypatch.setenv("STOKER_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("STOKER_PARAMS", '{"lr": 0.1}')
    monkeypatch.setenv("STOKER_ATTEMPT", "3")
    assert train.checkpoint_dir() == tmp_path / "deep" / "er" and train.checkpoint_dir().is_dir()
    assert train.output_dir() == tmp_path / "out"
    assert train.params() == {"lr": 0.1}
    assert train.attempt() == 3
    monkeypatch.setenv("STOKER_PARAMS", "not json")
    assert train.params() == {}


# ── Saves ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def requests(channel: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((channel / "commits").glob("*.json"))]


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".stoker-lock"}


def test_a_save_appears_as_a_whole() -> None:
    folder = Path("checkpoints")
    with train.checkpoint("step-1", step=1) as staging:
        (staging / "sub").mkdir()
        (staging / "sub" / "weights").write_bytes(b"1")
        assert staging.name.startswith(".tmp-step-1-")
        assert not (folder / "step-1").exists()
        assert train.latest() is None
    assert visible(folder) == {"step-1"}
    assert (folder / "step-1" / "sub" / "weights").read_bytes() == b"1"
    assert train.latest() == folder / "step-1"
    assert staging.stat().st_mode & 0o777 if staging.exists() else True


def test_an_exception_throws_the_save_away(channel: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), train.checkpoint("step-1") as staging:
        (staging / "half").write_bytes(b"1")
        raise KeyboardInterrupt
    assert visible(tmp_path / "saves") == set()
    assert not (channel / "commits").exists()
    assert train.latest() is None


def test_the_same_name_again_replaces_the_folder(channel: Path, tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        with train.checkpoint("last") as staging:
            (staging / f"weights-{content.decode()}").write_bytes(content)
    assert visible(tmp_path / "saves") == {"last"}
    assert visible(tmp_path / "saves" / "last") == {"weights-2", MARKER}
    first, second = requests(channel)
    assert (first["sequence"], second["sequence"]) == (1, 2)
    assert int(str(second["number"])) > int(str(first["number"]))


def test_without_exchange_a_name_is_replaced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.agent.checkpoints.save_protocol._exchange", lambda one, other: False)
    for content in ("1", "2"):
        with train.checkpoint("last") as staging:
            (staging / "weights").write_text(content)
    assert visible(Path("checkpoints")) == {"last"}
    assert Path("checkpoints/last/weights").read_text() == "2"


def test_a_disk_that_fails_leaves_the_save_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with train.checkpoint("last") as staging:
        (staging / "weights").write_text("1")

    def fail(source: Path, target: Path) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr("stoker.agent.checkpoints.save_protocol._replace_folder", fail)
    with pytest.raises(OSError, match="broken"), train.checkpoint("last") as staging:
        (staging / "weights").write_text("2")
    assert visible(Path("checkpoints")) == {"last"}
    assert Path("checkpoints/last/weights").read_text() == "1"


def test_the_latest_is_the_one_saved_last_not_the_one_named_last() -> None:
    for name in ("step-9", "step-10", "a", "step-9"):
        with train.checkpoint(name):
            pass
    assert train.latest() == Path("checkpoints/step-9")
    Path("checkpoints/zzz").mkdir()  # Not a save.
    assert train.latest() == Path("checkpoints/step-9")


def test_a_request_says_what_the_agent_needs(channel: Path) -> None:
    with train.checkpoint("a", step=5):
        pass
    with train.checkpoint("b", sharded=True):
        pass
    with train.checkpoint("c"):
        pass
    with train.checkpoint("b", sharded=True):
        pass
    found = requests(channel)
    assert [request["name"] for request in found] == ["a", "b", "c", "b"]
    assert [request["generation"] for request in found] == [0, 1, 0, 2]
    assert [request["step"] for request in found] == [5, None, None, None]
    assert [request["number"] for request in found] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a" * 101, "a@1", "a b"])
def test_a_name_that_cannot_stand_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        train.checkpoint(name)


def test_waiting_until_it_is_durable(channel: Path) -> None:
    assert train.wait_durable(0)
    with train.checkpoint("a"):
        pass
    assert not train.wait_durable(0)
    (channel / "commits.done").mkdir()
    answer = threading.Timer(0.05, (channel / "commits.done" / "00000001.json").write_text, ["{}"])
    answer.start()
    assert train.wait_durable(LIMIT_S)


def test_a_save_after_the_notice_waits_until_it_is_durable(channel: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    (channel / "notice.json").write_text(json.dumps({"deadline_monotonic": deadline}))
    answered = threading.Event()

    def agent() -> None:
        wait_for(lambda: (channel / "commits" / "00000001.json").exists())
        (channel / "commits.done").mkdir()
        answered.set()
        (channel / "commits.done" / "00000001.json").write_text("{}")

    thread = threading.Thread(target=agent)
    thread.start()
    with train.checkpoint("a"):
        pass
    assert answered.is_set()
    thread.join(LIMIT_S)


def test_a_save_after_the_notice_does_not_wait_past_the_deadline(channel: Path) -> None:
    (channel / "notice.json").write_text('{"deadline_monotonic": 0}')
    with train.checkpoint("a"):
        pass
    assert (train.checkpoint_dir() / "a").is_dir()


# ── Several writers ───────────────────────────────────────────────────────────────────────────────────────────────────


def _write_part(who: int, saves: int, fails: int | None) -> None:
    for number in range(saves):
        try:
            with train.checkpoint("last", writers=3) as folder:
                (folder / f"part-{who}").write_text(f"{number}")
                if who == fails:
                    raise RuntimeError("no")
        except RuntimeError:
            pass


def run_writers(saves: int, fails: int | None = None) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_write_part, args=(who, saves, fails)) for who in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_S)
        assert worker.exitcode == 0


def test_several_writers_make_one_save(channel: Path) -> None:
    run_writers(saves=5)
    folder = train.checkpoint_dir()
    assert visible(folder) == {"last"}
    assert {path.name: path.read_text() for path in (folder / "last").glob("part-*")} == {
        "part-0": "4",
        "part-1": "4",
        "part-2": "4",
    }
    assert len(requests(channel)) == 5


def test_one_writer_that_fails_spoils_the_save(channel: Path) -> None:
    run_writers(saves=2, fails=1)
    assert visible(train.checkpoint_dir()) == set()
    assert not (channel / "commits").exists()


def _write_and_die() -> None:
    with train.checkpoint("last", writers=3) as folder:
        (folder / "torn").write_text("half")
        os._exit(1)


def test_what_dead_writers_left_behind_is_no_part_of_the_next_save() -> None:
    worker = multiprocessing.get_context("fork").Process(target=_write_and_die)
    worker.start()
    worker.join(LIMIT_S)
    run_writers(saves=1)
    assert visible(Path("checkpoints/last")) == {"part-0", "part-1", "part-2", MARKER}


def _write_one_part_elsewhere() -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_part, args=(9, 1, None))
    child.start()
    child.join(LIMIT_S)


def test_a_part_that_an_earlier_run_left_is_no_part_of_the_next_save() -> None:
    earlier = multiprocessing.get_context("fork").Process(target=_write_one_part_elsewhere)
    earlier.start()
    earlier.join(LIMIT_S)
    assert (Path("checkpoints") / ".tmp-last-shared" / "part-9").exists()
    run_writers(saves=1)
    assert visible(Path("checkpoints/last")) == {"part-0", "part-1", "part-2", MARKER}


def test_a_save_needs_a_writer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="writer"):
        Save("a", tmp_path, None, step=None, sharded=False, writers=0)


# ── Requests to save and go on ────────────────────────────────────────────────────────────────────────────────────────


def test_each_request_to_save_is_heard_once(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_CHECK_EVERY_S", 0.0)
    assert not train.save_requested()
    ask_to_save(channel / "save", 1)
    assert [train.save_requested() for _ in range(3)] == [True, False, False]
    ask_to_save(channel / "save", 2)
    ask_to_save(channel / "save", 3)
    assert [train.save_requested() for _ in range(3)] == [True, False, False]
    assert not train.interrupted()


def test_a_request_that_came_before_the_first_look_is_heard(channel: Path) -> None:
    ask_to_save(channel / "save", 4)
    assert train.save_requested()


def test_nobody_asks_for_a_save_outside_stoker(tmp_path: Path) -> None:
    ask_to_save(tmp_path / "save", 1)
    assert not train.save_requested()


def test_a_torn_request_is_none(channel: Path) -> None:
    (channel / "save").write_text("")
    assert not train.save_requested()
