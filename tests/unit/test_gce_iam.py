"""The roles and bindings allow what Stoker does on Google Cloud, and no more."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from stoker.model import keys, market_keys
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.gce import iam, names, permissions
from stoker.providers.grants import Grants

pytestmark = pytest.mark.slow

STORE = "gs://my-bucket/team"
READ, CREATE, DELETE = "storage.objects.get", "storage.objects.create", "storage.objects.delete"
# What Google's own roles allow of what is asked here.
GOOGLES = {
    "roles/storage.objectViewer": {"storage.objects.get", "storage.objects.list"},
    "roles/storage.objectCreator": {"storage.objects.create", "storage.multipartUploads.create"},
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs", "iam.serviceAccounts.get"},
    "roles/iap.tunnelResourceAccessor": {"iap.tunnelInstances.accessViaIAP"},
    "roles/logging.logWriter": {"logging.logEntries.create"},
}
_STARTS = re.compile(r'resource\.name\.startsWith\("(.*)"\)')
_EXTRACT = re.compile(r'resource\.name\.extract\("(.*)"\)(?:\.startsWith\("(.*)"\)| != "")')
_TYPE = re.compile(r'resource\.type == "(.*)"')
_IS = re.compile(r'resource\.name == "(.*)"')


def policy(grants: Grants, name: str) -> dict[str, Any]:
    (found,) = [grant.policy for grant in grants.grants if grant.name == name]
    return found


def extracted(name: str, template: str) -> str:
    """As Google's `extract` does it: what stands between the two parts of the template, or nothing."""
    before, after = re.split(r"\{\w+\}", template)
    start = name.find(before)
    if start < 0:
        return ""
    rest = name[start + len(before) :]
    if not after:
        return rest
    return rest[: rest.find(after)] if after in rest else ""


def holds(expression: str, kind: str, name: str) -> bool:
    """Whether a condition holds for a resource. Knows what our conditions are made of, and nothing else."""

    def one(term: str) -> bool:
        if found := _STARTS.fullmatch(term):
            return name.startswith(json.loads(f'"{found[1]}"'))
        if found := _TYPE.fullmatch(term):
            return kind == found[1]
        if found := _IS.fullmatch(term):
            return name == json.loads(f'"{found[1]}"')
        found = _EXTRACT.fullmatch(term)
        assert found is not None, term
        value = extracted(name, found[1])
        return value.startswith(found[2]) if found[2] is not None else value != ""

    return any(all(one(term) for term in terms.split(" && ")) for terms in expression.split(" || "))


def allowed(grants: Grants, who: str, permission: str, on: str, kind: str, name: str) -> bool:
    told = policy(grants, who)
    for binding in told["bindings"]:
        role = binding["role"].rpartition("/")[2]
        given = GOOGLES.get(binding["role"]) or set(told["roles"][role]["includedPermissions"])
        condition = binding.get("condition")
        if (
            binding["on"] == on
            and permission in given
            and (not condition or holds(condition["expression"], kind, name))
        ):
            return True
    return False


def may(grants: Grants, who: str, permission: str, key: str, bucket: str = "my-bucket", folder: str = "team/") -> bool:
    """Whether an object of the store may be touched so."""
    name = f"projects/_/buckets/{bucket}/objects/{folder}{key}"
    return allowed(grants, who, permission, f"gs://{bucket}", "storage.googleapis.com/Object", name)


def may_list(grants: Grants, who: str, bucket: str = "my-bucket") -> bool:
    """Cloud Storage asks about a list as about the bucket."""
    kind, name = "storage.googleapis.com/Bucket", f"projects/_/buckets/{bucket}"
    return allowed(grants, who, "storage.objects.list", f"gs://{bucket}", kind, name)


def may_delete_machine(grants: Grants, who: str, name: str) -> bool:
    path = f"projects/vision-1/zones/us-central1-a/instances/{name}"
    return allowed(grants, who, "compute.instances.delete", "project", "compute.googleapis.com/Instance", path)


