"""The policies that AWS has to grant: to the user, the governor and the machines. Makes no requests.

A node reads its job and writes facts under `work/`; it can write no decision and end no machine.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers.ec2 import permissions, secret_access, tags
from stoker.providers.ec2.permissions import allow, arn
from stoker.providers.ec2.request import DEFAULT_PROFILE
from stoker.providers.grants import Grant, Grants, MachineRole
from stoker.store.find_job import SUFFIX_LENGTH

# The role that the Fault Injection Service assumes, for `stoker interrupt`.
FIS_ROLE = "stoker-fis"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")

_LOGS_ACTIONS = ["logs:CreateLogGroup", "logs:PutRetentionPolicy", "logs:CreateLogStream", "logs:PutLogEvents"]

# The folders that each part may write: see `stoker.model.keys`.
_PACKED = (keys.CODE, keys.BUNDLES, keys.TOOLS, keys.WHEELS, keys.INPUTS)
_SUBMITTED = (keys.JOBS, *_PACKED, keys.ACTIVE, keys.INDEX, keys.CHECKS)
_DERIVED = (
    *(keys.ACTIVE, keys.INDEX, keys.GOVERNORS, keys.OUTBOX),
    *(keys.DRY, keys.MARKET, keys.PLACES, keys.EXTERNAL_JOB_INDEX, keys.PROBES),
)
_GOVERNED = (f"{keys.JOBS}*/log/", *_DERIVED)
# The record of costs is permanent: no part that writes it may remove it. Users write it with `stoker reindex` and
# `stoker rm`.
_SPENT = keys.SPENT
_NODE_READS = (keys.JOBS, *_PACKED, keys.POLICY, keys.WORK, keys.REMOVED)


def grants(
    store: str,
    *,
    job: str | None = None,
    inputs: tuple[str, ...] = (),
    logs: str | None = None,
    secrets: tuple[str, ...] = (),
    notify: tuple[str, ...] = (),
) -> Grants:
    """The policies for one store. Pure. Raises UserError for an invalid bucket, job name or secret."""
    place = _BucketPrefix.of(store, "--bucket")
    if job is not None and _NAME.fullmatch(job) is None:
        raise UserError(f"--job {job}: give a job's name: lower-case letters, digits and -, a letter first")
    return Grants(
        (
            _person(place, store),
            _governor(place, store, notify),
            _node(place, job, inputs, logs, secrets),
            _interrupter(store),
        ),
        (*_notes(job), secret_access.NOTE) if secrets or notify else _notes(job),
    )


def machine_role(resources: Resources) -> MachineRole | None:
    """The instance profile that these resources name."""
    profile = resources.ec2.profile if resources.ec2 is not None else None
    return None if profile is None else MachineRole("aws", "resources.ec2.profile", profile, DEFAULT_PROFILE)


@dataclass(frozen=True)
class _BucketPrefix:
    """A bucket and the folder of the store in it."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str, option: str) -> _BucketPrefix:
        bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not url.startswith("s3://") or not bucket:
            raise UserError(f"{option}: machines on EC2 need a bucket; give it as s3://BUCKET/PREFIX, not {url!r}")
        return cls(bucket, f"{prefix}/" if prefix else "")

    def objects(self, *folders: str) -> list[str]:
        return [f"arn:aws:s3:::{self.bucket}/{self.prefix}{folder}*" for folder in folders]

    def objects_or_itself(self) -> list[str]:
        """The objects below the folder, and the object of that name: an input may be either."""
        itself = [f"arn:aws:s3:::{self.bucket}/{self.prefix.rstrip('/')}"] if self.prefix else []
        return [*itself, *self.objects("")]

    def listing(self, sid: str) -> dict[str, Any]:
        """Allow listing. Without it S3 answers 403 instead of 404 for an absent object, which proves nothing.

        The requested key counts as the prefix in that case: https://tracker.ceph.com/issues/74398
        """
        whole = f"arn:aws:s3:::{self.bucket}"
        if not self.prefix:
            return allow(sid, "s3:ListBucket", whole)
        below = [self.prefix.rstrip("/"), f"{self.prefix}*"]
        return allow(sid, "s3:ListBucket", whole, {"StringLike": {"s3:prefix": below}})


