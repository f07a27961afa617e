"""The permissions that Stoker needs on AWS, with reasons: the tables behind `stoker iam ec2` and `stoker check ec2`.

A text may hold names in parentheses; `statements.fill` replaces them. (BUCKET) is the ARN of the store's bucket,
(OBJECTS) the beginning of the ARNs of the store's objects, (PREFIX) the store's folder, (TAG) the value of its tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stoker.model import keys
from stoker.providers import grants
from stoker.providers.ec2 import tags

# The resources of an operation: `anything` (read only), `made` (a new resource that carries this store's tag from its
# creation), `ours` (an existing resource that carries it).
Scope = Literal["anything", "made", "ours"]

# The resource types that an operation of EC2 makes or uses, as ARNs name them.
_LAUNCHED = ("instance", "volume", "network-interface", "spot-instances-request")
_USED = ("subnet", "security-group", "key-pair", "placement-group", "capacity-reservation")
_SHARED = ("image", "snapshot")
# The parameters in which AWS, Canonical and Debian publish the ids of their newest images.
PUBLIC_PARAMETERS = "arn:aws:ssm:*::parameter/aws/service/*"


@dataclass(frozen=True)
class Operation:
    """One operation, with the resource types that it is limited to unless its scope is `anything`."""

    action: str
    scope: Scope
    why: str
    resources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operations:
    """Statements for these operations, one for each scope. Their Sids begin with `sid`."""

    sid: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Statement:
    """One statement of a policy."""

    sid: str
    why: str
    actions: str | tuple[str, ...]
    resources: str | tuple[str, ...]
    condition: Mapping[str, Any] | None = None


def arn(kind: str) -> str:
    """Every EC2 resource of a type, in any region of the policy's account."""
    return f"arn:aws:ec2:*:*:{kind}/*"


# ── Operations ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Everything that a governor calls, and nothing else: a test compares this with the provider's source.
GOVERNOR: tuple[Operation, ...] = (
    Operation("ec2:DescribeInstances", "anything", "which machines are there, and how they are"),
    Operation("ec2:DescribeInstanceTypes", "anything", "machine types that are newer than the table"),
    Operation("ec2:DescribeInstanceTypeOfferings", "anything", "which zones have a machine type"),
    Operation("ec2:DescribeSpotPriceHistory", "anything", "what spot costs now"),
    Operation("ec2:DescribeSubnets", "anything", "the zone of a subnet"),
    Operation("ec2:DescribeSecurityGroups", "anything", "the region of a security group, and what it lets through"),
    Operation("ec2:DescribeCapacityReservations", "anything", "where a reservation is, and until when"),
    # Resource Groups names three more permissions for groups that a tag or a stack makes; those of reservations are
    # lists: https://docs.aws.amazon.com/ARG/latest/APIReference/API_ListGroupResources.html
    Operation("resource-groups:ListGroupResources", "anything", "the reservations of a group"),
    Operation("ec2:DescribeImages", "anything", "an image by its name, and its root device"),
    Operation("ec2:DescribeTags", "anything", "whether anything was left behind"),
    Operation("ec2:DescribeVolumes", "anything", "disks that were left behind"),
    Operation("ec2:DescribePlacementGroups", "anything", "placement groups that were left behind"),
    Operation("ec2:RunInstances", "made", "launch machines", _LAUNCHED),
    Operation("ec2:CreatePlacementGroup", "made", "put the nodes of a job close together", ("placement-group",)),
    Operation("ec2:CreateTags", "made", "mark what is launched as this store's", (*_LAUNCHED, "placement-group")),
    Operation("ec2:TerminateInstances", "ours", "give machines back", ("instance",)),
    Operation("ec2:DeleteVolume", "ours", "remove disks that were left behind", ("volume",)),
    Operation("ec2:DeletePlacementGroup", "ours", "remove placement groups after use", ("placement-group",)),
    Operation("ec2:GetConsoleOutput", "ours", "why a machine did not boot", ("instance",)),
)

