"""Every key of the bucket, in one place, with its writer. Those of the market are made in `market_keys`.

    jobs/<job>/spec.json                              submitter, governors
    jobs/<job>/log/<seq, 8 digits>.json
    code/<name>.tar.gz                                submitter; shared by jobs with the same code
    bundles/<name>.tar.gz                             submitter; agents that machines install, shared by jobs
    tools/<name>.gz                                   submitter; programs that machines fetch when they need them
    wheels/<name>                                     submitter; packages for machines without an index, shared by jobs
    inputs/<name>/…                                   submitter; uploaded folders as plain files, shared by jobs
                                                      (each name is `<digest>`, then `<digest>-2`, …: its generation)
    collected/<kind>/<name>                           persons, create-only, empty, permanent: no job may use the name
    policy/defaults.yaml                              administrators: defaults of job files
    policy/rules/<version, 8 digits>.json             administrators, create-only: the rules that every job obeys
    policy/approvals/<last day>/<job>/<rule>.<token>.json    approvers, create-only: this job may break this rule
                                      <rule>.<token>.withdrawn.json    the same: it no longer may
    work/<job>/<claim, 8 digits>/<rank>/<boot>/       that node's agent alone
        heartbeat  notice  exit  log/<n>/<size>  metrics/<n>/<size>  evidence/<n>
    work/<job>/checkpoints/<claim>/<ordinal>-<name>[@rank].json     agents, create-only
    work/<job>/blobs/<rank>/<digest>-<upload>         that rank's agent alone, create-only; no name is used twice
    work/<job>/image                                  agents, create-only: the resolved image of the container
    work/<job>/inputs/<name>                          agents, create-only: the files that nodes divide among them
    work/<job>/outputs/<claim>/…                      agents; plain files
    work/<job>/rewritten/<claim>/<boot>.<n>/…         agents, create-only: later versions of outputs; the highest counts
    work/<job>/sagemaker/…                            SageMaker: files that it writes for its training jobs
    work/environments/<key>/                          agents, for all jobs; or below work/<job>/ for one job alone
        manifest.json  <digest>  used
    outbox/<channel>/<n, 8 digits>.json               governors, create-only: notifications sent and waiting
    active/<job>/<seq>                                derived, by governors; rebuilt by `stoker reindex`
    active/<job>/<seq>.<token>                        submitter: announces the entry that opens the job; used once
    index/<job>/<seq of the log, 8 digits>.json       derived, the same; the highest number counts
    removed/<job>                                     persons, create-only, empty, permanent: the job was removed
    spent/<year-month>/<day>/<job>/<seq>.<µ$>-<µ$ on-demand>-<µ$ that count>.<tags>
                                                      governors, create-only, permanent: cost of an ended job on a day
    spent/warned/<rule>/<first day>/<value, hashed>   governors, create-only: the warning about this budget was written
    external_jobs/sagemaker/<region>/<origin>/<seq>.json
                                                      governors, create-only: log of an external job and its clones
    external_jobs/index/sagemaker/<region>.json       derived, by governors
    dry/<offering>                                    governors: the offering had no capacity at the time of writing
    market/<day>/<provider>/<machine>/<zone>/<spot|on-demand>/<hour>/
        <job>.<claim>.<fate>.<machine-minutes>        governors, create-only, empty: how machines ended
        <ten minutes>.dry                             the same: no capacity
    places/<provider>/<region>                        governors: machines were launched there once
    prices/<provider>.json                            governors, persons: newer price tables than the packaged ones
    probes/…                                          deleted at once: written to learn the store's time
    check/…                                           deleted at once: written to learn that the store can be written
    governors/<id>.json                               each governor's last pass, and the store's clock
    deployed/<cloud>.json  deployed/<digest>.zip      `stoker deploy`: the place of a governor, and its package

A boot is one start of an agent on one instance: `<instance>.<n>`. The instance is part of it so that an agent that
the log does not name can never overwrite the facts of the agent that it names.
Blobs are stored by rank so that each has one writer: a rank may delete a blob without asking the others.
"""

from __future__ import annotations

import hashlib
import re
from datetime import date

from stoker.model.key_segments import quote

JOBS = "jobs/"
WORK = "work/"
ACTIVE = "active/"
INDEX = "index/"
REMOVED = "removed/"
COLLECTED = "collected/"
GOVERNORS = "governors/"
DEPLOYED = "deployed/"
CODE = "code/"
BUNDLES = "bundles/"
TOOLS = "tools/"
WHEELS = "wheels/"
INPUTS = "inputs/"
# No job has this id: every job id has a suffix.
ENVIRONMENTS = "work/environments/"
OUTBOX = "outbox/"
DRY = "dry/"
PLACES = "places/"
PRICES = "prices/"
# Written and deleted at once: to learn the store's time, and that the store can be written.
PROBES = "probes/"
CHECKS = "check/"
POLICY = "policy/"
SPENT = "spent/"
MARKET = "market/"
# In place of the region, for a provider without regions.
NO_REGION = "-"
DEFAULTS = f"{POLICY}defaults.yaml"
RULES = f"{POLICY}rules/"
APPROVALS = f"{POLICY}approvals/"
EXTERNAL_JOBS = "external_jobs/"
CLONE_CHAINS = f"{EXTERNAL_JOBS}sagemaker/"
EXTERNAL_JOB_INDEX = f"{EXTERNAL_JOBS}index/sagemaker/"

