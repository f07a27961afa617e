"""Inputs from buckets: copied in parallel, resumed, verified, shared, told. Runs where only loopback can be reached."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from input_machine import Machine, tree

from stoker.agent.inputs import cache, download, service, source
from stoker.agent.inputs.service import Inputs
from stoker.model.errors import SetupFailed
from stoker.model.spec import Input
from stoker.store.base import Meta, open_store
from tests.support.gcs import GcsServer
from tests.support.machines.store_door import StoreDoor
from tests.support.servers import S3Server, isolated, pytest_isolated


class Left(Exception):
    """Somebody wants this node to go."""


FILES = {"a.txt": b"a", "sub/b.txt": b"bb", "sub/deep/ä b+%25.bin": b"\0" * 100, "empty": b""}

if isolated():

    @pytest.fixture(params=["s3", "gs"])
    def url(request: pytest.FixtureRequest) -> str:
        """An empty folder in a bucket of each cloud."""
        found: str = request.getfixturevalue({"s3": "s3_url", "gs": "gcs_url"}[request.param])
        return found

    @pytest.fixture
    def machine(tmp_path: Path) -> Machine:
        return Machine(tmp_path)

    def fill(url: str, files: dict[str, bytes]) -> None:
        store = open_store(url)
        for key, data in files.items():
            store.put(key, data)

    # ── What comes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_folder_comes_as_it_is(url: str, machine: Machine) -> None:
        fill(url, FILES)
        fill(url.rpartition("/")[0], {"test2/not-mine": b"x"})
        where = machine.bring(data=url)["data"]
        assert tree(where) == FILES
        assert machine.said[0] == f"inputs.data: fetching 4 files, 103 B from {url}"
        assert machine.said[1].startswith("inputs.data: fetched 103 B in ")

    def test_an_object_comes_as_a_file(url: str, machine: Machine) -> None:
        fill(url, FILES)
        where = machine.bring(data=f"{url}/sub/b.txt", other=f"{url}/empty")
        assert (where["data"].name, where["data"].read_bytes()) == ("b.txt", b"bb")
        assert where["other"].read_bytes() == b""

    def test_a_slash_at_the_end_asks_for_a_folder(url: str, machine: Machine) -> None:
        fill(url, FILES)
        assert tree(machine.bring(data=f"{url}/sub/")["data"]) == {"b.txt": b"bb", "deep/ä b+%25.bin": b"\0" * 100}
        with pytest.raises(SetupFailed, match=r"^inputs\.data: there is nothing at .*/a\.txt/$"):
            machine.bring(data=f"{url}/a.txt/")

    def test_large_objects_come_in_parts(url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "PART_BYTES", 1000)
        data = os.urandom(10_500)
        fill(url, {"large": data, "small": b"s"})
        assert tree(machine.bring(data=url)["data"]) == {"large": data, "small": b"s"}

    def test_nothing_there_names_the_input(url: str, machine: Machine) -> None:
        with pytest.raises(SetupFailed, match=rf"^inputs\.data: there is nothing at {url}$") as failed:
            machine.bring(data=url)
        assert failed.value.user

    def test_a_stream_is_passed_on(machine: Machine) -> None:
        where = Inputs(machine.node, lambda: None).provide({"data": Input("https://example.com/x", mode="stream")})
        assert where == {"data": "https://example.com/x"} and machine.said == []

    def test_folders_of_empty_objects_are_folders(s3: S3Server, s3_url: str, machine: Machine) -> None:
        import boto3

        place = urlsplit(s3_url)
        client = boto3.client("s3", endpoint_url=s3.endpoint)
        for key in ("", "sub/", "lone/"):
            client.put_object(Bucket=place.netloc, Key=f"{place.path[1:]}/{key}", Body=b"")
        fill(s3_url, {"sub/x": b"x"})
        where = machine.bring(data=s3_url)["data"]
        assert tree(where) == {"sub/x": b"x"} and (where / "lone").is_dir()
        assert Machine(machine.kept.parents[1], "other").bring(data=s3_url)["data"] == where

    @pytest.mark.parametrize("key", ["../up", "a/../../up", "new\nline", "double//slash"])
    def test_names_that_lead_elsewhere_are_refused(s3: S3Server, s3_url: str, machine: Machine, key: str) -> None:
        import boto3

        place = urlsplit(s3_url)
        client = boto3.client("s3", endpoint_url=s3.endpoint)
        client.put_object(Bucket=place.netloc, Key=f"{place.path[1:]}/{key}", Body=b"x")
        with pytest.raises(SetupFailed, match=r"^inputs\.data: .*an object there is called .*") as failed:
            machine.bring(data=s3_url)
        assert f"/{key}".encode("unicode_escape").decode() in str(failed.value)
        assert "\n" not in str(failed.value) and failed.value.user

    def test_an_object_and_a_folder_of_one_name_are_refused(url: str, machine: Machine) -> None:
        fill(url, {"x": b"1", "x/y": b"2"})
        with pytest.raises(SetupFailed, match="x is both an object and a folder"):
            machine.bring(data=url)

    # ── Again ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The keys that are fetched from now on."""
        from stoker.store.bucket import BucketStore

        fetched: list[str] = []
        own = BucketStore.get_part

        def get_part(self: BucketStore, meta: Meta, begin: int, end: int) -> memoryview:
            fetched.append(meta.key)
            return own(self, meta, begin, end)

        monkeypatch.setattr(BucketStore, "get_part", get_part)
        return fetched

    def test_what_is_there_is_not_fetched_again(
        url: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        where = machine.bring(data=url)["data"]
        fetched = counted(monkeypatch)
        other = Machine(tmp_path, "other")
        assert other.bring(data=url)["data"] == where and fetched == []
        assert other.said == ["inputs.data: 4 files, 103 B, already on this machine"]

    def test_of_a_changed_source_only_the_change_is_fetched(
        url: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        before = machine.bring(data=url)["data"]
        fill(url, {"a.txt": b"new", "more": b"m"})
        fetched = counted(monkeypatch)
        after = Machine(tmp_path, "other").bring(data=url)["data"]
        assert sorted(fetched) == ["a.txt", "more"]
        assert tree(after) == FILES | {"a.txt": b"new", "more": b"m"}
        # Whoever still trains on the old one finds it as it was.
        assert tree(before) == FILES

    def test_what_a_training_changed_is_not_passed_on(
        url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        first = Machine(tmp_path)
        where = first.bring(data=url)["data"]
        (where / "a.txt").chmod(0o644)
        (where / "a.txt").write_bytes(b"X")
        fetched = counted(monkeypatch)
        # The first still uses it: it is not repaired below its feet.
        second = Machine(tmp_path, "second").bring(data=url)["data"]
        assert second != where and tree(second) == FILES and (where / "a.txt").read_bytes() == b"X"
        assert "a.txt" in fetched

    def test_what_a_training_changed_is_fetched_again(url: str, machine: Machine, tmp_path: Path) -> None:
        """By the next node, when nobody uses it any more."""
        fill(url, FILES)
        where = machine.bring(data=url)["data"]
        (where / "a.txt").chmod(0o644)
        (where / "a.txt").write_bytes(b"X")
        (where / "sub/b.txt").unlink()
        machine.end()
        assert tree(Machine(tmp_path, "other").bring(data=url)["data"]) == FILES

    def test_a_fetch_that_was_killed_goes_on(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "PART_BYTES", 1000)
        monkeypatch.setattr(download, "THREADS", 1)
        monkeypatch.setattr(download, "_FLUSH_EVERY_S", 0.0)
        large = os.urandom(50_000)
        fill(url, {"0-small": b"s", "large": large})
        fetched = counted(monkeypatch)
        go_on = threading.Event()
        from stoker.store.bucket import BucketStore

        own = BucketStore.get_part

        def get_part(self: BucketStore, meta: Meta, begin: int, end: int) -> memoryview:
            if len(fetched) == 20:
                go_on.wait()
            return own(self, meta, begin, end)

        monkeypatch.setattr(BucketStore, "get_part", get_part)
        first = Machine(tmp_path)

        def leave() -> None:
            if len(fetched) == 20:
                raise Left

        first.check = leave
        with pytest.raises(Left):
            first.bring(data=url)
        go_on.set()
        _until(lambda: not [one for one in threading.enumerate() if one.name == "input"])
        journal = next(first.kept.glob("*/journal"))
        # As a kill would leave it: the last line torn.
        journal.write_text(journal.read_text() + '["large", "')
        already = len(fetched)
        second = Machine(tmp_path, "second")
        assert tree(second.bring(data=url)["data"]) == {"0-small": b"s", "large": large}
        assert 0 < len(fetched) - already < 51 - 15
        assert "are on this machine" in second.said[0]

    def test_after_a_crash_of_the_computer_nothing_is_believed_that_may_not_be_on_the_disk(
        url: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache.CacheEntry, "_sync_to_disk", lambda self: None)
        fill(url, FILES)
        machine.bring(data=url)
        machine.end()
        monkeypatch.setattr(cache, "boot_id", lambda: "another boot")
        fetched = counted(monkeypatch)
        Machine(tmp_path, "other").bring(data=url)
        assert len(fetched) == 4

    def test_what_reached_the_disk_survives_a_crash(
        url: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        where = machine.bring(data=url)["data"]
        _until((where.parent / "settled").exists)
        monkeypatch.setattr(cache, "boot_id", lambda: "another boot")
        fetched = counted(monkeypatch)
        assert Machine(tmp_path, "other").bring(data=url)["data"] == where and fetched == []

    def test_two_nodes_fetch_it_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(url, {f"f{n:03d}": b"x" * n for n in range(50)})
        fetched = counted(monkeypatch)
        machines = [Machine(tmp_path, f"node{n}") for n in range(3)]
        where: list[Path] = []
        threads = [threading.Thread(target=lambda m=m: where.append(m.bring(data=url)["data"])) for m in machines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(where)) == 1 and len(where) == 3 and len(fetched) == 50

    def test_what_nobody_used_for_long_is_forgotten(url: str, machine: Machine, tmp_path: Path) -> None:
        fill(url, {"old": b"o"})
        gone = Machine(tmp_path, "gone")
        gone.bring(data=url)
        gone.end()
        (folder,) = machine.kept.iterdir()
        old = time.time() - cache.UNUSED_FOR_S - 60
        os.utime(folder / "lock", (old, old))
        fill(url, {"new": b"n"})
        in_use = machine.bring(data=url)["data"].parent
        os.utime(in_use / "lock", (old, old))
        Machine(tmp_path, "other").bring(data=f"{url}/new")
        assert not folder.exists() and in_use.exists()

    # ── What goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_store_that_fails_in_the_middle_is_asked_until_it_answers(
        s3: S3Server, s3_url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(s3_url, {f"f{n:03d}": os.urandom(100) for n in range(200)})
        expected = tree_of(s3_url)
        door = StoreDoor("127.0.0.1", int(s3.endpoint.rpartition(":")[2]))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
        monkeypatch.setattr(download, "THREADS", 4)
        from stoker.store.bucket import BucketStore

        own, asked = BucketStore.get_part, []

        def get_part(self: BucketStore, meta: Meta, begin: int, end: int) -> memoryview:
            asked.append(meta.key)
            if len(asked) == 50:
                door.shut("everyone")
            return own(self, meta, begin, end)

        def mend() -> None:
            if any("trying again" in line for line in machine.said):
                door.shut("nobody")

        monkeypatch.setattr(BucketStore, "get_part", get_part)
        machine.check = mend
        assert tree(machine.bring(data=s3_url)["data"]) == expected
        (told,) = [line for line in machine.said if "trying again" in line]
        assert told.startswith(f"inputs.data: {s3_url} did not answer: ")

    def tree_of(url: str) -> dict[str, bytes]:
        store = open_store(url)
        found = {meta.key: store.get(meta.key) for meta in store.list("")}
        return {key: one.data for key, one in found.items() if one is not None}

    def test_a_source_that_changes_meanwhile_is_looked_at_again(
        url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        own, changes = source.InputSource._list, [{"a.txt": b"changed"}]

        def list_then_change(self: source.InputSource) -> source.InputListing:
            found = own(self)
            if changes:
                fill(url, changes.pop())
            return found

        monkeypatch.setattr(source.InputSource, "_list", list_then_change)
        assert tree(machine.bring(data=url)["data"]) == FILES | {"a.txt": b"changed"}
        assert any("it changed while it was fetched; listing the files again" in line for line in machine.said)

    def test_a_source_that_never_rests_is_told(url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(url, FILES)
        own = source.InputSource._list

        def list_then_change(self: source.InputSource) -> source.InputListing:
            found = own(self)
            fill(url, {"a.txt": os.urandom(3)})
            return found

        monkeypatch.setattr(source.InputSource, "_list", list_then_change)
        with pytest.raises(SetupFailed, match=r"^inputs\.data: .* keeps changing while it is fetched$"):
            machine.bring(data=url)

    def test_a_large_object_that_changes_between_two_parts_is_never_pieced_together(
        url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "PART_BYTES", 1000)
        monkeypatch.setattr(download, "THREADS", 1)
        fill(url, {"large": b"1" * 20_000})
        from stoker.store.bucket import BucketStore

        own, seen = BucketStore.get_part, []

        def get_part(self: BucketStore, meta: Meta, begin: int, end: int) -> memoryview:
            seen.append(begin)
            if len(seen) == 5:
                fill(url, {"large": b"2" * 20_000})
            return own(self, meta, begin, end)

        monkeypatch.setattr(BucketStore, "get_part", get_part)
        assert tree(machine.bring(data=url)["data"]) == {"large": b"2" * 20_000}

    def test_denied_names_the_input(gcs: GcsServer, gcs_url: str, machine: Machine) -> None:
        fill(gcs_url, FILES)
        gcs.fail(403, "AccessDenied", methods=("GET",), prefix=gcs_url.partition("://")[2].partition("/")[2])
        with pytest.raises(SetupFailed, match=rf"^inputs\.data: {gcs_url} refused: AccessDenied") as failed:
            machine.bring(data=gcs_url)
        assert failed.value.user and "\n" not in str(failed.value)

    def test_no_such_bucket_names_the_input(s3_url: str, machine: Machine) -> None:
        with pytest.raises(SetupFailed, match=r"^inputs\.data: the bucket nobody-has-it does not exist"):
            machine.bring(data="s3://nobody-has-it/x")

    def test_too_much_for_the_disk_is_told_before_it_is_fetched(
        url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, FILES)
        fetched = counted(monkeypatch)
        monkeypatch.setattr(service.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(SetupFailed) as failed:
            machine.bring(data=url)
        assert str(failed.value) == (
            "inputs.data: this machine's disk is full: 103 B are missing, and 10 B are free; make room, or ask for a "
            "larger one with resources.disk"
        )
        assert fetched == []

    def test_a_disk_that_fills_up_is_told(url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(url, FILES)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(download.os, "pwrite", full)
        with pytest.raises(SetupFailed, match=r"^inputs\.data: this machine's disk is full; make room"):
            machine.bring(data=url)

    def test_a_notice_interrupts_at_once(s3_url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where the bucket takes the connection and says nothing."""

        def leave() -> None:
            raise Left

        machine.check = leave
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            began_s = time.monotonic()
            with pytest.raises(Left):
                machine.bring(data=s3_url)
        assert time.monotonic() - began_s < 5

    def test_progress_is_told_now_and_then(url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(url, {f"f{n:03d}": b"x" * 1000 for n in range(40)})
        from stoker.store.bucket import BucketStore

        own = BucketStore.get_part

        def slow(self: BucketStore, meta: Meta, begin: int, end: int) -> memoryview:
            time.sleep(0.05)
            return own(self, meta, begin, end)

        monkeypatch.setattr(BucketStore, "get_part", slow)
        monkeypatch.setattr(download, "THREADS", 1)
        monkeypatch.setattr(download, "_PROGRESS_EVERY_S", 0.5)
        began_s = time.monotonic()
        machine.bring(data=url)
        told = [line for line in machine.said if line.endswith(" left")]
        assert 1 <= len(told) <= (time.monotonic() - began_s) / 0.5
        assert told[0].startswith("inputs.data: ") and " of 40.0 kB, " in told[0] and " of 40 files, " in told[0]

    def _until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

else:

    def test_inputs_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
