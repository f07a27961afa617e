"""A program's own view of the file system: it and its children see it, and nobody else does."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stoker
from stoker.processes import TRAINING, Group, NotMounted, make_group, open_for_writing

SOURCES = Path(stoker.__file__).parents[1]
NOBODY = 65534
# One that everybody may run.
PYTHON = "/usr/bin/python3"


@pytest.fixture(params=["cgroup", "marks"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    try:
        made = make_group(
            TRAINING, f"view-{os.getpid()}", sessions=tmp_path / "sessions", cgroup=request.param == "cgroup"
        )
    except OSError as error:
        pytest.skip(str(error))
    yield made
    made.kill()
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "ml" / "checkpoints").mkdir(parents=True)
    (tmp_path / "ml" / "code").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello").write_text("hello\n")
    return tmp_path


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def said(group: Group, script: str, mounts: list[tuple[Path | str, ...]], cwd: str = "/") -> str:
    run = group.spawn(
        ["sh", "-c", script], mounts=[tuple(map(str, each)) for each in mounts], cwd=cwd, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    with run.stdout:
        text = run.stdout.read().decode()
    assert run.wait() == 0
    return text


def test_it_sees_a_folder_where_there_is_none_and_nobody_else_does(group: Group, tree: Path) -> None:
    before = sorted(path.name for path in Path("/opt").iterdir())
    mounts: list[tuple[Path | str, ...]] = [
        (tree / "ml", "/opt/stoker-test"),
        (tree / "code", "/opt/stoker-test/code"),
    ]
    text = said(group, "pwd; cat hello; echo saved > ../checkpoints/one; ls /opt", mounts, "/opt/stoker-test/code")
    assert text.split("\n")[0] == "/opt/stoker-test/code"
    assert "hello" in text
    # What else is there is still there.
    assert sorted(text.split()[-len(before) - 1 :]) == sorted([*before, "stoker-test"])
    assert (tree / "ml" / "checkpoints" / "one").read_text() == "saved\n"
    assert sorted(path.name for path in Path("/opt").iterdir()) == before


def test_a_folder_that_is_there_is_covered_and_not_touched(group: Group, tree: Path) -> None:
    there = tree / "there"
    there.mkdir()
    (there / "own").write_text("own")
    assert said(group, f"ls {there}; touch {there}/new", [(tree / "code", str(there))]).split() == ["hello"]
    assert [path.name for path in there.iterdir()] == ["own"]
    assert (tree / "code" / "new").exists()


def test_what_is_only_for_reading_is_not_written_to(group: Group, tree: Path) -> None:
    (tree / "one").write_text("1")
    (tree / "ml" / "one").touch()
    mounts: list[tuple[Path | str, ...]] = [
        (tree / "ml", "/opt/stoker-test"),
        (tree / "code", "/opt/stoker-test/code", "ro"),
        (tree / "one", "/opt/stoker-test/one", "ro"),
    ]
    script = "cd /opt/stoker-test; cat code/hello one; for at in code/new one free; do touch $at || echo no $at; done"
    assert said(group, f"({script}) 2>/dev/null", mounts).split() == ["hello", "1no", "code/new", "no", "one"]
    assert (tree / "ml" / "free").exists() and not (tree / "code" / "new").exists()
    (tree / "code" / "new").touch()  # Nobody else is kept from it.


def test_two_at_once_each_see_their_own(group: Group, tree: Path) -> None:
    runs = []
    for number in (1, 2):
        folder = tree / str(number)
        folder.mkdir()
        script = f"echo {number} > /opt/stoker-test/mine; while [ ! -e /opt/stoker-test/go ]; do sleep 0.02; done"
        runs.append(group.spawn(["sh", "-c", script], mounts=[(str(folder), "/opt/stoker-test")], cwd="/"))
    for number in (1, 2):
        mine = tree / str(number) / "mine"
        until(lambda mine=mine: mine.exists() and mine.read_text())
    for number in (1, 2):
        assert (tree / str(number) / "mine").read_text() == f"{number}\n"
        (tree / str(number) / "go").touch()
    assert [run.wait() for run in runs] == [0, 0]


def test_a_file_may_be_exchanged_and_names_be_found_in_it(group: Group, tree: Path) -> None:
    hosts = tree / "hosts"
    hosts.write_text("127.0.0.9 algo-7\n")
    assert said(group, "getent hosts algo-7", [(hosts, "/etc/hosts")]).split() == ["127.0.0.9", "algo-7"]
    assert "algo-7" not in Path("/etc/hosts").read_text()


def test_a_machine_may_have_another_name_with_mounts_and_without(group: Group, tree: Path) -> None:
    before = socket.gethostname()
    for mounts in ([], [(str(tree / "code"), "/opt/stoker-test")]):
        run = group.spawn(
            ["sh", "-c", "uname -n; sh -c 'uname -n'; pwd"],
            mounts=mounts,
            hostname="node-7",
            cwd=tree,
            stdout=subprocess.PIPE,
        )
        assert run.communicate()[0].decode().split() == ["node-7", "node-7", str(tree)]
    assert socket.gethostname() == before


def test_a_missing_folder_of_the_root_itself(group: Group, tree: Path) -> None:
    """Without a folder /opt, for one."""
    text = said(group, "ls -d /stoker-test/a/b /etc/passwd /proc/self/fd; pwd", [(tree, "/stoker-test/a/b")])
    assert text.split() == ["/etc/passwd", "/proc/self/fd", "/stoker-test/a/b", "/"]
    assert not Path("/stoker-test").exists()


def test_a_link_to_nowhere_gives_way(group: Group, tree: Path) -> None:
    (tree / "above").mkdir()
    (tree / "above" / "link").symlink_to("/nowhere")
    (tree / "above" / "kept").symlink_to("/etc")
    (tree / "above" / "pipe").touch()
    text = said(group, f"cd {tree}/above; ls link; readlink kept; ls", [(tree / "code", f"{tree}/above/link")])
    assert text.split() == ["hello", "/etc", "kept", "link", "pipe"]
    assert (tree / "above" / "link").is_symlink()


def test_what_it_writes_is_found_by_the_folders_own_name(group: Group, tree: Path) -> None:
    script = "exec 5>/opt/stoker-test/checkpoints/open; echo ready > /opt/stoker-test/ready; sleep 600"
    group.spawn(["sh", "-c", script], mounts=[(str(tree / "ml"), "/opt/stoker-test")], cwd="/")
    until((tree / "ml" / "ready").exists)
    folder = tree / "ml" / "checkpoints"
    found = set(open_for_writing(group.members(), folder, ["/opt/stoker-test/checkpoints"]).files)
    assert found == {folder / "open"}
    assert not open_for_writing(group.members(), folder).files, "the kernel names it as the program does"


def test_it_is_signalled_frozen_and_killed_like_any_other(group: Group, tree: Path) -> None:
    script = (
        'trap "echo term > /opt/stoker-test/told" TERM; echo > /opt/stoker-test/ready; while :; do sleep 0.05; done'
    )
    run = group.spawn(
        ["sh", "-c", script], mounts=[(str(tree / "ml"), "/opt/stoker-test")], cwd="/", dies_with_parent=True
    )
    until((tree / "ml" / "ready").exists)
    os.kill(run.pid, signal.SIGTERM)
    until((tree / "ml" / "told").exists)
    assert group.freeze(60.0)
    group.thaw()
    assert group.kill(60.0)
    assert run.wait() == -signal.SIGKILL
    assert not group.members()


def test_what_is_not_there_is_told_apart_from_what_is_not_allowed(group: Group, tree: Path) -> None:
    mounts = [(str(tree / "ml"), "/opt/stoker-test")]
    with pytest.raises(FileNotFoundError) as missing:
        group.spawn(["no-such-program"], mounts=mounts, cwd="/")
    assert missing.value.filename == "no-such-program"
    with pytest.raises(NotMounted, match=r"going to /opt/stoker-test/none: No such file"):
        group.spawn(["true"], mounts=mounts, cwd="/opt/stoker-test/none")
    with pytest.raises(NotMounted, match="mounting at /opt/stoker-test: No such file"):
        group.spawn(["true"], mounts=[(str(tree / "none"), "/opt/stoker-test")], cwd="/")


# ── Who may ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_AS_SOMEBODY = """
import subprocess, sys
from pathlib import Path
from stoker.processes import TRAINING, NotMounted, make_group, open_for_writing

