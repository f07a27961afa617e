"""Networks for machines, out of kernel objects that vanish with the process that made them.

Namespaces have no names and no files, only descriptors of this process. The bridge stands in one of them; a link leads
from it to the test's own namespace, and one to each machine. When this process is gone, however it went, so is all of
that, the link in the test's namespace included.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.support.servers import CLOUD_LINK

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)

# The first address is the test's side; machines follow, and none is given out twice.
_FIRST_MACHINE = 10
_LAST_MACHINE = 254


class Namespace:
    """A network namespace that lives as long as this object or any process in it."""

    def __init__(self) -> None:
        self._fd: int = _in_thread(_new_namespace)
        self.inside(lambda: _ip("link set lo up"))

    @property
    def path(self) -> str:
        """What another process may open to join, as long as this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def inside(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread that has joined. Sockets and processes made there stay there."""

        def joined() -> T:
            _check(_LIBC.setns(self._fd, _CLONE_NEWNET))
            return work()

        return _in_thread(joined)

    def close(self) -> None:
        """Let go of it. It ends with the last process inside."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Network:
    """One /24 with a bridge. `gateway` is an address of the test's own namespace."""

    def __init__(self) -> None:
        self._bridge = Namespace()
        self._links = 0
        self._lock = threading.Lock()
        self._bridge.inside(lambda: _ip("link add cloud type bridge", "link set cloud up"))
        self.number = self._take_number()
        self.prefix = f"10.{64 + self.number // 256}.{self.number % 256}"
        self.gateway = f"{self.prefix}.1"
        link = f"{CLOUD_LINK}{self.number}"
        _ip(f"addr add {self.gateway}/24 dev {link}", f"link set {link} up")
        self._bridge.inside(lambda: _ip("link set test master cloud", "link set test up"))

    def _take_number(self) -> int:
        # Several clouds share the test's namespace. A name can be given to one link only: that is the lock.
        for number in range(1000):
            try:
                _ip(f"link add {CLOUD_LINK}{number} type veth peer name test netns {self._bridge.path}")
            except OSError as error:
                if "File exists" not in str(error):
                    raise
                continue
            return number
        raise OSError("no number is free for another network")

    def plug(self, machine: Namespace) -> tuple[str, str]:
        """Give a machine's namespace an eth0 on the bridge; its address, and the name of the bridge's end."""
        with self._lock:
            self._links += 1
            host = _FIRST_MACHINE + self._links - 1
        if host > _LAST_MACHINE:
            raise OSError("this network has no more addresses")
        address, link = f"{self.prefix}.{host}", f"m{host}"
        self._bridge.inside(
            lambda: _ip(
                f"link add {link} type veth peer name eth0 netns {machine.path}",
                f"link set {link} master cloud up",
            )
        )
        machine.inside(lambda: _ip(f"addr add {address}/24 dev eth0", "link set eth0 up"))
        return address, link

    def connect(self, link: str, connected: bool) -> None:
        """Cut a machine off from everybody, or join it again."""
        self._bridge.inside(lambda: _ip(f"link set {link} {'up' if connected else 'down'}"))

    def close(self) -> None:
        self._bridge.close()


def _new_namespace() -> int:
    _check(_LIBC.unshare(_CLONE_NEWNET))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _check(returned: int) -> None:
    if returned != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _in_thread(work: Callable[[], T]) -> T:
    """A thread may change its namespace; it must then end, for nobody else may use it."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _ip(*commands: str) -> None:
    # One process for them all, which stops at the first that fails.
    told = "".join(f"{command}\n" for command in commands)
    ran = subprocess.run(["ip", "-batch", "-"], input=told, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise OSError(f"ip: {'; '.join(commands)}: {ran.stderr.strip()}")
