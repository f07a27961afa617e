"""Tests of `WriteHistory`: what was observed of writes to the checkpoint folder."""

from __future__ import annotations

from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.write_history import PreSignalState, WriteHistory
from stoker.processes.open_files import OpenFile

PATH = "ckpt.pt"
WRITER = 4711


def signature(size: int, at: int = 1, inode: int = 7) -> Signature:
    return Signature(1, inode, size, at, at)


class Folder:
    """One file, looked at every second."""

    def __init__(self) -> None:
        self.history = WriteHistory(settle_s=2.0, patience_s=5.0)
        self.now = 100.0

    def look(self, seen: Signature | None, *, after_s: float = 1.0, writer: int | None = None) -> None:
        self.now += after_s
        self.history.note_files({PATH: File(PATH, seen, 0o644)} if seen else {}, self.now)
        found = {PATH: OpenFile(frozenset({writer}), appending=False)} if writer is not None else {}
        alive = frozenset({writer}) if writer is not None else frozenset()
        self.history.note_open(found, alive, lambda _path: seen)


def test_a_file_whose_writer_died_is_suspect_until_it_is_written_again() -> None:
    folder = Folder()
    folder.look(signature(10), writer=WRITER)
    folder.look(signature(20), writer=None)
    assert folder.history.writer_died_holding() == {PATH}
    folder.look(signature(20))
    assert folder.history.writer_died_holding() == {PATH}
    folder.look(signature(50, at=9))
    assert folder.history.writer_died_holding() == set()


def test_a_write_that_goes_on_is_no_new_save() -> None:
    folder = Folder()
    folder.look(None)
    for size in (10, 20, 30):
        folder.look(signature(size, at=size))
    assert folder.history.rounds == {PATH: 1}
    folder.look(signature(5, at=40))
    assert folder.history.rounds == {PATH: 2}, "cut, and begun anew"
    folder.look(signature(5, at=50))
    assert folder.history.rounds == {PATH: 2}, "too soon after the last change"
    folder.look(signature(5, at=60), after_s=2.0)
    assert folder.history.rounds == {PATH: 3}, "rewritten after a calm moment"
    folder.look(signature(9, at=70, inode=8))
    assert folder.history.rounds == {PATH: 4}, "replaced"


def test_a_commit_starts_the_count_again() -> None:
    folder = Folder()
    folder.look(None)
    folder.look(signature(10))
    assert folder.history.rounds == {PATH: 1}
    folder.history.note_commit([PATH])
    assert folder.history.rounds == {}


def test_what_was_there_at_the_first_look_was_begun_before() -> None:
    """A restored file that is written again was begun once since, not twice."""
    folder = Folder()
    folder.look(signature(10))
    assert folder.history.rounds == {}
    folder.look(signature(10, at=5, inode=8))
    assert folder.history.rounds == {PATH: 1}


def test_a_file_that_is_gone_is_forgotten() -> None:
    folder = Folder()
    folder.look(signature(10), writer=WRITER)
    folder.look(signature(10))
    folder.look(None)
    folder.look(signature(10))
    assert folder.history.writer_died_holding() == set()
    assert folder.history.removed_at


MIB = 1024 * 1024


class Many:
    """Several files, looked at when the test says so; `open` are those that process 1 writes, `appending` to some."""

    def __init__(self) -> None:
        self.history = WriteHistory(settle_s=2.0, patience_s=5.0)
        self.now = 100.0
        self.files: dict[str, Signature] = {}
        self.open: set[str] = set()
        self.appending: set[str] = set()
        self.members = frozenset({1})

    def write(self, *paths: str, size: int = 10) -> None:
        for path in paths:
            self.files[path] = signature(size, at=int(self.now * 10))

    def look(self, after_s: float = 1.0) -> None:
        self.now += after_s
        files = {path: File(path, seen, 0o644) for path, seen in self.files.items()}
        self.history.note_files(files, self.now)
        self.see_open()

    def see_open(self) -> None:
        found = {path: OpenFile(frozenset({1}), appending=path in self.appending) for path in self.open}
        self.history.note_open(found, self.members, self.files.get)


def test_a_file_that_is_appended_to_or_has_the_name_of_a_log_is_one() -> None:
    seen = Many()
    logs = {"any.bin", "train.LOG", "sub/metrics.jsonl", "events.out.tfevents.1"}
    seen.appending = {"any.bin"}
    seen.open = logs | {"model.pt", "logs/model.pt"}
    seen.write(*seen.open)
    seen.look()
    assert seen.history.open_logs() == logs
    seen.open = set()
    seen.look()
    assert seen.history.open_logs() == set()
    assert seen.history.logs() == logs, "what was a log stays one"
    del seen.files["any.bin"]
    seen.look()
    assert seen.history.logs() == logs - {"any.bin"}


