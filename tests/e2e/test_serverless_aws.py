"""A governor on AWS: its package under AWS's own emulator, its stack, its events and its alarms on servers that act."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from harness import until

from tests.support.servers import S3Server, isolated, moto_server, pytest_isolated, s3_server

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import aws_events
from woken_world import beat, state_of, warn

SERVICES = ("cloudformation", "lambda", "events", "sns", "sqs", "monitoring", "logs", "iam", "sts")
REGION = "us-east-1"


def boto(service: str, region: str = REGION) -> Any:
    import boto3

    return boto3.client(service, region_name=region)


if isolated():
    from stoker import Job, client
    from stoker.cli import main
    from stoker.deploy import aws, aws_monitoring, aws_remove, aws_stacks, aws_template, package
    from stoker.deploy.aws_template import HANDLER
    from stoker.external_jobs.gpu_alarms import alarm_prefix
    from stoker.governor import deployment_record
    from stoker.governor.background import GovernorChoice, wake_deployed
    from stoker.governor.observe import active_jobs
    from stoker.model import keys
    from stoker.model.errors import AuthDenied
    from stoker.policy import versions
    from stoker.providers.ec2.client import Clients
    from stoker.store.base import Store, open_store
    from tests.support.lambda_runtime import LambdaFunction, lambda_function, why_no_emulator

    @pytest.fixture(scope="module")
    def zipped() -> package.Package:
        return package.for_lambda()

    def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
        # Nothing boots here, so nothing is lost on a bucket that machines could not reach.
        monkeypatch.setattr(importlib.import_module("stoker.submit.prepare"), "unreachable", lambda _environ: ())

    def submit(store: Store, folder: Path) -> str:
        resources = {"provider": "ec2", "machine": ["c7i.large"], "image": "debian/12", "spot": True, "disk": "40GB"}
        resources["ec2"] = {"profile": "stoker-node"}
        folder.joinpath("train.py").write_text("print('hello')\n")
        return client.submit(
            Job(name="x", run="python train.py", code=str(folder), resources=resources), store=store, detach=False
        )

    # ── Under the emulator ────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.fixture(scope="module")
    def moto() -> Iterator[S3Server]:
        with moto_server("stoker-bucket") as server:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in server.env.items():
                    patch.setenv(name, value)
                boto("iam").create_instance_profile(InstanceProfileName="stoker-node")
            yield server

    @pytest.fixture
    def store(moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        environment(moto, monkeypatch, tmp_path)
        return open_store(f"s3://stoker-bucket/{tmp_path.name}")

    @pytest.fixture
    def function(moto: S3Server, store: Store, zipped: package.Package) -> Iterator[LambdaFunction]:
        if (why := why_no_emulator()) is not None:
            pytest.skip(why)
        boto("events").put_rule(Name="tick", ScheduleExpression="rate(1 minute)", State="DISABLED")
        environ = {**moto.env, "STOKER_STORE": store.url, "STOKER_RULE": "tick"}
        with lambda_function(zipped.data, HANDLER, environ) as made:
            yield made

    def clock() -> str:
        return str(boto("events").describe_rule(Name="tick")["State"])

    def machine(store: Store, job: str) -> str:
        claims = [claim for claim in state_of(store, job).claims if claim.launched]
        assert claims and claims[-1].launched
        return claims[-1].launched[0].instance

    def test_a_jobs_life_by_events_alone(store: Store, function: LambdaFunction, tmp_path: Path) -> None:
        """Every payload as AWS documents it; nobody governs but the function."""
        job = submit(store, tmp_path)
        told = function.invoke({"stoker": {"jobs": [job]}})
        assert (told["jobs"], told["active"], told["problems"]) == ([job], 1, 0), function.output.read_text()
        first = machine(store, job)
        assert clock() == "ENABLED"

        # A warning for a machine whose agent has heard it, too.
        warn(store, job)
        told = function.invoke(aws_events.spot_warning(first))
        assert told["jobs"] == [job] and told["actions"] > 0
        second = machine(store, job)
        assert second != first and len(state_of(store, job).attempts) == 2

        # The same once more, an hour late, and in between the others: nothing comes of it.
        seq = state_of(store, job).seq
        late = {**aws_events.spot_warning(first), "time": "2026-11-16T20:29:54Z"}
        for event in (late, aws_events.rebalance(first), aws_events.interruptible(first), late):
            assert "errorType" not in function.invoke(event)
        assert state_of(store, job).seq == seq

        # The first machine ends; then the second, without a word.
        boto("ec2").terminate_instances(InstanceIds=[first])
        for event in (aws_events.state_change("terminated", first), aws_events.state_change("shutting-down", first)):
            assert function.invoke(event)["jobs"] == [job]
        assert [claim.open for claim in state_of(store, job).claims] == [False, True]
        beat(store, job)
        boto("ec2").terminate_instances(InstanceIds=[second])
        function.invoke(aws_events.state_change("terminated", second))
        third = machine(store, job)
        assert third not in (first, second)

        # A person stops it; the tick sees the rest through, and switches itself off.
        client.stop(job, store)
        function.invoke({"stoker": {"jobs": [job]}})

        def over() -> bool:
            answer = function.invoke(aws_events.tick())
            assert "errorType" not in answer, answer
            return not active_jobs(store)

        until(over, "the job has ended and its machines are gone")
        assert state_of(store, job).ended is not None
        function.invoke(aws_events.tick())
        assert clock() == "DISABLED"
        states = boto("ec2").describe_instances(Filters=[{"Name": "tag:stoker:job", "Values": [job]}])
        found = [each["State"]["Name"] for group in states["Reservations"] for each in group["Instances"]]
        assert found == ["terminated"] * 3

    def test_what_nobody_understands_is_dropped(store: Store, function: LambdaFunction) -> None:
        strange: list[object] = [
            None,
            7,
            [],
            {},
            {"detail-type": "?"},
            {"Records": [None]},
            {"stoker": {"jobs": ["/"]}},
        ]
        for event in (*strange, aws_events.spot_warning(), aws_events.state_change("terminated")):
            told = function.invoke(event)
            assert told["ignored"] == 1 and told["actions"] == 0, told
        for event in (aws_events.training(), aws_events.alarm()):
            assert "errorType" not in function.invoke(event)
        assert clock() == "DISABLED"

    def test_a_store_that_does_not_answer_makes_the_call_fail(
        moto: S3Server, store: Store, zipped: package.Package
    ) -> None:
        """So that Lambda repeats it."""
        if (why := why_no_emulator()) is not None:
            pytest.skip(why)
        environ = {**moto.env, "STOKER_STORE": "s3://no-such-bucket/x", "STOKER_RULE": "tick"}
        with lambda_function(zipped.data, HANDLER, environ) as function:
            assert function.invoke(aws_events.tick())["errorType"].startswith("Store")
            assert function.invoke({})["ignored"] == 1, "it goes on"

    # ── The stack ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.fixture(scope="module")
    def cloud() -> Iterator[S3Server]:
        with s3_server(*SERVICES) as server:
            yield server

    @pytest.fixture
    def bucket(cloud: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        environment(cloud, monkeypatch, tmp_path)
        return f"s3://{cloud.new_bucket()}/team"

    def stoker(*words: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(words)
        assert isinstance(left.value.code, int)
        return left.value.code

    def roles() -> list[str]:
        return [each["RoleName"] for each in boto("iam").list_roles()["Roles"]]

    def test_what_is_deployed_runs_and_what_is_removed_is_gone(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
        before = roles()
        assert stoker("--store", bucket, "deploy", "aws", "--dry-run") == 0
        assert '"AWS::Lambda::Function"' in capsys.readouterr().out
        name, store = keys.deployment_name(bucket), open_store(bucket)
        assert aws_remove.left_over(Clients(), name, bucket, REGION) == [] and not list(store.list(keys.DEPLOYED))

        assert stoker("--store", bucket, "deploy", "aws", "-y", "--events-from", "us-west-2") == 0
        deployed = deployment_record.find(store)
        assert deployed is not None and (deployed.name, deployed.elsewhere) == (name, ("us-west-2",))
        kinds = {each.split()[0] for each in aws_remove.left_over(Clients(), name, bucket, REGION)}
        assert kinds == {"rule", "function", "topic", "log"} and len(roles()) == len(before) + 2
        assert boto("events").describe_rule(Name=f"{name}-tick")["State"] == "DISABLED"
        # It is watched, and the slow tick never rests.
        assert boto("events").describe_rule(Name=f"{name}-net")["State"] == "ENABLED"
        queue = boto("sqs").get_queue_url(QueueName=aws_monitoring.queue_name(name))["QueueUrl"]
        assert queue.endswith(aws_monitoring.queue_name(name))
        alarms = boto("cloudwatch").describe_alarms(AlarmNamePrefix=f"{name}-")["MetricAlarms"]
        assert sorted(each["AlarmName"] for each in alarms) == sorted(aws_monitoring.alarm_names(name))
        watch = next(each for each in topics() if each.endswith(aws_monitoring.topic_name(name)))
        assert all(watch in each["AlarmActions"] for each in alarms)

        # Again changes nothing, and a region is given up by who says so.
        capsys.readouterr()
        versions.write(store, "sagemaker: {regions: [us-east-1]}", "me", "")
        assert stoker("--store", bucket, "deploy", "aws", "-y") == 0
        said = capsys.readouterr().err
        assert "us-east-1: as it was" in said and "us-west-2: as it was" in said
        assert stoker("--store", bucket, "deploy", "aws", "-y", "--no-events-from") == 0
        said = capsys.readouterr().err
        assert "dropped: us-west-2" in said and "us-west-2: removed" in said
        assert "may not touch without --sagemaker" in said

        # It runs what it was given.
        answer = boto("lambda").invoke(FunctionName=name, Payload=json.dumps(aws_events.tick()).encode())
        told = json.loads(answer["Payload"].read())
        assert told.get("active") == 0, told

        # An alarm that it made for somebody's training job goes with it; another stays.
        topic = next(each for each in topics() if each.endswith(f"{name}-alarms"))
        put_alarm("stoker-made-this", topic)
        put_alarm("somebody-elses", topic.replace(name, "other"))
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0
        assert aws_remove.left_over(Clients(), name, bucket, REGION) == [] and roles() == before
        assert [each["AlarmName"] for each in boto("cloudwatch").describe_alarms()["MetricAlarms"]] == [
            "somebody-elses"
        ]
        assert not list(store.list(keys.DEPLOYED)) and deployment_record.find(store) is None
        capsys.readouterr()
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0, "again does no harm"
        assert capsys.readouterr().err == f"there is no stack {name} in {REGION}; nothing to remove\n"

    def topics() -> list[str]:
        return [each["TopicArn"] for each in boto("sns").list_topics()["Topics"]]

    def put_alarm(name: str, topic: str, host: str = "theirs/algo-1", client: Any = None) -> None:
        (client or boto("cloudwatch")).put_metric_alarm(
            AlarmName=name,
            AlarmActions=[topic],
            Namespace="/aws/sagemaker/TrainingJobs",
            MetricName="GPUUtilization",
            Dimensions=[{"Name": "Host", "Value": host}],
            Statistic="Average",
            Period=60,
            EvaluationPeriods=1,
            Threshold=1.0,
            ComparisonOperator="LessThanOrEqualToThreshold",
        )

    def test_a_persons_command_wakes_it(bucket: str) -> None:
        """The function's own pass is what shows: nobody else governs this store."""
        assert stoker("--store", bucket, "deploy", "aws", "-y") == 0
        store, name = open_store(bucket), keys.deployment_name(bucket)
        assert wake_deployed(store, ["nobody-bcdf"]).by == f"{name} in {REGION}"
        until(lambda: any("aws-lambda" in meta.key for meta in store.list(keys.GOVERNORS)), "the function passed")
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0
        assert wake_deployed(store, ["nobody-bcdf"]) == GovernorChoice()

    def test_what_was_interrupted_is_still_known(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Deploying, and removing: another region's stack is found and removed by who knows nothing of it."""
        name, store, before = keys.deployment_name(bucket), open_store(bucket), roles()
        settle = aws_stacks.create_or_update

        def interrupt(*given: Any) -> Any:
            settle(*given)
            if given[1].region == "us-west-2":
                raise KeyboardInterrupt

        def refuse(*_: object) -> bool:
            raise AuthDenied("cloudformation:DeleteStack is not allowed")

        with monkeypatch.context() as patch:
            patch.setattr(aws_stacks, "create_or_update", interrupt)
            assert stoker("--store", bucket, "deploy", "aws", "-y", "--events-from", "us-west-2") != 0
        assert deployment_record.find(store) is None, "nobody relies on it yet"
        with monkeypatch.context() as patch:
            patch.setattr(aws_stacks, "remove", refuse)
            assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") != 0
        assert deployment_record.find(store) is None
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0
        assert aws_remove.left_over(Clients(), name, bucket, "us-west-2") == [] and roles() == before
        assert not list(store.list(keys.DEPLOYED))

    def test_alarms_go_wherever_it_made_them(bucket: str) -> None:
        store, here, there = open_store(bucket), alarm_prefix(bucket), boto("cloudwatch", "eu-west-1")
        versions.write(store, "sagemaker: {regions: [us-east-1, eu-west-1]}", "me", "")
        store.put(f"{keys.CLONE_CHAINS}ap-south-1/x/1.json", b"{}")
        assert stoker("--store", bucket, "deploy", "aws", "-y", "--sagemaker") == 0
        for region in ("eu-west-1", "ap-south-1"):
            put_alarm(f"{here}theirs-1", "arn:aws:sns:eu-west-1:000000000000:x", client=boto("cloudwatch", region))
        assert there.describe_alarms()["MetricAlarms"]
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0
        for region in ("eu-west-1", "ap-south-1"):
            assert boto("cloudwatch", region).describe_alarms()["MetricAlarms"] == []

    TOPIC = "sns:arn:aws:sns:us-east-1:123456789012:alerts"

    def test_deploying_again_takes_nothing_away(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
        store = open_store(bucket)
        assert stoker("--store", bucket, "deploy", "aws", "-y", "--sagemaker", "--notify", TOPIC) == 0
        first = deployment_record.find(store)
        assert first is not None and first.sagemaker and first.notify == (TOPIC,)
        assert stoker("--store", bucket, "deploy", "aws", "-y") == 0
        assert deployment_record.find(store) == first
        # The policy's channels are taken by themselves; what the function cannot read is told.
        versions.write(store, f"notify: ['{TOPIC.replace('alerts', 'more')}', 'env:CHAT']", "me", "")
        capsys.readouterr()
        assert stoker("--store", bucket, "deploy", "aws", "-y", "--no-sagemaker") == 0
        said = capsys.readouterr().err
        assert "dropped: external training jobs" in said and "the policy notifies env:CHAT" in said
        second = deployment_record.find(store)
        assert second is not None and not second.sagemaker
        assert second.notify == (TOPIC, TOPIC.replace("alerts", "more"))
        assert stoker("--store", bucket, "deploy", "aws", "-y", "--no-notify") == 0
        assert "dropped: sns:" in capsys.readouterr().err
        third = deployment_record.find(store)
        assert third is not None and third.notify == ()
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0

    def test_one_that_fails_is_told_and_not_relied_on(
        bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(aws, "_TRY_S", 0.0)
        store = open_store(bucket)
        with monkeypatch.context() as patch:
            patch.setattr(aws_template, "HANDLER", "nowhere.handler")
            assert stoker("--store", bucket, "deploy", "aws", "-y") != 0
        said = capsys.readouterr().err
        assert "is deployed, and fails" in said and "nowhere" in said
        assert deployment_record.find(store) is None and wake_deployed(store, ["x-bcdf"]) == GovernorChoice()
        assert stoker("--store", bucket, "deploy", "aws", "-y") == 0
        assert deployment_record.find(store) is not None
        assert stoker("--store", bucket, "deploy", "aws", "--remove", "-y") == 0

    # ── Events and alarms, for real ───────────────────────────────────────────────────────────────────────────────────

    ECHO = """
import json, os, urllib.request
from stoker.governor.serverless.events import of_aws

def handler(event, _context):
    told = repr(of_aws(event)).encode()
    url = os.environ["ANSWERS"]
    urllib.request.urlopen(urllib.request.Request(url, told, method="PUT"), timeout=10).read()
"""

    @pytest.fixture
    def echo(bucket: str, cloud: S3Server, zipped: package.Package, tmp_path: Path) -> Iterator[tuple[str, str]]:
        """A function that writes down what it was woken for; its ARN, and the key."""
        import io
        import zipfile

        draft = io.BytesIO(zipped.data)
        with zipfile.ZipFile(draft, "a") as archive:
            archive.writestr("echo.py", ECHO)
        name = f"echo-{tmp_path.name[-20:].replace('_', '-')}"
        where = bucket.removeprefix("s3://").partition("/")[0]
        made = boto("lambda").create_function(
            FunctionName=name,
            Runtime="python3.13",
            Role="arn:aws:iam::000000000000:role/any",
            Handler="echo.handler",
            Code={"ZipFile": draft.getvalue()},
            Timeout=60,
            Environment={"Variables": {"ANSWERS": f"{cloud.endpoint}/{where}/answer"}},
        )
        yield str(made["FunctionArn"]), where
        boto("lambda").delete_function(FunctionName=name)

    def answer(where: str) -> str | None:
        found = open_store(f"s3://{where}").get("answer")
        return None if found is None else found.data.decode()

    def test_an_event_reaches_the_function_through_eventbridge(echo: tuple[str, str]) -> None:
        """With a source of its own: the server refuses AWS's. AWS's own patterns are matched elsewhere."""
        function, where = echo
        event = aws_events.spot_warning()
        pattern = {"source": ["test.ec2"], "detail-type": [event["detail-type"]]}
        events = boto("events")
        events.put_rule(Name="notices", EventPattern=json.dumps(pattern))
        events.put_targets(Rule="notices", Targets=[{"Id": "governor", "Arn": function}])
        entry = {"Source": "test.ec2", "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
        assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
        told = until(lambda: answer(where), "the function was called")
        assert "MachineWake" in told and aws_events.INSTANCE in told and "warned=True" in told
        events.remove_targets(Rule="notices", Ids=["governor"])
        events.delete_rule(Name="notices")

    def test_an_alarm_reaches_the_function_through_sns(echo: tuple[str, str]) -> None:
        function, where = echo
        topic = boto("sns").create_topic(Name="alarms")["TopicArn"]
        boto("sns").subscribe(TopicArn=topic, Protocol="lambda", Endpoint=function)
        put_alarm("idle", topic, host="theirs/algo-1")
        now = datetime.now(timezone.utc)
        metric = {
            "MetricName": "GPUUtilization",
            "Dimensions": [{"Name": "Host", "Value": "theirs/algo-1"}],
            "Value": 0.0,
        }
        data = [{**metric, "Timestamp": now - timedelta(seconds=60 * n)} for n in range(3)]
        boto("cloudwatch").put_metric_data(Namespace="/aws/sagemaker/TrainingJobs", MetricData=data)
        told = until(lambda: answer(where), "the alarm went off and the function was called")
        assert "TrainingWake(name='theirs'" in told, told
        boto("cloudwatch").delete_alarms(AlarmNames=["idle"])
        boto("sns").delete_topic(TopicArn=topic)

    def test_the_real_patterns_match_the_real_events(cloud: S3Server, bucket: str) -> None:
        """By a matcher that is not ours."""
        from stoker.deploy.aws_template import patterns

        for event in (*aws_events.EC2, aws_events.training()):
            found = [
                boto("events").test_event_pattern(EventPattern=json.dumps(pattern), Event=json.dumps(event))["Result"]
                for pattern in patterns().values()
            ]
            assert found.count(True) == 1, event["detail-type"]

else:

    def test_serverless_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
