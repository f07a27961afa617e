"""What uv and pip are told about a private index, and wheels out of the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.agent.environment.package_sources import PackedWheels, PrivateIndex, choose_wheels
from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.model.package_sources import private_variables
from stoker.model.spec import Container, Environment, PackageIndex
from stoker.model.submission import Wheel, wheels_target
from stoker.testing.memory_store import MemoryStore

URL = "https://packages.example/simple/"


class Tokens:
    """Made anew each time, as those that expire are."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def __call__(self, field: str, reference: str) -> str:
        self.asked.append((field, reference))
        return f"token/{len(self.asked)}"


def test_for_uv() -> None:
    tokens = Tokens()
    index = PrivateIndex(PackageIndex("https://jane@packages.example/simple/", "env:TOKEN"), tokens)
    assert index.identity == URL and not tokens.asked, "what it is asks nobody"
    opened = index.open()
    assert opened.args == ()
    assert opened.env == {"UV_DEFAULT_INDEX": f"stoker={URL}", "UV_INDEX_STOKER_USERNAME": "jane"}
    assert opened.secrets == {"UV_INDEX_STOKER_PASSWORD": "token/1"}
    assert "token/1" not in repr(opened)
    assert tokens.asked == [("environment.index.secret", "env:TOKEN")]


@pytest.mark.parametrize(
    ("secret", "user"), [("aws-codeartifact:team", "aws"), ("gcp-token", "oauth2accesstoken"), ("env:X", "__token__")]
)
def test_tokens_that_expire_are_made_anew_each_time(secret: str, user: str) -> None:
    tokens = Tokens()
    index = PrivateIndex(PackageIndex(URL, secret), tokens)
    passwords = [index.open().secrets["UV_INDEX_STOKER_PASSWORD"] for _ in range(2)]
    assert passwords == ["token/1", "token/2"]
    assert index.open().env["UV_INDEX_STOKER_USERNAME"] == user


def test_for_commands_that_run_pip() -> None:
    opened = PrivateIndex(PackageIndex(URL.replace("//", "//jane@"), "env:TOKEN"), Tokens()).for_commands()
    assert opened.secrets["PIP_INDEX_URL"] == "https://jane:token%2F1@packages.example/simple/"
    assert "PIP_INDEX_URL" not in opened.env
    open_to_all = PrivateIndex(PackageIndex(URL), Tokens()).for_commands()
    assert open_to_all.env["PIP_INDEX_URL"] == URL and not open_to_all.secrets


def test_variables_that_are_not_for_the_training() -> None:
    environment = Environment(
        index=PackageIndex(URL, "env:ONE"),
        apt_mirror=PackageIndex(URL, "aws-sm:two"),
        conda_channel=PackageIndex(URL, "env:THREE"),
        container=Container("image", secret="env:FOUR"),
    )
    assert private_variables(environment) == {"ONE", "THREE", "FOUR"}
    assert not private_variables(Environment())


# ── Wheels ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def packed(tmp_path: Path, *wheels: Wheel) -> tuple[PackedWheels, MemoryStore]:
    store = MemoryStore(lambda: datetime.now(timezone.utc))
    return PackedWheels(store, wheels, tmp_path / "wheels", lambda question: question()), store


def put(store: MemoryStore, tmp_path: Path, name: str, data: bytes) -> Wheel:
    file = tmp_path / name
    file.write_bytes(data)
    return Wheel(name, store.put_file(file, keys.wheel).digest, len(data))


def test_wheels_are_fetched_when_they_are_needed_and_leave_nothing(tmp_path: Path) -> None:
    _, store = packed(tmp_path)
    wheel = put(store, tmp_path, "torch-2.4.0+cu121-cp312-cp312-linux_x86_64.whl", b"torch")
    source = PackedWheels(store, [wheel], tmp_path / "wheels", lambda question: question())
    assert source.pins == ("torch==2.4.0+cu121",)
    assert source.identity == f"wheels {wheel.digest}"
    assert not (tmp_path / "wheels").exists()
    index = source.open()
    assert index.args == ("--offline", "--no-index", "--find-links", str(tmp_path / "wheels"))
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [wheel.name]
    source.close()
    assert not (tmp_path / "wheels").exists()


