"""Jobs side by side, and their curves."""

from __future__ import annotations

import math

import pytest

from stoker.read.compare import (
    Curve,
    JobRow,
    _round_ticks,
    best_value,
    comparison,
    curve,
    final_and_best,
    lower_is_better,
)
from stoker.read.metrics import Point, series_of

LOWER = ("loss", "val_loss", "trainLoss", "error_rate", "Perplexity", "wer", "eval/WER", "cer", "ppl", "val_err")


@pytest.mark.parametrize("name", [*LOWER, "mse", "mae", "rmse", "bpb", "nll"])
def test_lower_is_better(name: str) -> None:
    assert lower_is_better(name)


@pytest.mark.parametrize("name", ["accuracy", "answer_f1", "power", "bleu", "reward", "lower_bound"])
def test_higher_is_better(name: str) -> None:
    assert not lower_is_better(name)


def test_nan_is_never_best() -> None:
    assert best_value("loss", [math.nan, 2.0, 1.0]) == 1.0
    assert best_value("acc", [math.nan, 2.0, 1.0]) == 2.0
    assert best_value("acc", [math.nan]) is None


def test_final_and_best_of_series() -> None:
    loss = series_of("loss", {1: [Point(1, 1.0, 0.2, 1), Point(2, 2.0, 0.7, 1)]})
    assert final_and_best({"loss": loss}) == ({"loss": 0.7}, {"loss": 0.2})


ROWS = (
    JobRow("a", {"layers": 12, "lr": 3e-4}, {"loss": 0.5}, {"loss": 0.4}, 75.0, 3, 1.5, 0.75),
    JobRow("b", {"layers": 12, "lr": 1e-3, "mixed": True}, {"loss": 0.3, "acc": 0.9}, {"loss": 0.3, "acc": 0.9}),
)


def test_what_differs_comes_first_and_what_does_not_last() -> None:
    table = comparison(ROWS)
    assert table.jobs == ("a", "b")
    labels = [line.label for line in table.lines]
    assert labels == [
        *("lr", "mixed", "loss (final)", "loss (best)", "acc (final)", "acc (best)"),
        *("duration", "attempts", "cost", "saved by spot", "layers"),
    ]
    by_label = {line.label: line for line in table.lines}
    assert by_label["lr"].cells == ("0.0003", "0.001") and by_label["lr"].differs
    assert by_label["mixed"].cells == ("–", "true")
    assert by_label["layers"].cells == ("12", "12") and not by_label["layers"].differs
    assert by_label["duration"].cells == ("1m 15s", "–")
    assert by_label["cost"].cells == ("$1.50", "–")


def test_the_best_job_is_named() -> None:
    by_label = {line.label: line for line in comparison(ROWS).lines}
    assert by_label["loss (final)"].best == 1
    assert by_label["acc (final)"].best is None, "there is nothing to compare with"
    rows = (JobRow("a", final={"acc": 0.9}), JobRow("b", final={"acc": math.nan}), JobRow("c", final={"acc": 0.8}))
    assert comparison(rows).lines[0].best == 0


def test_one_job_and_none() -> None:
    assert comparison([]).jobs == ()
    assert all(line.best is None and not line.differs for line in comparison(ROWS[:1]).lines)


FALLING = Curve("loss", [(float(x), 1 / (1 + x)) for x in range(50)])
RISING = Curve("acc", [(float(x), x / 50) for x in range(50)])


def test_a_curve_has_its_size_and_its_legend() -> None:
    picture = curve([FALLING], width=60, height=12)
    *rows, legend = picture.split("\n")
    assert len(rows) == 12
    assert all(len(row) <= 60 for row in rows)
    assert legend.endswith(" loss")
    assert rows[-1].strip() == "step"
    assert rows[-2].split() == ["0", "10", "20", "30", "40"]
    assert "\x1b" not in picture


def test_one_curve_alone_is_drawn_finer_than_characters() -> None:
    *rows, legend = curve([FALLING], width=60, height=12).split("\n")
    dots = [sign for row in rows for sign in row if "\u2801" <= sign <= "\u28ff"]
    assert len(dots) > 20 and legend == "⠒ loss"


def test_a_picture_has_room_for_its_axes_in_a_narrow_terminal() -> None:
    narrow = curve([FALLING], width=3, height=2).split("\n")[:-1]
    assert (len(narrow), max(map(len, narrow))) == (6, 20)
    assert narrow == curve([FALLING], width=20, height=6).split("\n")[:-1]


def test_a_picture_is_as_wide_and_high_as_a_small_terminal_unless_told() -> None:
    rows = curve([FALLING]).split("\n")[:-1]
    assert (len(rows), max(map(len, rows))) == (18, 80)


def test_axis_and_marks_are_called_as_was_asked() -> None:
    *rows, legend = curve([FALLING], [0.0, 49.0], x_label="epoch", mark_label="stopped").split("\n")
    assert rows[-1].strip() == "epoch"
    assert legend.endswith("│ stopped")


@pytest.mark.parametrize(("mark", "shown"), [(-1.0, False), (0.0, True), (49.0, True), (50.0, False)])
def test_only_marks_within_the_curves_are_drawn(mark: float, shown: bool) -> None:
    assert ("reclaimed" in curve([FALLING], [mark])) == shown