def test_a_file_held_open_for_a_minute_that_hardly_grows_is_a_log() -> None:
    seen = Many()
    seen.open = {"small", "large", "begun-anew"}
    seen.write("small", "large", "begun-anew")
    seen.look()
    seen.write("small", size=64 * MIB + 9)
    seen.write("large", size=64 * MIB + 10)
    seen.look(59.0)
    assert seen.history.open_logs() == set()
    seen.write("begun-anew", size=5)
    seen.look(1.0)
    assert seen.history.open_logs() == {"small"}
    seen.look(59.0)
    assert seen.history.open_logs() == {"small"}
    seen.look(1.0)
    assert seen.history.open_logs() == {"small", "begun-anew"}


def test_a_log_that_was_closed_in_between_is_watched_from_the_beginning() -> None:
    seen = Many()
    seen.open = {"a"}
    seen.write("a")
    seen.look()
    seen.look(59.0)
    seen.open = set()
    seen.look(1.0)
    seen.open = {"a"}
    seen.look(1.0)
    assert seen.history.open_logs() == set()


def test_a_file_is_hot_while_it_is_open_or_changed_a_moment_ago() -> None:
    seen = Many()
    seen.open = {"open", "log"}
    seen.write("open", "log", "quiet")
    seen.look()
    seen.look(1.9)
    assert seen.history.changed_lately() == {"open", "log", "quiet"}
    assert seen.history.unsettled({"log"}) == {"open", "quiet"}
    seen.look(0.1)
    assert seen.history.changed_lately() == set()
    assert seen.history.unsettled({"log"}) == {"open"}
    assert seen.history.may_go_on(["quiet"])
    seen.look(3.0)
    assert not seen.history.may_go_on(["quiet"])


def test_a_file_whose_writer_died_counts_as_whole_after_a_minute() -> None:
    seen = Many()
    seen.open, seen.appending = {"model", "log"}, {"log"}
    seen.write("model", "log")
    seen.look()
    seen.open, seen.members = set(), frozenset()
    seen.look()
    assert seen.history.writer_died_holding() == {"model"}, "a log is whole wherever it ends"
    assert seen.history.last_seen_open("model")
    seen.look(59.9)
    assert seen.history.unsettled(()) == {"model"}
    seen.look(0.1)
    assert seen.history.writer_died_holding() == set()


def test_a_file_that_its_writer_closed_is_no_suspect() -> None:
    seen = Many()
    seen.open = {"model"}
    seen.write("model")
    seen.look()
    assert seen.history.last_seen_open("model")
    seen.open = set()
    seen.look()
    assert seen.history.writer_died_holding() == set()
    assert not seen.history.last_seen_open("model")


def test_a_suspect_that_is_opened_again_is_none() -> None:
    seen = Many()
    seen.open = {"model"}
    seen.write("model")
    seen.look()
    seen.open, seen.members = set(), frozenset()
    seen.look()
    seen.open, seen.members = {"model"}, frozenset({1})
    seen.look()
    seen.open = set()
    seen.look()
    assert seen.history.writer_died_holding() == set()


def test_a_file_grew_if_it_was_seen_smaller_since_the_last_commit() -> None:
    seen = Many()
    seen.write("model", size=10)
    seen.look()
    assert not seen.history.grew("model")
    seen.write("model", size=20)
    seen.look()
    assert seen.history.grew("model")
    seen.history.note_commit(["model"])
    assert not seen.history.grew("model")
    # Cut, and written from its beginning between two scans: open files are looked at in between.
    seen.open = {"model"}
    seen.files["model"] = signature(0, at=5)
    seen.see_open()
    seen.write("model", size=20)
    seen.look()
    assert seen.history.grew("model")
    assert not seen.history.grew("another")


def test_how_long_ago_something_was_removed_is_known_by_unit() -> None:
    seen = Many()
    seen.write("step-1/a", "step-1/b", "top")
    seen.look()
    assert seen.history.since_removed_s == float("inf")
    del seen.files["step-1/a"]
    seen.look()
    assert seen.history.since_removed_s == 0.0
    seen.look(1.9)
    assert seen.history.removed_lately("step-1") and not seen.history.removed_lately("")
    seen.look(0.1)
    assert not seen.history.removed_lately("step-1")
    assert round(seen.history.since_removed_s, 3) == 2.0


