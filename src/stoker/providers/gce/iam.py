"""What Google Cloud has to allow, as roles and bindings: for the machines, for the person, and for the governor.

A node reads its job, writes facts under `work/` and deletes machines of Stoker's, itself above all; it can write no
decision and launch nothing. Asks nobody.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from stoker.model import keys, secret_refs
from stoker.model.errors import UserError
from stoker.providers.base import Grant, Grants
from stoker.providers.gce import permissions
from stoker.providers.gce.identity import DEFAULT_ACCOUNT
from stoker.providers.gce.permissions import Permission

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
# https://cloud.google.com/iam/docs/service-accounts-create
_LONGEST_ACCOUNT = 30
_SURE_OF_A_NAME = 40

_READER = "roles/storage.objectViewer"
# Creates, and does not replace: that needs the right to delete as well.
_CREATOR = "roles/storage.objectCreator"
_ACTOR = "roles/iam.serviceAccountUser"
_TUNNEL = "roles/iap.tunnelResourceAccessor"
_LOGGER = "roles/logging.logWriter"
_ACCESSOR = "roles/secretmanager.secretAccessor"
# What the machine's own token is of use for: packages and images.
_PULLER = "roles/artifactregistry.reader"

# Who may write what: see `stoker.model.keys`.
_PACKED = (keys.CODE, keys.BUNDLES, keys.TOOLS, keys.WHEELS, keys.INPUTS)
_LISTS = 'resource.type == "storage.googleapis.com/Bucket"'
_SUBMITTED = (keys.JOBS, *_PACKED, keys.ACTIVE, keys.INDEX, "check/")
_GOVERNED = (
    *(keys.ACTIVE, keys.INDEX, keys.GOVERNORS, keys.TOLD),
    *(keys.DRY, keys.MARKET, keys.PLACES, keys.FOREIGN_INDEX, "probes/"),
)
# What was spent stays: nobody who writes it may remove it. Persons write it with `stoker reindex` and `stoker rm`.
_SPENT = keys.SPENT
_NODE_READS = (keys.JOBS, *_PACKED, "policy/", keys.WORK, keys.REMOVED)


def grants(
    store: str,
    *,
    job: str | None = None,
    inputs: tuple[str, ...] = (),
    logs: str | None = None,
    secrets: tuple[str, ...] = (),
    notify: tuple[str, ...] = (),
) -> Grants:
    """The roles and bindings for one store. Pure. Raises UserError for what is no bucket, name of a job, or secret."""
    bucket = _Bucket.of(store, "--bucket")
    if job is not None and _NAME.fullmatch(job) is None:
        raise UserError(f"--job {job}: give a job's name: lower-case letters, digits and -, a letter first")
    account = _account(job)
    return Grants(
        (
            _node(bucket, job, account, inputs, logs, secrets),
            _person(bucket, account),
            _governor(bucket, account, notify),
        ),
        _notes(job, account),
    )


# ── What there is to be given ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Role:
    """A role of the project's own."""

    id: str
    title: str
    permissions: tuple[Permission, ...]

    @property
    def path(self) -> str:
        """As the shell completes it."""
        return f"projects/$PROJECT/roles/{self.id}"

    def told(self) -> dict[str, Any]:
        """As `gcloud iam roles create --file` reads it."""
        return {"title": self.title, "stage": "GA", "includedPermissions": permissions.names(self.permissions)}


_NODE = _Role("stokerNode", "Stoker: a machine", permissions.NODE)
_PERSON = _Role("stokerPerson", "Stoker: a person", permissions.PERSON)
_GOVERNOR = _Role("stokerGovernor", "Stoker: a governor", permissions.GOVERNOR)
_REMOVER = _Role("stokerRemover", "Stoker: replace and remove objects", permissions.REMOVER)


@dataclass(frozen=True)
class _Condition:
    """When a binding counts. `title` tells one from another on the console."""

    title: str
    expression: str


@dataclass(frozen=True)
class _Binding:
    """A role on something, for one member. `on`: `project`, a bucket's address, a secret (`projects/…/secrets/NAME`, or
    without its project), or a service account."""

    on: str
    role: str
    condition: _Condition | None = None

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = {"on": self.on, "role": self.role}
        if self.condition is not None:
            found["condition"] = {"title": self.condition.title, "expression": self.condition.expression}
        return found


