"""The forms of single values, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.jobfile import Job
from stoker.jobfile.value_forms import (
    read_at_least,
    read_duration,
    read_gpus,
    read_size,
    write_duration,
    write_gpus,
    write_size,
)
from stoker.model.errors import SpecError
from stoker.model.resources import Gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86400),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("15m", 900),
        ("30", 30),
        (30, 30),
        (0.25, 0.25),
        ("0s", 0),
    ],
)
def test_durations(text: str | int | float, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "30m1h", "1h1h", "-5s", -5, "1:30", "24H", "five", "1 day", "3e4s"])
def test_what_is_no_duration(text: str | int) -> None:
    with pytest.raises(ValueError, match="such as 90s"):
        read_duration(text)


@settings(deadline=None)
@given(st.integers(0, 10**10))
def test_whole_durations_round_trip(seconds: int) -> None:
    assert read_duration(write_duration(float(seconds))) == seconds


@settings(deadline=None)
@given(st.floats(0, 1e9))
def test_any_duration_round_trips(seconds: float) -> None:
    assert read_duration(write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200GB", 200 * 10**9),
        ("64GiB", 64 * 2**30),
        ("64GB+", 64 * 10**9),
        ("64 gb", 64 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("7B", 7),
        ("0.1GiB", 107374182),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "200", 200, "GB", "200G", "-1GB", "200 XB", "1e3GB", 1.5])
def test_what_is_no_size(text: str | int | float) -> None:
    with pytest.raises(ValueError, match="with its unit"):
        read_size(text)


@settings(deadline=None)
@given(st.integers(1, 2**60))
def test_sizes_round_trip(size: int) -> None:
    assert read_size(write_size(size)) == size


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("A100:8", Gpus("A100", 8)),
        ("A100", Gpus("A100", 1)),
        ("8", Gpus("", 8)),
        (8, Gpus("", 8)),
        ("A100-80GB:4", Gpus("A100-80GB", 4)),
        (0, None),
    ],
)
def test_gpus(text: str | int, gpus: Gpus | None) -> None:
    assert read_gpus(text) == gpus


@pytest.mark.parametrize("text", ["", "A100:", ":8", "A100:0", "A100:x", "8:A100", "-1", 1.5, "A100 8"])
def test_what_is_no_gpus(text: str | float) -> None:
    with pytest.raises(ValueError, match="such as A100:8"):
        read_gpus(text)


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True) | st.just(""), st.integers(1, 64))
def test_gpus_round_trip(name: str, count: int) -> None:
    assert read_gpus(write_gpus(Gpus(name, count))) == Gpus(name, count)


def test_at_least() -> None:
    assert read_at_least("8+") == read_at_least(8) == read_at_least("8") == 8
    for wrong in ("", "+", "8++", "x", 1.5, "-1"):
        with pytest.raises(ValueError, match="whole number"):
            read_at_least(wrong)


@pytest.mark.parametrize("field", ["machine", "zones", "region", "subnet"])
@pytest.mark.parametrize("written", ["a,b", "a, b,", ["a,b"]])
def test_several_names_in_one_text(field: str, written: str | list[str]) -> None:
    """As other programs take them: `--zones=us-east-1a,us-east-1b`."""
    where = {"ec2": {field: written}} if field == "subnet" else {field: written}
    text = written if isinstance(written, str) else written[0]
    message = rf"resources\.(ec2\.)?{field}: '{text}' is one text; write several names as a list: \[a, b\]$"
    with pytest.raises(SpecError, match=message):
        Job(run="true", resources={"provider": "ec2", **where}).spec()
