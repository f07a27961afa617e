"""The IAM policies for training jobs: for a person, for the governor, and for the training jobs. Pure.

Their statements about the store are those of EC2 (`stoker.providers.ec2.permissions`). A training job's role can
write no decision, and start or stop no training job.
"""

from __future__ import annotations

from typing import Any

from stoker.model.resources import Resources
from stoker.providers.ec2 import iam as ec2
from stoker.providers.ec2 import kms, permissions, role_names
from stoker.providers.ec2.permissions import Statement
from stoker.providers.ec2.statements import fill
from stoker.providers.ec2.tags import STORE
from stoker.providers.grants import DeployedGrants, Grant, Grants, MachineRole, RoleRefusal, check_job_name, jobs_of
from stoker.providers.sagemaker import names as training_names
from stoker.providers.sagemaker.links import LOG_GROUP
from stoker.providers.sagemaker.request import DEFAULT_ROLE

# ── The permissions ───────────────────────────────────────────────────────────────────────────────────────────────────
# As in `stoker.providers.ec2.permissions`. (TRAINING) begins the names of the store's training jobs.

PERSON = (
    *permissions.PERSON_IN_STORE,
    permissions.PRICES,
    permissions.WAKE_GOVERNOR,
    Statement(
        "Look",
        "how training jobs are",
        ("sagemaker:DescribeTrainingJob", "sagemaker:ListTrainingJobs", "sagemaker:ListTags"),
        "*",
    ),
    Statement(
        "Check",
        "whether the role is there, and what it and the quotas allow",
        ("iam:GetRole", "iam:SimulatePrincipalPolicy", "servicequotas:ListServiceQuotas"),
        "*",
    ),
)
_OURS = ("arn:aws:sagemaker:*:*:training-job/(TRAINING)*",)
GOVERNOR = (
    # IAM limits the length of a role's policies: one statement for both.
    Statement(
        "SeeJobs",
        "which training jobs are there, and what machines cost",
        ("sagemaker:ListTrainingJobs", "pricing:GetProducts"),
        "*",
    ),
    Statement(
        "MakeJobs",
        "make training jobs with the store's tag",
        ("sagemaker:CreateTrainingJob", "sagemaker:AddTags"),
        _OURS,
        {"StringEquals": {f"aws:RequestTag/{STORE}": "(TAG)"}},
    ),
    # https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-iam-permissions.html
    Statement(
        "UsePlans",
        "a training job in reserved capacity needs the permission on these as well",
        "sagemaker:CreateTrainingJob",
        ("arn:aws:sagemaker:*:*:training-plan/*", "arn:aws:sagemaker:*:*:reserved-capacity/*"),
    ),
    Statement(
        "GovernJobs",
        "look at them, and stop them",
        ("sagemaker:DescribeTrainingJob", "sagemaker:ListTags", "sagemaker:StopTrainingJob"),
        _OURS,
    ),
    Statement(
        "PassTrainingRole",
        "give training jobs their role",
        "iam:PassRole",
        (f"arn:aws:iam::*:role/{DEFAULT_ROLE}", f"arn:aws:iam::*:role/{DEFAULT_ROLE}-*"),
        {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
    ),
)
_LOG_GROUP_ARN = f"arn:aws:logs:*:*:log-group:{LOG_GROUP}"
# SageMaker's own use of a training job's role: its log and metrics, its image, its network.
TRAINING = (
    Statement(
        "ShowLog",
        "SageMaker's copy of the log",
        ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
        (_LOG_GROUP_ARN, f"{_LOG_GROUP_ARN}:*"),
    ),
    Statement(
        "TellMetrics",
        "SageMaker's metrics",
        "cloudwatch:PutMetricData",
        "*",
        {"StringLike": {"cloudwatch:namespace": "*SageMaker*"}},
    ),
    Statement("RegistryToken", "a token for its image", "ecr:GetAuthorizationToken", "*"),
    Statement("ReadImage", "pull its image", permissions.IMAGE_READS, "arn:aws:ecr:*:*:repository/*"),
    Statement(
        "JoinNetwork",
        "for resources.sagemaker.subnets",
        (
            "ec2:CreateNetworkInterface",
            "ec2:CreateNetworkInterfacePermission",
            "ec2:DeleteNetworkInterface",
            "ec2:DeleteNetworkInterfacePermission",
            "ec2:DescribeDhcpOptions",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcs",
        ),
        "*",
    ),
)

# ── The policies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def grants(
    store: str,
    *,
    job: str | None = None,
    inputs: tuple[str, ...] = (),
    logs: str | None = None,
    secrets: tuple[str, ...] = (),
    notify: tuple[str, ...] = (),
    kms_keys: tuple[str, ...] = (),
) -> Grants:
    """Describe the policies for one store. Pure. Raises UserError for an invalid bucket, job name, secret or key."""
    names = ec2.store_names(store) | {"TRAINING": training_names.prefix(store)}
    check_job_name(job)
    kms.check_keys(kms_keys)
    used = kms.for_objects(kms_keys)
    governor = [*ec2.governor_in_store(names, notify), *fill(GOVERNOR, names), *used]
    training = [*ec2.node_in_store(names, job, inputs, logs, secrets), *fill(TRAINING, names), *used]
    notes = (_SHARED if job is None else _OWN.replace("(ROLE)", _role(job)), _NETWORK_AND_KEYS, _BESIDE)
    return Grants(
        (
            _managed(store, "person", "submit, look, stop and resume; prices; check", [*fill(PERSON, names), *used]),
            _managed(
                store,
                "governor",
                "decide about jobs, and make and stop training jobs of this store; no other training job",
                governor,
            ),
            _training(training, job),
        ),
        (*notes, ec2.KMS_NOTE) if (secrets or notify) and not kms_keys else notes,
    )


