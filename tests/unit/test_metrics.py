"""Metrics from reports, from the log and from the machine, on their way to series."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_store import PlainStore, wait_for

from stoker.agent.metric_progress import MAX_NAMES
from stoker.agent.metric_reports import parse_report
from stoker.agent.metric_scan import MAX_LINE_BYTES, MetricScanner
from stoker.agent.metrics import BURST, LONG_RUN, MetricsPump, Thinner
from stoker.model import keys
from stoker.model.node_facts import GpuUsage, Usage
from stoker.read.metrics import Point, read_metrics, series_of
from stoker.read.node_chunks import NodeLog
from stoker.store.log_chunks import MetricsMark, Sample, UsageSample, decode_lines, encode_line, last_chunk

JOB = "job-1"
NODE = NodeLog(1, 2, 0, "i-1")
PATIENCE_S = 60.0
LOSS = {"loss": r"loss=([0-9.eE+-]+|nan)", "step": r"step (\d+)"}


def folder(node: NodeLog, boot: int = 0) -> str:
    return keys.node(JOB, node.claim, node.rank, keys.boot(node.instance, boot))


def put_metrics(store: PlainStore, node: NodeLog, *samples: Sample | UsageSample, boot: int = 0) -> None:
    key = keys.metrics_chunk(folder(node, boot), 0)
    store.objects[key] = store.objects.get(key, b"") + b"".join(map(encode_line, samples))


def report(path: Path, **values: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


# ── The format ────────────────────────────────────────────────────────────────────────────────────────────────────────

metric_lines = st.one_of(
    st.builds(
        Sample,
        st.floats(0, 1e10),
        st.none() | st.integers(0, 2**53 - 1),
        st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    ),
    st.builds(MetricsMark, st.integers(0, 2**60), st.none() | st.integers(0, 100), st.none()),
)


@settings(deadline=None)
@given(st.lists(metric_lines, max_size=5))
def test_lines_come_back_as_they_were(lines: list[Sample | MetricsMark]) -> None:
    assert list(decode_lines(b"".join(map(encode_line, lines)))) == lines


def test_usage_and_nan_come_back() -> None:
    usage = UsageSample(1.0, Usage(50.0, 1, 2, 3, (GpuUsage(0, "H200", None, 5, 6),)))
    nan = Sample(1.0, 2, {"loss": math.nan})
    first, second = decode_lines(encode_line(usage) + encode_line(nan))
    assert first == usage
    assert isinstance(second, Sample) and math.isnan(second.values["loss"])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_junk_between_lines_is_left_out(junk: bytes) -> None:
    good = encode_line(MetricsMark(7))
    assert MetricsMark(7) in list(decode_lines(junk + b"\n" + good))


def test_a_number_too_large_is_left_out() -> None:
    line = b'{"kind":"sample","at":' + b"9" * 400 + b',"values":{}}'
    assert list(decode_lines(line + b"\n" + encode_line(MetricsMark(7)))) == [MetricsMark(7)]


# ── Reports ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_gives_its_numbers() -> None:
    sample = parse_report(b'{"t": 5.5, "step": 3, "loss": 0.5, "note": "x", "flag": true, "lr": 1}', 9.0)
    assert sample == Sample(5.5, 3, {"loss": 0.5, "lr": 1.0})


@pytest.mark.parametrize("word", ["NaN", '"nan"', '"NaN"'])
def test_nan_is_a_number_here(word: str) -> None:
    sample = parse_report(b'{"step": 3, "loss": %s}' % word.encode(), 9.0)
    assert sample is not None and math.isnan(sample.values["loss"])


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"junk", b"[]", b"3", b'{"t": 5}', b'{"loss": "low"}', b'{"loss": [1]}', b'{"loss": true}'),
        *(b"[" * 10_000, b'{"loss": 1, "x": "' + b"y" * 20_000 + b'"}', b'{"loss": ' + b"9" * 400 + b"}"),
        b'{"a\\u0000": 1}',
    ],
)
def test_what_is_no_report_is_left_out(raw: bytes) -> None:
    assert parse_report(raw, 9.0) is None


def test_strange_times_and_steps_are_replaced() -> None:
    assert parse_report(b'{"t": -1, "step": 1.5, "a": 1}', 9.0) == Sample(9.0, None, {"a": 1.0})
    assert parse_report(b'{"t": NaN, "step": 2.0, "a": 1}', 9.0) == Sample(9.0, 2, {"a": 1.0})
    assert parse_report(b'{"step": Infinity, "a": 1}', 9.0) == Sample(9.0, None, {"a": 1.0})


# ── The log ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def scan(scanner: MetricScanner, *blocks: bytes) -> list[tuple[int | None, dict[str, float]]]:
    found = [sample for block in blocks for sample in scanner.feed(block, 1.0)]
    return [(sample.step, dict(sample.values)) for sample in found + scanner.finish(1.0)]


def test_metrics_are_found_in_lines_and_paired_with_steps() -> None:
    log = b"starting\nstep 1 loss=0.5\nstep 2: acc 7 loss=2e-3.\nno step here, loss=4\nloss=none\n"
    assert scan(MetricScanner(LOSS), log) == [(1, {"loss": 0.5}), (2, {"loss": 0.002}), (2, {"loss": 4.0})]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=6))
def test_blocks_may_be_cut_anywhere(cuts: list[int]) -> None:
    log = "step 1 loss=0.5\r\nä step 2 loss=1.5\rstep 3 loss=2.5".encode()
    edges = [0, *sorted(cuts), len(log)]
    blocks = [log[start:end] for start, end in pairwise(edges)]
    assert scan(MetricScanner(LOSS), *blocks) == [(1, {"loss": 0.5}), (2, {"loss": 1.5}), (3, {"loss": 2.5})]


def test_an_expression_never_sees_two_lines() -> None:
    scanner = MetricScanner({"loss": r"loss\s*(\d+)", "all": r"^all [^x]* (\d+)$"})
    assert scan(scanner, b"loss\n7\nloss 8\nall 1 2\nall 3\n") == [(None, {"loss": 8.0}), (None, {"all": 2.0})]
    assert scan(MetricScanner({"v": r"a[^b]*b(\d)"}), b"a x\na b5\n") == [(None, {"v": 5.0})]


def test_named_and_missing_groups() -> None:
    scanner = MetricScanner({"a": r"(x|y)=(?P<value>\d+)", "b": r"\d+"})
    assert scan(scanner, b"x=1 y=2\n30 items\n") == [(None, {"a": 2.0, "b": 2.0}), (None, {"b": 30.0})]


def test_a_line_without_end_is_cut_not_kept() -> None:
    scanner = MetricScanner(LOSS)
    head = b"step 1 loss=1 " + b"x" * MAX_LINE_BYTES
    tail = [b"y" * 100_000 + b" loss=2"] * 20
    assert scan(scanner, head, *tail, b" loss=3\nstep 2 loss=4\n") == [(1, {"loss": 1.0}), (2, {"loss": 4.0})]
    inside = b"step 5 loss=5\n" + b"x" * 2 * MAX_LINE_BYTES + b" loss=6\nloss=7\n"
    assert scan(scanner, inside) == [(5, {"loss": 5.0}), (5, {"loss": 7.0})]


def test_a_flood_keeps_what_is_rare_and_what_is_last() -> None:
    flood = [b"step %d loss=%d\n" % (n, n) for n in range(20_000)]
    flood[10_000] = b"accuracy: 0.75\n"
    found = scan(MetricScanner({**LOSS, "acc": r"accuracy: (\S+)"}), b"".join(flood))
    assert any(values.get("acc") == 0.75 for _, values in found)
    assert found[0] == (0, {"loss": 0.0}) and found[-1] == (19_999, {"loss": 19_999.0})
    assert len(found) < 2_000


# ── Thinning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def kept_of(samples: list[Sample]) -> list[Sample]:
    thinner = Thinner()
    kept = [sample for sample in map(thinner.offer, samples) if sample is not None]
    return kept + thinner.newest()


def test_few_samples_are_all_kept() -> None:
    samples = [Sample(n / 5, n, {"loss": float(n)}) for n in range(1_000)]
    assert kept_of(samples) == samples


def test_many_samples_are_thinned_but_first_last_and_nan_stay() -> None:
    values = [float(n) for n in range(20_000)]
    values[15_001] = math.nan
    samples = [Sample(n / 1_000, n, {"loss": value}) for n, value in enumerate(values)]
    kept = kept_of(samples)
    steps = [sample.step for sample in kept]
    assert steps[0] == 0 and steps[-1] == 19_999
    assert 15_001 in steps and 15_002 in steps
    assert len(kept) <= 20 * 10 + BURST + 5
    assert steps == sorted(steps)  # type: ignore[type-var]


def test_nan_forever_is_bounded_too() -> None:
    assert len(kept_of([Sample(1.0, n, {"loss": math.nan}) for n in range(5_000)])) <= BURST + 2


def test_in_the_long_run_less_is_kept() -> None:
    samples = [Sample(n / 10, n, {"loss": 1.0}) for n in range(5 * LONG_RUN)]
    assert len(kept_of(samples)) < 1.6 * LONG_RUN


def test_names_are_bounded() -> None:
    kept = kept_of([Sample(1.0, 1, {f"m{n}": 1.0}) for n in range(10 * MAX_NAMES)])
    assert len(kept) == MAX_NAMES


# ── The pump ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_sources_reach_the_reader(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    pump = MetricsPump(store, folder(NODE), path, LOSS)
    pump.start()
    assert pump.drain(PATIENCE_S)
    report(path, t=1.0, step=4, accuracy=0.5)
    report(path, t=2.0, step=5, accuracy=0.75)
    pump.scan(b"step 6 loss=0.5\nstep 7 loss=0.25", 3.0)
    pump.add_usage(Usage(cpu_percent=12.5), at=4.0)
    assert pump.drain(PATIENCE_S)
    pump.stop()
    metrics = read_metrics(store, JOB, [NODE])
    assert metrics.series["accuracy"].points == (Point(4, 1.0, 0.5, 1), Point(5, 2.0, 0.75, 1))
    assert [(point.step, point.value) for point in metrics.series["loss"].points] == [(6, 0.5), (7, 0.25)]
    assert [point.usage.cpu_percent for point in metrics.usage] == [12.5]
    progress = pump.progress
    assert progress.values == {"accuracy": 0.75, "loss": 0.25}
    assert progress.first_step in (4, 6) and progress.last_step in (5, 7)


def test_reports_are_sent_without_being_asked(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    pump = MetricsPump(store, folder(NODE), path)
    pump.start()
    report(path, step=1, loss=1.0)
    wait_for(lambda: "loss" in read_metrics(store, JOB, [NODE]).series)
    pump.stop()
    assert pump.progress.first_step == pump.progress.last_step == 1


def test_moves_are_counted_though_the_step_is_the_same_at_every_look(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    pump = MetricsPump(PlainStore(), folder(NODE), path)
    pump.start()
    for step in (*range(5), *range(5)):
        report(path, step=step)
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert (pump.progress.last_step, pump.progress.moves) == (4, 10)


def test_a_restarted_agent_goes_on_where_the_last_one_got_to(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    first = MetricsPump(store, folder(NODE), path)
    first.start()
    report(path, step=1, loss=1.0)
    report(path, step=2, loss=0.5, lr=0.1)
    assert first.drain(PATIENCE_S)
    first.stop()
    report(path, step=3, loss=0.25)
    second = MetricsPump(store, folder(NODE, 1), path, earlier=[folder(NODE)])
    second.start()
    assert second.drain(PATIENCE_S)
    second.stop()
    assert (second.progress.first_step, second.progress.last_step) == (1, 3)
    assert second.progress.values == {"loss": 0.25, "lr": 0.1}
    steps = [
        line.step
        for boot in range(2)
        for line in decode_lines(last_chunk(store, f"{folder(NODE, boot)}/metrics/"))
        if isinstance(line, Sample)
    ]
    assert steps == [1, 2, 3]


def test_an_outage_loses_no_report(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    pump = MetricsPump(store, folder(NODE), path)
    store.down = True
    pump.start()
    with path.open("w") as file:
        for step in range(5_000):
            file.write(json.dumps({"t": float(step), "step": step, "loss": 1.0, "pad": "x" * 200}) + "\n")
    wait_for(lambda: store.refused > 0)
    for n in range(20_000):
        pump.add_usage(Usage(memory_used=n))
    assert not pump.drain(0.01)
    store.down = False
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert [point.step for point in read_metrics(store, JOB, [NODE]).series["loss"].points] == list(range(5_000))
    assert sum(map(len, store.objects.values())) < 4 * 1024 * 1024, "memory for samples of the machine is bounded"


def test_a_lost_reply_and_a_torn_line(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    store.lose_replies = 1
    report(path, step=1, loss=1.0)
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    pump = MetricsPump(store, folder(NODE), path)
    pump.start()
    assert pump.drain(PATIENCE_S)
    with path.open("a") as file:
        file.write('ss": 2.0}\n')
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert [point.value for point in read_metrics(store, JOB, [NODE]).series["loss"].points] == [1.0, 2.0]


def test_an_endless_line_is_skipped(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 1}\n' + b"x" * 3_000_000 + b'\n{"step": 2, "loss": 2}\n')
    pump = MetricsPump(store, folder(NODE), path)
    pump.start()
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert [point.step for point in read_metrics(store, JOB, [NODE]).series["loss"].points] == [1, 2]


# ── Series ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_trained_twice_counts_once_with_its_later_value() -> None:
    store = PlainStore()
    second = NodeLog(2, 5, 0, "i-9")
    put_metrics(store, NODE, *(Sample(float(step), step, {"loss": 1.0, "acc": 0.0}) for step in range(10)))
    put_metrics(store, second, *(Sample(float(step), step, {"loss": 2.0}) for step in range(7, 12)))
    metrics = read_metrics(store, JOB, [second, NODE])
    loss = metrics.series["loss"]
    assert [point.step for point in loss.points] == list(range(12))
    assert [point.value for point in loss.points] == [1.0] * 7 + [2.0] * 5
    assert loss.retrained_steps == metrics.retrained_steps == 3
    assert metrics.series["acc"].retrained_steps == 0


def test_a_resume_without_loss_retrains_nothing() -> None:
    series = series_of("loss", {1: [Point(1, 0, 1, 1), Point(2, 0, 1, 1)], 2: [Point(3, 0, 1, 2)]})
    assert series.retrained_steps == 0


def test_the_lowest_rank_that_reports_counts() -> None:
    store = PlainStore()
    other = NodeLog(1, 2, 1, "i-2")
    put_metrics(store, NODE, Sample(1.0, 1, {"loss": 1.0}))
    put_metrics(store, other, Sample(1.0, 1, {"loss": 9.0, "only": 3.0}))
    metrics = read_metrics(store, JOB, [other, NODE])
    assert [point.value for point in metrics.series["loss"].points] == [1.0]
    assert [point.value for point in metrics.series["only"].points] == [3.0]
    assert metrics.retrained_steps == 0


def test_the_last_value_is_the_latest_attempts() -> None:
    by_attempt = {1: [Point(9, 1.0, 0.9, 1)], 2: [Point(5, 2.0, 0.5, 2), Point(6, 3.0, 0.6, 2)]}
    last = series_of("loss", by_attempt).last
    assert last is not None and last.value == 0.6


def test_values_without_steps_stay_in_time() -> None:
    by_attempt = {1: [Point(None, 2.0, 0.2, 1), Point(None, 1.0, 0.1, 1)], 2: [Point(None, 0.5, 0.3, 2)]}
    assert [point.value for point in series_of("loss", by_attempt).points] == [0.1, 0.2, 0.3]


def test_objects_that_are_too_large_are_not_read() -> None:
    store = PlainStore()
    put_metrics(store, NODE, Sample(1.0, 1, {"loss": 1.0}))
    huge = keys.metrics_chunk(folder(NODE), 1)
    store.objects[huge] = b"\n" * 9_000_000
    assert "loss" in read_metrics(store, JOB, [NODE]).series
    assert huge not in store.gets


def test_a_name_that_would_steer_a_terminal_is_left_out_and_no_other() -> None:
    store = PlainStore()
    put_metrics(store, NODE, Sample(1.0, 1, {"acc": 0.5, "a\x1b[2J": 1.0, "loss": 2.0}))
    series = read_metrics(store, JOB, [NODE]).series
    assert [(name, one.points[0].value) for name, one in series.items()] == [("acc", 0.5), ("loss", 2.0)]
