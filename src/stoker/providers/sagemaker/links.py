"""Links to AWS's console: a training job and its log. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.providers.console_links import NodeIdentity
from stoker.providers.ec2 import links as ec2
from stoker.providers.sagemaker import names

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
log = ec2.log


def name(node: NodeIdentity) -> str:
    """The name of the training job, under which the console lists the node."""
    return names.training_job(node.store, node.job, node.claim, node.nodes)


def machine(instance: str, region: str | None) -> str | None:
    """The page of the training job, which SageMaker keeps permanently."""
    training = names.training_job_of(instance)
    return f"{ec2.home('sagemaker', region)}#/jobs/{training}" if region and training else None


def own_logs(instance: str, region: str | None) -> str | None:
    """The command that shows the container's output as SageMaker stores it."""
    training = names.training_job_of(instance)
    if training is None:
        return None
    where = f" --region {region}" if region else ""
    host = instance.rpartition(".")[2]
    return f"aws logs tail {LOG_GROUP} --log-stream-name-prefix {training}/{host}{where}"


def own_logs_link(instance: str, region: str | None) -> str | None:
    """The console page of the same: the log streams of the training job."""
    training = names.training_job_of(instance)
    if training is None or not region:
        return None
    group = quote(quote(LOG_GROUP, safe=""), safe="").replace("%", "$")
    return f"{ec2.home('cloudwatch', region)}#logsV2:log-groups/log-group/{group}$3FlogStreamNameFilter$3D{training}"
