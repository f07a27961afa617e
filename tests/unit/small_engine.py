"""A container engine of a page: namespaces of processes and mounts on this machine's own files, one program each call.

It knows what the agent asks of docker, keeps each container as a file beside itself, and fails as files say:
`images` and `remote` (JSON by name), `refuse` (what `create` says), `wordless` (containers end at once, with this code
and these words), `user` (the uid that containers run as), `away` (the daemon does not answer).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """#!/usr/bin/env python3
import ctypes, json, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(sys.argv[0]).parent
words = sys.argv[1:]
with (here / "asked").open("a") as file:
    file.write(json.dumps(words) + "\\n")
def read(name):
    path = here / name
    return json.loads(path.read_text()) if path.exists() else None
if (here / "away").exists():
    sys.exit("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?")
def fail(text, code=125):
    print(text, file=sys.stderr)
    sys.exit(code)
def record(name):
    return here / ("container-" + name)
def load(name):
    if not record(name).exists():
        fail("Error response from daemon: No such container: " + name, 1)
    return json.loads(record(name).read_text())
def alive(box):
    return bool(box.get("pid")) and os.path.exists(f"/proc/{box['pid']}/root")
verb = words[0]
if verb == "image":
    known = read("images") or {}
    if words[2] not in known:
        fail(f"Error: No such image: {words[2]}", 1)
    print(json.dumps([known[words[2]]]))
elif verb == "pull":
    remote = read("remote") or {}
    if words[-1] not in remote:
        fail("Error response from daemon: manifest unknown", 1)
    known = read("images") or {}
    known[words[-1]] = known[remote[words[-1]]["Id"]] = remote[words[-1]]
    for digest in remote[words[-1]].get("RepoDigests", []):
        known[digest] = remote[words[-1]]
    (here / "images").write_text(json.dumps(known))
elif verb == "info":
    print((here / "options").read_text() if (here / "options").exists() else "[]")
elif verb == "create":
    if words[1:] == ["--help"]:
        sys.exit(0)
    if (here / "refuse").exists():
        fail((here / "refuse").read_text())
    name = next(word.partition("=")[2] for word in words if word.startswith("--name="))
    if record(name).exists():
        fail(f'Error response from daemon: Conflict. The container name "/{name}" is already in use by another', 125)
    door = next(word for word in words if "target=/run/stoker" in word).split("source=")[1].split(",")[0]
    script = words[words.index("-c"):]
    record(name).write_text(json.dumps({"door": door, "script": script, "words": words}))
elif verb == "start":
    name = words[-1]
    box = load(name)
    quiet = read("wordless")
    if "--attach" in words:
        sys.stderr.write(quiet["said"] if quiet else "")
        record(name).unlink()
        sys.exit(quiet["code"] if quiet else 0)
    if quiet:
        record(name).unlink()
        sys.exit(0)
    uid = (here / "user").read_text() if (here / "user").exists() else "0"
    inner = 'mkdir -p /run/stoker && mount --bind "$1" /run/stoker && shift && exec "$@"'
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", *box["script"]]
    argv = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", inner, "x", box["door"], *command]
    child = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    while not (found := pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()):
        time.sleep(0.005)
    while uid != "0" and os.stat(f"/proc/{found[0]}").st_uid != int(uid):
        time.sleep(0.005)
    record(name).write_text(json.dumps({**box, "pid": int(found[0]), "outer": child.pid}))
elif verb == "inspect":
    box = load(words[-1])
    if any(word.startswith("--format=") for word in words):
        print("true" if alive(box) else "false")
    else:
        print(json.dumps([{"Id": "0f66a0602ed9", "State": {"Pid": box.get("pid", 0)}}]))
elif verb == "exec":
    rest = [word for word in words[1:]]
    folder = rest.pop(0).partition("=")[2]
    if rest[0].startswith("--user"):
        rest.pop(0)
    box = load(rest.pop(0))
    if not alive(box):
        fail("Error response from daemon: container is not running", 1)
    spaces = [os.open(f"/proc/{box['pid']}/ns/{kind}", os.O_RDONLY) for kind in ("pid", "mnt")]
    for space in spaces:
        if ctypes.CDLL(None).setns(space, 0):
            fail("it cannot be entered", 1)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.execvp(rest[0], rest)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)
elif verb == "rm":
    box = load(words[-1])
    if alive(box):
        os.kill(box["pid"], signal.SIGKILL)
    record(words[-1]).unlink()
"""


class SmallEngine:
    """The folder of a program called `docker`, which is found first on the PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = "docker") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        script = folder / program
        script.write_text(f"#!{sys.executable} -SE\n{_SCRIPT}")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def has(self, **images: dict[str, Any]) -> None:
        """Images that are here."""
        self.say("images", json.dumps(images))

    def say(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def unsay(self, name: str) -> None:
        (self.folder / name).unlink()

    def asked(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "asked").read_text().splitlines() if (self.folder / "asked").exists() else []
        return [words for line in lines if (words := json.loads(line))[0] == verb]

    @property
    def containers(self) -> list[str]:
        return [path.name for path in self.folder.glob("container-*")]

    def kill_all(self) -> None:
        for path in self.folder.glob("container-*"):
            found = json.loads(path.read_text())
            for name in ("pid", "outer"):
                if name in found:
                    try:
                        os.kill(found[name], 9)
                    except ProcessLookupError:
                        continue