class _Bucket:
    """A bucket, and the folder of the store in it."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix

    @classmethod
    def of(cls, url: str, option: str) -> _Bucket:
        bucket, _, prefix = url.removeprefix("gs://").strip("/").partition("/")
        if not url.startswith("gs://") or not bucket:
            raise UserError(
                f"{option}: machines on Compute Engine need a bucket; give it as gs://BUCKET/PREFIX, not {url!r}"
            )
        return cls(bucket, f"{prefix}/" if prefix else "")

    def _under(self, folder: str) -> str:
        return f"resource.name.startsWith({_text(f'projects/_/buckets/{self.name}/objects/{self.prefix}{folder}')})"

    def reads(self, title: str, *folders: str) -> _Binding:
        """Read below these folders, and list the bucket.

        Cloud Storage asks about a list as about the bucket, not about its objects. The prefix that is listed can be in
        a condition (api.getAttribute), but whoever may not list gets 403 for an object that is not there, instead of
        404, and that question has no prefix. So it is the whole bucket that is listed.
        """
        return self._bound(_READER, title, [_LISTS, *map(self._under, folders)])

    def reads_input(self, title: str) -> _Binding:
        """Read below the folder; and the object of that name, since an input may be one."""
        name = f"projects/_/buckets/{self.name}/objects/{self.prefix.rstrip('/')}"
        itself = [f"resource.name == {_text(name)}"] if self.prefix else []
        return self._bound(_READER, title, [_LISTS, *itself, self._under("")])

    def creates(self, title: str, *folders: str, beside: Iterable[str] = ()) -> _Binding:
        return self._bound(_CREATOR, title, [*beside, *map(self._under, folders)])

    def removes(self, title: str, *folders: str) -> _Binding:
        return self._bound(_REMOVER.path, title, [self._under(folder) for folder in folders])

    def logs(self) -> str:
        """An entry of any job's log."""
        start = _text(f"projects/_/buckets/{self.name}/objects/{self.prefix}{keys.JOBS}{{job}}/log/")
        return f'resource.name.extract({start}) != ""'

    def _bound(self, role: str, title: str, any_of: list[str]) -> _Binding:
        return _Binding(f"gs://{self.name}", role, _Condition(title, " || ".join(any_of)))


# ── Who gets what ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _node(
    bucket: _Bucket, job: str | None, account: str, inputs: tuple[str, ...], logs: str | None, secrets: tuple[str, ...]
) -> Grant:
    # A condition knows how names begin, and nothing of their length.
    own = "" if job is None else f"{job}-"
    reads = [folder + own if folder in (keys.JOBS, keys.WORK) else folder for folder in _NODE_READS]
    machines = 'resource.type == "compute.googleapis.com/Instance"'
    # Names of machines begin so, and are cut where a job's is long: see `names`.
    start = _text(f"stoker-{own}"[:_SURE_OF_A_NAME])
    ours = f'{machines} && resource.name.extract("/instances/{{name}}").startsWith({start})'
    bindings = [
        bucket.reads("stoker: read jobs", *reads),
        bucket.creates("stoker: write facts", keys.WORK + own),
        bucket.removes("stoker: replace facts", keys.WORK + own),
        _Binding("project", _NODE.path, _Condition("stoker: machines of stoker", ours)),
    ]
    for url in inputs:
        there = _Bucket.of(url, "--input")
        bindings.append(there.reads_input("stoker: read inputs"))
    if logs is not None:
        bindings.append(_Binding("project", _LOGGER))
    # By itself, since it is the one thing that the machine may read of its project's secrets.
    bindings += [_Binding(_secret(text), _ACCESSOR) for text in secrets if text != "gcp-token"]
    if "gcp-token" in secrets:
        bindings.append(_Binding("project", _PULLER))
    whose = "any job" if job is None else f"jobs called {job}"
    about = f"the machines of {whose}: read jobs, code and agents, write under work/, delete themselves"
    commands = (
        _BEFORE,
        _made_role(_NODE),
        _made_role(_REMOVER),
        _made_account(account),
        f"MEMBER=serviceAccount:{_email(account)}",
        *(_bind(each) for each in bindings),
    )
    return _grant("node", about, (_NODE, _REMOVER), bindings, commands)


