"""Packages on machines that really boot: wheels where there is no index, and the real apt with a mirror's password."""

from __future__ import annotations

import boto3
import pytest
from cloud_world import CloudWorld
from ec2_world import Ec2World

from tests.support.deb_repository import deb_repository, make_deb
from tests.support.machines import why_no_machines
from tests.support.package_index import make_wheel, package_index
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

PASSWORD = "hunter2-Zm9v%#'x&9"
ALPHA = make_wheel("alpha", "1.0", requires=("beta",))
BETA = make_wheel("beta", "2.0", tag="cp311-cp311-manylinux_2_17_x86_64")
# Waits, so that the machine can be looked into.
WAITS = """
from pathlib import Path
import time
print("it waits", flush=True)
while not Path("/tmp/go").exists(): time.sleep(0.1)
"""

if isolated():

    @pytest.fixture(params=["ec2", "gce"])
    def lent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CloudWorld:
        """A world on each cloud in turn, where uv has no sources of this computer's own."""
        for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        found: CloudWorld = request.getfixturevalue(request.param)
        monkeypatch.setenv("UV_CACHE_DIR", str(found.root / "uv-cache"))
        return found

    def test_wheels_where_there_is_no_index(lent: CloudWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        lent.write("import alpha, beta, sys\nprint('alpha', alpha.__version__, 'beta', beta.__version__, sys.prefix)\n")
        (lent.code / "requirements.txt").write_text("alpha\n")
        with package_index(ALPHA, BETA, make_wheel("beta", "3.0", tag="cp312-cp312-manylinux_2_17_x86_64")) as index:
            monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
            job = lent.submit(environment={"wheels": "pack"})
        # From here on there is none.
        with lent.governed():
            summary = lent.ended(job)
        assert summary.phase == "succeeded", lent.story(job)
        (said,) = [line for line in lent.lines(job) if line.startswith("alpha 1.0 beta 2.0")]
        assert "/environments/" in said
        assert len(list(lent.store.list("wheels/"))) == 2

    def test_apt_with_a_mirrors_password(ec2: Ec2World) -> None:
        """The password is kept in Parameter Store, read on the machine, and on no disk of it."""
        ssm = boto3.client("ssm", endpoint_url=ec2.cloud.endpoint, region_name="us-east-1")
        ssm.put_parameter(Name="/team/mirror", Value=PASSWORD, Type="SecureString", Overwrite=True)
        ec2.write(f"print(open('/usr/share/stoker-tiny/version').read(), flush=True)\n{WAITS}")
        debs = [make_deb("stoker-tiny", "1.7", depends=("stoker-base",)), make_deb("stoker-base", "2.0")]
        with deb_repository(*debs, password=PASSWORD, user="jane", host="0.0.0.0") as repository:
            url = f"[trusted=yes] {repository.url_at(ec2.cloud.gateway)}".replace("//", "//jane@")
            job = ec2.submit(
                environment={
                    "apt": ["stoker-tiny", "python3"],
                    "apt_mirror": {"url": url, "secret": "aws-ssm:/team/mirror"},
                }
            )
            with ec2.governed():
                ec2.until(job, lambda: "it waits" in ec2.lines(job), "it trains")
                machine = ec2.machine(job)
                search = ["grep", "-rlF", "--devices=skip", "--exclude-dir=proc", "--exclude-dir=sys", PASSWORD, "/"]
                assert machine.run(*search, check=False, limit_s=120) == ""
                assert "ii" in machine.run("dpkg", "-l", "stoker-base")
                machine.run("touch", "/tmp/go")
                summary = ec2.ended(job)
            assert repository.refused == 0
        assert summary.phase == "succeeded", ec2.story(job)
        lines = ec2.lines(job)
        assert "1.7" in lines and "[stoker] running apt (stoker-tiny, python3)" in lines
        left = [
            meta.key for meta in ec2.store.list("") if PASSWORD.encode() in (ec2.store.get_from(meta.key, 0) or b"")
        ]
        assert not left

    def test_apt_that_has_no_such_package(ec2: Ec2World) -> None:
        ec2.write("print('never')\n")
        with deb_repository(make_deb("stoker-base", "2.0"), host="0.0.0.0") as repository:
            url = f"[trusted=yes] {repository.url_at(ec2.cloud.gateway)} ./"
            job = ec2.submit(environment={"apt": ["stoker-nonesuch"], "apt_mirror": {"url": url}})
            with ec2.governed():
                summary = ec2.ended(job)
        assert summary.phase == "failed", ec2.story(job)
        told = "environment.apt: stoker-nonesuch cannot be installed: Unable to locate package stoker-nonesuch"
        assert told in summary.reason

else:

    def test_packages_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__)
