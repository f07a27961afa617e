"""The scripts in a machine's metadata. What the first boot does is tested with the bootstrap itself."""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import names, startup
from stoker.providers.gce.machine import SHUTDOWN_FILE


def order(nodes: int = 2, store: str = "gs://bucket/team", **more: Any) -> LaunchOrder:
    spec = Spec(name="gpt", run="true", nodes=nodes, resources=Resources(provider="gce"))
    offering = Offering("gce", "g2-standard-8", "us-central1-a", True, "vision-1/us-central1", gpu="L4", gpus=1)
    return LaunchOrder(
        job="gpt-7f3k",
        name="gpt",
        claim=4,
        nodes=nodes,
        attempt=2,
        store=store,
        spec=spec,
        submitter="jane",
        offering=offering,
        max_life_s=14400.0,
        bundles={"cp311-x86_64": "d" * 64},
        **more,
    )


def part(text: str, name: str) -> str:
    found = re.search(rf"<<'{name}'[^\n]*\n(.*?)\n{name}\n", text, re.DOTALL)
    assert found is not None
    return found[1]


class TestStarting:
    def test_what_the_machine_is_told(self) -> None:
        asked = order(environ={"STORAGE_EMULATOR_HOST": "http://10.0.0.1:9000"})
        told = json.loads(part(startup.startup_script(asked), "STOKER_BOOT_JSON"))
        assert told["names"] == list(names.machines(asked)) and len(told["names"]) == 2
        assert told["project"] == "vision-1"
        assert (told["bucket"], told["node"]["provider"], told["node"]["claim"]) == ("bucket", "gce", 4)
        assert told["environ"] == {"STORAGE_EMULATOR_HOST": "http://10.0.0.1:9000"}

    def test_leaving_is_more_than_switching_off(self) -> None:
        assert "--leave" in part(startup.startup_script(order()), "STOKER_LEAVE")

    def test_it_is_small_and_the_same_every_time(self) -> None:
        text = startup.startup_script(order())
        assert text == startup.startup_script(order())
        assert len(text.encode()) < 32 * 1024 < startup.MOST_BYTES
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr

    def test_what_travels_with_it_is_all_there_and_runs_on_an_old_python(self) -> None:
        packed = base64.b64decode(part(startup.startup_script(order()), "STOKER_BOOT_PYZ"))
        archive = zipfile.ZipFile(io.BytesIO(gzip.decompress(packed)))
        there = set(archive.namelist())
        assert {"__main__.py", "stoker/providers/boot/install.py", "stoker/cloudapi/google/metadata.py"} <= there
        for name in there:
            tree = ast.parse(archive.read(name), feature_version=(3, 6))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker."):
                    assert f"{(node.module or '').replace('.', '/')}.py" in there, (name, node.module)

    def test_a_store_that_it_cannot_reach(self) -> None:
        with pytest.raises(UserError, match=r"cannot reach s3://bucket; .*gs://BUCKET/PREFIX"):
            startup.startup_script(order(store="s3://bucket"))

    def test_more_than_google_takes(self) -> None:
        with pytest.raises(UserError, match="and Compute Engine takes 262144"):
            startup.startup_script(order(nodes=9000))

    def test_no_secret_travels(self) -> None:
        with pytest.raises(ValueError, match="must not be in a boot script"):
            startup.startup_script(order(environ={"GOOGLE_TOKEN": "x"}))


class TestStopping:
    def run(self, root: Path, *states: str) -> list[str]:
        """Run the script beside an agent that is in these states, one after another. Answers what was called."""
        programs = root / "bin"
        programs.mkdir()
        calls = root / "calls"
        answers = root / "states"
        answers.write_text("".join(f"{state}\n" for state in states))
        # The agent's next state, and the last one for ever.
        (programs / "systemctl").write_text(
            f'#!/bin/sh\necho "systemctl $*" >>"{calls}"\nhead -n 1 "{answers}"\n'
            f'[ "$(wc -l <"{answers}")" -le 1 ] || sed -i 1d "{answers}"\n'
        )
        (programs / "sleep").write_text(f'#!/bin/sh\necho "sleep $*" >>"{calls}"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        environ = {"PATH": f"{programs}:{os.environ['PATH']}", "STOKER_BOOT_ROOT": str(root)}
        subprocess.run(["sh", "-c", startup.shutdown_script()], env=environ, check=True, timeout=60)
        return calls.read_text().splitlines()

    def test_the_agent_finds_the_word_where_it_looks(self, tmp_path: Path) -> None:
        self.run(tmp_path, "inactive")
        file = tmp_path / str(SHUTDOWN_FILE).lstrip("/")
        assert file.read_text().strip().isdigit()
        assert [each.name for each in file.parent.iterdir()] == [file.name]

    def test_it_stays_while_the_agent_saves(self, tmp_path: Path) -> None:
        called = self.run(tmp_path, "active", "deactivating", "deactivating", "inactive")
        assert called.count("sleep 1") == 3
        assert called[-1] == "systemctl is-active stoker-agent.service"

    @pytest.mark.parametrize("state", ["inactive", "failed", "unknown"])
    def test_it_waits_for_nobody(self, tmp_path: Path, state: str) -> None:
        assert "sleep 1" not in self.run(tmp_path, state)

    def test_it_does_not_wait_for_ever(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "active").count("sleep 1") == 90

    def test_any_shell_takes_it(self) -> None:
        for shell in ("sh", "bash"):
            done = subprocess.run([shell, "-n"], input=startup.shutdown_script(), text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
