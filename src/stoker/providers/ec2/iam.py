"""The policies that AWS has to grant: to the user, the governor and the machines. Makes no requests.

The tables of `permissions` hold what they allow. This module fills in the names, and writes the commands that grant.
A node reads its job and writes facts under `work/`; it can write no decision and end no machine.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from stoker.model import channel_address, keys, secret_refs
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers.ec2 import kms, permissions, role_names, tags
from stoker.providers.ec2.statements import allow, fill, machine_service, partition
from stoker.providers.grants import (
    DeployedGrants,
    Grant,
    Grants,
    MachineRole,
    RoleRefusal,
    check_job_name,
    jobs_of,
    paragraphs,
)
from stoker.store.find_job import SUFFIX_LENGTH


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
    """The policies for one store. Pure. Raises UserError for an invalid bucket, job name, secret or key."""
    names = store_names(store)
    check_job_name(job)
    kms.check_keys(kms_keys)
    return Grants(
        (
            _person(names, kms_keys),
            _governor(names, notify, kms_keys),
            _node(names, job, inputs, logs, secrets, kms_keys),
            _interrupter(names),
        ),
        (*_notes(names, job), KMS_NOTE) if (secrets or notify) and not kms_keys else _notes(names, job),
    )


def machine_role(resources: Resources) -> MachineRole | None:
    """The instance profile that these resources name."""
    profile = resources.ec2.profile if resources.ec2 is not None else None
    return None if profile is None else MachineRole("aws", "resources.ec2.profile", profile)


def refusal(role: MachineRole, granted: DeployedGrants) -> RoleRefusal | None:
    """The refusal of a deployed governor to pass this role on.

    It may pass the store's role of `stoker iam`, and roles whose names begin with that name and a hyphen.
    """
    return refusal_beside(role, granted, role_names.of_deployment("node", granted.deployment))


def refusal_beside(role: MachineRole, granted: DeployedGrants, own: str) -> RoleRefusal | None:
    """The refusal to pass a role on that is neither `own`, nor one of a job, nor named at the deployment."""
    name = _role_name(role.name)
    if name == own or name.startswith(f"{own}-") or name in map(_role_name, granted.identities):
        return None
    return RoleRefusal("pass the role", name, f"--pass-role {name}")


def _role_name(role: str) -> str:
    """The role's name without account and path. A profile has the name of its role unless another was chosen."""
    return role.rpartition("/")[2]


# ── The names in the tables ───────────────────────────────────────────────────────────────────────────────────────────


def store_names(store: str) -> dict[str, str]:
    """The names in the tables of `permissions`, for one store. Raises UserError for an invalid bucket."""
    return _bucket_names(store, "--bucket") | {
        "TAG": tags.store_tag(store),
        "DEPLOYMENT": keys.deployment_name(store),
        "ROLE": role_names.node_role(store),
        "FIS": role_names.fis_role(store),
        "PERSON": role_names.policy_name("person", store),
        "GOVERNOR": role_names.policy_name("governor", store),
        "SERVICE": machine_service(),
    }


def _bucket_names(url: str, option: str) -> dict[str, str]:
    bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise UserError(f"{option}: machines on EC2 need a bucket; give it as s3://BUCKET/PREFIX, not {url!r}")
    whole = f"arn:aws:s3:::{bucket}"
    below = {"ITSELF": f"{whole}/{prefix}", "OBJECTS": f"{whole}/{prefix}/"}
    return {"BUCKET": whole, "PREFIX": prefix, **(below if prefix else {"ITSELF": "", "OBJECTS": f"{whole}/"})}


# ── The policies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _person(names: Mapping[str, str], kms_keys: tuple[str, ...]) -> Grant:
    about = "submit, look, stop and resume; the plan and its prices; ssh and exec (Visit…); interrupt; check"
    policy = policy_of([*fill(permissions.PERSON, names), *kms.for_objects(kms_keys)])
    return Grant("person", about, policy, commands=(managed_policy_commands(names["PERSON"], policy, "person"),))


def _governor(names: Mapping[str, str], notify: tuple[str, ...], kms_keys: tuple[str, ...]) -> Grant:
    about = "decide about jobs, and launch, name and end machines that carry this store's tag; no other machine"
    machines = fill(permissions.GOVERNOR_OF_MACHINES, names)
    policy = policy_of([*governor_in_store(names, notify), *machines, *kms.for_governors(kms_keys)])
    commands = (managed_policy_commands(names["GOVERNOR"], policy, "governor"), _linked_role("spot.amazonaws.com"))
    return Grant("governor", about, policy, commands=commands)


def _node(
    names: Mapping[str, str],
    job: str | None,
    inputs: tuple[str, ...],
    logs: str | None,
    secrets: tuple[str, ...],
    kms_keys: tuple[str, ...],
) -> Grant:
    role = job_role(names["ROLE"], job)
    trust = trust_policy(machine_service())
    about = f"the machines of {jobs_of(job)}: read jobs, code and agents, write under work/; nothing of EC2"
    policy = policy_of([*node_in_store(names, job, inputs, logs, secrets), *kms.for_objects(kms_keys)])
    commands = (create_role_command(role, trust), put_policy_command(role, policy), *_profile(role))
    return Grant("node", about, policy, trust, commands)