NODE = keys.node("gpt-ab12", 3, 0, keys.boot("us-central1-a.42", 0))
FACTS = (
    keys.heartbeat(NODE),
    keys.exit_(NODE),
    keys.boot_output(NODE),
    keys.log_chunk(NODE, 1),
    keys.manifest("gpt-ab12", "00000003/000001-step-1"),
    keys.blob("gpt-ab12", 0, "f" * 64),
    f"{keys.outputs('gpt-ab12', 3)}model.bin",
)
LOG = keys.log_entry("gpt-ab12", 4)
DERIVED = (
    keys.active("gpt-ab12", 4),
    keys.index("gpt-ab12", 4),
    keys.governor("me"),
    keys.dry("gce/m/z/spot"),
    f"{market_keys.market_day(date(2026, 1, 1), 'gce')}m/z/spot/07/gpt-ab12.3.reclaimed.5",
    f"{keys.PROBES}me",
    keys.place("gce", "vision-1/us-central1"),
)
SUBMITTED = (keys.spec("gpt-ab12"), keys.code("a" * 64), keys.bundle("b" * 64))


def test_a_node_writes_facts_and_no_decision() -> None:
    grants = iam.grants(STORE)
    for key in FACTS:
        assert may(grants, "node", CREATE, key) and may(grants, "node", DELETE, key), key
        assert not may(grants, "governor", CREATE, key), key
    for key in (LOG, *DERIVED, *SUBMITTED, keys.DEFAULTS):
        assert not may(grants, "node", CREATE, key) and not may(grants, "node", DELETE, key), key
    for key in (*FACTS, *SUBMITTED, LOG, keys.DEFAULTS):
        assert may(grants, "node", READ, key), key
    assert not may(grants, "node", READ, keys.index("gpt-ab12", 4))
    assert not may(grants, "node", READ, "work/x", folder="others/")
    for permission in permissions.names(permissions.GOVERNOR):
        own = permission == "compute.instances.delete"
        assert may_delete_machine(grants, "node", "stoker-gpt-ab12-1-0") if own else True
        assert own or permission not in policy(grants, "node")["roles"]["stokerNode"]["includedPermissions"]


def test_tombstones_are_written_and_never_deleted() -> None:
    grants = iam.grants(STORE)
    for key in (keys.removed("gpt-ab12"), keys.collected(keys.CODE, "a" * 64)):
        assert may(grants, "person", CREATE, key), key
        for who in ("person", "governor", "node"):
            assert not may(grants, who, DELETE, key), key
        for who in ("governor", "node"):
            assert not may(grants, who, CREATE, key), key


def test_a_node_deletes_machines_of_stoker_alone() -> None:
    grants = iam.grants(STORE)
    assert may_delete_machine(grants, "node", "stoker-gpt-ab12-1-0123abcd-0")
    assert not may_delete_machine(grants, "node", "database-1")
    assert not may_delete_machine(grants, "node", "not-stoker-1")
    assert not may_delete_machine(grants, "person", "stoker-gpt-ab12-1-0123abcd-0")
    # No condition can ask for a label: that is said.
    assert may_delete_machine(grants, "governor", "database-1")
    assert any("any machine" in note for note in grants.notes)


def test_a_governor_decides_and_replaces_no_decision() -> None:
    grants = iam.grants(STORE)
    assert may(grants, "governor", CREATE, LOG)
    # To replace is to delete, and to create.
    assert not may(grants, "governor", DELETE, LOG)
    for key in DERIVED:
        assert may(grants, "governor", CREATE, key) and may(grants, "governor", DELETE, key), key
    for key in (*SUBMITTED, keys.DEFAULTS, "jobs/gpt-ab12/other/log.json"):
        assert not may(grants, "governor", CREATE, key), key
    for key in (LOG, *FACTS, *SUBMITTED, keys.DEFAULTS):
        assert may(grants, "governor", READ, key), key


def test_a_person_submits_and_removes() -> None:
    grants = iam.grants(STORE)
    for key in (*SUBMITTED, LOG, *DERIVED[:2], "check/abc"):
        assert may(grants, "person", CREATE, key), key
    for key in (*FACTS, *SUBMITTED):
        assert may(grants, "person", DELETE, key), key
    for key in (keys.DEFAULTS, *FACTS):
        assert not may(grants, "person", CREATE, key), key
    role = policy(grants, "person")["roles"]["stokerPerson"]["includedPermissions"]
    assert not {"compute.instances.create", "compute.instances.delete"} & set(role)