def _person(bucket: _Bucket, account: str) -> Grant:
    bindings = [
        bucket.reads("stoker: read the store", ""),
        bucket.creates("stoker: submit", *_SUBMITTED, _SPENT, keys.REMOVED, keys.COLLECTED),
        bucket.removes("stoker: remove", *_SUBMITTED, keys.WORK),
        _Binding("project", _PERSON.path),
        _Binding("project", _TUNNEL, _Condition("stoker: ssh", "destination.port == 22")),
        # Who changes what a machine starts with, or logs in there, acts as its account.
        _Binding(account, _ACTOR),
    ]
    about = "submit, look, stop and resume; the plan; ssh and exec; interrupt; check"
    commands = (_made_role(_PERSON), _for_each("PERSON", "person", bindings))
    return _grant("person", about, (_PERSON, _REMOVER), bindings, commands)


def _governor(bucket: _Bucket, account: str, notify: tuple[str, ...]) -> Grant:
    bindings = [
        bucket.reads("stoker: read the store", ""),
        bucket.creates("stoker: decide", *_GOVERNED, _SPENT, keys.FAMILIES, beside=[bucket.logs()]),
        bucket.removes("stoker: forget", *_GOVERNED),
        _Binding("project", _GOVERNOR.path),
        _Binding(account, _ACTOR),
        # What stands for the address of a channel; others need nothing of Google's.
        *(_Binding(_secret(to), _ACCESSOR) for to in notify if to.startswith("gcp-sm:")),
    ]
    about = "decide about jobs, and launch and delete machines, with the node's account and no other"
    commands = (_made_role(_GOVERNOR), _for_each("GOVERNOR", "governor", bindings))
    return _grant("governor", about, (_GOVERNOR, _REMOVER), bindings, commands)


def _grant(
    name: str, about: str, roles: tuple[_Role, ...], bindings: list[_Binding], commands: tuple[str, ...]
) -> Grant:
    policy = {
        "roles": {role.id: role.told() for role in roles},
        "bindings": [binding.told() for binding in bindings],
    }
    return Grant(name, about, policy, commands=commands)


def _secret(text: str) -> str:
    """A secret as it is bound to, from a reference. Raises UserError for one that machines here cannot follow."""
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
    """The service account of the machines. Its name is bounded; a job's may be longer."""
    name = DEFAULT_ACCOUNT if job is None else f"{DEFAULT_ACCOUNT}-{job}"
    if len(name) <= _LONGEST_ACCOUNT and not name.endswith("-"):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: _LONGEST_ACCOUNT - 7].rstrip('-')}-{digest}"


def _email(account: str) -> str:
    """As the shell completes it."""
    return f"{account}@$ACCOUNTS"


def _text(text: str) -> str:
    """A string of the conditions' language."""
    return json.dumps(text, ensure_ascii=False)


# ── Their commands ────────────────────────────────────────────────────────────────────────────────────────────────────
# For `sh -eu`, in this order (the others use what the node's make), and as often as anybody likes: what is there is
# left, or written anew. What a look says goes nowhere, since its only use is whether there is something.

_BEFORE = """\
export CLOUDSDK_CORE_DISABLE_PROMPTS=1 CLOUDSDK_CORE_VERBOSITY=error
PROJECT=${GOOGLE_CLOUD_PROJECT:-$(gcloud config get-value project 2>/dev/null)}
: "${PROJECT:?is not known: set GOOGLE_CLOUD_PROJECT, or gcloud config set project}"
# Of example.com:vision, accounts are in vision.example.com.
ACCOUNTS=${PROJECT##*:}.iam.gserviceaccount.com
case $PROJECT in *:*) ACCOUNTS=${PROJECT##*:}.${PROJECT%%:*}.iam.gserviceaccount.com ;; esac"""

_ROLE = """\
PERMISSIONS=(PERMISSIONS)
if gcloud iam roles describe (ID) --project "$PROJECT" >/dev/null 2>&1; then
  gcloud iam roles update (ID) --project "$PROJECT" --permissions "$PERMISSIONS" >/dev/null
else
  gcloud iam roles create (ID) --project "$PROJECT" --title (TITLE) --stage GA \\
    --permissions "$PERMISSIONS" >/dev/null
fi"""


def _made_role(role: _Role) -> str:
    text = _ROLE.replace("(ID)", role.id).replace("(TITLE)", shlex.quote(role.title))
    return text.replace("(PERMISSIONS)", ",".join(permissions.names(role.permissions)))


def _made_account(account: str) -> str:
    """A new one is not known everywhere at once, and a binding for an account that is not known is refused."""
    return (
        f'gcloud iam service-accounts describe "{_email(account)}" --project "$PROJECT" >/dev/null 2>&1 || {{\n'
        f'  gcloud iam service-accounts create {account} --project "$PROJECT" \\\n'
        "    --display-name 'Machines of Stoker' >/dev/null\n"
        "  sleep 15\n"
        "}"
    )