def _interrupter(names: Mapping[str, str]) -> Grant:
    """An optional role: without it `stoker interrupt` ends the machine."""
    trust = trust_policy("fis.amazonaws.com")
    policy = policy_of(fill(permissions.INTERRUPTER, names))
    commands = (
        create_role_command(names["FIS"], trust),
        put_policy_command(names["FIS"], policy),
        _linked_role("fis.amazonaws.com"),
    )
    about = "optional: what the Fault Injection Service may do for `stoker interrupt`; else it ends the machine"
    return Grant("interrupter", about, policy, trust, commands)


# ── Their parts that are about the store ──────────────────────────────────────────────────────────────────────────────


def governor_in_store(names: Mapping[str, str], notify: tuple[str, ...]) -> list[dict[str, Any]]:
    """The governor's statements about the store, the topics that it publishes to, and secrets that are addresses.

    Other notification channels need no permission. Raises UserError for an invalid secret.
    """
    wanted: dict[str, list[str]] = {}
    for to in notify:
        topic = channel_address.topic_of(to)
        if topic is not None:
            wanted.setdefault("sns:Publish", []).append(topic)
        elif to.startswith("aws-"):
            for each in _secret_statements(0, to):
                wanted.setdefault(each["Action"], []).append(each["Resource"])
    channels = [
        allow(permissions.CHANNELS[action], action, list(dict.fromkeys(resources)))
        for action, resources in wanted.items()
    ]
    return [*fill(permissions.GOVERNOR_IN_STORE, names), *channels]


def node_in_store(
    names: Mapping[str, str], job: str | None, inputs: tuple[str, ...], logs: str | None, secrets: tuple[str, ...]
) -> list[dict[str, Any]]:
    """A machine's statements about the store, inputs, copies of logs, and secrets.

    Raises UserError for an input or a secret that machines on EC2 cannot reach.
    """
    own = "" if job is None else f"{job}-{'?' * SUFFIX_LENGTH}/"
    found = fill(permissions.node_in_store(own), names)
    for number, url in enumerate(inputs, 1):
        found += fill(permissions.INPUT, _bucket_names(url, "--input") | {"NUMBER": str(number)})
    if logs is not None:
        found += fill(permissions.LOGS, {"GROUP": logs})
    for number, text in enumerate(secrets, 1):
        found += _secret_statements(number, text)
    return found


def _secret_statements(number: int, text: str) -> list[dict[str, Any]]:
    """The statements for a reference. Raises UserError for one that machines on EC2 cannot resolve."""
    try:
        wanted = secret_refs.parse(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.kind not in permissions.SECRETS:
        kinds = tuple(kind for kind in secret_refs.KINDS if kind in permissions.SECRETS)
        raise UserError(f"--secret: machines on EC2 read {secret_refs.expected(kinds)}; give what the job file has")
    name = wanted.name
    arns = {
        # Secrets Manager appends six characters to every ARN.
        "aws-sm": f"arn:aws:secretsmanager:*:*:secret:{name}-??????",
        # A version or a label is not part of the resource.
        "aws-ssm": f"arn:aws:ssm:*:*:parameter/{name.partition(':')[0].lstrip('/')}",
    }
    arn = name if name.startswith("arn:") else arns.get(wanted.kind, "")
    names = {"NUMBER": str(number), "ARN": arn, "OWNER": wanted.detail or "*", "DOMAIN": name}
    return fill(permissions.SECRETS[wanted.kind], names)


# ── Their form ────────────────────────────────────────────────────────────────────────────────────────────────────────


def job_role(role: str, job: str | None) -> str:
    """The role for one job's machines, or for those of all jobs."""
    return role if job is None else f"{role}-{job}"


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


def managed_policy_commands(name: str, policy: dict[str, Any], whom: str) -> str:
    """Commands for a policy that can be attached to users, groups and roles, which are not known here."""
    text = _MANAGED.replace("(PARTITION)", partition()).replace("(NAME)", name)
    return text.replace("(WHOM)", _WHOM[whom]).replace("(DOCUMENT)", _quoted(policy))


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


def _notes(names: Mapping[str, str], job: str | None) -> tuple[str, ...]:
    text = (_SHARED if job is None else _OWN) + _ALWAYS
    for name in ("PERSON", "GOVERNOR"):
        text = text.replace(f"({name})", names[name])
    text = text.replace("(ROLE)", job_role(names["ROLE"], job)).replace("(JOB)", job or "")
    return paragraphs(text.replace("(PARTITION)", partition()))


KMS_NOTE = (
    "A secret or parameter that is encrypted with a key of your own also needs kms:Decrypt on that key (--kms-key). "
    "With AWS's own keys it does not."
)

_SHARED = """\
What the node's profile separates: machines from decisions. No machine can write a log, or claim, launch or end
anything, whatever its training does.

What a shared profile cannot separate: machines from one another. Every node can read and write the work/ folder of
every job in this store: checkpoints, logs and outputs of others.

Per job: `stoker iam ec2 --job NAME` describes a profile (ROLE)-NAME whose machines reach only
jobs called NAME; set resources.ec2.profile to it. To resume_from a job of another name they then need --input for its
folder.

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
attach (GOVERNOR) beside (PERSON).

ssh through SSM also needs `aws iam attach-role-policy --role-name (ROLE)
--policy-arn arn:(PARTITION):iam::aws:policy/AmazonSSMManagedInstanceCore`.

These names are this store's alone, so that several stores share an account. What is there by them already gets these
permissions instead of its own: run it again after an update of Stoker, with all options that are still needed."""