root = Path(sys.argv[1])
(root / "ml").mkdir()
group = make_group(TRAINING, "somebody", sessions=root / "sessions")
try:
    script = "exec 5>/opt/stoker-test/open; uname -n; id -u; grep CapEff /proc/self/status; echo; exec sleep 600"
    run = group.spawn(
        ["sh", "-c", script], mounts=[(str(root / "ml"), "/opt/stoker-test")], cwd="/", stdout=subprocess.PIPE,
        hostname="node-7",
    )
except NotMounted as refused:
    print("refused:", refused.strerror)
    sys.exit()
lines = [run.stdout.readline().decode().split()[-1] for _ in range(3)]
print(*lines)
print(sorted(path.name for path in open_for_writing(group.members(), root / "ml", ["/opt/stoker-test"]).files))
print(group.kill(), run.wait())
"""


def _run_as(prefix: list[str], user: int, folder: str) -> str:
    script = textwrap.dedent(_AS_SOMEBODY)
    ran = subprocess.run(
        [*prefix, PYTHON, "-c", script, folder],
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def open_folder() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    if not all(each.stat().st_mode & stat.S_IXOTH for each in (SOURCES, *SOURCES.parents)):
        pytest.skip("nobody else can read this package")
    if not Path(PYTHON).exists():
        pytest.skip(f"there is no {PYTHON}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield folder


def test_somebody_without_rights_stays_without(open_folder: str) -> None:
    if Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
        pytest.skip("this kernel has no user namespaces to give")
    lines = _run_as([], NOBODY, open_folder).splitlines()
    assert lines == [f"node-7 {NOBODY} {'0' * 16}", "['open']", "True -9"]


def test_where_it_is_not_allowed_one_line_says_so(open_folder: str) -> None:
    none = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin --inh-caps=-all "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", none, "sh"]
    assert _run_as(prefix, NOBODY, open_folder) == "refused: a user namespace: not allowed\n"
