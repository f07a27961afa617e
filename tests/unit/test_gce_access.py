"""Ways onto a Compute Engine machine: which one is taken, the program that it comes to, and the key that is lent."""

from __future__ import annotations

import copy
import getpass
import json
import os
import shlex
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.model.errors import AuthDenied, NotFound, UserError
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import ShellRequest
from stoker.providers.gce import ssh_login
from stoker.providers.gce.errors import response_error
from tests.support.gce.discovery import check_request

PROJECT, ZONE, NUMBER = "vision-1", "us-central1-a", "4242424242424242424"
PATH = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{NUMBER}"
MACHINE = f"{ZONE}.{NUMBER}"
SCRIPT = {"key": "startup-script", "value": "#!/bin/sh\necho boot"}
THEIRS = "jane:ssh-ed25519 AAAA jane@laptop"


class Google:
    """One machine and its project. Every request is held against Google's discovery document."""

    def __init__(self, *items: dict[str, str], status: str = "RUNNING", project: dict[str, str] | None = None) -> None:
        self.machine: dict[str, Any] = {
            "id": NUMBER,
            "name": "stoker-gpt-ab12-1-0123abcd-0",
            "status": status,
            "networkInterfaces": [{"networkIP": "10.0.0.5", "accessConfigs": [{"natIP": "34.0.0.5"}]}],
            "metadata": {"fingerprint": "00000000", "items": [SCRIPT, *items]},
        }
        self.project = project
        self.gone = False
        self.refuses: Exception | None = None
        # So often somebody else is faster, and leaves a key of theirs.
        self.rivals = 0
        self.changes = 0

    def get(self, path: str, params: Any = None, *, service: str = "compute") -> Any:
        assert check_request("GET", path) == []
        if path == PATH:
            if self.gone:
                raise NotFound("gone")
            return copy.deepcopy(self.machine)
        if self.project is None:
            raise AuthDenied("not yours")
        items = [{"key": key, "value": value} for key, value in self.project.items()]
        return {"commonInstanceMetadata": {"items": items}}

    def send(self, method: str, path: str, body: Any = None, *, what: str = "", **_: Any) -> Any:
        assert (method, path) == ("POST", f"{PATH}/setMetadata")
        assert check_request(method, path, body=body) == []
        if self.refuses is not None:
            raise self.refuses
        if self.rivals:
            self.rivals -= 1
            self._change([*self.machine["metadata"]["items"], {"key": f"rival-{self.rivals}", "value": "x"}])
        if body["fingerprint"] != self.machine["metadata"]["fingerprint"]:
            told = {
                "error": {"errors": [{"reason": "conditionNotMet"}], "message": "Supplied fingerprint does not match"}
            }
            raise response_error(what, 412, told)
        self._change(body["items"])
        return {"status": "DONE"}

    def _change(self, items: list[dict[str, str]]) -> None:
        self.changes += 1
        self.machine["metadata"] = {"fingerprint": f"{self.changes:08d}", "items": items}

    @property
    def items(self) -> dict[str, str]:
        return {item["key"]: item["value"] for item in self.machine["metadata"]["items"]}

    @property
    def keys(self) -> list[str]:
        return self.items.get("ssh-keys", "").splitlines()


@pytest.fixture(autouse=True)
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and programs that are there by name alone; all but ssh-keygen, which is the real one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "stoker"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ssh", "gcloud"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_login, "_KEY_POLL_S", 0.0)
    return tmp_path


class Visited:
    """A visit: what it came to, and what the machine knew meanwhile."""

    def __init__(
        self,
        google: Google,
        visit: ShellRequest | None = None,
        *,
        answers: bool = True,
        knocks: list[bool] | None = None,
    ) -> None:
        self.knocked: list[tuple[str, ...]] = []
        knocks = list(knocks or [True])

        def accepts_key(argv: tuple[str, ...]) -> bool:
            self.knocked.append(argv)
            return knocks.pop(0) if knocks else True

        spec = Spec(name="j", run="true", resources=Resources(provider="gce"))
        with ssh_login.shell_command(
            google,  # type: ignore[arg-type]
            PATH,
            visit or ShellRequest(),
            spec,
            answers=lambda _: answers,
            accepts_key=accepts_key,
        ) as found:
            self.name, self.argv, self.hint = found.name, list(found.argv), found.hint
            self.keys = google.keys
            self.key = Path(self.argv[self.argv.index("-i") + 1]) if "-i" in self.argv else None
            self.there = self.key is not None and self.key.exists()


