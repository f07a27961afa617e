"""Metrics at the bounds of what is kept: of a report, of a line of the log, of a metric, of the memory for them."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from plain_store import PlainStore

from stoker.agent import metric_reports, metrics
from stoker.agent import metric_scan as scan_module
from stoker.agent import metrics as metrics_module
from stoker.agent.metric_progress import MAX_NAMES, MAX_TRENDS
from stoker.agent.metric_reports import parse_report
from stoker.agent.metric_scan import MAX_LINE_BYTES, MetricScanner
from stoker.agent.metrics import BURST, RATE_PER_S, MetricsPump, Thinner
from stoker.core.safe_regex import MAX_EXPRESSIONS
from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.model.node_facts import Usage
from stoker.store.log_chunks import MetricsMark, Sample, UsageSample, decode_lines, last_chunk

NODE = keys.node("job-1", 2, 0, "i-1.0")
PATIENCE_S = 60.0


def lines_of(store: PlainStore, node: str = NODE) -> list[Any]:
    return list(decode_lines(last_chunk(store, f"{node}/metrics/")))


# ── A report ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_is_taken_up_to_its_longest_and_no_further() -> None:
    body = b'{"a": 1, "x": "%s"}'
    room = 16 * 1024 - len(body) + 2
    assert parse_report(body % (b"y" * room), 9.0) == Sample(9.0, None, {"a": 1.0})
    assert parse_report(body % (b"y" * (room + 1)), 9.0) is None


def test_names_are_taken_up_to_a_hundred_characters() -> None:
    found = parse_report(json.dumps({"n" * 100: 1, "m" * 101: 2, "": 3, "line\nbreak": 4}).encode(), 9.0)
    assert found == Sample(9.0, None, {"n" * 100: 1.0})


@pytest.mark.parametrize(
    ("step", "taken"), [(0, 0), (-3, -3), (2**53 - 1, 2**53 - 1), (2**53, None), (-(2**53), None), (1.5, None)]
)
def test_steps_are_whole_numbers_that_a_float_can_tell_apart(step: float, taken: int | None) -> None:
    found = parse_report(json.dumps({"step": step, "a": 1}).encode(), 9.0)
    assert found is not None and found.step == taken


@pytest.mark.parametrize(("at", "taken"), [(0, 0.0), (5.5, 5.5), (1e11, 9.0), (99_999_999_999, 99_999_999_999.0)])
def test_times_are_taken_as_far_as_they_make_sense(at: float, taken: float) -> None:
    found = parse_report(json.dumps({"t": at, "a": 1}).encode(), 9.0)
    assert found is not None and found.at == taken


def test_a_report_of_a_step_alone_is_one_and_truth_is_no_number() -> None:
    assert parse_report(b'{"step": 4}', 9.0) == Sample(9.0, 4, {})
    assert parse_report(b'{"a": true, "b": null, "c": "7"}', 9.0) is None


# ── A line of the log ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_line_that_is_too_long_is_taken_for_the_next_one() -> None:
    scanner = MetricScanner({"n": r"(\d+)"})
    assert [sample.values for sample in scanner.feed(b"a" * (MAX_LINE_BYTES + 1), 1.0)] == []
    assert scanner.feed(b"12 34", 1.0) == []
    assert [sample.values for sample in scanner.feed(b"7\n8\n", 2.0)] == [{"n": 8.0}]


def test_a_line_that_is_too_long_may_end_with_its_block() -> None:
    scanner = MetricScanner({"n": r"(\d+)"})
    scanner.feed(b"a" * (MAX_LINE_BYTES + 1), 1.0)
    assert [sample.values for sample in scanner.feed(b"\n8\n", 2.0)] == [{"n": 8.0}]


def test_of_a_line_that_is_too_long_its_beginning_counts() -> None:
    scanner = MetricScanner({"n": r"n=(\d+)"})
    line = b"n=1 " + b"x" * (MAX_LINE_BYTES - 7) + b"n=2 n=3"
    assert len(line) == MAX_LINE_BYTES + 4
    assert [sample.values for sample in scanner.feed(line + b"\n", 1.0)] == [{"n": 2.0}]
    whole = b"x" * (MAX_LINE_BYTES - 3) + b"n=4\n"
    assert [sample.values for sample in scanner.feed(whole, 1.0)] == [{"n": 4.0}]
    exact = MetricScanner({"n": r"n=(\d+)"})
    assert exact.feed(whole[:-1], 1.0) == [], "it may go on"
    assert [sample.values for sample in exact.feed(b"5\n", 1.0)] == [{"n": 4.0}], "it did, and is cut"


def test_a_word_behind_a_number_does_not_hide_the_number() -> None:
    scanner = MetricScanner({"loss": r"loss=(\S+)"})
    assert [sample.values for sample in scanner.feed(b"loss=1.5, loss=none\nloss=none\n", 1.0)] == [{"loss": 1.5}]


def test_a_step_that_no_float_can_tell_apart_is_not_taken() -> None:
    scanner = MetricScanner({"step": r"step (\S+)", "a": r"a=(\d)"})
    found = scanner.feed(b"step 3 a=1\nstep 9007199254740992 a=2\nstep 4 a=3\n", 1.0)
    assert [(sample.step, sample.values) for sample in found] == [(3, {"a": 1.0}), (3, {"a": 2.0}), (4, {"a": 3.0})]


def test_expressions_that_are_left_out_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    MetricScanner({"bad": r"(?=x)(\d)", "loss": r"loss=(\d+)"})
    assert "metrics.bad is left out: " in caplog.text and "metrics.loss" not in caplog.text
    assert "expressions; the first" not in caplog.text
    MetricScanner({f"m{number}": rf"m{number}=(\d+)" for number in range(MAX_EXPRESSIONS + 1)})
    assert f"metrics has {MAX_EXPRESSIONS + 1} expressions; the first {MAX_EXPRESSIONS} are used" in caplog.text


def test_without_expressions_nothing_is_looked_for() -> None:
    scanner = MetricScanner({})
    assert scanner.feed(b"loss 1\n", 1.0) == [] and scanner.finish(1.0) == []


def test_a_last_line_that_nothing_ends_counts_once() -> None:
    scanner = MetricScanner({"n": r"n=(\d+)"})
    assert scanner.feed(b"n=1", 1.0) == []
    assert [sample.values for sample in scanner.finish(2.0)] == [{"n": 1.0}]
    assert scanner.finish(3.0) == []


def test_of_very_many_lines_the_first_and_the_last_are_looked_at() -> None:
    text = b"".join(b"n=%d\n" % n for n in range(5000))
    found = [sample.values["n"] for sample in MetricScanner({"n": r"n=(\d+)"}).feed(text, 1.0)]
    assert found[: scan_module._MAX_HITS] == [float(n) for n in range(scan_module._MAX_HITS)]
    assert found[-1] == 4999.0 and 2500.0 not in found
    last = [n for n in found if n >= scan_module._MAX_HITS]
    assert last == [float(n) for n in range(int(last[0]), 5000)] and len(last) * 7 >= scan_module._LAST_CHARS - 14


# ── Thinning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def offered(thinner: Thinner, at: float, count: int, value: float = 1.0) -> int:
    """How many of so many samples at one moment are kept."""
    return sum(thinner.offer(Sample(at, None, {"a": value})) is not None for _ in range(count))


def test_a_burst_is_kept_and_then_so_many_a_second() -> None:
    thinner = Thinner()
    assert offered(thinner, 0.0, 500) == BURST
    assert offered(thinner, 1.0, 500) == RATE_PER_S
    assert offered(thinner, 0.5, 500) == 0, "a clock that goes back gives nothing twice"
    assert offered(thinner, 2.0, 500) == RATE_PER_S
    assert offered(thinner, 1e6, 500) == BURST, "a long silence gives no more than a burst"


def test_in_the_long_run_one_a_second_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LONG_RUN", int(BURST))
    thinner = Thinner()
    assert [offered(thinner, at, 500) for at in (0.0, 1.0, 3.0)] == [BURST, 1, 2]


def test_metrics_that_are_known_are_kept_beside_those_that_are_too_many() -> None:
    thinner = Thinner()
    thinner.offer(Sample(0.0, 1, {f"m{n}": 1.0 for n in range(MAX_NAMES)}))
    assert thinner.offer(Sample(1.0, 2, {"new": 1.0, "m0": 2.0})) == Sample(1.0, 2, {"m0": 2.0})


def test_the_newest_value_that_was_held_back_is_kept_unless_a_later_one_was() -> None:
    thinner = Thinner()
    offered(thinner, 0.0, int(BURST))
    assert thinner.offer(Sample(0.0, 7, {"a": 3.0, "b": 4.0})) == Sample(0.0, 7, {"b": 4.0})
    assert thinner.newest() == [Sample(0.0, 7, {"a": 3.0})] and thinner.newest() == []
    thinner.offer(Sample(0.0, 8, {"a": 5.0}))
    assert thinner.offer(Sample(1.0, 9, {"a": 6.0})) == Sample(1.0, 9, {"a": 6.0})
    assert thinner.newest() == [], "what was held back is older than what was kept"


def test_held_back_values_of_one_report_come_back_together() -> None:
    thinner = Thinner()
    for _ in range(int(BURST)):
        thinner.offer(Sample(0.0, None, {"a": 1.0, "b": 1.0}))
    assert thinner.offer(Sample(0.0, 5, {"a": 2.0, "b": 3.0})) is None
    assert thinner.newest() == [Sample(0.0, 5, {"a": 2.0, "b": 3.0})]


def test_a_step_without_values_is_kept_and_values_that_are_held_back_leave_nothing() -> None:
    thinner = Thinner()
    assert thinner.offer(Sample(0.0, 5, {})) == Sample(0.0, 5, {})
    assert thinner.offer(Sample(0.0, None, {})) is None
    offered(thinner, 0.0, int(BURST))
    assert thinner.offer(Sample(0.0, 6, {"a": 1.0})) is None


def test_each_turn_to_and_from_a_value_that_is_no_number_is_kept() -> None:
    thinner = Thinner()
    offered(thinner, 0.0, int(BURST))
    assert offered(thinner, 0.0, 3, math.nan) == 1
    assert offered(thinner, 0.0, 3, math.inf) == 0
    assert offered(thinner, 0.0, 3, 1.0) == 1


# ── The pump ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_values_are_told_with_their_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pump = MetricsPump(PlainStore(), NODE, tmp_path / "metrics.jsonl", {"a": r"a=(\S+)"})
    for at_s, text in ((100.0, b"a=5\n"), (110.0, b"a=3\n"), (120.0, b"a=7\n"), (130.0, b"a=3\na=7\na=nan\n")):
        clock[0] = at_s
        pump.scan(text, at_s)
    clock[0] = 140.1234
    trend = pump.progress.trends["a"]
    assert (trend.low, trend.low_s, trend.high, trend.high_s) == (3.0, 30.123, 7.0, 20.123)
    assert math.isnan(pump.progress.values["a"])


def test_trends_are_bounded_but_not_those_that_the_job_names(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({f"m{n}": 1 for n in range(MAX_TRENDS + 10)}) + "\n")
    pump = MetricsPump(PlainStore(), NODE, path, {"named": r"named=(\S+)"})
    pump.start()
    assert pump.drain(PATIENCE_S)
    pump.scan(b"named=1\n", 1.0)
    pump.stop()
    assert len(pump.progress.trends) == MAX_TRENDS + 1 and "named" in pump.progress.trends
    assert len(pump.progress.values) == MAX_TRENDS + 11


def test_values_are_bounded_but_not_those_that_the_job_names(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    pump = MetricsPump(PlainStore(), NODE, path, {"named": r"named=(\S+)"})
    path.write_text("".join(json.dumps({f"m{n}": 1}) + "\n" for n in range(MAX_NAMES + 1)) + '{"m0": 5}\n')
    pump._read_reports()
    pump.scan(b"named=7\n", 1.0)
    values = pump.progress.values
    assert (values["m0"], values["named"], len(values)) == (5.0, 7.0, MAX_NAMES + 1) and f"m{MAX_NAMES}" not in values


def test_while_too_much_waits_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n')
    pump = MetricsPump(store, NODE, path)
    pump.add_usage(Usage(cpu_percent=1.0))
    assert pump._waiting.size > 0
    monkeypatch.setattr(metrics_module, "_WAITING_BYTES", pump._waiting.size)
    pump.add_usage(Usage(cpu_percent=2.0))
    assert pump._read_reports() is False and pump.progress.values == {}, "the file keeps it"
    pump._gather()
    pump._push()
    pump._read_reports()
    assert pump.progress.values == {"a": 1.0}
    assert [line.usage.cpu_percent for line in lines_of(store) if isinstance(line, UsageSample)] == [1.0]


def test_while_the_store_is_away_the_file_keeps_what_is_reported(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    pump = MetricsPump(store, NODE, path)
    put, away = store.put, [True, True]

    def refuse(*words: Any, **options: Any) -> Any:
        if away:
            away.pop()
            raise StoreUnavailable("away")
        return put(*words, **options)

    store.put = refuse  # type: ignore[method-assign]
    path.write_text('{"a": 1}\n')
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            pump._turn(False)
        path.write_text('{"a": 1}\n{"a": 2}\n')
    assert pump.progress.values == {"a": 1.0}
    pump._turn(True)
    assert pump.progress.values == {"a": 2.0}


def test_a_line_that_is_too_long_is_skipped_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_READ_BYTES", 64)
    monkeypatch.setattr(metric_reports, "_MAX_REPORT_BYTES", 100)
    path = tmp_path / "metrics.jsonl"
    report = '{"a": 1}\n'
    path.write_text("x" * 256 + "\n" + report + "y" * (63 - len(report)))
    pump = MetricsPump(PlainStore(), NODE, path)
    assert [pump._read_reports() for _ in range(6)] == [True] * 5 + [False]
    assert pump.progress.values == {"a": 1.0}


def test_a_report_of_the_longest_size_may_come_in_two_parts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    pump = MetricsPump(PlainStore(), NODE, path)
    report = '{"a": 1, "note": "%s"}'
    path.write_text(report % ("x" * (16 * 1024 - len(report % ""))))
    pump._read_reports()
    with path.open("a") as file:
        file.write("\n")
    pump._read_reports()
    assert pump.progress.values == {"a": 1.0}


def test_a_pump_that_is_stopped_has_ended(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    pump = MetricsPump(PlainStore(), NODE, tmp_path / "metrics.jsonl")
    pump.start()
    (thread,) = set(threading.enumerate()) - before
    pump.stop()
    assert not thread.is_alive()


def test_a_sample_of_the_machine_has_the_present_time_unless_it_is_told(tmp_path: Path) -> None:
    store = PlainStore()
    pump = MetricsPump(store, NODE, tmp_path / "metrics.jsonl")
    before = time.time()
    pump.add_usage(Usage(cpu_percent=1.0))
    pump.add_usage(Usage(cpu_percent=2.0), at=5.0)
    pump.start()
    assert pump.drain(PATIENCE_S)
    pump.stop()
    now, told = (line for line in lines_of(store) if isinstance(line, UsageSample))
    assert before - 1 <= now.at <= time.time() + 1 and told.at == 5.0


def test_the_newest_value_reaches_the_store_though_most_are_thinned(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"t": 1.0, "step": n, "a": n}) + "\n" for n in range(500)))
    pump = MetricsPump(store, NODE, path)
    pump.start()
    assert pump.drain(PATIENCE_S)
    pump.stop()
    samples = [line for line in lines_of(store) if isinstance(line, Sample)]
    assert samples[-1] == Sample(1.0, 499, {"a": 499.0}) and len(samples) < 300
    mark = [line for line in lines_of(store) if isinstance(line, MetricsMark)][-1]
    assert mark == MetricsMark(path.stat().st_size, 0, 499)


def test_a_store_far_away_is_written_to_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(metrics_module.time, "monotonic", lambda: clock[0])
    for is_local, pause_s in ((True, 0.5), (False, 5.0)):
        store = PlainStore(is_local=is_local)
        pump = MetricsPump(store, NODE, tmp_path / "metrics.jsonl")
        written = []
        for after_s in (0.0, pause_s - 0.01, pause_s + 0.01):
            clock[0] = 1000.0 + after_s
            pump.add_usage(Usage(cpu_percent=1.0), at=1.0)
            pump._turn(False)
            written.append(len(store.puts))
        assert written == [1, 1, 2]


def test_a_turn_says_whether_there_is_more_to_do(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    pump = MetricsPump(store, NODE, path)
    assert pump._turn(True) == "idle"
    path.write_text('{"step": 1, "a": 1}\n')
    assert pump._turn(True) == "busy", "the next turn finds that nothing is left"
    assert pump._turn(True) == "idle"
    pump.add_usage(Usage(cpu_percent=1.0))
    assert pump._turn(False) == "waiting", "it was flushed just now"
    assert [one for one in lines_of(store) if isinstance(one, UsageSample)] == []
    with path.open("a") as file:
        file.write("x" * 300_000)
    assert pump._turn(False) == "busy", "there is more of the file than one turn reads"


def test_a_restarted_agent_goes_on_after_the_last_of_several_boots(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    key_list = [keys.node("job-1", 2, 0, f"i-1.{boot}") for boot in range(3)]
    for boot, key in enumerate(key_list):
        with path.open("a") as file:
            file.write(json.dumps({"step": boot + 5, "a": boot, f"only{boot}": 1}) + "\n")
        pump = MetricsPump(store, key, path, earlier=key_list[:boot])
        pump.start()
        assert pump.drain(PATIENCE_S)
        pump.stop()
        steps = [line.step for line in lines_of(store, key) if isinstance(line, Sample)]
        assert steps == [boot + 5], "what an earlier boot has told is not told again"
        assert (pump.progress.first_step, pump.progress.last_step) == (5, boot + 5)
    assert pump.progress.values == {"a": 2.0, "only0": 1.0, "only1": 1.0, "only2": 1.0}


def test_a_restarted_agent_with_nothing_new_tells_what_was_told_and_writes_nothing(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "a": 1}\n{"step": 9, "a": 2}\n')
    before = MetricsPump(store, NODE, path)
    before._turn(True)
    puts = len(store.puts)
    pump = MetricsPump(store, keys.node("job-1", 2, 0, "i-1.1"), path, earlier=[NODE])
    assert pump._turn(True) == "idle" and len(store.puts) == puts
    told = pump.progress
    assert (told.first_step, told.last_step, told.values) == (5, 9, {"a": 2.0})


def test_a_restarted_agent_whose_earlier_boots_told_nothing_begins_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "a": 1}\n')
    pump = MetricsPump(PlainStore(), keys.node("job-1", 2, 0, "i-1.1"), path, earlier=[NODE])
    pump._turn(True)
    assert pump.progress.values == {"a": 1.0} and pump.progress.first_step == 5


def test_the_disk_below_what_is_durable_may_be_given_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "a": 1}\n')
    pump = MetricsPump(PlainStore(), NODE, path)
    given: list[int] = []
    pump._reports._tail.forget = given.append  # type: ignore[method-assign]
    pump._turn(True)
    assert given == [path.stat().st_size]


def test_a_report_that_is_not_whole_yet_is_left_to_the_next_boot(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"b": ')
    MetricsPump(store, NODE, path)._turn(True)
    assert [line for line in lines_of(store) if isinstance(line, MetricsMark)] == [MetricsMark(9)]
