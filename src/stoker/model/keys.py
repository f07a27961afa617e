"""Every key in the bucket, in one place, split by who may write it.

    jobs/<job>/spec.json                              submitter, governors
    jobs/<job>/log/<seq, 8 digits>.json
    code/<name>.tar.gz                                submitter; shared by jobs with the same code
    bundles/<name>.tar.gz                             submitter; agents that machines install, shared by jobs
    tools/<name>.gz                                   submitter; programs that machines fetch when they need them
    wheels/<name>                                     submitter; packages for machines without an index, shared by jobs
    inputs/<name>/…                                   submitter; folders of theirs as plain files, shared by jobs
                                                      (each name is `<digest>`, then `<digest>-2`, …: its generation)
    collected/<kind>/<name>                           persons, create-only, empty, kept for good: no job may name it
    policy/defaults.yaml                              the house: what job files need not say
    policy/rules/<version, 8 digits>.json             the house, create-only: the rules that every job obeys
    work/<job>/<claim, 8 digits>/<rank>/<boot>/       that node's agent alone
        heartbeat  notice  exit  log/<n>/<size>  metrics/<n>/<size>  evidence/<n>
    work/<job>/checkpoints/<claim>/<ordinal>-<name>[@rank].json     agents, create-only
    work/<job>/blobs/<rank>/<digest>-<upload>         that rank's agent alone, create-only; no name is used twice
    work/<job>/image                                  agents, create-only: what the container's image was
    work/<job>/inputs/<name>                          agents, create-only: which files the nodes share out
    work/<job>/outputs/<claim>/…                      agents; plain files
    work/<job>/rewritten/<claim>/<boot>.<n>/…         agents, create-only: later versions of outputs; the highest counts
    work/<job>/sagemaker/…                            SageMaker: what it keeps of its training jobs by itself
    work/environments/<key>/                          agents, for all jobs; or below work/<job>/ for one alone
        manifest.json  <digest>  used
    told/<channel>/<n, 8 digits>.json                 governors, create-only: what was told through a channel, and waits
    active/<job>/<seq>                                derived, by governors; rebuilt by `stoker reindex`
    active/<job>/<seq>.<token>                        submitter: announces the entry that opens the job; used once
    index/<job>/<seq of the log, 8 digits>.json       derived, the same; the highest number counts
    removed/<job>                                     persons, create-only, empty, kept for good: the job was removed
    spent/<year-month>/<day>/<job>/<seq>.<µ$>-<µ$ on-demand>-<µ$ that count>.<tags>
                                                      governors, create-only: what an ended job spent on a day; it stays
    spent/told/<rule>/<first day>/<value, hashed>     governors, create-only: that this budget is nearly spent was told
    foreign/sagemaker/<region>/<origin>/<seq>.json    governors, create-only: training jobs of others, and clones
    foreign/index/sagemaker/<region>.json             derived, by governors
    dry/<offering>                                    governors: found dry, when this was written
    market/<day>/<provider>/<machine>/<zone>/<spot|on-demand>/<hour>/
        <job>.<claim>.<fate>.<machine-minutes>        governors, create-only, empty: how machines fared
        <ten minutes>.dry                             the same: there were none
    places/<provider>/<region>                        governors: where machines were launched once
    probes/…                                          never for long: whoever asks the store for its time
    governors/<id>.json                               each governor's last pass, and the store's clock
    deployed/<cloud>.json  deployed/<digest>.zip      whoever deploys a governor: where it is, and what it runs

A boot is one start of an agent on one instance: `<instance>.<n>`. The instance is part of it so that an agent that
nobody named in the log can never overwrite the facts of the one that was.
Blobs are kept by rank so that each has one writer: a rank may then forget a blob without asking the others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import date, datetime, timezone

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
# No job is called so: each has a suffix.
ENVIRONMENTS = "work/environments/"
TOLD = "told/"
DRY = "dry/"
PLACES = "places/"
SPENT = "spent/"
MARKET = "market/"
# Stands for a provider that has none.
NO_REGION = "-"
DEFAULTS = "policy/defaults.yaml"
RULES = "policy/rules/"
FOREIGN = "foreign/"
FAMILIES = "foreign/sagemaker/"
FOREIGN_INDEX = "foreign/index/sagemaker/"

_ODD = re.compile(r"[^A-Za-z0-9._+-]")
_ALL = re.compile(r".")
_QUOTED = re.compile(r"=([0-9a-f]{2})")
_OUTPUT_VERSION = re.compile(r"([0-9]{8})\.([0-9]{8})/(.+)", re.DOTALL)
_SAFE_NAME = re.compile(r"[A-Za-z0-9._+=-]{1,100}")


def number(seq: int) -> str:
    """Eight digits, so that keys sort as numbers do."""
    return f"{seq:08d}"


def spec(job: str) -> str:
    return f"jobs/{job}/spec.json"


def shared_name(digest: str, generation: int = 1) -> str:
    """What something that jobs share is called: its digest, and its generation where that is not the first."""
    return digest if generation == 1 else f"{digest}-{generation}"


def digest_of(name: str) -> str:
    """The digest in a name that `shared_name` made."""
    return name.partition("-")[0]


def generation_of(name: str) -> int:
    """The generation in a name that `shared_name` made."""
    return int(name.partition("-")[2] or 1)


def collected(kind: str, name: str) -> str:
    """The mark that a name is given up: written before what it names is deleted, and never deleted itself."""
    return f"{COLLECTED}{kind}{name}"


def code(name: str) -> str:
    return f"code/{name}.tar.gz"


def bundle(name: str) -> str:
    """An agent that installs without a package index."""
    return f"bundles/{name}.tar.gz"


def tool(name: str) -> str:
    """A program for machines, compressed; the digest is of what is kept."""
    return f"{TOOLS}{name}.gz"


def wheel(name: str) -> str:
    """A package, as its index had it."""
    return f"{WHEELS}{name}"


def environments(job: str | None = None) -> str:
    """Where environments are kept for all jobs, or for one where its machines may not write elsewhere."""
    return ENVIRONMENTS if job is None else f"work/{job}/environments/"


def environment_manifest(place: str, key: str) -> str:
    return f"{place}{key}/manifest.json"


def environment_part(place: str, key: str, digest: str) -> str:
    return f"{place}{key}/{digest}"


def environment_used(place: str, key: str) -> str:
    """When this was written, the environment was last used."""
    return f"{place}{key}/used"


def input_files(name: str) -> str:
    """The folder of an input that a submitter sent: plain files."""
    return f"{INPUTS}{name}/"


def log_entry(job: str, seq: int) -> str:
    return f"jobs/{job}/log/{number(seq)}.json"


def log_prefix(job: str) -> str:
    return f"jobs/{job}/log/"


def active(job: str, seq: int) -> str:
    return f"active/{job}/{number(seq)}"


def announcement(job: str, seq: int, token: str) -> str:
    """A marker for an entry that is about to open the job. `active` follows the entry.

    One that opens nothing is deleted after a while. Its name is never used again: a delete that lands late must not
    hide a job that was opened meanwhile.
    """
    return f"{active(job, seq)}.{token}"


def read_marker(key: str) -> tuple[str, int] | None:
    """The job and the number of a key below `active/`; None for a key that is none."""
    job, _, name = key.removeprefix(ACTIVE).rpartition("/")
    seq = name.partition(".")[0]
    return (job, int(seq)) if job and seq.isascii() and seq.isdigit() else None


def index(job: str, seq: int) -> str:
    """The cached record of a job's first `seq` entries. A late write can only ever put back a lower number."""
    return f"{index_prefix(job)}{number(seq)}.json"