# ── The policies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _person(place: _BucketPrefix, store: str) -> Grant:
    tag = tags.store_tag(store)
    sessions = [
        "arn:aws:ssm:*::document/AWS-StartSSHSession",
        "arn:aws:ssm:*:*:document/SSM-SessionManagerRunShell",
    ]
    statements = [
        place.listing("ListStore"),
        allow("ReadStore", "s3:GetObject", place.objects("")),
        allow(
            "Submit",
            ["s3:PutObject", "s3:AbortMultipartUpload"],
            place.objects(*_SUBMITTED, _SPENT, keys.REMOVED, keys.COLLECTED),
        ),
        allow("Remove", "s3:DeleteObject", place.objects(*_SUBMITTED, keys.WORK)),
        *permissions.statements(permissions.PLAN, tag, "Plan"),
        allow("Prices", "pricing:GetProducts", "*"),
        *permissions.statements(permissions.SHELL, tag, "Visit"),
        allow("VisitSessions", "ssm:StartSession", sessions),
        *permissions.statements(permissions.CHECK, tag, "Check"),
        allow("WakeGovernor", "lambda:InvokeFunction", f"arn:aws:lambda:*:*:function:{keys.deployment_name(store)}"),
        allow("Interrupt", _FIS_ACTIONS, "*"),
        pass_role("InterruptRole", [FIS_ROLE], "fis.amazonaws.com"),
    ]
    about = "submit, look, stop and resume; the plan and its prices; ssh and exec (Visit…); interrupt; check"
    policy = policy_of(statements)
    return Grant("person", about, policy, commands=(managed_policy_commands("person", policy),))


_FIS_ACTIONS = [
    "fis:CreateExperimentTemplate",
    "fis:StartExperiment",
    "fis:GetExperiment",
    "fis:DeleteExperimentTemplate",
]


def _governor(place: _BucketPrefix, store: str, notify: tuple[str, ...]) -> Grant:
    statements = [
        place.listing("ListStore"),
        allow("ReadStore", "s3:GetObject", place.objects("")),
        allow("Decide", "s3:PutObject", place.objects(*_GOVERNED, _SPENT, keys.CLONE_CHAINS)),
        allow("Forget", "s3:DeleteObject", place.objects(*_DERIVED)),
        *secret_access.channels(notify),
        *permissions.statements(permissions.GOVERNOR, tags.store_tag(store), "Machines"),
        # EC2 resolves the image with the permissions of the launching account.
        allow("Images", "ssm:GetParameters", permissions.PUBLIC_PARAMETERS),
        # Includes roles of single jobs: this policy is rewritten whenever one of them is made.
        pass_role("PassNodeRole", [_role(None), _role("*")], permissions.machine_service()),
    ]
    about = "decide about jobs, and launch, name and end machines that carry this store's tag; no other machine"
    policy = policy_of(statements)
    commands = (managed_policy_commands("governor", policy), _linked_role("spot.amazonaws.com"))
    return Grant("governor", about, policy, commands=commands)