def machine_role(resources: Resources) -> MachineRole | None:
    """The role of training jobs that these resources name, or the default."""
    if resources.sagemaker is None:
        return None
    name = resources.sagemaker.role or DEFAULT_ROLE
    return MachineRole("aws", "resources.sagemaker.role", name)


def refusal(role: MachineRole, granted: DeployedGrants) -> RoleRefusal | None:
    """The refusal of a deployed governor to pass this role on. One for SageMaker may pass every role."""
    return None if granted.sagemaker else ec2.refusal_beside(role, granted, DEFAULT_ROLE)


def _managed(store: str, name: str, about: str, statements: list[dict[str, Any]]) -> Grant:
    policy = ec2.policy_of(statements)
    named = role_names.policy_name(f"sagemaker-{name}", store)
    return Grant(name, about, policy, commands=(ec2.managed_policy_commands(named, policy, name),))


def _training(statements: list[dict[str, Any]], job: str | None) -> Grant:
    policy, role = ec2.policy_of(statements), _role(job)
    trust = ec2.trust_policy("sagemaker.amazonaws.com")
    about = (
        f"the training jobs of {jobs_of(job)}: read jobs, code and agents, write under work/; start and stop nothing"
    )
    return Grant(
        "training", about, policy, trust, (ec2.create_role_command(role, trust), ec2.put_policy_command(role, policy))
    )


def _role(job: str | None) -> str:
    return DEFAULT_ROLE if job is None else f"{DEFAULT_ROLE}-{job}"


_SHARED = (
    "Every training job with this role can read and write the work/ folder of every job in this store. Per job:"
    f" `stoker iam sagemaker --job NAME` describes a role {DEFAULT_ROLE}-NAME that reaches only jobs called NAME; set"
    " resources.sagemaker.role to it."
)
_OWN = (
    "Training jobs with this role reach jobs of that name and no other; set resources.sagemaker.role to (ROLE). They"
    " can still list the names of all objects in the store, and read all packed code."
)
_NETWORK_AND_KEYS = (
    "JoinNetwork is needed only with resources.sagemaker.subnets; a KMS key of your own also needs kms:CreateGrant,"
    " kms:Decrypt, kms:Encrypt and kms:GenerateDataKey for this role."
)
_BESIDE = (
    "A store with machines on EC2 as well needs `stoker iam ec2` beside these; the policies have names of their own."
)
