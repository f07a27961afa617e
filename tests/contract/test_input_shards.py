"""Inputs that nodes share out: one list for all of them, in every attempt, whatever is added or lost meanwhile."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from input_machine import Machine, tree

from stoker.agent.inputs import source
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.spec import Input
from stoker.store.base import open_store
from tests.support.servers import S3Server, isolated, pytest_isolated

RESTS = "the nodes divide the files that the first node found: leave them unchanged, and submit again"


def shard(root: Path, name: str, rank: int, url: str, nodes: int = 2) -> list[str]:
    return sorted(tree(Machine(root, name, rank, nodes).bring(data=Input(url, shard=True))["data"]))


def refused(root: Path, name: str, rank: int, url: str) -> str:
    with pytest.raises(SetupFailed) as failed:
        shard(root, name, rank, url)
    assert failed.value.user and "\n" not in str(failed.value)
    return str(failed.value)


if isolated():

    @pytest.fixture(params=["s3", "gs"])
    def url(request: pytest.FixtureRequest) -> str:
        """An empty folder in a bucket of each cloud."""
        found: str = request.getfixturevalue({"s3": "s3_url", "gs": "gcs_url"}[request.param])
        return found

    def fill(url: str, *keys: str, data: bytes = b"x") -> None:
        for key in keys:
            open_store(url).put(key, data)

    def test_nodes_take_their_shards(url: str, tmp_path: Path) -> None:
        fill(url, *(f"f{n}" for n in range(7)))
        parts, said = [], []
        for rank in range(3):
            machine = Machine(tmp_path, f"node{rank}", rank, 3)
            parts.append(sorted(tree(machine.bring(data=Input(url, shard=True))["data"])))
            said.append(machine.said[0])
        assert parts == [["f0", "f3", "f6"], ["f1", "f4"], ["f2", "f5"]]
        assert said[2].startswith("inputs.data: fetching 2 files of 7, 2 B from ")

    def test_fewer_files_than_nodes_are_no_shards(url: str, tmp_path: Path) -> None:
        fill(url, "only")
        told = "inputs.data: 1 file cannot be divided among 2 nodes"
        assert refused(tmp_path, "node0", 0, url) == refused(tmp_path, "node1", 1, url) == told
        # Nothing was agreed upon: with another file it can be.
        fill(url, "other")
        assert shard(tmp_path, "node2", 1, url) == ["other"]

    def test_what_comes_later_moves_nothing(url: str, tmp_path: Path) -> None:
        fill(url, "00", "01", "02", "03")
        assert shard(tmp_path, "node0", 0, url) == ["00", "02"]
        fill(url, "00a")
        assert shard(tmp_path, "node1", 1, url) == ["01", "03"]
        # Another machine in the place of the first, with an empty disk.
        machine = Machine(tmp_path, "later", 0, 2)
        machine.node.inputs = tmp_path / "elsewhere" / "inputs"
        assert sorted(tree(machine.bring(data=Input(url, shard=True))["data"])) == ["00", "02"]

    def test_of_two_that_look_at_once_the_first_to_tell_counts(
        url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, "00", "01", "02", "03")
        own, parts = source.InputSource._list, {}

        def list_and_be_overtaken(self: source.InputSource) -> source.InputListing:
            found = own(self)
            monkeypatch.setattr(source.InputSource, "_list", own)
            fill(url, "00a")
            parts[1] = shard(tmp_path, "node1", 1, url)
            return found

        monkeypatch.setattr(source.InputSource, "_list", list_and_be_overtaken)
        parts[0] = shard(tmp_path, "node0", 0, url)
        assert parts == {0: ["00", "01", "03"], 1: ["00a", "02"]}

    @pytest.mark.parametrize("change", ["changed", "gone", "empty and gone"])
    def test_what_is_not_there_as_it_was_is_told(url: str, tmp_path: Path, change: str) -> None:
        fill(url, "00", "01", "02", data=b"" if "empty" in change else b"x")
        assert shard(tmp_path, "node0", 0, url) == ["00", "02"]
        if "gone" in change:
            open_store(url).delete(["01"])
        else:
            fill(url, "01", data=b"y")
        what = "is not there any more" if "gone" in change else "is not any more what it was"
        assert refused(tmp_path, "node1", 1, url) == f"inputs.data: {url}: 01 {what}; {RESTS}"
        # The first has its own.
        assert shard(tmp_path, "later", 0, url) == ["00", "02"]

    def test_what_changes_while_it_is_fetched_is_told(
        url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(url, "00", "01")
        own = source.InputSource._list

        def list_then_change(self: source.InputSource) -> source.InputListing:
            found = own(self)
            fill(url, "00", data=b"changed")
            return found

        monkeypatch.setattr(source.InputSource, "_list", list_then_change)
        assert refused(tmp_path, "node0", 0, url) == f"inputs.data: {url}: 00 is not any more what it was; {RESTS}"

    def test_folders_of_empty_objects_are_shared_out_too(s3: S3Server, s3_url: str, tmp_path: Path) -> None:
        import boto3

        place = urlsplit(s3_url)
        client = boto3.client("s3", endpoint_url=s3.endpoint)
        client.put_object(Bucket=place.netloc, Key=f"{place.path[1:]}/lone/", Body=b"")
        fill(s3_url, "a", "z")
        assert shard(tmp_path, "node0", 0, s3_url) == ["a", "z"]
        where = Machine(tmp_path, "node1", 1, 2).bring(data=Input(s3_url, shard=True))["data"]
        assert [path.name for path in where.iterdir()] == ["lone"] and (where / "lone").is_dir()

    def test_a_list_that_makes_no_sense_is_told(s3_url: str, tmp_path: Path) -> None:
        fill(s3_url, "00", "01")
        key = keys.shared_files("job", "data")
        open_store(str(tmp_path / "store")).put(key, b"{}")
        told = f"the list of its files in the store, {key}, is malformed; submit the job again"
        assert refused(tmp_path, "node0", 0, s3_url) == f"inputs.data: {told}"

    def test_inputs_that_are_not_shared_out_leave_no_list(s3_url: str, tmp_path: Path) -> None:
        fill(s3_url, "00", "01")
        Machine(tmp_path, "node0", 0, 2).bring(data=s3_url)
        Machine(tmp_path, "alone", 0, 1).bring(data=Input(s3_url, shard=True))
        assert list(open_store(str(tmp_path / "store")).list("")) == []

    def test_a_folder_of_this_machine(tmp_path: Path) -> None:
        mine = tmp_path / "mine"
        (mine / "sub").mkdir(parents=True)
        for name in ("00", "01", "sub/02", "sub/new\nline"):
            (mine / name).write_text(name)
        assert shard(tmp_path, "node0", 0, str(mine)) == ["00", "sub/02"]
        (mine / "00a").touch()
        assert shard(tmp_path, "node1", 1, str(mine)) == ["01", "sub/new\nline"]
        (mine / "01").unlink()
        assert refused(tmp_path, "later", 1, str(mine)) == f"inputs.data: {mine}/01 no longer exists; {RESTS}"

else:

    def test_input_shards_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
