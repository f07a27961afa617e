"""A governor on Google Cloud: what is deployed, by Google's own discovery documents; the function under Google's own
framework; and the message of an agent."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import free_port, isolated, pytest_isolated

PROJECT, REGION = "vision-1", "us-central1"

if isolated():
    from stoker import Job, client
    from stoker.cli import main
    from stoker.deploy import gcp, gcp_bindings, gcp_resources, package
    from stoker.deploy.gcp_entry_point import NAME
    from stoker.governor import deployment_record
    from stoker.governor.background import wake_deployed
    from stoker.governor.loop import Governor
    from stoker.governor.pass_record import record_pass
    from stoker.model import keys
    from stoker.model.errors import UserError
    from stoker.policy import versions
    from stoker.providers.gce.client import Api
    from stoker.providers.gce.machine import GceMachine
    from stoker.store import job_log
    from stoker.store.base import open_store
    from tests.support.gce.discovery import api
    from tests.support.google_functions import GoogleProject, Refused, google_project

    def passed(url: str) -> None:
        record_pass(open_store(url), NAME, 0, time.monotonic)

    @pytest.fixture
    def google(gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleProject]:
        with google_project(PROJECT) as made:
            for name, value in made.env.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
            monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", REGION)
            monkeypatch.setattr(gcp_bindings, "_PAUSE_S", 0.01)
            # As the function does when it is called.
            made.pushed = lambda: passed(gcs_url)
            yield made

    def stoker(*words: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert isinstance(left.value.code, int)
        return left.value.code

    def plan_of(url: str) -> gcp_resources.GcpPlan:
        return gcp_resources.plan_deployment(url, PROJECT, REGION, "0" * 64, {})

    def members(made: GoogleProject) -> set[str]:
        policies = made.policies.values()
        return {member for each in policies for bound in each["bindings"] for member in bound["members"]}

    # ── Deploying ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_what_is_deployed_is_there_and_what_is_removed_is_gone(
        google: GoogleProject, gcs_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = dict(google.things)
        bucket = f"b/{gcs_url.removeprefix('gs://').partition('/')[0]}"
        google.policies[bucket] = {
            "bindings": [{"role": "roles/storage.admin", "members": ["user:jane@example.com"]}],
            "etag": "0007",
        }
        assert stoker("--store", gcs_url, "deploy", "gcp", "--dry-run") == 0
        said = capsys.readouterr().out
        assert "cloudscheduler POST" in said and "setIamPolicy" in said
        assert google.asked == []

        google.unknown_accounts = 2
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0, capsys.readouterr().err
        plan, store = plan_of(gcs_url), open_store(gcs_url)
        assert google.things[plan.clock]["state"] == "PAUSED"
        # The slow clock never rests, and what cannot be delivered is kept.
        slow = google.things[plan.net]
        assert (slow["state"], slow["schedule"]) == ("ENABLED", "*/15 * * * *")
        assert slow["pubsubTarget"] == google.things[plan.clock]["pubsubTarget"]
        kept = google.things[plan.subscription]["deadLetterPolicy"]
        assert kept["deadLetterTopic"] in google.things
        assert google.things[f"{plan.subscription}-undelivered"]["topic"] == kept["deadLetterTopic"]
        agent = "serviceAccount:service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com"
        for place, role in ((plan.undelivered, "publisher"), (plan.subscription, "subscriber")):
            assert {"role": f"roles/pubsub.{role}", "members": [agent]} in google.policies[place]["bindings"]
        function = google.things[f"{plan.place}/functions/{plan.name}"]
        assert function["serviceConfig"]["environmentVariables"]["STOKER_STORE"] == gcs_url
        pushed = google.things[f"projects/{PROJECT}/subscriptions/{plan.name}"]["pushConfig"]
        assert pushed["pushEndpoint"] == function["serviceConfig"]["uri"]
        source = function["buildConfig"]["source"]["storageSource"]
        assert store.head(source["object"].removeprefix("stoker/test/")) is not None
        deployed = deployment_record.find(store)
        assert deployed is not None and deployed.door == plan.topic
        ours = f"serviceAccount:{plan.account}"
        assert {ours, f"serviceAccount:{plan.pusher}", "user:jane@example.com"} <= members(google)

        # Again changes nothing but what may have changed.
        counted = [len(each["bindings"]) for each in google.policies.values()]
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        assert [len(each["bindings"]) for each in google.policies.values()] == counted

        assert stoker("--store", gcs_url, "deploy", "gcp", "--remove", "-y") == 0, capsys.readouterr().err
        assert gcp.left_over(Api(), plan) == []
        operations = {name for name in google.things if "/operations/" in name}
        assert set(google.things) - operations == set(before)
        assert members(google) <= {"user:jane@example.com"} and google.policies[bucket]["bindings"]
        assert deployment_record.find(store) is None and not list(store.list(keys.DEPLOYED))
        assert stoker("--store", gcs_url, "deploy", "gcp", "--remove", "-y") == 0, "again does no harm"

    def test_every_request_is_one_that_google_knows(gcs_url: str) -> None:
        found_versions = {"cloudfunctions": "v2", "run": "v2"}
        plan = replace(plan_of(gcs_url), notify=("gcp-sm:chat",))
        assert any(
            "secrets/chat" in each.put.path
            for each in gcp_resources.steps(plan)
            if isinstance(each, gcp_resources.RoleBindings)
        )
        for step in gcp_resources.steps(plan):
            asked = [step.make, step.change] if isinstance(step, gcp_resources.GcpResource) else [step.look]
            for each in filter(None, asked):
                path, _, query = each.path.partition("?")
                told = dict(pair.split("=") for pair in query.split("&")) if query else {}
                body = each.body or None
                found = api(each.service, found_versions.get(each.service, "v1")).check(each.method, path, told, body)
                assert found == [], each.path

    def test_without_roles_it_says_how_to_make_them(google: GoogleProject, gcs_url: str) -> None:
        del google.things[f"projects/{PROJECT}/roles/stokerGovernor"]
        with pytest.raises(UserError, match="stoker iam gce"):
            gcp.deploy(open_store(gcs_url), plan_of(gcs_url), package.for_cloud_run(), "me", lambda _line: None)
        assert not [each for each in google.asked if not each.startswith("GET")]

    def test_a_role_that_lacks_something_is_told(google: GoogleProject, gcs_url: str) -> None:
        role = google.things[f"projects/{PROJECT}/roles/stokerGovernor"]
        role["includedPermissions"].remove("cloudscheduler.jobs.enable")
        with pytest.raises(UserError, match=r"lacks cloudscheduler.jobs.enable; `stoker iam gce"):
            gcp.deploy(open_store(gcs_url), plan_of(gcs_url), package.for_cloud_run(), "me", lambda _line: None)

    def test_another_region_leaves_nothing_in_the_first(google: GoogleProject, gcs_url: str) -> None:
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        google.trouble["DELETE /v2/"] = Refused(403, "PERMISSION_DENIED", "no")
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y", "--region", "europe-west1") == 0
        left = deployment_record.find(open_store(gcs_url))
        assert left is not None and left.leaving == (REGION,) and any(f"/{REGION}/" in name for name in google.things)
        # Where it could not be taken away, both regions are known.
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y", "--region", "europe-west1") == 0
        assert not [name for name in google.things if f"/{REGION}/" in name and "/operations/" not in name]
        assert any("/europe-west1/functions/" in name for name in google.things)
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y", "--project", "another-1") == 2
        google.trouble[f"POST /v1/projects/{PROJECT}:setIamPolicy"] = Refused(403, "PERMISSION_DENIED", "no")
        assert stoker("--store", gcs_url, "deploy", "gcp", "--remove", "-y") != 0
        assert deployment_record.find(open_store(gcs_url)) is None
        # CLOUDSDK_COMPUTE_REGION names the first: what is on record counts.
        assert stoker("--store", gcs_url, "deploy", "gcp", "--remove", "-y") == 0
        assert not [name for name in google.things if plan_of(gcs_url).name in name and "/operations/" not in name]

    def test_secrets_are_bound_until_they_are_given_up(google: GoogleProject, gcs_url: str) -> None:
        for name in ("chat", "pager"):
            google.things[f"projects/{PROJECT}/secrets/{name}"] = {}
        versions.write(open_store(gcs_url), "notify: ['gcp-sm:pager']", "me", "")

        def bound() -> list[str]:
            held = [name for name, policy in google.policies.items() if "/secrets/" in name and policy["bindings"]]
            return sorted(name.rpartition("/")[2] for name in held)

        assert stoker("--store", gcs_url, "deploy", "gcp", "-y", "--notify", "gcp-sm:chat") == 0
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        assert bound() == ["chat", "pager"]
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y", "--no-notify", "--notify", "gcp-sm:pager") == 0
        assert bound() == ["pager"]
        # As Cloud Storage tells of a rival's change.
        google.trouble["PUT /storage/v1/b/"] = Refused(412, "conditionNotMet", "at least one precondition failed")
        assert stoker("--store", gcs_url, "deploy", "gcp", "--remove", "-y") == 0
        assert bound() == []

    def test_one_that_does_nothing_is_told_and_not_relied_on(
        google: GoogleProject, gcs_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gcp, "_TRY_S", 0.0)
        google.pushed = lambda: None
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") != 0
        assert "has done nothing" in capsys.readouterr().err
        assert deployment_record.find(open_store(gcs_url)) is None

    def test_what_a_rival_changes_meanwhile_is_kept(google: GoogleProject, gcs_url: str) -> None:
        google.trouble[f"POST /v1/projects/{PROJECT}:setIamPolicy"] = Refused(409, "ABORTED", "another change")
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0

    def test_a_persons_command_is_a_message(google: GoogleProject, gcs_url: str) -> None:
        store = open_store(gcs_url)
        assert wake_deployed(store, ["x-bcdf"]).by is None
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        assert google.messages == [(plan_of(gcs_url).topic, {"stoker": {"tick": True}})], "it was tried"
        google.messages.clear()
        assert wake_deployed(store, ["x-bcdf"]).by is not None
        assert google.messages == [(plan_of(gcs_url).topic, {"stoker": {"jobs": ["x-bcdf"]}})]
        google.trouble[f"POST /v1/{plan_of(gcs_url).topic}:publish"] = Refused(403, "PERMISSION_DENIED")
        assert "could not be woken" in str(wake_deployed(store, ["x-bcdf"]).problem)

    # ── The agent's message ───────────────────────────────────────────────────────────────────────────────────────────

    class Told:
        """A machine's metadata, without a server."""

        def get(self, path: str) -> str | None:
            return PROJECT if path == "project/project-id" else None

        def wait(self, *_: object) -> tuple[str | None, str]:
            time.sleep(60)
            return None, ""

        def token(self, fresh: bool = False) -> tuple[str, float]:
            return "token", 3600.0

    def test_a_machine_wakes_the_governor_of_its_store(google: GoogleProject, gcs_url: str, tmp_path: Path) -> None:
        (tmp_path / "node.json").write_text(json.dumps({"store": gcs_url, "job": "x-bcdf"}))
        node = GceMachine(tmp_path, metadata=Told())  # type: ignore[arg-type]
        # There is none: nothing is said, and it is not asked for again at once.
        node.wake_governors()
        asked = len(google.asked)
        node.wake_governors()
        assert google.messages == [] and len(google.asked) == asked == 1
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        node = GceMachine(tmp_path, metadata=Told())  # type: ignore[arg-type]
        google.trouble[f"POST /v1/{plan_of(gcs_url).topic}:publish"] = Refused(503, "UNAVAILABLE")
        node.wake_governors()
        google.messages.clear()
        node.wake_governors()  # A moment's trouble says nothing about the next word.
        assert google.messages == [(plan_of(gcs_url).topic, {"stoker": {"jobs": ["x-bcdf"]}})]

    def test_a_machine_without_a_way_there_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB", f"http://127.0.0.1:{free_port()}/")
        (tmp_path / "node.json").write_text(json.dumps({"store": "gs://b", "job": "x-bcdf"}))
        GceMachine(tmp_path, metadata=Told()).wake_governors()  # type: ignore[arg-type]
        GceMachine(tmp_path / "nowhere", metadata=Told()).wake_governors()  # type: ignore[arg-type]

    # ── Under Google's own framework ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def function(url: str, folder: Path, kind: str) -> Iterator[str]:
        """The package as Cloud Run starts it; its address."""
        task = folder / f"task-{kind}"
        with zipfile.ZipFile(io.BytesIO(package.for_cloud_run().data)) as archive:
            archive.extractall(task)
        port = free_port()
        target = "wake" if kind == "http" else "on_event"
        command = [sys.executable, "-m", "functions_framework", "--target", target, "--signature-type", kind]
        command += ["--source", str(task / "main.py"), "--host", "127.0.0.1", "--port", str(port)]
        env = {**os.environ, "PYTHONPATH": str(task), "STOKER_STORE": url, "STOKER_CLOCK": plan_of(url).clock}
        # Another place than that of whoever submits: what runs there is not to be seen from here.
        env["STOKER_HOME"] = str(folder / "elsewhere")
        with (folder / "function.log").open("wb") as said:
            process = subprocess.Popen(command, env=env, cwd=task, stdout=said, stderr=subprocess.STDOUT)
        try:
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except urllib.error.HTTPError:
                    break
                except OSError:
                    assert process.poll() is None, (folder / "function.log").read_text()
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()

    def push(address: str, told: object, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = base64.b64encode(json.dumps(told).encode()).decode()
        body = json.dumps({"message": {"data": data, "messageId": "1"}, "subscription": "s"}).encode()
        return post(address, body, headers)

    def post(address: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        sent = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(address, body, sent, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith("{") else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    CLOUD_EVENT = {
        "ce-id": "1",
        "ce-specversion": "1.0",
        "ce-type": "google.cloud.pubsub.topic.v1.messagePublished",
        "ce-source": "//pubsub.googleapis.com/projects/vision-1/topics/t",
    }

    def test_the_function_governs_by_messages(
        google: GoogleProject, gcs_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
        assert stoker("--store", gcs_url, "deploy", "gcp", "-y") == 0
        clock = google.things[plan_of(gcs_url).clock]
        (tmp_path / "train.py").write_text("")
        # It runs on a computer that is not the function's, which sees the job and leaves it alone.
        job = client.submit(Job(name="x", run="sleep 600", code=str(tmp_path)), store=gcs_url, detach=False)
        _, (_, told) = google.messages
        store = open_store(gcs_url)
        Governor(store).run_pass()
        before = job_log.read(store, job)
        assert before is not None and before.claims[-1].launched
        with function(gcs_url, tmp_path, "http") as address:
            status, answer = push(address, told)
            said = (tmp_path / "function.log").read_text()
            assert (status, answer["jobs"], answer["active"]) == (200, [job], 1), said
            assert clock["state"] == "ENABLED", said
            # The same once more, and what is none.
            assert push(address, told)[0] == 200
            strange = (b"", b"{", b"[]", b'{"message": {"data": "%"}}', json.dumps({"message": {}}).encode())
            assert [post(address, each)[0] for each in strange] == [200] * len(strange)
            assert push(address, {"stoker": {"tick": True}})[1]["active"] == 1
            assert clock["state"] == "ENABLED"
            after = job_log.read(store, job, before)
            assert after is not None and after.seq == before.seq
            client.stop(job, gcs_url)
            client.wait(job, gcs_url, timeout=60)
            assert push(address, {"stoker": {"tick": True}})[1]["active"] == 0
            assert clock["state"] == "PAUSED"
        with function(gcs_url, tmp_path, "cloudevent") as address:
            assert push(address, {"stoker": {"tick": True}}, CLOUD_EVENT)[0] == 200
            assert push(address, "?", CLOUD_EVENT)[0] == 200

    def test_a_store_that_does_not_answer_is_tried_again(google: GoogleProject, tmp_path: Path) -> None:
        """Pub/Sub sends a message again for anything but a success."""
        with function("gs://there-is-no-such-bucket/x", tmp_path, "http") as address:
            assert push(address, {"stoker": {"tick": True}})[0] == 500

else:

    def test_serverless_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