# The operations that a user needs besides the store: for plans, logins and `stoker check`.
PLAN = tuple(
    each
    for each in GOVERNOR
    if each.action
    in {
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeSubnets",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeCapacityReservations",
        "resource-groups:ListGroupResources",
    }
)
SHELL: tuple[Operation, ...] = (
    Operation("ec2:DescribeInstances", "anything", "where a machine is"),
    Operation("ec2:DescribeImages", "anything", "who logs in on an image"),
    Operation("ec2-instance-connect:SendSSHPublicKey", "ours", "lend a machine a key for a minute", ("instance",)),
    Operation("ssm:StartSession", "ours", "reach a machine without an open port", ("instance",)),
)
CHECK: tuple[Operation, ...] = (
    Operation("ec2:DescribeRouteTables", "anything", "whether machines reach S3"),
    Operation("ec2:DescribeVpcEndpoints", "anything", "whether machines reach S3"),
    Operation("ec2:DescribeKeyPairs", "anything", "whether the job's key is there"),
    Operation("iam:GetInstanceProfile", "anything", "whether the machines' profile is there"),
    Operation("servicequotas:GetServiceQuota", "anything", "how many machines the account may have"),
)

# ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REQUESTED_TAG = {"StringEquals": {f"aws:RequestTag/{tags.STORE}": "(TAG)"}}
CARRYING_TAG = {"StringEquals": {f"aws:ResourceTag/{tags.STORE}": "(TAG)"}}
_LAUNCHED_ARNS = tuple(map(arn, _LAUNCHED))

LAUNCH = (
    Statement(
        "LaunchTagged",
        "what a launch makes carries the store's tag from its creation",
        "ec2:RunInstances",
        _LAUNCHED_ARNS,
        REQUESTED_TAG,
    ),
    Statement(
        "LaunchWith",
        "what a launch uses need not carry it",
        "ec2:RunInstances",
        (*map(arn, _USED), *(f"arn:aws:ec2:*::{kind}/*" for kind in _SHARED), "arn:aws:resource-groups:*:*:group/*"),
    ),
    Statement(
        "TagNew",
        "tags of new resources alone",
        "ec2:CreateTags",
        (*_LAUNCHED_ARNS, arn("placement-group")),
        {"StringEquals": {"ec2:CreateAction": ("RunInstances", "CreatePlacementGroup")}},
    ),
    Statement(
        "NameNodes",
        "a gang is launched under one name; each node gets its own afterwards",
        "ec2:CreateTags",
        (arn("instance"),),
        {**CARRYING_TAG, "ForAllValues:StringEquals": {"aws:TagKeys": (tags.NAME,)}},
    ),
)

# ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _below(*folders: str) -> tuple[str, ...]:
    return tuple(f"(OBJECTS){folder}*" for folder in folders)


# Without it S3 answers 403 instead of 404 for an absent object, which proves nothing. The requested key counts as the
# prefix in that case: https://tracker.ceph.com/issues/74398
LIST_STORE = Statement(
    "ListStore",
    "see which objects exist",
    "s3:ListBucket",
    "(BUCKET)",
    {"StringLike": {"s3:prefix": ("(PREFIX)", "(PREFIX)/*")}},
)
READ_STORE = Statement("ReadStore", "read jobs and their facts", "s3:GetObject", _below(*grants.PERSON.reads))
PERSON_IN_STORE = (
    LIST_STORE,
    READ_STORE,
    Statement("Submit", "submit jobs", ("s3:PutObject", "s3:AbortMultipartUpload"), _below(*grants.PERSON.writes)),
    Statement("Remove", "remove jobs", "s3:DeleteObject", _below(*grants.PERSON.removes)),
)
GOVERNOR_IN_STORE = (
    LIST_STORE,
    READ_STORE,
    Statement("Decide", "write logs of jobs", "s3:PutObject", _below(f"{keys.JOBS}*/log/", *grants.GOVERNOR.writes)),
    Statement("Forget", "remove what is derived from logs", "s3:DeleteObject", _below(*grants.GOVERNOR.removes)),
)


def node_in_store(own: str) -> tuple[Statement, ...]:
    """A machine reads its job and writes facts about it. `own` limits both to jobs whose id begins so."""
    access = grants.node_access(own)
    writes = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
    return (
        LIST_STORE,
        Statement("ReadJobs", "read jobs, code and agents", "s3:GetObject", _below(*access.reads)),
        Statement("WriteFacts", "write and replace facts", writes, _below(*access.writes)),
    )


# ── People ────────────────────────────────────────────────────────────────────────────────────────────────────────────