def index_prefix(job: str) -> str:
    return f"{INDEX}{job}/"


def removed(job: str) -> str:
    """The tombstone of a job: written before anything of it is deleted, and never deleted itself."""
    return f"{REMOVED}{job}"


def dry(offering: str) -> str:
    """Somebody found this offering dry; when, is when this was written."""
    return f"{DRY}{offering}"


def place(provider: str, region: str | None) -> str:
    """Machines were launched there once: whoever looks for orphans looks there too."""
    return f"{PLACES}{provider}/{region or NO_REGION}"


def spent_month(day: date) -> str:
    return f"{SPENT}{day:%Y-%m}/"


def spent_day(day: date) -> str:
    return f"{SPENT}{day:%Y-%m/%d}/"


def budget_told(rule: str, start: date, value: str, kind: str) -> str:
    """Beside the months: nobody who lists those meets it."""
    whose = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{SPENT}told/{_quoted(rule)}/{start.isoformat()}/{whose}-{kind}"


def markets(day: date, provider: str) -> str:
    """Below it is what was seen that day of one provider's machines."""
    return f"{MARKET}{day.isoformat()}/{_quoted(provider)}/"


def sighting(at: datetime, names: Iterable[str], told: str) -> str:
    """What a claim saw of the market at a moment, in UTC. `names` tell the offering; they may be any text."""
    return "/".join((f"{MARKET}{at:%Y-%m-%d}", *map(_quoted, names), f"{at:%H}", told))


def read_sighting(key: str) -> tuple[datetime, tuple[str, ...], str] | None:
    """The hour, the names and what is told. None for a key that is none."""
    parts = key.removeprefix(MARKET).split("/")
    if not key.startswith(MARKET) or len(parts) < 4:
        return None
    day, *names, hour, told = parts
    try:
        at = datetime.strptime(f"{day} {hour}", "%Y-%m-%d %H").replace(tzinfo=timezone.utc)
        return at, tuple(map(_unquoted, names)), told
    except ValueError:
        return None