def test_everybody_lists_the_bucket_since_else_absence_is_a_refusal() -> None:
    grants = iam.grants(STORE)
    assert all(may_list(grants, who) for who in ("node", "person", "governor"))
    assert any("403 instead of 404 for an absent object" in note for note in grants.notes)


def test_only_the_nodes_account_may_be_given_to_a_machine() -> None:
    for grants, account in ((iam.grants(STORE), "stoker-node"), (iam.grants(STORE, job="gpt"), "stoker-node-gpt")):
        on = [
            each["on"] for each in policy(grants, "governor")["bindings"] if each["role"].endswith("serviceAccountUser")
        ]
        assert on == [account]


def test_machines_of_one_name_reach_jobs_of_that_name() -> None:
    grants = iam.grants(STORE, job="gpt")
    assert may(grants, "node", CREATE, "work/gpt-ab12/00000001/0/x.0/heartbeat")
    for other in ("work/vision-ab12/x", "work/gpts-ab12/x", "jobs/gpt-ab12/log/00000001.json"):
        assert not may(grants, "node", CREATE, other), other
    assert may(grants, "node", READ, "jobs/gpt-ab12/log/00000001.json")
    assert not may(grants, "node", READ, "jobs/vision-ab12/spec.json")
    assert may_delete_machine(grants, "node", "stoker-gpt-ab12-1-0123abcd-0")
    assert not may_delete_machine(grants, "node", "stoker-vision-ab12-1-0123abcd-0")
    # What it cannot tell apart, it says.
    assert may(grants, "node", CREATE, "work/gpt-small-ab12/x")
    assert any("gpt-more" in note for note in grants.notes)
    assert any("stoker-node-gpt" in note for note in grants.notes)


def test_a_long_job_deletes_its_machines_too() -> None:
    job = "a" * 40
    spec = Spec(name=job, run="true", resources=Resources(provider="gce"))
    offering = Offering("gce", "n2-standard-4", "us-central1-a", True, region="vision-1/us-central1")
    machine = names.machine(LaunchOrder(f"{job}-ab12", job, 123456, 1, 1, STORE, spec, "jane", offering), 999)
    assert len(machine) <= 63
    assert may_delete_machine(iam.grants(STORE, job=job), "node", machine)


@pytest.mark.parametrize("job", ["gpt", "a" * 40, "a-" * 19 + "b", "abcdefghijklmnopq-r"])
def test_names_of_accounts_fit(job: str) -> None:
    account = iam._account(job)
    # https://cloud.google.com/iam/docs/service-accounts-create
    assert re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", account)
    assert account != iam._account(job + "x")


def test_inputs_are_read_only() -> None:
    grants = iam.grants(STORE, inputs=("gs://data/imagenet",))
    assert may(grants, "node", READ, "train/1.tar", bucket="data", folder="imagenet/")
    # An input may be one object.
    assert may(grants, "node", READ, "imagenet", bucket="data", folder="")
    assert not may(grants, "node", READ, "imagenet2", bucket="data", folder="")
    assert not may(grants, "node", READ, "x", bucket="data", folder="other/")
    assert may_list(grants, "node", bucket="data")
    for permission in (CREATE, DELETE):
        assert not may(grants, "node", permission, "x", bucket="data", folder="imagenet/")


def test_logs_are_copied_where_that_is_asked_for() -> None:
    def roles(grants: Grants) -> set[str]:
        return {each["role"] for each in policy(grants, "node")["bindings"]}

    assert "roles/logging.logWriter" in roles(iam.grants(STORE, logs="stoker"))
    assert "roles/logging.logWriter" not in roles(iam.grants(STORE))


def test_conditions_fit() -> None:
    grants = iam.grants("gs://my-bucket/a\"b'c", job="a" * 40, inputs=("gs://data/x",), logs="stoker")
    for grant in grants.grants:
        for binding in grant.policy["bindings"]:
            condition = binding.get("condition")
            # https://cloud.google.com/iam/docs/conditions-overview: logical operators, and how long a title may be.
            if condition:
                assert condition["expression"].count("||") + condition["expression"].count("&&") <= 12
                assert len(condition["title"]) <= 100
    assert may(grants, "node", CREATE, f"work/{'a' * 40}-ab12/x", folder="a\"b'c/")


