"""The sagemaker provider."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stoker.model.errors import InvalidRequest, NotFound, Transient, UserError
from stoker.model.offerings import Capabilities, Instance, InstanceState, Offering
from stoker.model.resources import Resources, SagemakerResources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import CheckResult, EndReason, LaunchOrder, Request, TerminateResult
from stoker.providers.cloud_errors import first_line
from stoker.providers.ec2.client import Clients, environment_region
from stoker.providers.registry import Context
from stoker.providers.sagemaker import catalog, channels, names, offers, request, tags
from stoker.providers.sagemaker.capabilities import CAPABILITIES
from stoker.providers.sagemaker.errors import NameTaken, TrainingJobEnded, calling
from stoker.providers.sagemaker.machine import GRACE_S
from stoker.store.s3 import bucket_region, endpoint_address

_PAGE = 100
# Statuses of a training job that has, or will have, machines.
_ALIVE = ("InProgress", "Stopping")
_ENDED = ("Completed", "Failed", "Stopped", "Deleting")
# Secondary statuses in which containers run. In all others of a job that has not ended they start, or start again.
_RUNNING = ("Training", "Uploading", "Updating")
# Beginnings of FailureReason for a lack of machines: https://docs.aws.amazon.com/sagemaker/latest/dg/common-errors.html
_NO_CAPACITY = ("CapacityError", "InsufficientCapacity")

# Beginnings of FailureReason for failures of SageMaker itself.
_ITS_OWN = ("InternalServerError", "Internal Server Error")


class SageMakerProvider:
    """The training jobs of one store in one account. Holds clients, and the jobs of shortened names."""

    name = "sagemaker"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._prefix = names.prefix(context.store)
        self._clients = Clients()
        self._jobs: dict[str, str] = {}

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def clients(self) -> Clients:
        return self._clients

    def check(self, spec: Spec) -> None:
        """Raise UserError for what SageMaker would refuse."""
        registry.check_spec(self.name, self._context.store, spec)
        request.check(spec)
        request.check_image(spec, spec.resources.only_region or environment_region())
        self._check_channels(spec)

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """Lines about settings that are valid and may surprise."""
        return channels.remarks(spec, spec.resources.sagemaker or SagemakerResources())

    def _check_channels(self, spec: Spec) -> None:
        """Raise UserError for a channel whose bucket is in another region, where it is known: SageMaker reads none."""
        region = spec.resources.only_region or environment_region()
        if region is None or self._context.offline or endpoint_address():
            return
        ours = spec.resources.sagemaker or SagemakerResources()
        for name, bucket in channels.buckets(spec, ours).items():
            home = bucket_region(bucket)
            if home is not None and home != region:
                raise UserError(
                    f"inputs.{name}: the bucket {bucket} is in {home}, and a channel takes what is in {region}; set"
                    " resources.sagemaker.channels to false, so that the agent fetches it"
                )

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """List machine types × spot or on-demand, best first, from the packaged tables. Makes no call."""
        region = resources.only_region or environment_region()
        if region is None and not self._context.offline:
            region = self._clients.default_region()
        return offers.offered(replace(resources, region=region))

    def why_none(self, resources: Resources) -> str:
        """Say in one line why `offerings` is empty."""
        return offers.why_none(resources)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """List the names in these resources that no packaged table has, a line each."""
        return offers.unchecked(replace(resources, region=resources.only_region or environment_region()))

    def architectures(self, offerings: Iterable[Offering]) -> set[str]:
        """The processors of these machines, for the agents to install on them."""
        return {catalog.facts(offering.machine).arch for offering in offerings}

    def check_quota(self, offerings: Sequence[Offering], nodes: int) -> None:  # noqa: ARG002 - machines are tried
        """Raise UserError where the store's bucket is in another region than these."""
        for region in sorted({str(each.region) for each in offerings}):
            self.check_bucket(region)

    def check_bucket(self, region: str | None) -> str | None:
        """The region of the store's bucket; None where it is not known.

        Raises UserError where it is not `region`: SageMaker reads the agent only from a bucket of its own region.
        """
        bucket = self._context.store.removeprefix("s3://").partition("/")[0]
        # Storage that is not Amazon's has no real regions.
        home = None if self._context.offline or endpoint_address() else bucket_region(bucket)
        if home is not None and region is not None and home != region:
            raise UserError(
                f"resources.region: {region}, and the store's bucket {bucket} is in {home}; SageMaker takes what it"
                f" trains from its own region: set resources.region to {home}, or use a store with a bucket in {region}"
            )
        return home

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        """Build one CreateTrainingJob. Pure."""
        return request.build(order)

    # ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        """Create the training job. Idempotent by its name, permanently; its hosts come all or not at all."""
        (asked,) = requests
        if asked.operation != "CreateTrainingJob":
            raise InvalidRequest(f"not a request to the sagemaker provider: {asked.operation}")
        params = self._filled(asked)
        training = params["TrainingJobName"]
        once = self._clients.get("sagemaker", asked.region, attempts=1)
        state: InstanceState = "pending"
        created_at = datetime.now(timezone.utc)
        try:
            calling(params["ResourceConfig"]["InstanceType"], lambda: once.create_training_job(**params))
        except NameTaken as error:
            # Another governor has launched this claim: the training job of this name is the claim's.
            found = self._described(training, asked.region)
            if found is None:
                raise Transient(f"{training}: made before, and not known everywhere yet") from error
            state, created_at = _state(found), found["CreationTime"]
        except NotFound as error:
            # A resource that the job names does not exist.
            raise InvalidRequest(str(error)) from error
        found_tags = tags.from_aws(params["Tags"])
        hosts = range(params["ResourceConfig"]["InstanceCount"])
        return tuple(
            _instance(
                training, found_tags[tags.JOB], int(found_tags[tags.CLAIM]), rank, state, created_at, asked.region
            )
            for rank in hosts
        )

    def _filled(self, asked: Request) -> dict[str, Any]:
        """The request with the account's number in a role that was named without it, which only AWS knows."""
        role = str(asked.params["RoleArn"])
        if request.ACCOUNT not in role:
            return asked.params
        sts = self._clients.get("sts", asked.region)
        account = str(calling("sts:GetCallerIdentity", sts.get_caller_identity)["Account"])
        return asked.params | {"RoleArn": role.replace(request.ACCOUNT, account)}

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """List every host of this store's training jobs that have not ended. Two calls for a hundred of each kind."""
        client = self._clients.get("sagemaker", region)
        found: dict[str, Instance] = {}
        for status in _ALIVE:
            for summary in self._summaries(client, status):
                for each in self._hosts(client, summary, region):
                    found[each.id] = each
        return tuple(found.values())

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """Look up the state of each host, which is that of its training job. One call for each training job."""
        wanted = list(ids)
        states: dict[str | None, InstanceState] = {None: "unheard-of"}
        for training in {names.training_job_of(each) for each in wanted} - {None}:
            assert training is not None
            found = self._described(training, region)
            states[training] = "unheard-of" if found is None else _state(found)
        return {each: states[names.training_job_of(each)] for each in wanted}

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        """Stop the training job, and with it all hosts: one alone cannot be ended. They get two minutes to save."""
        training = names.training_job_of(instance)
        if training is None:
            return "gone"
        client = self._clients.get("sagemaker", region)
        try:
            calling(training, lambda: client.stop_training_job(TrainingJobName=training))
        except NotFound:
            return "gone"
        except InvalidRequest as error:
            # The training job has ended, or is about to: SageMaker's error for that is not the same in all cases.
            found = self._described(training, region)
            if found is None or _state(found) == "gone":
                return "gone"
            if not isinstance(error, TrainingJobEnded):
                raise
        return "requested"

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        """SageMaker's own reason. A lack of machines is reported late."""
        training = names.training_job_of(instance)
        found = self._described(training, region) if training else None
        if found is None:
            return None
        status, secondary = found["TrainingJobStatus"], found["SecondaryStatus"]
        reason = first_line(found.get("FailureReason") or secondary)
        if status == "Failed" and reason.startswith(_ITS_OWN):
            return None  # No reason is given: a repeated failure of SageMaker's own must not end the job.
        if status == "Failed":
            text = reason.removeprefix("AlgorithmError: ")
            return EndReason(reclaimed=False, reason=text, dry=reason.startswith(_NO_CAPACITY))
        if secondary == "MaxWaitTimeExceeded":
            return EndReason(reclaimed=False, reason="no spot machines within MaxWaitTimeInSeconds", dry=True)
        if secondary == "MaxRuntimeExceeded":
            return EndReason(reclaimed=False, reason="it ran for MaxRuntimeInSeconds")
        return (
            EndReason(reclaimed=False, reason="its container ended", by_itself=True) if status == "Completed" else None
        )

    # ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str:  # noqa: ARG002 - SageMaker's own
        """Stop the training job, which gives the same SIGTERM and the same two minutes. Raises NotFound where it has
        ended."""
        if self.terminate(instance, region) == "gone":
            raise NotFound(f"{instance}: its training job has ended")
        return f"SageMaker reclaims nothing on order: the training job is stopped, which leaves {GRACE_S:g} s to save"

    def check_account(self, spec: Spec) -> Iterator[CheckResult]:
        """Check credentials, permissions, role and quotas. Changes nothing."""
        from stoker.providers.sagemaker.check import check_account

        return check_account(self, spec, self._context.store)

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        """The job of a training job or host, by its name; by its tags where the name is shortened."""
        training = names.training_job_of(instance) or instance
        named = names.read(training) if training.startswith(self._prefix) else None
        if named is None or named.job is not None:
            return named.job if named is not None else None
        found = self._described(training, region)
        return None if found is None else self._job_by_tags(self._clients.get("sagemaker", region), found)

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _summaries(self, client: Any, status: str) -> Iterator[Mapping[str, Any]]:
        asked: dict[str, Any] = {"NameContains": self._prefix, "StatusEquals": status, "MaxResults": _PAGE}
        while True:
            answer = calling("training jobs", lambda: client.list_training_jobs(**asked))
            # NameContains matches anywhere in the name; the prefix must be at its beginning.
            yield from (s for s in answer["TrainingJobSummaries"] if s["TrainingJobName"].startswith(self._prefix))
            if not answer.get("NextToken"):
                return
            asked["NextToken"] = answer["NextToken"]

    def _hosts(self, client: Any, summary: Mapping[str, Any], region: str | None) -> Iterator[Instance]:
        training = summary["TrainingJobName"]
        named = names.read(training)
        if named is None:
            return
        job = named.job or self._job_by_tags(client, summary)
        if job is None:
            return
        state = _state(summary)
        for rank in range(named.nodes):
            yield _instance(training, job, named.claim, rank, state, summary["CreationTime"], region)

    def _job_by_tags(self, client: Any, summary: Mapping[str, Any]) -> str | None:
        """The job of a training job with a shortened name. Cached, since it never changes."""
        training, arn = summary["TrainingJobName"], summary["TrainingJobArn"]
        if training not in self._jobs:
            found = tags.from_aws(calling(training, lambda: client.list_tags(ResourceArn=arn))["Tags"])
            if found.get(tags.STORE) != tags.store_tag(self._context.store) or not found.get(tags.JOB):
                return None
            self._jobs[training] = found[tags.JOB]
        return self._jobs[training]

    def _described(self, training: str, region: str | None) -> Mapping[str, Any] | None:
        """The description of a training job; None where SageMaker does not know it."""
        client = self._clients.get("sagemaker", region)
        try:
            found: Mapping[str, Any] = calling(training, lambda: client.describe_training_job(TrainingJobName=training))
        except NotFound:
            return None
        return found


def _state(found: Mapping[str, Any]) -> InstanceState:
    status = found["TrainingJobStatus"]
    if status in _ENDED:
        return "gone"
    if status == "Stopping":
        return "stopping"
    # Interrupted training jobs restart by themselves, and cost nothing meanwhile.
    return "running" if found.get("SecondaryStatus") in _RUNNING else "pending"


def _instance(
    training: str, job: str, claim: int, rank: int, state: InstanceState, created_at: datetime, region: str | None
) -> Instance:
    host = names.host(training, rank)
    return Instance(host, "sagemaker", job, claim, rank, state, created_at=created_at, region=region)