def _quoted(name: str) -> str:
    """As a segment of a key that every store can keep: also one that is empty, or would lead elsewhere."""
    odd = _ALL if name in (".", "..") else _ODD
    return odd.sub(lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), name) or "="


def _unquoted(segment: str) -> str:
    """Raises ValueError for what nobody quoted."""
    plain = "" if segment == "=" else _QUOTED.sub(lambda found: chr(int(found[1], 16)), segment)
    return plain.encode("latin-1").decode()


def rules(version: int) -> str:
    return f"{RULES}{number(version)}.json"


def family(region: str, origin: str) -> str:
    """The log of a training job that others started, and of its clones."""
    return f"{FAMILIES}{region}/{origin}/"


def family_entry(region: str, origin: str, seq: int) -> str:
    return f"{family(region, origin)}{number(seq)}.json"


def foreign_index(region: str) -> str:
    return f"{FOREIGN_INDEX}{region}.json"


def told(channel: str, n: int) -> str:
    """The n-th state of what is told through a channel; the newest counts."""
    return f"{TOLD}{channel}/{number(n)}.json"


def governor(name: str) -> str:
    return f"governors/{name}.json"


def deployed(cloud: str) -> str:
    """That a governor is deployed there, and how it is woken."""
    return f"{DEPLOYED}{cloud}.json"


def deployment(store_url: str) -> str:
    """What a store's deployed governor is called in its cloud, so that two stores of an account never meet."""
    return f"stoker-{hashlib.sha256(store_url.encode()).hexdigest()[:12]}"


def deployed_package(digest: str) -> str:
    """What a deployed governor runs."""
    return f"{DEPLOYED}{digest}.zip"


def probe(name: str) -> str:
    """Written and taken away again at once, to learn the store's time."""
    return f"probes/{name}"


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
    """What a machine said that never got as far as an agent."""
    return f"{node}/boot"


def sagemaker_output(job: str) -> str:
    """Where SageMaker itself writes."""
    return f"work/{job}/sagemaker"


def exit_(node: str) -> str:
    return f"{node}/exit"


def log_chunk(node: str, n: int, size: int = 0) -> str:
    """One version of a chunk, which grows: every size has a name of its own, and the largest counts."""
    return f"{node}/log/{number(n)}/{size}"


def metrics_chunk(node: str, n: int, size: int = 0) -> str:
    return f"{node}/metrics/{number(n)}/{size}"


def evidence(node: str, n: int) -> str:
    """What the node's processes were doing when somebody asked."""
    return f"{node}/evidence/{number(n)}"


def checkpoints(job: str) -> str:
    return f"work/{job}/checkpoints/"


def checkpoint_key(claim: int, ordinal: int, name: str, rank: int = 0) -> str:
    """How a checkpoint is named in facts and the log: `00000007/000002-step-900`."""
    return f"{number(claim)}/{ordinal:06d}-{name}" + (f"@{rank}" if rank else "")


def manifest(job: str, key: str) -> str:
    return f"work/{job}/checkpoints/{key}.json"


def blob(job: str, rank: int, name: str) -> str:
    """A file of checkpoints: `<digest>-<upload>`. No name is used again once it was deleted."""
    return f"work/{job}/blobs/{rank}/{name}"


def blobs(job: str) -> str:
    return f"work/{job}/blobs/"


def image(job: str) -> str:
    return f"work/{job}/image"


def shared_files(job: str, name: str) -> str:
    """The list of an input's files of which each node gets a part."""
    return f"work/{job}/inputs/{name}"


def outputs(job: str, claim: int) -> str:
    return f"work/{job}/outputs/{number(claim)}/"


def output_versions(job: str, claim: int) -> str:
    """Where the versions of outputs lie that were written after the first."""
    return f"work/{job}/rewritten/{number(claim)}/"


def output_version(job: str, claim: int, boot: int, n: int, path: str) -> str:
    """A later version of an output. No name is used twice; of a path, the highest boot and number count."""
    return f"{output_versions(job, claim)}{number(boot)}.{number(n)}/{path}"


def read_output_version(below: str) -> tuple[int, int, str] | None:
    """Boot, number and path of a key below `output_versions`; None for a key that is none."""
    match = _OUTPUT_VERSION.fullmatch(below)
    return (int(match[1]), int(match[2]), match[3]) if match is not None else None


def log_stream(job: str, attempt: int, rank: int) -> str:
    """What a node's log is called where it is copied to besides the bucket: one stream a job, attempt and node."""
    return f"{job}/{attempt}/{rank}"


def safe_name(name: str) -> bool:
    """Whether a checkpoint's name may stand in a key and a path as it is."""
    return _SAFE_NAME.fullmatch(name) is not None and not name.startswith(".")