def test_a_key_is_lent_for_minutes_and_taken_back() -> None:
    google = Google({"key": "ssh-keys", "value": f"{THEIRS}\n"})
    visited = Visited(google)
    assert visited.name == "key" and visited.argv[-1] == "stoker@34.0.0.5"
    theirs, lent = visited.keys
    assert theirs == THEIRS and lent.startswith("stoker:ssh-ed25519 ")
    told = json.loads(lent.partition(" google-ssh ")[2])
    left = datetime.strptime(told["expireOn"], "%Y-%m-%dT%H:%M:%S%z") - datetime.now(timezone.utc)
    assert told["userName"] == "stoker" and 60 < left.total_seconds() <= 600
    assert " " not in lent.partition(" google-ssh ")[2]
    # Afterwards all is as it was, here and there.
    assert google.keys == [THEIRS] and google.items["startup-script"] == SCRIPT["value"]
    assert visited.there and visited.key is not None and not visited.key.exists()
    assert {"IdentitiesOnly=yes", f"HostKeyAlias={MACHINE}"} <= set(visited.argv)


def test_a_machine_without_keys_has_none_afterwards() -> None:
    google = Google()
    assert len(Visited(google).keys) == 1
    assert "ssh-keys" not in google.items


def test_who_is_faster_loses_nothing() -> None:
    google = Google({"key": "ssh-keys", "value": THEIRS})
    google.rivals = 3
    assert len(Visited(google).keys) == 2
    assert {"rival-0", "rival-1", "rival-2", "startup-script"} <= set(google.items) and google.keys == [THEIRS]
    # Whoever always is wins: nothing is written over theirs.
    google.rivals = 100
    with pytest.raises(UserError, match="no temporary key can be added"):
        Visited(google)


def test_ssh_starts_once_the_machine_knows_the_key() -> None:
    visited = Visited(Google(), ShellRequest(command=("nvidia-smi",)), knocks=[False, False, True])
    assert len(visited.knocked) == 3
    for knocked in visited.knocked:
        assert "BatchMode=yes" in knocked and knocked[-1] == "true" and knocked[-2] == "stoker@34.0.0.5"
    assert visited.argv[-1].startswith("sudo -n -- ")


def test_a_key_that_never_works_is_sshs_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_login, "_KEY_WAIT_S", 0.0)
    visited = Visited(Google(), knocks=[False])
    assert visited.name == "key" and "guest agent" in visited.hint


def test_a_machine_that_went_meanwhile_is_no_trouble() -> None:
    google = Google()

    def accepts_key(_: tuple[str, ...]) -> bool:
        google.gone = True
        return True

    with ssh_login.shell_command(
        google, PATH, ShellRequest(), Spec(name="j", run="true"), answers=lambda _: True, accepts_key=accepts_key
    ) as found:  # type: ignore[arg-type]
        assert found.name == "key"


def test_without_an_open_port_ssh_goes_through_the_tunnel() -> None:
    visited = Visited(Google(), ShellRequest(command=("true",)), answers=False)
    assert visited.name == "iap" and f"stoker@{MACHINE}" in visited.argv
    (proxy,) = [word for word in visited.argv if word.startswith("ProxyCommand=")]
    words = shlex.split(proxy.removeprefix("ProxyCommand="))
    assert Path(words[0]).name == "gcloud"
    assert words[1:6] == ["compute", "start-iap-tunnel", "stoker-gpt-ab12-1-0123abcd-0", "22", "--listen-on-stdin"]
    assert words[words.index("--project") + 1] == PROJECT and words[words.index("--zone") + 1] == ZONE
    assert "35.235.240.0/20" in visited.hint