# The first segments of all keys: nothing else may be written below them.
ROOTS = frozenset(
    root.partition("/")[0]
    for root in (
        *(JOBS, WORK, ACTIVE, INDEX, REMOVED, COLLECTED, GOVERNORS, DEPLOYED, CODE, BUNDLES, TOOLS, WHEELS, INPUTS),
        *(OUTBOX, DRY, PLACES, PRICES, PROBES, CHECKS, POLICY, SPENT, MARKET, EXTERNAL_JOBS),
    )
)

_OUTPUT_VERSION = re.compile(r"([0-9]{8})\.([0-9]{8})/(.+)", re.DOTALL)
# The folder among the outputs of a node for parts of a save that are perhaps unfinished.
UNFINISHED = "perhaps-unfinished/"
_UNFINISHED_PATH = re.compile(rf"(rank-[0-9]+/)?(work/)?{UNFINISHED}")


def number(seq: int) -> str:
    """Eight digits, so that keys sort as numbers do."""
    return f"{seq:08d}"


def spec(job: str) -> str:
    return f"jobs/{job}/spec.json"


def shared_name(digest: str, generation: int = 1) -> str:
    """Name of an object that jobs share: its digest, and its generation unless that is the first."""
    return digest if generation == 1 else f"{digest}-{generation}"


def digest_of(name: str) -> str:
    """The digest in a name that `shared_name` made."""
    return name.partition("-")[0]


def generation_of(name: str) -> int:
    """The generation in a name that `shared_name` made."""
    return int(name.partition("-")[2] or 1)


def collected(kind: str, name: str) -> str:
    """Mark that a name is retired. Written before the named object is deleted, and never deleted itself."""
    return f"{COLLECTED}{kind}{name}"


def code(name: str) -> str:
    return f"code/{name}.tar.gz"


def bundle(name: str) -> str:
    """An agent that can be installed without a package index."""
    return f"bundles/{name}.tar.gz"


def tool(name: str) -> str:
    """A program for machines, compressed; the digest is of the compressed bytes."""
    return f"{TOOLS}{name}.gz"


def wheel(name: str) -> str:
    """A package, as its index had it."""
    return f"{WHEELS}{name}"


def environments(job: str | None = None) -> str:
    """Prefix of environments shared by all jobs, or of one job whose machines may write nowhere else."""
    return ENVIRONMENTS if job is None else f"work/{job}/environments/"


def environment_manifest(place: str, key: str) -> str:
    return f"{place}{key}/manifest.json"


def environment_part(place: str, key: str, digest: str) -> str:
    return f"{place}{key}/{digest}"


def environment_used(place: str, key: str) -> str:
    """An object whose modification time is the last use of the environment."""
    return f"{place}{key}/used"


def input_files(name: str) -> str:
    """The folder of an input that a submitter uploaded: plain files."""
    return f"{INPUTS}{name}/"


def log_entry(job: str, seq: int) -> str:
    return f"jobs/{job}/log/{number(seq)}.json"


def log_prefix(job: str) -> str:
    return f"jobs/{job}/log/"


def active(job: str, seq: int) -> str:
    return f"active/{job}/{number(seq)}"


def announcement(job: str, seq: int, token: str) -> str:
    """A marker for an entry that is about to open the job. The `active` marker follows the entry.

    A marker whose entry never came is deleted after a while. Its name is never used again: a delete that lands late
    must not hide a job that was opened meanwhile.
    """
    return f"{active(job, seq)}.{token}"


def read_marker(key: str) -> tuple[str, int] | None:
    """Parse a key below `active/` into job and entry number; None if it is not such a key."""
    job, _, name = key.removeprefix(ACTIVE).rpartition("/")
    seq = name.partition(".")[0]
    return (job, int(seq)) if job and seq.isascii() and seq.isdigit() else None


def index(job: str, seq: int) -> str:
    """The cached record of a job's first `seq` entries. A late write can only bring back a lower number."""
    return f"{index_prefix(job)}{number(seq)}.json"


def index_prefix(job: str) -> str:
    return f"{INDEX}{job}/"


def removed(job: str) -> str:
    """Tombstone of a job: written before any of its objects is deleted, and never deleted itself."""
    return f"{REMOVED}{job}"


def dry(offering: str) -> str:
    """Mark that a governor found no capacity for this offering; its modification time says when."""
    return f"{DRY}{offering}"


def place(provider: str, region: str | None) -> str:
    """Mark that machines were launched in this region once, so that the search for orphans includes it."""
    return f"{PLACES}{provider}/{region or NO_REGION}"


def prices(provider: str) -> str:
    """The price tables of a provider that are newer than the packaged ones."""
    return f"{PRICES}{quote(provider)}.json"


