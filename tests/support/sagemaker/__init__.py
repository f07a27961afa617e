"""A stateful SageMaker for tests, as far as training jobs go.

    with sagemaker_cloud() as cloud:
        ...  # `cloud.env` is what boto3 needs to talk to it
        cloud.train("my-job")  # training jobs stand still until the test moves them
        cloud.events()  # what EventBridge would have told

Every request is held against botocore's own model: `cloud.broken()` tells those that did not fit. CloudWatch, SNS and
EventBridge are other servers' business.
"""

from __future__ import annotations

from tests.support.sagemaker.clock import Clock
from tests.support.sagemaker.cloud import SageMakerCloud, sagemaker_cloud
from tests.support.sagemaker.events import DETAIL_TYPE
from tests.support.sagemaker.faults import Fault
from tests.support.sagemaker.hosts import why_no_hosts
from tests.support.sagemaker.jobs import ACCOUNT, NO_CAPACITY
from tests.support.sagemaker.server import REGION

__all__ = [
    "ACCOUNT",
    "DETAIL_TYPE",
    "NO_CAPACITY",
    "REGION",
    "Clock",
    "Fault",
    "SageMakerCloud",
    "sagemaker_cloud",
    "why_no_hosts",
]
