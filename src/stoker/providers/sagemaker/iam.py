"""The IAM policies for training jobs: for a person, for the governor, and for the training jobs. Pure.

Their statements about the store are those of EC2 (`stoker.providers.ec2.iam`). A training job's role can write no
decision, and start or stop no training job.
"""

from __future__ import annotations

from typing import Any

from stoker.model.resources import Resources
from stoker.providers.ec2 import iam as ec2
from stoker.providers.ec2 import secret_access
from stoker.providers.ec2.permissions import allow
from stoker.providers.grants import Grant, Grants, MachineRole
from stoker.providers.sagemaker import names, tags
from stoker.providers.sagemaker.request import DEFAULT_ROLE

# Creating a training job in reserved capacity needs the permission on these as well.
# https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-iam-permissions.html
PLANS = ("arn:aws:sagemaker:*:*:training-plan/*", "arn:aws:sagemaker:*:*:reserved-capacity/*")
# The statements of EC2's policies that concern machines, and are left out here.
_MACHINES = ("Plan", "Machines", "Launch", "Tag", "Name", "Visit", "Check", "Interrupt", "Images", "PassNodeRole")
# SageMaker's own use of a training job's role: its log and metrics, its image, its network.
_LOG_GROUP = "arn:aws:logs:*:*:log-group:/aws/sagemaker/TrainingJobs"
_LOGS = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
_IMAGE = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
_NETWORK = [
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
]


def grants(
    store: str,
    *,
    job: str | None = None,
    inputs: tuple[str, ...] = (),
    logs: str | None = None,
    secrets: tuple[str, ...] = (),
    notify: tuple[str, ...] = (),
) -> Grants:
    """Describe the policies for one store. Pure. Raises UserError for an invalid bucket, job name or secret."""
    found = {
        grant.name: _about_store(grant)
        for grant in ec2.grants(store, job=job, inputs=inputs, logs=logs, secrets=secrets, notify=notify).grants
    }
    notes = (_SHARED if job is None else _OWN.replace("(ROLE)", _role(job)), _NETWORK_AND_KEYS, _BESIDE)
    return Grants(
        (_person(found["person"]), _governor(found["governor"], store), _training(found["node"], job)),
        (*notes, secret_access.NOTE) if secrets or notify else notes,
    )


def machine_role(resources: Resources) -> MachineRole | None:
    """The role of training jobs that these resources name, or the default."""
    if resources.sagemaker is None:
        return None
    name = resources.sagemaker.role or DEFAULT_ROLE
    return MachineRole("aws", "resources.sagemaker.role", name, DEFAULT_ROLE, covered_by_sagemaker=True)


def _about_store(grant: Grant) -> list[dict[str, Any]]:
    return [each for each in grant.policy["Statement"] if not each["Sid"].startswith(_MACHINES)]


def _person(about_store: list[dict[str, Any]]) -> Grant:
    looks = ["sagemaker:DescribeTrainingJob", "sagemaker:ListTrainingJobs", "sagemaker:ListTags"]
    checks = ["iam:GetRole", "iam:SimulatePrincipalPolicy", "servicequotas:ListServiceQuotas"]
    statements = [*about_store, allow("Look", looks, "*"), allow("Check", checks, "*")]
    policy = ec2.policy_of(statements)
    about = "submit, look, stop and resume; prices; check"
    return Grant("person", about, policy, commands=(ec2.managed_policy_commands("sagemaker-person", policy, "person"),))


def _governor(about_store: list[dict[str, Any]], store: str) -> Grant:
    ours = [f"arn:aws:sagemaker:*:*:training-job/{names.prefix(store)}*"]
    asked = {"StringEquals": {f"aws:RequestTag/{tags.STORE}": tags.store_tag(store)}}
    roles = [_role(None), _role("*")]
    statements = [
        *about_store,
        allow("LookAtTrainingJobs", "sagemaker:ListTrainingJobs", "*"),
        allow("MakeTrainingJobs", ["sagemaker:CreateTrainingJob", "sagemaker:AddTags"], ours, asked),
        allow("UseTrainingPlans", "sagemaker:CreateTrainingJob", list(PLANS)),
        allow(
            "GovernTrainingJobs",
            ["sagemaker:DescribeTrainingJob", "sagemaker:ListTags", "sagemaker:StopTrainingJob"],
            ours,
        ),
        ec2.pass_role("PassTrainingRole", roles, "sagemaker.amazonaws.com"),
    ]
    policy = ec2.policy_of(statements)
    about = "decide about jobs, and make and stop training jobs of this store; no other training job"
    return Grant(
        "governor", about, policy, commands=(ec2.managed_policy_commands("sagemaker-governor", policy, "governor"),)
    )


def _training(about_store: list[dict[str, Any]], job: str | None) -> Grant:
    statements = [
        *about_store,
        allow("ShowLog", _LOGS, [_LOG_GROUP, f"{_LOG_GROUP}:*"]),
        allow("TellMetrics", "cloudwatch:PutMetricData", "*", {"StringLike": {"cloudwatch:namespace": "*SageMaker*"}}),
        allow("RegistryToken", "ecr:GetAuthorizationToken", "*"),
        allow("ReadImage", _IMAGE, "arn:aws:ecr:*:*:repository/*"),
        allow("JoinNetwork", _NETWORK, "*"),
    ]
    policy, role = ec2.policy_of(statements), _role(job)
    trust = ec2.trust_policy("sagemaker.amazonaws.com")
    whose = "any job" if job is None else f"jobs called {job}"
    about = f"the training jobs of {whose}: read jobs, code and agents, write under work/; start and stop nothing"
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