def spent_month(day: date) -> str:
    return f"{SPENT}{day:%Y-%m}/"


def spent_day(day: date) -> str:
    return f"{SPENT}{day:%Y-%m/%d}/"


def budget_warning(rule: str, start: date, value: str, kind: str) -> str:
    """Mark that a budget's warning was written. Outside the months, so that listing a month does not return it."""
    hashed = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{SPENT}warned/{quote(rule)}/{start.isoformat()}/{hashed}-{kind}"


def rules(version: int) -> str:
    return f"{RULES}{number(version)}.json"


def clone_chain(region: str, origin: str) -> str:
    """Prefix of the log of an external job and its clones."""
    return f"{CLONE_CHAINS}{region}/{origin}/"


def clone_chain_entry(region: str, origin: str, seq: int) -> str:
    return f"{clone_chain(region, origin)}{number(seq)}.json"


def external_job_index(region: str) -> str:
    return f"{EXTERNAL_JOB_INDEX}{region}.json"


def outbox(channel: str, n: int) -> str:
    """The n-th state of a channel's outbox; the newest counts."""
    return f"{OUTBOX}{channel}/{number(n)}.json"


def governor(name: str) -> str:
    return f"governors/{name}.json"


def deployed(cloud: str) -> str:
    """Record of a governor that is deployed in this cloud, and how to wake it."""
    return f"{DEPLOYED}{cloud}.json"


def deployment_name(store_url: str) -> str:
    """Name of a store's deployed governor in its cloud; differs between two stores of one account."""
    return f"stoker-{hashlib.sha256(store_url.encode()).hexdigest()[:12]}"


def deployed_package(digest: str) -> str:
    """The package that a deployed governor runs."""
    return f"{DEPLOYED}{digest}.zip"


def boot(instance: str, n: int) -> str:
    return f"{instance}.{n}"


def node(job: str, claim: int, rank: int, boot: str) -> str:
    """The folder that one boot of one agent writes to, without a slash at its end."""
    return f"work/{job}/{number(claim)}/{rank}/{boot}"


def heartbeat(node: str) -> str:
    return f"{node}/heartbeat"


def notice(node: str) -> str:
    return f"{node}/notice"


def boot_output(node: str) -> str:
    """The boot output of a machine that failed before its agent started."""
    return f"{node}/boot"


def sagemaker_output(job: str) -> str:
    """The prefix that SageMaker itself writes to."""
    return f"work/{job}/sagemaker"


def exit_(node: str) -> str:
    return f"{node}/exit"


def log_chunk(node: str, n: int, size: int = 0) -> str:
    """One version of a growing chunk: every size has its own key, and the largest counts."""
    return f"{node}/log/{number(n)}/{size}"


def metrics_chunk(node: str, n: int, size: int = 0) -> str:
    return f"{node}/metrics/{number(n)}/{size}"


def evidence(node: str, n: int) -> str:
    """A report of what the node's processes were doing when evidence was requested."""
    return f"{node}/evidence/{number(n)}"


def checkpoints(job: str) -> str:
    return f"work/{job}/checkpoints/"


def checkpoint_key(claim: int, ordinal: int, name: str, rank: int = 0) -> str:
    """Name of a checkpoint in facts and in the log: `00000007/000002-step-900`."""
    return f"{number(claim)}/{ordinal:06d}-{name}" + (f"@{rank}" if rank else "")


def manifest(job: str, key: str) -> str:
    return f"work/{job}/checkpoints/{key}.json"


def blob(job: str, rank: int, name: str) -> str:
    """A file of checkpoints: `<digest>-<upload>`. The name of a deleted blob is never used again."""
    return f"work/{job}/blobs/{rank}/{name}"


def blobs(job: str) -> str:
    return f"work/{job}/blobs/"


def image(job: str) -> str:
    return f"work/{job}/image"


def shared_files(job: str, name: str) -> str:
    """The list of an input's files, which the nodes divide among them."""
    return f"work/{job}/inputs/{name}"


def outputs(job: str, claim: int) -> str:
    return f"work/{job}/outputs/{number(claim)}/"


def is_unfinished_output(path: str) -> bool:
    """Return whether a path among the outputs is that of a save which is perhaps unfinished."""
    return _UNFINISHED_PATH.match(path) is not None


def output_versions(job: str, claim: int) -> str:
    """Prefix of the versions of outputs that were written after the first."""
    return f"work/{job}/rewritten/{number(claim)}/"


def output_version(job: str, claim: int, boot: int, n: int, path: str) -> str:
    """A later version of an output. No key is used twice; for each path, the highest boot and number count."""
    return f"{output_versions(job, claim)}{number(boot)}.{number(n)}/{path}"


def read_output_version(below: str) -> tuple[int, int, str] | None:
    """Parse a key below `output_versions` into boot, number and path; None if it is not such a key."""
    match = _OUTPUT_VERSION.fullmatch(below)
    return (int(match[1]), int(match[2]), match[3]) if match is not None else None