def test_after_the_end_nothing_settles_any_more() -> None:
    seen = Many()
    seen.write("model")
    seen.look()
    seen.history.end()
    seen.look(100.0)
    seen.history.end()
    assert seen.history.changed_lately() == {"model"}
    assert seen.history.may_go_on(["model"])


def test_the_mark_tells_what_was_written_or_removed_shortly_before() -> None:
    seen = Many()
    seen.write("quiet", "step-1/a", "step-2/a", "step-3/a", "step-4/a")
    seen.look()
    del seen.files["step-1/a"]
    seen.look(10.0)
    del seen.files["step-2/a"]
    seen.look(5.0)
    assert seen.history.removed_at == {"step-1": 111.0, "step-2": 116.0}
    seen.open, seen.appending = {"step-3/a", "run.log"}, {"run.log"}
    seen.write("step-4/a", "run.log")
    seen.look()
    seen.history.record_pre_signal()
    mark = seen.history.pre_signal
    assert mark is not None
    assert (mark.at, mark.members) == (seen.now, frozenset({1}))
    assert mark.unsettled == {"step-3/a", "step-4/a"}
    assert mark.unsettled_units == {"step-2", "step-3", "step-4"}
    assert mark.open == {"step-3/a"}
    assert mark.files == seen.files


def marked(*, files: dict[str, Signature], opened: set[str], survives: bool = True) -> PreSignalState:
    """Processes 1 and 2 were there, of which 2 lives on after SIGTERM."""
    return PreSignalState(100.0, files, set(), set(), opened, frozenset({1, 2}), frozenset({2}), survives)


def test_a_file_is_begun_since_the_mark_if_it_looks_different() -> None:
    mark = marked(files={"a": signature(10), "open": signature(10)}, opened={"open"})
    assert not mark.begun_since("a", signature(10))
    assert mark.begun_since("a", signature(11))
    assert mark.begun_since("new", signature(1))
    assert not mark.begun_since("open", signature(99)), "the write that was under way goes on"
    mark.closed_as["open"] = signature(99)
    assert not mark.begun_since("open", signature(99))
    assert mark.begun_since("open", signature(100))


def test_a_writer_survives_if_it_handles_the_signal_or_was_started_since() -> None:
    mark = marked(files={}, opened=set())
    mark.writers = {"a": frozenset({1}), "b": frozenset({1, 2}), "c": frozenset({3})}
    assert [mark.by_survivor(path) for path in "abcd"] == [False, True, True, True]
    assert not marked(files={}, opened=set(), survives=False).by_survivor("d")


def test_what_was_open_at_the_mark_is_remembered_as_it_was_closed() -> None:
    seen = Many()
    seen.open = {"model"}
    seen.write("model", "other")
    seen.look()
    seen.history.record_pre_signal()
    mark = seen.history.pre_signal
    assert mark is not None
    assert not seen.history.closed_before_signal("model")
    assert seen.history.closed_before_signal("other")
    seen.open = {"other"}
    seen.look()
    assert mark.closed_as == {"model": seen.files["model"]}
    assert mark.writers == {"other": frozenset({1})}
    closed = seen.files["model"]
    seen.open = {"model"}
    seen.write("model", "other", size=30)
    seen.look()
    seen.open = set()
    seen.look()
    assert mark.closed_as == {"model": closed}, "the first time counts"
    assert not seen.history.closed_before_signal("other")


def test_what_a_process_that_died_since_the_mark_may_have_cut_off() -> None:
    seen = Many()
    seen.write("quiet", "changed", "gone")
    seen.look()
    seen.look(5.0)
    seen.write("hot", "gone")
    seen.look()
    seen.history.record_pre_signal()
    seen.write("changed", "new", size=11)
    del seen.files["gone"]
    seen.look()
    assert seen.history.maybe_cut_off() == set(), "all processes live"
    seen.members = frozenset()
    seen.look()
    assert seen.history.maybe_cut_off() == {"hot", "changed", "new"}


def test_of_several_files_each_is_judged_by_its_own_writer() -> None:
    """The first is open still, the second is gone, the third was closed by a process that lives."""
    history = WriteHistory(settle_s=2.0, patience_s=5.0)
    files = {path: File(path, signature(10), 0o644) for path in ("a", "c", "d")}
    history.note_files(files, 100.0)
    writers = {"a": 1, "gone": 2, "c": 1, "d": 2}
    seen = {path: file.signature for path, file in files.items()}
    opened = {path: OpenFile(frozenset({pid}), appending=False) for path, pid in writers.items()}
    history.note_open(opened, frozenset({1, 2}), seen.get)
    history.note_open({"a": opened["a"]}, frozenset({1}), seen.get)
    assert history.writer_died_holding() == {"d"}