def test_a_wheel_that_is_missing_or_not_what_was_submitted(tmp_path: Path) -> None:
    source, store = packed(tmp_path, Wheel("a-1-py3-none-any.whl", "0" * 64, 1))
    with pytest.raises(SetupFailed, match=r"a-1-py3-none-any.whl is no longer in the store") as failure:
        source.open()
    assert not failure.value.user
    store.put(keys.wheel("0" * 64), b"another")
    with pytest.raises(SetupFailed, match="is not what was submitted") as failure:
        source.open()
    assert not failure.value.user
    later = put(store, tmp_path, "b-1-py3-none-any.whl", b"b")
    store.put(keys.wheel(f"{later.digest}-2"), b"b")
    store.delete([keys.wheel(later.digest)])
    PackedWheels(store, [replace(later, generation=2)], tmp_path / "wheels", lambda question: question()).open()
    assert (tmp_path / "wheels" / later.name).read_bytes() == b"b"


def test_wheels_for_another_machine_are_told() -> None:
    wheels = {wheels_target("3.12", "x86_64"): (Wheel("a-1-py3-none-any.whl", "0", 1),)}
    assert choose_wheels(wheels, "3.12.4", "x86_64") == wheels["3.12-x86_64"]
    with pytest.raises(SetupFailed) as failure:
        choose_wheels(wheels, "3.11.2", "aarch64")
    assert "packed for 3.12-x86_64, and this machine has 3.11-arm64; set environment.python" in str(failure.value)
    assert failure.value.user


def test_for_commands_of_a_user_without_a_password() -> None:
    opened = PrivateIndex(PackageIndex(URL.replace("//", "//j%40ne@")), Tokens()).for_commands()
    assert opened.env == {
        "UV_DEFAULT_INDEX": f"stoker={URL}",
        "UV_INDEX_STOKER_USERNAME": "j@ne",
        "PIP_INDEX_URL": "https://j%40ne@packages.example/simple/",
    }
    assert not opened.secrets


def test_for_commands_uv_is_told_as_well() -> None:
    opened = PrivateIndex(PackageIndex(URL, "env:TOKEN"), Tokens()).for_commands()
    assert opened.env == {"UV_DEFAULT_INDEX": f"stoker={URL}", "UV_INDEX_STOKER_USERNAME": "__token__"}
    assert opened.secrets == {
        "UV_INDEX_STOKER_PASSWORD": "token/1",
        "PIP_INDEX_URL": "https://__token__:token%2F1@packages.example/simple/",
    }


def test_wheels_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    one, two = (Wheel(f"{name}-1-py3-none-any.whl", digest * 64, 1) for name, digest in (("a", "2"), ("b", "1")))
    source, _ = packed(tmp_path, one, two)
    assert source.identity == f"wheels {'1' * 64} {'2' * 64}"
    assert source.pins == ("a==1", "b==1")


def test_wheels_that_are_here_are_not_fetched_again(tmp_path: Path) -> None:
    _, store = packed(tmp_path)
    wheel = put(store, tmp_path, "a-1-py3-none-any.whl", b"a")
    source = PackedWheels(store, [wheel], tmp_path / "wheels", lambda question: question())
    assert source.open().env == {"UV_FIND_LINKS": ""}
    store.delete([keys.wheel(wheel.digest)])
    source.open()
    assert (tmp_path / "wheels" / wheel.name).read_bytes() == b"a"


def test_a_wheel_whose_name_leads_out_is_refused(tmp_path: Path) -> None:
    source, _ = packed(tmp_path, Wheel("../a-1-py3-none-any.whl", "0" * 64, 1))
    with pytest.raises(SetupFailed, match="is not the name of a wheel") as failure:
        source.open()
    assert failure.value.user