PRICES = Statement("Prices", "refresh the table of prices", "pricing:GetProducts", "*")
WAKE_GOVERNOR = Statement(
    "WakeGovernor", "wake a deployed governor", "lambda:InvokeFunction", "arn:aws:lambda:*:*:function:(DEPLOYMENT)"
)
PERSON = (
    *PERSON_IN_STORE,
    Operations("Plan", PLAN),
    PRICES,
    Operations("Visit", SHELL),
    Statement(
        "VisitSessions",
        "the documents that sessions run",
        "ssm:StartSession",
        ("arn:aws:ssm:*::document/AWS-StartSSHSession", "arn:aws:ssm:*:*:document/SSM-SessionManagerRunShell"),
    ),
    Operations("Check", CHECK),
    WAKE_GOVERNOR,
    Statement(
        "Interrupt",
        "rehearse a reclaim",
        (
            "fis:CreateExperimentTemplate",
            "fis:StartExperiment",
            "fis:GetExperiment",
            "fis:DeleteExperimentTemplate",
        ),
        "*",
    ),
    Statement(
        "InterruptRole",
        "lend the experiment its role",
        "iam:PassRole",
        ("arn:aws:iam::*:role/(FIS)",),
        {"StringEquals": {"iam:PassedToService": "fis.amazonaws.com"}},
    ),
)

# ── Governors ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GOVERNOR_OF_MACHINES = (
    Operations("Machines", GOVERNOR),
    # EC2 resolves the image with the permissions of the launching account.
    Statement("Images", "find the newest image", "ssm:GetParameters", PUBLIC_PARAMETERS),
    # Includes roles of single jobs: this policy is rewritten whenever one of them is made. One pattern, because
    # IAM limits the length; the name ends in the store's digest, so that no other store's role fits.
    Statement(
        "PassNodeRole",
        "give machines their role",
        "iam:PassRole",
        ("arn:aws:iam::*:role/(ROLE)*",),
        {"StringEquals": {"iam:PassedToService": "(SERVICE)"}},
    ),
)
# Notification channels: one statement for each action, because IAM limits the length of a role's policies.
CHANNELS = {
    "sns:Publish": "Tell",
    "secretsmanager:GetSecretValue": "ReadChannelSecrets",
    "ssm:GetParameter": "ReadChannelParameters",
}

# ── Machines ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# For each input (NUMBER), with names of its own bucket. (ITSELF): the folder, since an input may be a single object.
INPUT = (
    Statement("ListInput(NUMBER)", LIST_STORE.why, LIST_STORE.actions, LIST_STORE.resources, LIST_STORE.condition),
    Statement("ReadInput(NUMBER)", "read an input of jobs", "s3:GetObject", ("(ITSELF)", "(OBJECTS)*")),
)
LOGS = (
    Statement(
        "CopyLogs",
        "copy logs of nodes to the log group (GROUP)",
        ("logs:CreateLogGroup", "logs:PutRetentionPolicy", "logs:CreateLogStream", "logs:PutLogEvents"),
        ("arn:aws:logs:*:*:log-group:(GROUP)", "arn:aws:logs:*:*:log-group:(GROUP):*"),
    ),
)
IMAGE_READS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
# For each secret (NUMBER) of jobs, by the kind of its reference.
SECRETS = {
    "aws-sm": (Statement("ReadSecret(NUMBER)", "a secret of a job", "secretsmanager:GetSecretValue", "(ARN)"),),
    "aws-ssm": (Statement("ReadSecret(NUMBER)", "a parameter of a job", "ssm:GetParameter", "(ARN)"),),
    "aws-codeartifact": (
        Statement(
            "MakeToken(NUMBER)",
            "a token for the packages of a domain",
            "codeartifact:GetAuthorizationToken",
            "arn:aws:codeartifact:*:(OWNER):domain/(DOMAIN)",
        ),
        Statement(
            "BearToken(NUMBER)",
            "the token is one of STS",
            "sts:GetServiceBearerToken",
            "*",
            {"StringEquals": {"sts:AWSServiceName": "codeartifact.amazonaws.com"}},
        ),
        # The token alone grants no access.
        Statement(
            "ReadPackages(NUMBER)",
            "read the packages",
            ("codeartifact:GetRepositoryEndpoint", "codeartifact:ReadFromRepository"),
            "arn:aws:codeartifact:*:(OWNER):repository/(DOMAIN)/*",
        ),
    ),
    "aws-ecr": (
        Statement("MakeToken(NUMBER)", "a token for private images", "ecr:GetAuthorizationToken", "*"),
        Statement("ReadImages(NUMBER)", "pull the images", IMAGE_READS, "arn:aws:ecr:*:*:repository/*"),
    ),
}

# ── The Fault Injection Service ───────────────────────────────────────────────────────────────────────────────────────

INTERRUPTER = (
    Statement("Find", "find the machine", "ec2:DescribeInstances", "*"),
    Statement("Interrupt", "give it a notice", "ec2:SendSpotInstanceInterruptions", (arn("instance"),), CARRYING_TAG),
)