@pytest.mark.parametrize(
    ("store", "job", "wrong"),
    [("s3://x/y", None, "gs://"), ("gs://", None, "gs://"), (STORE, "Big_Name", "--job")],
)
def test_what_cannot_be_granted(store: str, job: str | None, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        iam.grants(store, job=job)


# ── The script ────────────────────────────────────────────────────────────────────────────────────────────────────────


# Keeps what it is asked; answers as the test wants.
GCLOUD = """\
#!/bin/sh
printf '%s\\n' "$*" | tr '\\n' ' ' >> "$CALLS"
printf '\\n' >> "$CALLS"
case "$*" in
  *get-value*) echo "$CONFIGURED" ;;
  *describe*) exit "$THERE" ;;
  *add-iam-policy-binding*) exit "$BINDS" ;;
esac
"""


class Shell:
    """A shell in which nothing is set, with a `gcloud` that keeps what it is asked, and no time to sleep."""

    def __init__(self, folder: Path) -> None:
        self.calls = folder / "calls"
        for name, text in (("gcloud", GCLOUD), ("sleep", "#!/bin/sh\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(self.calls), "CONFIGURED": "vision-1"}

    def run(self, script: str, there: bool = False, binds: bool = True, **environ: str) -> tuple[int, list[str], str]:
        """Its exit status, what `gcloud` was asked, and what it said."""
        self.calls.write_text("")
        answers = {"THERE": "0" if there else "1", "BINDS": "0" if binds else "1"}
        environ = self.environ | answers | environ
        ran = subprocess.run(["sh"], input=script, env=environ, text=True, capture_output=True, check=False)
        return ran.returncode, self.calls.read_text().splitlines(), ran.stdout + ran.stderr


INPUT = "gs://data/it's $HOME; `here`"


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What `stoker iam gce` prints."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    code, out, _ = run(capsys, "iam", "gce", "--bucket", STORE, "--input", INPUT, "--logs", "stoker")
    assert code == 0
    return out


def changes(calls: list[str]) -> list[str]:
    """What is not a mere look, in short."""
    words = [call.split() for call in calls]
    return [
        " ".join(each[:3]) if each[0] == "iam" else " ".join(each[:2])
        for each in words
        if "describe" not in each and "get-value" not in each
    ]


def test_the_output_is_a_script(script: str, tmp_path: Path) -> None:
    code, calls, said = Shell(tmp_path).run(script)
    assert code == 0
    assert changes(calls) == [
        "iam roles create",
        "iam roles create",
        "iam service-accounts create",
        *["storage buckets"] * 3,
        "projects add-iam-policy-binding",
        "storage buckets",
        "projects add-iam-policy-binding",
        "iam roles create",
        "iam roles create",
    ]
    assert "PERSON=user:jane@example.com" in said and "GOVERNOR=user:jane@example.com" in said
    # The conditions are in it as they are, whatever characters they have.
    (bound,) = [call for call in calls if "gs://data" in call]
    condition = policy(iam.grants(STORE, inputs=(INPUT,)), "node")["bindings"][-1]["condition"]
    assert f"title={condition['title']}" in bound and f"expression={condition['expression']}" in bound
    assert "serviceAccount:stoker-node@vision-1.iam.gserviceaccount.com" in bound


def test_it_binds_whoever_is_named(script: str, tmp_path: Path) -> None:
    people = {"PERSON": "user:jane@example.com group:ml@example.com", "GOVERNOR": "user:jane@example.com"}
    code, calls, said = Shell(tmp_path).run(script, **people, GOOGLE_CLOUD_PROJECT="vision-2")
    assert code == 0 and "next" not in said
    assert not any("get-value" in call for call in calls)
    bound = [call for call in calls if "add-iam-policy-binding" in call and "serviceAccount:" not in call]
    told = {name: len(policy(iam.grants(STORE), name)["bindings"]) for name in ("person", "governor")}
    assert len(bound) == 2 * told["person"] + told["governor"]
    assert sum("group:ml@example.com" in call for call in bound) == told["person"]
    assert any("--role projects/vision-2/roles/stokerPerson" in call for call in bound)


def test_what_is_there_is_left_or_written_anew(script: str, tmp_path: Path) -> None:
    code, calls, _ = Shell(tmp_path).run(script, there=True)
    assert code == 0
    made = [each for each in changes(calls) if each.startswith("iam ")]
    assert made == ["iam roles update"] * 4


def test_a_failure_ends_the_script_and_not_the_shell(script: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    code, calls, _ = shell.run(f"{script}gcloud info\n", binds=False)
    assert "add-iam-policy-binding" in calls[-2] and calls[-1] == "info "
    code, calls, said = shell.run(script, CONFIGURED="")
    assert code != 0 and "GOOGLE_CLOUD_PROJECT" in said and not changes(calls)


def test_what_is_no_command_is_a_comment(script: str) -> None:
    first, *lines, last = script.splitlines()
    assert first == f"sh -eu <<'{last}'"
    known = (
        "#",
        "  ",
        "gcloud ",
        "PROJECT=",
        "ACCOUNTS=",
        "case ",
        "PERMISSIONS=",
        "MEMBER=",
        "export ",
        ": ",
        "[ ",
        "if ",
        "else",
        "fi",
    )
    for line in lines:
        assert not line or line.startswith((*known, "fi", "case ", "for ", "done", "}")), line


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    monkeypatch.setenv("STOKER_STORE", STORE)
    code, out, _ = run(capsys, "iam", "gce", "--policy", "node")
    assert code == 0 and json.loads(out) == policy(iam.grants(STORE), "node")
    code, out, _ = run(capsys, "iam", "gce", "--json", "--bucket", "gs://other/x/")
    assert [grant["name"] for grant in json.loads(out)["grants"]] == ["node", "person", "governor"]
    assert "buckets/other/objects/x/" in out and "my-bucket" not in out
    monkeypatch.setenv("STOKER_STORE", "s3://other")
    code, _, err = run(capsys, "iam", "gce")
    assert code == 2 and "machines on gce cannot reach s3://other" in err


# ── As the real gcloud reads it ───────────────────────────────────────────────────────────────────────────────────────


class Google(BaseHTTPRequestHandler):
    """IAM, Resource Manager and Storage, as far as bindings need them; keeps every policy that is set."""

    protocol_version = "HTTP/1.1"
    policies: dict[str, Any]
    roles: dict[str, Any]

    def do(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = re.sub(r":[gs]etIamPolicy$|/iam$", "", path)
        status, told = 200, {}
        if self.command in ("POST", "PUT") and path.endswith((":setIamPolicy", "/iam")):
            told = json.loads(body)
            told = self.policies[what] = told.get("policy", told)
        elif path.endswith((":getIamPolicy", "/iam")):
            told = self.policies.get(what, {"version": 3, "etag": "abcd"})
        elif self.command == "POST":
            made = json.loads(body)
            name = made.get("roleId") or made.get("accountId")
            # It also asks which permissions there are.
            self.roles |= {name: made} if name else {}
        else:
            status, told = 404, {"error": {"code": 404, "message": "none", "status": "NOT_FOUND"}}
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def google() -> Iterator[tuple[type[Google], dict[str, str]]]:
    handler = type("Handler", (Google,), {"policies": {}, "roles": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    over = {"IAM": base, "CLOUDRESOURCEMANAGER": base, "STORAGE": f"{base}storage/v1/"}
    yield handler, {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": url for name, url in over.items()}
    server.shutdown()


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud here")
def test_the_real_gcloud_binds_what_is_meant(google: tuple[type[Google], dict[str, str]], tmp_path: Path) -> None:
    handler, endpoints = google
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "sleep").chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_PROJECT": "vision-1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
    }
    grants = iam.grants(STORE, inputs=(INPUT,))
    script = "\n".join(grants.grants[0].commands)
    subprocess.run(["sh", "-eu"], input=script, env=environ | endpoints, text=True, check=True, timeout=300)
    assert set(handler.roles) == {"stokerNode", "stokerRemover", "stoker-node"}
    assert handler.roles["stokerNode"]["role"] == policy(grants, "node")["roles"]["stokerNode"]
    paths = {
        "project": "/v1/projects/vision-1",
        "gs://my-bucket": "/storage/v1/b/my-bucket",
        "gs://data": "/storage/v1/b/data",
    }
    for binding in policy(grants, "node")["bindings"]:
        meant = {
            "role": binding["role"].replace("$PROJECT", "vision-1"),
            "condition": binding["condition"],
            "members": ["serviceAccount:stoker-node@vision-1.iam.gserviceaccount.com"],
        }
        assert meant in handler.policies[paths[binding["on"]]]["bindings"]
