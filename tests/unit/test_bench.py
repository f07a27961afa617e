"""The format of the figures of `make bench`; tests/e2e/test_measurements.py runs the measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# `python -m bench` runs from the repository's root; the package is not installed.
sys.path.insert(0, str(ROOT))

from bench import __main__ as program  # noqa: E402
from bench.figures import Figure, Measurement, Size, document, table, text, verdict  # noqa: E402

# The figures that were promised, and their targets.
PROMISED = {
    "cli_help_ratio": "≤ 8",
    "submit_overhead_s": "≤ 1",
    "resume_gap_s": "≤ 1",
    "steps_lost_on_notice": "0",
    "log_latency_p50_s": "≤ 0.5",
    "log_slowdown_ratio": "≤ 1.05",
    "agent_cpu_percent": "≤ 1",
    "agent_rss_mb": "≤ 60",
    "sync_ratio": "≤ 1.5",
    "resync_bytes_ratio": "≤ 0.011",
    "pass_10k_s": "≤ 1",
    "ps_10k_s": "≤ 0.5",
    "reindex_ratio": "≤ 0.25",
    "env_restore_ratio": "≤ 0.1",
    "input_fetch_ratio": "≤ 1.1",
    "env_vs_pip_ratio": "≤ 0.3",
    "container_overhead_s": "≤ 0.5",
    "ec2_boot_overhead_s": "≤ 4",
    "agent_bundle_mb": "≤ 10",
    "ec2_calls_per_job": "≤ 15",
    "ec2_pass_calls": "≤ 5",
    "gce_boot_overhead_s": "≤ 4",
    "gce_calls_per_job": "≤ 15",
    "gce_import_s": "≤ 0.4",
    "stall_detect_s": "≤ 15",
    "false_stops": "0",
    "lambda_zip_mb": "≤ 20",
    "lambda_warm_ms": "≤ 100",
    "tick_1000_active_s": "≤ 5",
}

FAST = Figure("fast_s", "s", 1.0)
EXACT = Figure("exact", "steps", 0.0)
TOLD = Figure("told_mb", "MB")


def test_every_promised_figure_is_measured_once_with_its_target() -> None:
    figures = [figure for measurement in program.MEASUREMENTS for figure in measurement.figures]
    assert len({figure.name for figure in figures}) == len(figures)
    assert {figure.name: figure.target for figure in figures if figure.limit is not None} == PROMISED


def test_growth_is_shown_without_a_target() -> None:
    figures = {figure.name: figure for measurement in program.MEASUREMENTS for figure in measurement.figures}
    assert figures["pass_1k_s"].target == figures["ps_1k_s"].target == ""


def test_every_measurement_says_how_it_is_taken() -> None:
    for measurement in program.MEASUREMENTS:
        assert measurement.measure.__doc__, measurement.names


@pytest.mark.parametrize(
    ("figure", "value", "told"),
    [
        (FAST, 0.4, "ok"),
        (FAST, 1.0, "ok"),
        (FAST, 1.001, "MISS"),
        (EXACT, 0, "ok"),
        (EXACT, 1, "MISS"),
        (TOLD, 99.0, ""),
        (FAST, None, "FAILED"),
        (TOLD, None, "FAILED"),
    ],
)
def test_verdict(figure: Figure, value: float | None, told: str) -> None:
    assert verdict(figure, value) == told


def test_table_has_a_row_for_each_figure() -> None:
    shown = table([(FAST, 0.41234), (EXACT, 3), (TOLD, 26.4), (FAST, None)]).splitlines()
    assert [line.split() for line in shown] == [
        ["figure", "value", "unit", "target"],
        ["fast_s", "0.4123", "s", "≤", "1", "ok"],
        ["exact", "3", "steps", "0", "MISS"],
        ["told_mb", "26.40", "MB"],
        ["fast_s", "–", "s", "≤", "1", "FAILED"],
    ]


def test_columns_stand_under_one_another() -> None:
    header, fast, exact = table([(FAST, 0.5), (EXACT, 12345)]).splitlines()
    assert header.index("target") == fast.index("≤ 1") == exact.rindex("0")
    assert fast.index("ok") == exact.index("MISS")


@pytest.mark.parametrize(
    ("value", "told"), [(0, "0"), (0.00012, "0.0001"), (1.0499, "1.050"), (26.42, "26.42"), (123456.7, "123456.7")]
)
def test_text(value: float, told: str) -> None:
    assert text(value) == told


def test_document_has_value_unit_and_target_by_name() -> None:
    found = document([(FAST, 0.5), (TOLD, None)])
    assert json.loads(json.dumps(found)) == {
        "fast_s": {"value": 0.5, "unit": "s", "target": "≤ 1", "limit": 1.0},
        "told_mb": {"value": None, "unit": "MB", "target": "", "limit": None},
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program with three quick measurements, one of which fails; where it writes."""

    def broken(_size: Size) -> dict[str, float]:
        raise RuntimeError("no clock")

    measurements = (
        Measurement((FAST, TOLD), lambda _size: {"fast_s": 2.0, "told_mb": 1.5}),
        Measurement((EXACT,), lambda _size: {"exact": 0}),
        Measurement((Figure("broken_s", "s", 1.0),), broken),
    )
    monkeypatch.setattr(program, "MEASUREMENTS", measurements)
    monkeypatch.setattr(program, "OUT", tmp_path / "out" / "latest.json")
    return tmp_path / "out" / "latest.json"


def test_named_figures_alone_are_measured(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["exact"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["figure", "exact"]
    assert list(json.loads(small.read_text())) == ["exact"]


def test_a_missed_target_is_told_and_no_error(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["told_mb"]) == 0
    assert "MISS" in capsys.readouterr().out
    assert json.loads(small.read_text())["fast_s"]["value"] == 2.0


def test_a_figure_that_cannot_be_measured_costs_no_other(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 1
    said = capsys.readouterr()
    assert "FAILED" in said.out
    assert "no clock" in said.err
    assert {name: figure["value"] for name, figure in json.loads(small.read_text()).items()} == {
        "fast_s": 2.0,
        "told_mb": 1.5,
        "exact": 0,
        "broken_s": None,
    }


def test_the_short_form_writes_no_figures(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers mean nothing, and must not stand where those of the full form do."""
    assert program.main(["--short", "exact"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["figure", "exact"]
    assert not small.exists()


def test_an_unknown_name_is_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["speed"]) == 2
    assert "there is no figure speed" in capsys.readouterr().err
    assert not small.exists()
