"""The roles and bindings that Stoker needs on Google Cloud: for the machines, for a person, and for the governor. Pure.

A node reads its job, writes facts under `work/`, and deletes machines of Stoker, which is how it deletes itself. It can
write no decision and launch nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from stoker.model import secret_refs
from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers import grants as store_access
from stoker.providers.gce.iam_bindings import (
    CREATOR,
    GOVERNOR,
    NODE,
    PERSON,
    READER,
    REMOVER,
    Binding,
    BucketFolder,
    Condition,
    ProjectRole,
    StoreBinding,
    quoted,
)
from stoker.providers.gce.iam_commands import SETUP, account_email, bind, bind_each, create_account, create_role
from stoker.providers.gce.identity import DEFAULT_ACCOUNT, email
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

# https://cloud.google.com/iam/docs/service-accounts-create
_LONGEST_ACCOUNT = 30
# Names of machines are cut where a job's name is long; no name is cut within this many characters: see `names`.
_UNCUT_LENGTH = 40
# The end of the address of Compute Engine's default account. Before it is the project's number.
_COMPUTE = "-compute@developer.gserviceaccount.com"

# ── The bindings ──────────────────────────────────────────────────────────────────────────────────────────────────────
# The roles' own permissions are in `permissions`, each with its reason.

_ACTOR = "roles/iam.serviceAccountUser"
_ACCESSOR = "roles/secretmanager.secretAccessor"
# In place of the name of the machines' service account.
_ACCOUNT = "(ACCOUNT)"

_PERSON: tuple[StoreBinding | Binding, ...] = (
    StoreBinding(READER, "stoker: read the store", store_access.PERSON.reads),
    StoreBinding(CREATOR, "stoker: submit", store_access.PERSON.writes),
    StoreBinding(REMOVER.path, "stoker: remove", store_access.PERSON.removes),
    Binding("project", PERSON.path),
    Binding("project", "roles/iap.tunnelResourceAccessor", Condition("stoker: ssh", "destination.port == 22")),
    # Changing a machine's metadata, and logging in to it, count as acting as its account.
    Binding(_ACCOUNT, _ACTOR),
)
_GOVERNOR: tuple[StoreBinding | Binding, ...] = (
    StoreBinding(READER, "stoker: read the store", store_access.GOVERNOR.reads),
    StoreBinding(CREATOR, "stoker: decide", store_access.GOVERNOR.writes, log_entries=True),
    StoreBinding(REMOVER.path, "stoker: forget", store_access.GOVERNOR.removes),
    Binding("project", GOVERNOR.path),
    Binding(_ACCOUNT, _ACTOR),
)
_INPUT = StoreBinding(READER, "stoker: read inputs", ("",), itself=True)
_LOGS = Binding("project", "roles/logging.logWriter")
# For jobs that use the machine's own token: packages and images.
_TOKEN = Binding("project", "roles/artifactregistry.reader")


def _node_table(own: str) -> tuple[StoreBinding | Binding, ...]:
    """The bindings of a machine. A condition can test how a name begins, but not how long it is."""
    access = store_access.node_access(own)
    machines = 'resource.type == "compute.googleapis.com/Instance"'
    start = quoted(f"stoker-{own}"[:_UNCUT_LENGTH])
    ours = f'{machines} && resource.name.extract("/instances/{{name}}").startsWith({start})'
    return (
        StoreBinding(READER, "stoker: read jobs", access.reads),
        StoreBinding(CREATOR, "stoker: write facts", access.writes),
        StoreBinding(REMOVER.path, "stoker: replace facts", access.removes),
        Binding("project", NODE.path, Condition("stoker: machines of stoker", ours)),
    )


# ── The grants ────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    """Describe the roles and bindings for one store. Pure.

    Raises UserError for an invalid bucket, job name or secret, and for a key on AWS.
    """
    if kms_keys:
        raise UserError("--kms-key: is for keys on AWS; Cloud Storage uses its keys itself, without a role of yours")
    bucket = BucketFolder.of(store, "--bucket")
    check_job_name(job)
    account = _account(job)
    return Grants(
        (
            _node(bucket, job, account, inputs, logs, secrets),
            _person(bucket, account),
            _governor(bucket, account, notify),
        ),
        _notes(job, account),
    )


def machine_role(resources: Resources) -> MachineRole | None:
    """The service account that these resources name."""
    account = resources.gce.service_account if resources.gce is not None else None
    return None if account is None else MachineRole("gcp", "resources.gce.service_account", account)


def refusal(role: MachineRole, granted: DeployedGrants) -> RoleRefusal | None:
    """The refusal of a deployed governor to act as this account."""
    address = email(granted.project, role.name)
    if address == "default":
        # No record of a deployment holds the project's number.
        if any(each.endswith(_COMPUTE) for each in granted.identities):
            return None
        address = f"NUMBER{_COMPUTE}"
    if address in (email(granted.project, DEFAULT_ACCOUNT), *granted.identities):
        return None
    return RoleRefusal("act as", address, f"--service-account {address}")


def _node(
    bucket: BucketFolder,
    job: str | None,
    account: str,
    inputs: tuple[str, ...],
    logs: str | None,
    secrets: tuple[str, ...],
) -> Grant:
    bindings = _bound(_node_table("" if job is None else f"{job}-"), bucket, account)
    bindings += [BucketFolder.of(url, "--input").bind(_INPUT) for url in inputs]
    if logs is not None:
        bindings.append(_LOGS)
    # Bound on each secret itself, so that the machine can read no other secret of the project.
    bindings += [Binding(_secret(text), _ACCESSOR) for text in secrets if text != "gcp-token"]
    if "gcp-token" in secrets:
        bindings.append(_TOKEN)
    about = f"the machines of {jobs_of(job)}: read jobs, code and agents, write under work/, delete themselves"
    commands = (
        SETUP,
        create_role(NODE),
        create_role(REMOVER),
        create_account(account),
        f"MEMBER=serviceAccount:{account_email(account)}",
        *(bind(each) for each in bindings),
    )
    return _grant("node", about, (NODE, REMOVER), bindings, commands)


def _person(bucket: BucketFolder, account: str) -> Grant:
    bindings = _bound(_PERSON, bucket, account)
    about = "submit, look, stop and resume; the plan; ssh and exec; interrupt; check"
    commands = (create_role(PERSON), bind_each("PERSON", "person", bindings))
    return _grant("person", about, (PERSON, REMOVER), bindings, commands)


def _governor(bucket: BucketFolder, account: str, notify: tuple[str, ...]) -> Grant:
    # Secrets that hold the address of a channel. Other channels need no permission of Google's.
    channels = [Binding(_secret(to), _ACCESSOR) for to in notify if to.startswith("gcp-sm:")]
    bindings = _bound(_GOVERNOR, bucket, account) + channels
    about = "decide about jobs, and launch and delete machines, with the node's account and no other"
    commands = (create_role(GOVERNOR), bind_each("GOVERNOR", "governor", bindings))
    return _grant("governor", about, (GOVERNOR, REMOVER), bindings, commands)


def _bound(table: tuple[StoreBinding | Binding, ...], bucket: BucketFolder, account: str) -> list[Binding]:
    return [
        bucket.bind(row) if isinstance(row, StoreBinding) else replace(row, on=account) if row.on == _ACCOUNT else row
        for row in table
    ]


def _grant(
    name: str, about: str, roles: tuple[ProjectRole, ...], bindings: list[Binding], commands: tuple[str, ...]
) -> Grant:
    policy = {
        "roles": {role.id: role.as_json() for role in roles},
        "bindings": [binding.as_json() for binding in bindings],
    }
    return Grant(name, about, policy, commands=commands)


def _secret(text: str) -> str:
    """The resource that a secret reference names. Raises UserError for one that machines here cannot read."""
    try:
        wanted = secret_refs.parse(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.kind != "gcp-sm":
        raise UserError(
            "--secret: machines on Compute Engine read gcp-sm:NAME or gcp-token; give what the job file has"
        )
    name = wanted.name.partition("/versions/")[0]
    return name if "/" in name else f"secrets/{name}"


def _account(job: str | None) -> str:
    """The name of the machines' service account, cut and with a digest where the job's name is too long."""
    name = DEFAULT_ACCOUNT if job is None else f"{DEFAULT_ACCOUNT}-{job}"
    if len(name) <= _LONGEST_ACCOUNT and not name.endswith("-"):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: _LONGEST_ACCOUNT - 7].rstrip('-')}-{digest}"


def _notes(job: str | None, account: str) -> tuple[str, ...]:
    text = (_SHARED if job is None else _OWN) + _ALWAYS
    return paragraphs(text.replace("(ACCOUNT)", account).replace("(JOB)", job or ""))


_SHARED = """\
The node's account separates machines from decisions: no machine can write a log, or claim or launch anything, whatever
its training does.

