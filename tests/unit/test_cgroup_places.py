"""Where cgroups are mounted, and which of them is a process's own."""

from __future__ import annotations

import pytest

from stoker.processes.cgroup import CgroupMount, find_mount, find_path


class TestWhereCgroupsAre:
    def test_alone_beside_version_1_and_in_a_container(self) -> None:
        pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        mixed = (
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw\n"
        )
        mixed += "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
        inner = "30 23 0:26 /docker/abc /sys/fs/my\\040cgroup ro shared:4 master:1 - cgroup2 cgroup rw\n"
        assert find_mount(pure) == CgroupMount("/sys/fs/cgroup", "/")
        assert find_mount(mixed) == CgroupMount("/sys/fs/cgroup/unified", "/")
        assert find_mount(inner) == CgroupMount("/sys/fs/my cgroup", "/docker/abc")
        assert find_mount("31 23 0:28 / /sys/fs/cgroup rw - tmpfs cgroup2 rw\n") is None

    def test_the_own_path(self) -> None:
        assert find_path("12:pids:/x\n0::/user.slice/a.scope\n") == "/user.slice/a.scope"
        assert find_path("12:pids:/x\n") is None

    @pytest.mark.parametrize(
        ("mount", "path", "folder"),
        [
            (CgroupMount("/sys/fs/cgroup", "/"), "/", "/sys/fs/cgroup"),
            (CgroupMount("/sys/fs/cgroup", "/"), "/user.slice/a.scope", "/sys/fs/cgroup/user.slice/a.scope"),
            (CgroupMount("/cg", "/docker/abc"), "/docker/abc", "/cg"),
            (CgroupMount("/cg", "/docker/abc"), "/docker/abc/x", "/cg/x"),
            (CgroupMount("/cg", "/docker/abc"), "/docker/abcd", None),
            (CgroupMount("/cg", "/docker/abc"), "/", None),
        ],
    )
    def test_folders_and_paths(self, mount: CgroupMount, path: str, folder: str | None) -> None:
        assert mount.folder(path) == folder
        if folder is not None:
            assert mount.path(folder + "/x") == path.rstrip("/") + "/x"
