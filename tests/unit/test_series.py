"""Series of utilisation: what is packed comes back, and what makes no sense says nothing."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.node_facts import Series
from stoker.model.usage_series import all_idle, device_means, pack, unpack

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


def test_means_are_of_the_newest() -> None:
    series = pack(10.0, [[1.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]])
    assert device_means([series], 20.0) == [0.75, 1.0]
    assert device_means([series], 50.0) == [0.6, 0.4]
    assert device_means([series], 35.0) == device_means([series], 40.0) == [0.5, 0.5], "no part of it is left out"
    assert device_means([series], 50.1) is None, "it is not long enough"
    assert device_means([series], 4.0) is None, "it is too coarse"
    assert device_means([], 20.0) is None


def test_the_finest_series_that_is_long_enough_tells() -> None:
    fine, coarse = pack(10.0, [[0.5] * 3]), pack(30.0, [[1.0] * 10])
    for found in ([fine, coarse], [coarse, fine]):
        assert device_means(found, 30.0) == [0.5]
        assert device_means(found, 60.0) == [1.0]


def test_one_gap_of_one_device_hides_all() -> None:
    whole = [0.0, 0.0, 0.0, 0.0]
    for at in range(4):
        holed = [None if n == at else share for n, share in enumerate(whole)]
        fine = pack(10.0, [whole, holed])
        assert device_means([fine], 40.0) is None and not all_idle([fine], 20.0, 2, 0.01, 2)
        # A coarser one does not know better.
        coarse = pack(20.0, [whole, whole])
        assert device_means([fine, coarse], 40.0) is None and not all_idle([fine, coarse], 20.0, 2, 0.01, 2)
    earlier = pack(10.0, [[None, *whole], [0.0, *whole]])
    assert device_means([earlier], 40.0) is not None and all_idle([earlier], 20.0, 2, 0.01, 2), "that was earlier"


def test_all_devices_are_quiet_in_each_window() -> None:
    series = pack(10.0, [[1.0, 0.0, 0.02, 0.01, 0.01], [1.0, 0.0, 0.0, 0.0, 0.0]])
    assert all_idle([series], 20.0, 2, 0.01, 2)
    assert not all_idle([series], 10.0, 4, 0.01, 2), "one of these is above"
    assert not all_idle([series], 20.0, 2, 0.005, 2)
    assert not all_idle([series], 20.0, 2, 0.01, 3), "there is one more that nobody can read"
    assert not all_idle([series], 50.0, 1, 0.01, 2) and not all_idle([series], 20.0, 3, 1.0, 2), "it does not reach"
    assert not all_idle([], 20.0, 2, 1.0, 0)


def test_a_period_longer_than_a_window_gets_the_windows_share_of_it() -> None:
    """A window of half a period may have been above in a period that is, in the mean, at half of it."""
    for share, told in ((0.5, True), (0.505, False)):
        assert all_idle([pack(20.0, [[0.0, share, 0.0]])], 10.0, 6, 1.0, 1) is told
    # So it is where periods make no whole window: three quarters here.
    for share, told in ((0.75, True), (0.755, False)):
        assert all_idle([pack(10.0, [[share] * 6])], 15.0, 4, 1.0, 1) is told


def test_what_a_coarse_series_does_not_tell_yet_a_finer_one_does() -> None:
    coarse, busy = pack(60.0, [[0.0] * 90]), [*[0.0] * 119, 1.0]
    assert all_idle([coarse, pack(1.0, [[0.0] * 120])], 10.0, 18, 0.01, 1)
    assert not all_idle([coarse, pack(1.0, [busy])], 10.0, 18, 0.01, 1)
    assert not all_idle([coarse, pack(1.0, [[None] * 120])], 10.0, 18, 0.01, 1)
    # It has no window that long.
    assert all_idle([coarse, pack(1.0, [busy])], 300.0, 3, 0.01, 1)


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
    assert device_means([series], 300.0) is None and not all_idle([series], 300.0, 1, 1.0, 0)
    good = pack(60.0, [[0.5] * 5])
    assert device_means([series, good], 300.0) == device_means([good, series], 300.0) == [0.5]
    assert all_idle([series, good], 300.0, 1, 0.5, 1) and not all_idle([series, good], 300.0, 1, 0.4, 1)


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
    told = device_means(found, window_s)
    assert told is None or all(0 <= mean <= 1 for mean in told)
    assert all_idle(found, window_s, count, 1.0, 0) in (True, False)