def _node(
    place: _BucketPrefix, job: str | None, inputs: tuple[str, ...], logs: str | None, secrets: tuple[str, ...]
) -> Grant:
    own = "" if job is None else f"{job}-{'?' * SUFFIX_LENGTH}/"
    work = place.objects(keys.WORK + own)
    reads = [folder + own if folder in (keys.JOBS, keys.WORK) else folder for folder in _NODE_READS]
    statements = [
        place.listing("ListStore"),
        allow("ReadJobs", "s3:GetObject", place.objects(*reads)),
        allow("WriteFacts", ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], work),
    ]
    for number, url in enumerate(inputs, 1):
        there = _BucketPrefix.of(url, "--input")
        statements.append(there.listing(f"ListInput{number}"))
        statements.append(allow(f"ReadInput{number}", "s3:GetObject", there.objects_or_itself()))
    if logs is not None:
        group = f"arn:aws:logs:*:*:log-group:{logs}"
        statements.append(allow("CopyLogs", _LOGS_ACTIONS, [group, f"{group}:*"]))
    statements += secret_access.statements(secrets)
    role = _role(job)
    trust = trust_policy(permissions.machine_service())
    whose = "any job" if job is None else f"jobs called {job}"
    about = f"the machines of {whose}: read jobs, code and agents, write under work/; nothing of EC2"
    policy = policy_of(statements)
    return Grant(
        "node",
        about,
        policy,
        trust,
        (create_role_command(role, trust), put_policy_command(role, policy), *_profile(role)),
    )


def _interrupter(store: str) -> Grant:
    """An optional role: without it `stoker interrupt` ends the machine."""
    ours = {"StringEquals": {f"aws:ResourceTag/{tags.STORE}": tags.store_tag(store)}}
    statements = [
        allow("Find", "ec2:DescribeInstances", "*"),
        allow("Interrupt", "ec2:SendSpotInstanceInterruptions", [arn("instance")], ours),
    ]
    trust = trust_policy("fis.amazonaws.com")
    policy = policy_of(statements)
    commands = (
        create_role_command(FIS_ROLE, trust),
        put_policy_command(FIS_ROLE, policy),
        _linked_role("fis.amazonaws.com"),
    )
    about = "optional: what the Fault Injection Service may do for `stoker interrupt`; else it ends the machine"
    return Grant("interrupter", about, policy, trust, commands)


# ── Their parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _role(job: str | None) -> str:
    return DEFAULT_PROFILE if job is None else f"{DEFAULT_PROFILE}-{job}"


def pass_role(sid: str, roles: list[str], service: str) -> dict[str, Any]:
    named = [f"arn:aws:iam::*:role/{role}" for role in roles]
    return allow(sid, "iam:PassRole", named, {"StringEquals": {"iam:PassedToService": service}})


