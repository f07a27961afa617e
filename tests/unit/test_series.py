"""Series of utilisation: what is packed comes back, and what makes no sense says nothing."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import Series
from stoker.series import pack, unpack, windows

# Half percents are kept: what is finer is not.
SHARES = st.one_of(st.none(), st.integers(0, 200).map(lambda step: step / 200))


@st.composite
def tables(draw: st.DrawFn) -> list[list[float | None]]:
    length = draw(st.integers(0, 30))
    return draw(st.lists(st.lists(SHARES, min_size=length, max_size=length), min_size=1, max_size=9))


@given(tables(), st.sampled_from([2.0, 60.0, 600.0]))
def test_what_is_packed_comes_back(devices: list[list[float | None]], period_s: float) -> None:
    series = pack(period_s, devices)
    assert (series.period_s, series.devices) == (period_s, len(devices))
    assert unpack(series) == devices


@given(st.floats(allow_nan=False))
def test_any_share_is_kept_to_a_quarter_of_a_percent(share: float) -> None:
    kept = unpack(pack(2.0, [[share]]))
    assert kept is not None and kept[0][0] is not None
    assert abs(kept[0][0] - min(1.0, max(0.0, share))) <= 0.0025 + 1e-9


def test_what_is_no_number_is_unknown_and_not_idle() -> None:
    assert unpack(pack(2.0, [[float("nan"), None]])) == [[None, None]]


def test_windows_are_means_and_the_newest_is_last() -> None:
    series = pack(10.0, [[1.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]])
    assert windows([series], 20.0, 2) == [[0.25, 0.75], [0.0, 1.0]]
    assert windows([series], 50.0, 1) == [[0.6], [0.4]]
    assert windows([series], 30.0, 2) is None, "it is not long enough"
    assert windows([series], 4.0, 1) is None, "it is too coarse"
    assert windows([], 20.0, 1) is None


def test_the_finest_series_that_is_long_enough_tells() -> None:
    fine, coarse = pack(10.0, [[0.5] * 3]), pack(30.0, [[1.0] * 10])
    for found in ([fine, coarse], [coarse, fine]):
        assert windows(found, 30.0, 1) == [[0.5]]
        assert windows(found, 30.0, 2) == [[1.0, 1.0]]


def test_one_gap_of_one_device_hides_all() -> None:
    whole = [0.0, 0.0, 0.0, 0.0]
    for at in range(4):
        holed = [None if n == at else share for n, share in enumerate(whole)]
        assert windows([pack(10.0, [whole, holed])], 20.0, 2) is None
        # A coarser one does not know better.
        assert windows([pack(10.0, [whole, holed]), pack(20.0, [whole, whole])], 20.0, 2) is None
    assert windows([pack(10.0, [[None, *whole], [0.0, *whole]])], 20.0, 2) is not None, "that was earlier"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


HOSTILE = [
    Series(2.0, 1, "not base64!"),
    Series(2.0, 1, "AAA"),
    Series(2.0, 1, "ÄÄÄÄ"),
    Series(2.0, 1, "\ud800"),
    Series(2.0, 1, ""),
    Series(2.0, 2, encoded(bytes(301))),
    Series(2.0, 0, encoded(bytes(300))),
    Series(2.0, -1, encoded(bytes(300))),
    Series(2.0, 10**30, encoded(bytes(300))),
    Series(-2.0, 1, encoded(bytes(300))),
    Series(0.0, 1, encoded(bytes(300))),
    Series(float("nan"), 1, encoded(bytes(300))),
    Series(float("inf"), 1, encoded(bytes(300))),
    Series(float("-inf"), 1, encoded(bytes(300))),
    # So small that a window has more of them than any number has.
    Series(5e-324, 1, encoded(bytes(300))),
    Series(1e300, 1, encoded(bytes(300))),
    Series(2.0, 1, encoded(bytes(100_000))),
]


@pytest.mark.parametrize("series", HOSTILE)
def test_what_makes_no_sense_says_nothing(series: Series) -> None:
    assert windows([series], 300.0, 1) is None
    good = pack(60.0, [[0.5] * 5])
    assert windows([series, good], 300.0, 1) == windows([good, series], 300.0, 1) == [[0.5]]


@given(
    st.lists(
        st.builds(
            Series,
            st.floats(),
            st.integers(-3, 2000) | st.integers(),
            st.text() | st.binary(max_size=300).map(encoded),
        ),
        max_size=4,
    ),
    st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
    st.integers(1, 10**9),
)
def test_nothing_raises(found: list[Series], window_s: float, count: int) -> None:
    told = windows(found, window_s, count)
    assert told is None or all(0 <= mean <= 1 for device in told for mean in device)
    assert told is None or all(len(device) == count for device in told)