A shared account does not separate machines from one another. Every node can read and write the work/ folder of every
job in this store (checkpoints, logs and outputs of other jobs), and delete every machine whose name begins with
stoker-, those of other stores too: a condition can test names, but neither labels nor the caller.

Per job: `stoker iam gce --job NAME` describes an account stoker-node-NAME whose machines reach only jobs whose names
begin with NAME; set resources.gce.service_account to it. To resume_from a job of another name they then need --input
for its folder.

"""

_OWN = """\
Machines with this account reach jobs called (JOB), and delete machines of such jobs; set resources.gce.service_account
to (ACCOUNT). A condition tests how names begin, so that jobs called (JOB)-more are reached as well. The machines can
still list the names of all objects in the bucket, and read all packed code.

Governors must be allowed to use this account, too: run these commands with GOVERNOR set, and where a governor is
deployed `stoker deploy gcp --service-account (ACCOUNT)`.

"""

# https://cloud.google.com/iam/docs/conditions-resource-attributes lists the resources whose names conditions can test,
# and https://cloud.google.com/storage/docs/access-control/iam-xml the permissions that changing an object needs.
_ALWAYS = """\
The governor's role does not separate Stoker's machines from others in the project: no condition can test a label, so a
governor may delete any machine there. Where that matters, give Stoker a project of its own.

Log entries are created and never replaced: the governor may not delete them, and Cloud Storage treats replacing an
object as deleting it.

Every reader of the store can list the names of all objects in its bucket, also outside the store's folder: without that
permission Cloud Storage answers 403 instead of 404 for an absent object, which proves nothing.

Conditions need a bucket with uniform bucket-level access, in the same project as these roles.

Where no governor is deployed, the person who runs `stoker run`, `stop` or `govern` governs: name them in GOVERNOR
beside PERSON. An owner of the project needs neither.

The commands add bindings and remove none: after a change of options, look for obsolete bindings, whose titles begin
with stoker, in the policies of the bucket and the project. The roles serve one store of a project; run the commands
again after an update of Stoker."""