def test_without_a_public_address_the_private_one_is_tried() -> None:
    google = Google()
    del google.machine["networkInterfaces"][0]["accessConfigs"]
    assert Visited(google).argv[-1] == "stoker@10.0.0.5"


def test_the_person_may_insist() -> None:
    assert Visited(Google(), ShellRequest(via="iap")).name == "iap"
    with pytest.raises(UserError, match="--via pigeon: there are key, iap"):
        Visited(Google(), ShellRequest(via="pigeon"))
    with pytest.raises(UserError, match=r"no way to .*: key: port 22 of 34.0.0.5 and 10.0.0.5 does not answer"):
        Visited(Google(), ShellRequest(via="key"), answers=False)


def test_an_identity_is_used_as_it_is(computer: Path) -> None:
    (computer / "mine").write_text("secret")
    google = Google({"key": "enable-oslogin", "value": "TRUE"})
    visited = Visited(google, ShellRequest(identity=str(computer / "mine"), user="jane_example_com"))
    assert visited.argv[visited.argv.index("-i") + 1] == str(computer / "mine")
    assert visited.argv[-1] == "jane_example_com@34.0.0.5" and google.changes == 0
    assert Visited(google, ShellRequest(identity=str(computer / "mine"))).argv[-1] == f"{getpass.getuser()}@34.0.0.5"
    with pytest.raises(UserError, match="--identity"):
        Visited(google, ShellRequest(identity=str(computer / "none")))


ON = {"key": "enable-oslogin", "value": "TRUE"}
OFF = {"key": "enable-oslogin", "value": "FALSE"}


@pytest.mark.parametrize(
    ("machine", "project", "on"),
    [
        ((ON,), {}, True),
        ((), {"enable-oslogin": "true"}, True),
        ((OFF,), {"enable-oslogin": "TRUE"}, False),
        ((), {}, False),
        ((), None, False),
    ],
)
def test_where_os_login_is_on_no_key_is_lent(machine: Any, project: dict[str, str] | None, on: bool) -> None:
    google = Google(*machine, project=project)
    visited = Visited(google)
    assert (google.changes == 0) is on
    assert (Path(visited.argv[0]).name == "gcloud") is on


def test_through_gcloud() -> None:
    visit = ShellRequest(command=("sh", "-c", "exit 3"), options=("-L", "1:localhost:1"), terminal=True)
    visited = Visited(Google(ON), visit, answers=False)
    assert visited.name == "iap"
    assert visited.argv[1:4] == ["compute", "ssh", "stoker-gpt-ab12-1-0123abcd-0"]
    assert "--tunnel-through-iap" in visited.argv
    assert shlex.split(visited.argv[visited.argv.index("--command") + 1])[-3:] == ["sh", "-c", "exit 3"]
    assert visited.argv[-4:] == ["--", "-t", "-L", "1:localhost:1"]
    plain = Visited(Google(ON))
    assert plain.argv[-1] == ZONE and "--tunnel-through-iap" not in plain.argv


def test_a_refusal_says_what_else_there_is(computer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    google = Google()
    google.refuses = AuthDenied("ssh-keys: Required 'compute.instances.setMetadata' permission (forbidden)")
    with pytest.raises(
        UserError, match=r"key: no temporary key can be added: .*setMetadata.*--identity.*; iap: no temporary key"
    ):
        Visited(google)
    (computer / "bin" / "gcloud").unlink()
    monkeypatch.setenv("PATH", str(computer / "bin"))
    with pytest.raises(UserError, match="iap: there is no gcloud on this computer: it needs Google's command line"):
        Visited(Google(), answers=False)


@pytest.mark.parametrize("status", ["STAGING", "STOPPING", "TERMINATED"])
def test_only_what_runs_can_be_visited(status: str) -> None:
    with pytest.raises(UserError, match=f"{MACHINE} is {status.lower()}"):
        Visited(Google(status=status))


def test_what_is_gone_cannot_be_visited() -> None:
    google = Google()
    google.gone = True
    with pytest.raises(UserError, match="is gone"):
        Visited(google)