def _bind(binding: _Binding) -> str:
    if binding.on == "project":
        what = 'projects add-iam-policy-binding "$PROJECT"'
    elif binding.on.startswith("gs://"):
        what = f'storage buckets add-iam-policy-binding {shlex.quote(binding.on)} --project "$PROJECT"'
    elif "secrets/" in binding.on:
        project, _, name = binding.on.rpartition("secrets/")
        where = shlex.quote(project.removeprefix("projects/").rstrip("/")) if project else '"$PROJECT"'
        what = f"secrets add-iam-policy-binding {shlex.quote(name)} --project {where}"
    else:
        what = f'iam service-accounts add-iam-policy-binding "{_email(binding.on)}" --project "$PROJECT"'
    # Where a policy has conditions, gcloud wants to be told of a binding that has none.
    condition = "None" if binding.condition is None else shlex.quote(_flag(binding.condition))
    whom = f'--member "$MEMBER" --role "{binding.role}"'
    return f"gcloud {what} \\\n  {whom} \\\n  --condition {condition} >/dev/null"


def _flag(condition: _Condition) -> str:
    """As gcloud reads several values in one word: set apart by a character that is in none of them."""
    both = condition.title + condition.expression
    apart = next(sign for sign in ";#~%@|^" if sign not in both)
    return f"^{apart}^title={condition.title}{apart}expression={condition.expression}"


def _for_each(variable: str, what: str, bindings: list[_Binding]) -> str:
    """For whoever is named when it runs; who they are is not known here."""
    inside = indent("\n".join(_bind(binding) for binding in bindings), "  ")
    again = f"stoker iam gce | {variable}=user:jane@example.com sh"
    return (
        f"for MEMBER in ${{{variable}:-}}; do\n{inside}\ndone\n"
        f'[ -n "${{{variable}:-}}" ] || echo "for each {what} who does not own the project, once more: {again}"'
    )


def _notes(job: str | None, account: str) -> tuple[str, ...]:
    text = (_SHARED if job is None else _OWN) + _ALWAYS
    text = text.replace("(ACCOUNT)", account).replace("(JOB)", job or "")
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


_SHARED = """\
What the node's account separates: machines from decisions. No machine can write a log, or claim or launch anything,
whatever its training does.

What a shared account cannot separate: machines from one another. Every node can read and write the work/ folder of
every job in this store, checkpoints, logs and outputs of others, and delete every machine whose name begins with
stoker-, those of other stores too: a condition knows names, and neither labels nor who asks.

Per job: `stoker iam gce --job NAME` describes an account stoker-node-NAME whose machines reach only jobs whose names
begin with NAME; set resources.gce.service_account to it. To resume_from a job of another name they then need --input
for its folder.

"""

_OWN = """\
Machines with this account reach jobs called (JOB), and delete machines of such jobs; set resources.gce.service_account
to (ACCOUNT). A condition knows how names begin: jobs called (JOB)-more are reached as well. They can still list the
names of all objects in the bucket, and read all packed code.

Governors have to be allowed to use this account, too: run this with GOVERNOR set, and where a governor is
deployed `stoker deploy gcp --service-account (ACCOUNT)`.

"""

# https://cloud.google.com/iam/docs/conditions-resource-attributes says which resources have a name to go by, and
# https://cloud.google.com/storage/docs/access-control/iam-xml which permissions an object's change takes.
_ALWAYS = """\
What the governor's role cannot separate: Stoker's machines from others in the project. No condition can ask for a
label, so a governor may delete any machine there. Where that matters, give Stoker a project of its own.

A log's entries are created and never replaced: the governor may not delete there, and to Cloud Storage replacing is
deleting.

Everybody who reads the store can list the names of all objects in its bucket, also beside the store's folder: without
that Cloud Storage says 403 for what is absent, which says nothing, instead of 404.

Conditions need a bucket with uniform bucket-level access, in the same project as these roles.

Where no governor is deployed, the person who runs `stoker run`, `stop` or `govern` governs: name them in GOVERNOR
beside PERSON. An owner of the project needs neither.

Bindings are added, and none is taken away: after a change of options look at the bucket's and the project's policies
for those whose titles begin with stoker. One store in a project goes by these roles; run it again after an update."""
