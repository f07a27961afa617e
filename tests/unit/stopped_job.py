"""A training job of others that has ended, and moments before now."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from stoker.external_jobs.clone_chain import CloneChain, Stopping
from stoker.external_jobs.training_job import ExternalJob
from stoker.policy.policy_file import parse_policy

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)
DAY_S = 86400.0
POLICY = parse_policy(b"sagemaker: {regions: [us-east-1]}", "p")
STOPPED = ExternalJob(
    "bert",
    "us-east-1",
    "Stopped",
    "Stopped",
    created_at=NOW - timedelta(hours=5),
    ended_at=NOW - timedelta(minutes=1),
    machines=("ml.g5.12xlarge",),
    trained_before_s=9000.0,
    checkpoints="s3://bucket/checkpoints",
    spot=True,
)
FAILED = replace(STOPPED, status="Failed", secondary="Failed", failure="InternalServerError: try again")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def stopping(after: str = "restart", **more: Any) -> CloneChain:
    stop = Stopping("bert", "policy:stall", after)  # type: ignore[arg-type]
    return CloneChain("bert", stops={"bert": stop}, stops_at={"bert": ago(500)}, **more)
