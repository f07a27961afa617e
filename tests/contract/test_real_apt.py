"""The real apt, in a Debian of its own: a repository on loopback, with a password and without, and locks in the way."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.agent.environment import apt
from stoker.agent.environment.steps import SetupSteps
from stoker.agent.logs.log_pump import say
from stoker.agent.runtime import HostRuntime
from stoker.model.errors import SetupFailed
from stoker.model.spec import PackageIndex
from stoker.processes import TRAINING, make_group
from tests.support.deb_repository import Deb, deb_repository, make_deb
from tests.support.machines import why_no_machines
from tests.support.machines.images import BOOKWORM
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

# What shells, lists of words and addresses might stumble over.
PASSWORD = "hunter2-%#'\"$x"
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
PATIENCE_S = 60.0

_MOUNT = r"""
root=$1/root
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$root" || exit 1
mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/dev/shm" || exit 1
for one in null zero random urandom; do
    touch "$root/dev/$one" && mount --bind "/dev/$one" "$root/dev/$one" || exit 1
done
echo ready
exec sleep infinity
"""


class Debian:
    """A fresh Debian, in this network. Its mounts vanish with the process that holds their namespace."""

    def __init__(self, folder: Path) -> None:
        for name in ("upper", "work", "root"):
            (folder / name).mkdir()
        command = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(folder), str(BOOKWORM.path)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None and self._holder.stdout.readline() == b"ready\n"
        self.entering = ("nsenter", "--target", str(self._holder.pid), "--mount", "chroot", str(folder / "root"))
        # What differs from the image.
        self.changed = folder / "upper"
        self.log = folder / "train.log"
        self.pauses_s: tuple[float, ...] = ()
        self._folder = folder
        self._group = make_group(TRAINING, f"apt-{os.getpid()}", sessions=folder / "sessions")

    def run(self, *command: str) -> str:
        return subprocess.run([*self.entering, *command], env=ENV, capture_output=True, text=True, check=True).stdout

    def install(self, *packages: str, mirror: PackageIndex | None = None, check_only: bool = False) -> str:
        """Run the step as the agent would, but in here. Answers what is in the log."""
        step = apt.install_step(
            packages, mirror, lambda _field, _ref: PASSWORD, ENV, self._folder, check_only=check_only
        )
        assert PASSWORD not in " ".join(step.command.argv) + str(step.command.env)
        inside = replace(step.command, argv=(*self.entering, *step.command.argv))
        self.log.write_text("")
        steps = SetupSteps(
            HostRuntime(self._group), self.log, lambda text: say(self.log, text), lambda: None, pauses_s=self.pauses_s
        )
        steps.run(replace(step, command=inside))
        return self.log.read_text()

    def close(self) -> None:
        self._group.kill()
        self._group.close()
        self._holder.kill()
        self._holder.wait()


if isolated():

    @pytest.fixture(scope="module")
    def debs() -> list[Deb]:
        return [make_deb("stoker-tiny", "1.0", depends=("stoker-base",)), make_deb("stoker-base", "2.0")]

    @pytest.fixture
    def debian(tmp_path: Path) -> Iterator[Debian]:
        made = Debian(tmp_path)
        yield made
        made.close()

    def test_from_a_flat_repository(debs: list[Deb], debian: Debian) -> None:
        with deb_repository(*debs) as repository:
            mirror = PackageIndex(f"[trusted=yes] {repository.url} ./")
            said = debian.install("stoker-tiny", mirror=mirror)
            assert "Setting up stoker-tiny (1.0)" in said and "Setting up stoker-base (2.0)" in said
            asked = len(repository.requests)
            said = debian.install("stoker-tiny", "stoker-base=2.0", mirror=mirror)
            assert "installed already: stoker-tiny stoker-base=2.0" in said
            assert len(repository.requests) == asked, "what is satisfied asks nobody"
            with pytest.raises(SetupFailed, match=r"Version '3.0' for 'stoker-base' was not found"):
                debian.install("stoker-base=3.0", mirror=mirror)
        assert debian.run("cat", "/usr/share/stoker-tiny/version") == "1.0\n"
        # The machine's own sources and lists are as they were.
        assert not list(debian.changed.glob("etc/apt/**/*"))
        assert not list(debian.changed.glob("var/lib/apt/lists/*debian*"))

    def test_from_a_mirror_of_this_release_with_a_password(debs: list[Deb], debian: Debian) -> None:
        with deb_repository(*debs, password=PASSWORD, user="jane") as repository:
            url = f"[trusted=yes] {repository.url}".replace("//", "//jane@")
            said = debian.install("stoker-tiny", mirror=PackageIndex(url, "env:PASSWORD"))
            assert "Setting up stoker-tiny (1.0)" in said
            assert "/debian/dists/bookworm-updates/Release" in repository.requests
            assert repository.refused == 0
        assert PASSWORD not in said
        left = [path for path in debian.changed.rglob("*") if path.is_file()]
        assert any(path.name == "version" for path in left)
        assert not [path for path in left if PASSWORD.encode() in path.read_bytes()]
        assert debian.run("sh", "-c", "ls -A /dev/shm /tmp").split() == ["/dev/shm:", "/tmp:"]

    def test_a_wrong_password_is_said(debs: list[Deb], debian: Debian) -> None:
        with deb_repository(*debs, password="another") as repository:
            with pytest.raises(SetupFailed, match="Unable to locate package stoker-tiny") as failure:
                debian.install("stoker-tiny", mirror=PackageIndex(f"[trusted=yes] {repository.url} ./", "env:PASSWORD"))
            assert repository.refused and failure.value.user
        assert "401  Unauthorized" in debian.log.read_text()

    @pytest.mark.parametrize("host", ["127.0.0.1:1", "mirror.invalid"])
    def test_a_mirror_that_does_not_answer_is_the_machines_fault(debian: Debian, host: str) -> None:
        debian.pauses_s = (0.0,)
        with pytest.raises(SetupFailed) as failure:
            debian.install("stoker-tiny", mirror=PackageIndex(f"[trusted=yes] http://{host}/debian ./"))
        assert not failure.value.user
        told = f"environment.apt: stoker-tiny cannot be installed: http://{host}/debian/./InRelease does not answer ("
        assert str(failure.value).startswith(told)
        assert debian.log.read_text().count("running apt (stoker-tiny)") == 2

    @pytest.mark.parametrize(
        ("lock", "says", "mirrored"),
        [
            ("/var/lib/dpkg/lock-frontend", "Waiting for cache lock", True),
            ("/var/lib/apt/lists/lock", "waiting for another apt-get to end", False),
        ],
    )
    def test_it_waits_for_another_apt(debs: list[Deb], debian: Debian, lock: str, says: str, mirrored: bool) -> None:
        """A new machine updates itself when it boots."""
        hold = f"import fcntl, sys\nfile = open({lock!r}, 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
        holder = subprocess.Popen(
            [*debian.entering, "python3", "-c", f"{hold}print('held', flush=True)\nsys.stdin.read()\n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
        )
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"

        def let_go() -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while says not in debian.log.read_text() and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert holder.stdin is not None
            holder.stdin.close()

        debian.log.write_text("")
        watching = threading.Thread(target=let_go)
        with deb_repository(*debs) as repository:
            source = f"[trusted=yes] {repository.url} ./"
            if not mirrored:
                debian.run("sh", "-c", f"echo 'deb {source}' >/etc/apt/sources.list")
            watching.start()
            said = debian.install("stoker-tiny", mirror=PackageIndex(source) if mirrored else None)
        watching.join()
        holder.wait()
        assert says in said and "Setting up stoker-tiny" in said

    def test_somebodys_own_computer_is_not_changed(debs: list[Deb], debian: Debian) -> None:
        with deb_repository(*debs) as repository:
            mirror = PackageIndex(f"[trusted=yes] {repository.url} ./")
            with pytest.raises(SetupFailed) as failure:
                debian.install("python3", "stoker-tiny", mirror=mirror, check_only=True)
            assert not repository.requests
        assert "not installed on this computer, which Stoker never changes: stoker-tiny;" in str(failure.value)
        assert "installed already: python3" in debian.install("python3", check_only=True)
        assert not list(debian.changed.rglob("stoker-tiny*"))

else:

    def test_apt_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