def test_more_curves_than_signs_begin_again_with_the_first() -> None:
    curves = [Curve(f"c{n}", [(0.0, float(n)), (1.0, float(n))]) for n in range(10)]
    assert curve(curves).split("\n")[-1].split()[::2] == [*"•x+o*#@%", "•", "x"]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (60.0, "1m 00s"), (3599.0, "59m 59s"), (3600.0, "1h 00m"), (90061, "1d 1h")],
)
def test_durations_are_read_at_a_glance(seconds: float, told: str) -> None:
    (line,) = [line for line in comparison([JobRow("a", duration_s=seconds)]).lines if line.label == "duration"]
    assert line.cells == (told,)


@pytest.mark.parametrize(("cost", "told"), [(0.0, "$0.00"), (0.0021, "$0.0021"), (0.1, "$0.10"), (12.0, "$12.00")])
def test_small_sums_of_money_are_told_precisely(cost: float, told: str) -> None:
    (line,) = [line for line in comparison([JobRow("a", cost=cost)]).lines if line.label == "cost"]
    assert line.cells == (told,)


def test_savings_have_no_line_where_nothing_was_saved() -> None:
    labels = [line.label for line in comparison([JobRow("a", savings=0.0), JobRow("b")]).lines]
    assert "saved by spot" not in labels
    lines = {line.label: line for line in comparison([JobRow("a", savings=0.02), JobRow("b", savings=0.0)]).lines}
    assert lines["saved by spot"].cells == ("$0.0200", "$0.00") and lines["saved by spot"].differs


def test_runs_that_were_alike_do_not_differ() -> None:
    lines = comparison([JobRow("a", attempts=2, duration_s=5.0), JobRow("b", attempts=2, duration_s=6.0)]).lines
    assert {line.label: (line.kind, line.cells, line.differs) for line in lines} == {
        "duration": ("run", ("5.0 s", "6.0 s"), True),
        "attempts": ("run", ("2", "2"), False),
        "cost": ("run", ("–", "–"), False),
    }


def test_truth_numbers_and_words_are_shown_as_they_are_written() -> None:
    rows = [JobRow("a", {"amp": False, "lr": 1.0, "n": 3, "name": "x"}), JobRow("b")]
    assert [line.cells for line in comparison(rows).lines if line.kind == "param"] == [
        ("false", "–"),
        ("1", "–"),
        ("3", "–"),
        ("x", "–"),
    ]


def test_equal_results_have_no_best_job() -> None:
    rows = [JobRow("a", final={"acc": 0.5}), JobRow("b", final={"acc": 0.5})]
    line = next(line for line in comparison(rows).lines if line.label == "acc (final)")
    assert line.best is None and not line.differs and line.kind == "metric"


def test_marks_stand_where_the_reclaims_were() -> None:
    plain, marked = curve([FALLING], width=60), curve([FALLING], [25.0, 1000.0], width=60)
    assert "reclaimed" in marked and "reclaimed" not in plain
    column = {row.index("│", 10) for row in marked.split("\n")[3:8]}
    assert len(column) == 1 and 25 < column.pop() < 40


def test_several_curves_are_told_apart() -> None:
    picture = curve([FALLING, RISING], width=60, height=12)
    *rows, legend = picture.split("\n")
    assert legend == "• loss  x acc"
    drawn = "\n".join(rows)
    assert drawn.count("•") > 5 and drawn.count("x") > 5


def test_colours_only_when_asked_for() -> None:
    assert "\x1b[" in curve([FALLING, RISING], color=True)


def test_a_picture_leaves_nothing_behind_for_the_next() -> None:
    first = curve([FALLING], width=60)
    curve([RISING], [10.0], width=60)
    assert curve([FALLING], width=60) == first


def test_nothing_to_draw() -> None:
    assert curve([]) == ""
    assert curve([Curve("loss", [(1.0, math.nan), (math.inf, 1.0)])]) == ""


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(1.0, 0.0), (2.0, 0.0)], [(0.0, 1e-30), (1.0, 1e30)]])
def test_odd_curves_are_drawn(points: list[tuple[float, float]]) -> None:
    assert curve([Curve("loss", [*points, (0.5, math.nan)])], [1.0]) != ""


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0.0, 100.0, [0, 20, 40, 60, 80, 100]),
        (40.0, 100.0, [40, 60, 80, 100]),
        (95.0, 100.0, [95, 96, 97, 98, 99, 100]),
        (7.0, 7.0, [7]),
        (3.0, 47.0, [10, 20, 30, 40]),
    ],
)
def test_ticks_are_some_round_numbers_within_the_span(lowest: float, highest: float, ticks: list[float]) -> None:
    assert _round_ticks(lowest, highest) == pytest.approx(ticks)


def test_a_drawing_of_the_callers_own_is_not_in_it() -> None:
    """Programs that read jobs from Python may draw with plotext themselves: it has one figure for all."""
    import plotext

    series = [Curve("a", [(1.0, 1.0), (2.0, 2.0)])]
    alone = curve(series)
    plotext.figure.draw(plotext.figure.signal([50.0, 60.0], [500.0, 600.0]).lines())
    assert curve(series) == alone
