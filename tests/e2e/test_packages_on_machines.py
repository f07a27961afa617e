"""Packages on machines of every cloud that really boot: installed on the first, restored on the next ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloud_world import CloudWorld

from tests.support.machines import why_no_machines
from tests.support.package_index import PackageIndex, make_wheel, package_index
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

TRAIN = """\
import sys
import alpha, beta
print("alpha", alpha.__version__, "beta", beta.__version__, "in", sys.prefix, flush=True)
"""

if isolated():

    @pytest.fixture(params=["ec2", "gce"])
    def lent(request: pytest.FixtureRequest) -> CloudWorld:
        found: CloudWorld = request.getfixturevalue(request.param)
        return found

    @pytest.fixture
    def index(lent: CloudWorld) -> Iterator[PackageIndex]:
        """An index that the machines reach, and nobody else."""
        wheels = (make_wheel("alpha", "1.0", requires=["beta"]), make_wheel("beta", "2.0"))
        with package_index(*wheels, host=lent.cloud.gateway) as served:
            yield served

    def test_the_next_machines_restore_what_the_first_has_made(lent: CloudWorld, index: PackageIndex) -> None:
        lent.write(TRAIN)
        (lent.code / "requirements.txt").write_text("alpha\n")
        settings = {"UV_DEFAULT_INDEX": index.url_at(lent.cloud.gateway)}
        with lent.governed():
            first = lent.submit(env=settings)
            assert lent.ended(first).phase == "succeeded", lent.story(first)
            said = lent.lines(first)
            assert "[stoker] requirements.txt: building an environment on Python 3.11.2 (/usr/bin/python3)" in said
            assert any(
                line.startswith("[stoker] the environment (") and "is stored for the next time" in line for line in said
            )
            asked = len(index.requests)
            second = lent.submit(env=settings, nodes=2)
            assert lent.ended(second).phase == "succeeded", lent.story(second)
        trained = [line for line in said if line.startswith("alpha ")]
        assert trained[0].startswith("alpha 1.0 beta 2.0 in /var/lib/stoker/environments/")
        lines = lent.lines(second)
        # On both nodes, at the same place.
        assert [line for line in lines if line.startswith("alpha ")] == trained * 2, lent.story(second)
        assert len([line for line in lines if line.startswith("[stoker] requirements.txt: restored from the")]) == 2
        assert len(index.requests) == asked, "the index was asked for what is in the store"

else:

    def test_packages_on_machines_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