def policy_of(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def trust_policy(service: str) -> dict[str, Any]:
    return policy_of([{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}])


# ── Their commands ────────────────────────────────────────────────────────────────────────────────────────────────────
# For `sh -eu`, in this order, and repeatable: an existing resource is kept or updated. The output of a look-up is
# discarded, because only its exit status matters; a change prints an error or nothing.

_MANAGED = """\
POLICY=arn:(PARTITION):iam::$(aws sts get-caller-identity --query Account --output text):policy/(NAME)
DOCUMENT=(DOCUMENT)
if aws iam get-policy --policy-arn "$POLICY" >/dev/null 2>&1; then
  # There can be five versions: the one in use is kept beside the new one.
  for OLD in $(aws iam list-policy-versions --policy-arn "$POLICY" \\
    --query 'Versions[?!IsDefaultVersion].VersionId' --output text); do
    aws iam delete-policy-version --policy-arn "$POLICY" --version-id "$OLD"
  done
  aws iam create-policy-version --policy-arn "$POLICY" --set-as-default --policy-document "$DOCUMENT" >/dev/null
else
  aws iam create-policy --policy-name (NAME) --policy-document "$DOCUMENT" >/dev/null
fi
echo "(WHOM): aws iam attach-user-policy --user-name NAME --policy-arn $POLICY\""""
_WHOM = {"person": "next, for each person", "governor": "and for governors, of which stoker run is one"}


def managed_policy_commands(name: str, policy: dict[str, Any], whom: str = "") -> str:
    """Commands for a policy that can be attached to users, groups and roles, which are not known here."""
    text = _MANAGED.replace("(PARTITION)", permissions.partition()).replace("(NAME)", f"stoker-{name}")
    return text.replace("(WHOM)", _WHOM[whom or name]).replace("(DOCUMENT)", _quoted(policy))


def create_role_command(role: str, trust: dict[str, Any]) -> str:
    make = f"aws iam create-role --role-name {role} --assume-role-policy-document {_quoted(trust)}"
    return _unless(f"aws iam get-role --role-name {role}", make)


def _linked_role(service: str) -> str:
    """Create a service-linked role, needed once in an account. AWS chooses its name, but its path is known."""
    look = f"aws iam list-roles --path-prefix /aws-service-role/{service}/ --query 'Roles[].RoleName' --output text"
    return f"{look} | grep -q . ||\n  aws iam create-service-linked-role --aws-service-name {service} >/dev/null"


def put_policy_command(role: str, policy: dict[str, Any]) -> str:
    return f"aws iam put-role-policy --role-name {role} --policy-name stoker --policy-document {_quoted(policy)}"


def _profile(role: str) -> tuple[str, str]:
    named = f"--instance-profile-name {role}"
    look = f"aws iam get-instance-profile {named}"
    roles = f"{look} --query 'InstanceProfile.Roles[].RoleName' --output text | grep -qx {role}"
    return (
        _unless(look, f"aws iam create-instance-profile {named}"),
        f"{roles} ||\n  aws iam add-role-to-instance-profile {named} --role-name {role}",
    )


def _unless(look: str, make: str) -> str:
    return f"{look} >/dev/null 2>&1 ||\n  {make} >/dev/null"


def _quoted(document: dict[str, Any]) -> str:
    """Quote the whole document: the command needs no other file, and its reader sees what it allows."""
    return shlex.quote(json.dumps(document, indent=2))


def _notes(job: str | None) -> tuple[str, ...]:
    text = (_SHARED if job is None else _OWN) + _ALWAYS
    text = text.replace("(ROLE)", _role(job)).replace("(JOB)", job or "")
    text = text.replace("(PARTITION)", permissions.partition())
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


_SHARED = """\
What the node's profile separates: machines from decisions. No machine can write a log, or claim, launch or end
anything, whatever its training does.

What a shared profile cannot separate: machines from one another. Every node can read and write the work/ folder of
every job in this store: checkpoints, logs and outputs of others.

Per job: `stoker iam ec2 --job NAME` describes a profile stoker-node-NAME whose machines reach only jobs called NAME;
set resources.ec2.profile to it. To resume_from a job of another name they then need --input for its folder.

"""

_OWN = """\
Machines with this profile reach jobs called (JOB) and no other; set resources.ec2.profile to (ROLE). They can still
list the names of all objects in the store, and read all packed code.

"""

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html has the variables that there are,
# and what aws:userid is for an instance.
_ALWAYS = """\
Per instance: a request to S3 carries the role and the instance (aws:userid is ROLE-ID:INSTANCE-ID), but tags of an
instance do not become aws:PrincipalTag, and no variable holds the bare instance id, so that no policy can say `its own
folder`. A bucket policy can name one instance (StringLike aws:userid *:i-0123456789abcdef0); it would have to be
edited at every launch.

Credentials that leaked from a machine are useless elsewhere where the VPC has an endpoint for S3 and the bucket's
policy denies s3:* unless aws:Ec2InstanceSourceVpc equals ${aws:SourceVpc}.

Where no governor is deployed, `stoker run`, `stop` and `govern` govern with the rights of the person who runs them:
attach stoker-governor beside stoker-person.

ssh through SSM also needs `aws iam attach-role-policy --role-name (ROLE)
--policy-arn arn:(PARTITION):iam::aws:policy/AmazonSSMManagedInstanceCore`.

One store in an account goes by these names. What is there by them already, for another store too, gets these
permissions instead of its own; run it again after an update of Stoker, or with other options, for the same effect."""
