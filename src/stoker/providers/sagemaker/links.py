"""AWS's console, for people: where a training job and its log are shown. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.providers.console_links import Seat
from stoker.providers.ec2 import links as ec2
from stoker.providers.sagemaker import names

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
log = ec2.log


def name(seat: Seat) -> str:
    """The training job."""
    return names.training_job(seat.store, seat.job, seat.claim, seat.nodes)


def machine(instance: str, region: str | None) -> str | None:
    """The page of the training job. SageMaker shows it for good."""
    training = names.training_of(instance)
    return f"{ec2.home('sagemaker', region)}#/jobs/{training}" if region and training else None


def own_logs(instance: str, region: str | None) -> str | None:
    """What SageMaker itself keeps of a container's output, for the command line."""
    training = names.training_of(instance)
    if training is None:
        return None
    where = f" --region {region}" if region else ""
    host = instance.rpartition(".")[2]
    return f"aws logs tail {LOG_GROUP} --log-stream-name-prefix {training}/{host}{where}"


def own_logs_link(instance: str, region: str | None) -> str | None:
    """The same in the console: the streams of the training job."""
    training = names.training_of(instance)
    if training is None or not region:
        return None
    group = quote(quote(LOG_GROUP, safe=""), safe="").replace("%", "$")
    return f"{ec2.home('cloudwatch', region)}#logsV2:log-groups/log-group/{group}$3FlogStreamNameFilter$3D{training}"
