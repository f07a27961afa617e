"""What EventBridge tells of a training job's change, as documented.

https://docs.aws.amazon.com/sagemaker/latest/dg/automating-sagemaker-with-eventbridge.html
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.support.sagemaker.jobs import ACCOUNT, Job, Json

DETAIL_TYPE = "SageMaker Training Job State Change"
# In the order of the documented example, with what has been added since.
_MEMBERS = (
    *("TrainingJobName", "TrainingJobArn", "TrainingJobStatus", "SecondaryStatus", "FailureReason"),
    *("HyperParameters", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig"),
    *("ModelArtifacts", "ResourceConfig", "VpcConfig", "StoppingCondition", "CreationTime", "TrainingStartTime"),
    *("TrainingEndTime", "LastModifiedTime", "SecondaryStatusTransitions", "FinalMetricDataList"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"),
    *("CheckpointConfig", "TrainingTimeInSeconds", "BillableTimeInSeconds", "Environment", "RetryStrategy"),
)


def _as_text(time: datetime) -> str:
    return str(round(time.timestamp() * 1000))


def _as_number(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def state_change(job: Job, now: datetime, *, numbers: bool = False) -> Json:
    """The event of the state that a job is in. Times are milliseconds since the epoch, as text as the documentation
    has them; as numbers where asked for, as the service has been seen to send them."""
    whole = job.describe(now)
    detail = {name: whole[name] for name in _MEMBERS if name in whole}
    write = _as_number if numbers else _as_text
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": DETAIL_TYPE,
        "source": "aws.sagemaker",
        "account": ACCOUNT,
        "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": job.region,
        "resources": [job.arn],
        "detail": {**_written(detail, write), "Tags": dict(job.tags)},
    }


def _written(value: Any, write: Callable[[datetime], object]) -> Any:
    if isinstance(value, datetime):
        return write(value)
    if isinstance(value, dict):
        return {name: _written(each, write) for name, each in value.items()}
    if isinstance(value, list):
        return [_written(each, write) for each in value]
    return value
