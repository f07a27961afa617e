"""Every measurement of `make bench` in its short form, so that none can rot. No speed is asserted."""

from __future__ import annotations

import math

import pytest
from bench.__main__ import MEASUREMENTS
from bench.figures import SHORT, Measurement


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda measurement: measurement.names[0])
def test_a_measurement_finds_all_its_figures(measurement: Measurement) -> None:
    if (why := measurement.why_not()) is not None:
        pytest.skip(why)
    values = measurement.measure(SHORT)
    assert set(values) == set(measurement.names)
    for figure in measurement.figures:
        assert math.isfinite(values[figure.name]), figure.name
        assert figure.difference or values[figure.name] >= 0, figure.name
