"""What was asked for: frozen, validated, versioned.

These classes hold the canonical form that is kept in the store: durations in seconds, sizes in bytes, one
spelling for each choice. The forms people write (`24h`, `200GB`, `A100:8`, `spot: true`) are read by
`stoker.jobfile`, which finds in each field's metadata how it is written (`form`) and what it means (`doc`).
The reference page and the JSON schema come from the same metadata.
"""

# `part` makes a field(), which is what dataclass defaults are for.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from stoker.model.keywords import checks_fields

# What a parameter's value may be. YAML's own scalar types, kept as they are.
Scalar = str | int | float | bool | None

Spot = Literal["never", "prefer", "only"]
InputMode = Literal["copy", "mount", "stream"]

# More than any cloud asks for an hour of a machine, than anybody has, and than ever trained together: so large a number
# is a mistake, and what is reckoned with it would be no number any more.
MOST_PRICE = 1e6
MOST_DOLLARS = 1e9
MOST_NODES = 10_000
# The tag that says who submitted a job. The client writes it, and a job file cannot: see `stoker.submit.identity`.
SUBMITTER = "submitter"

# Where `MASTER_PORT` is when the provider gives each node an address of its own; the job's `env` may name another.
DEFAULT_MASTER_PORT = 29500


def part(
    doc: str,
    *,
    form: str = "",
    default: Any = dataclasses.MISSING,
    factory: Any = dataclasses.MISSING,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    key: str = "",
) -> Any:
    """A field of a file that people write: what it means, the form it is written in, and how small and how large a
    number may be. Durations and sizes have a most of their own.

    `key` is what people write where that is no name for Python.
    """
    metadata = {"doc": doc, "form": form, "least": least, "above": above, "most": most, "key": key}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is not dataclasses.MISSING:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(metadata=metadata)


@checks_fields
@dataclass(frozen=True)
class Gpus:
    """So many accelerators of one kind on each node. `name` is empty when any kind will do.

    `most` is what a machine had of them when the job was submitted, and its plan agreed to.
    """

    name: str
    count: int
    most: int | None = None


@checks_fields
@dataclass(frozen=True)
class LocalResources:
    """This computer as a small cloud, with a spot market to practise on."""

    capacity: int | None = part(
        "most nodes at once on this computer; further jobs wait, and start in order",
        default=None,
        least=1,
        most=MOST_NODES,
    )
    reclaim_mean_s: float | None = part(
        "spot nodes are reclaimed after this long on average", form="duration", default=None, above=0
    )
    grace_s: float = part("time between a simulated notice and the reclaim", form="duration", default=30.0, least=0)
    seed: int = part("the simulated market repeats itself with the same seed", default=0)
    price: float = part(
        "on-demand price of a local node, $/h, so that cost is real arithmetic", default=0.0, least=0, most=MOST_PRICE
    )
    spot_price: float | None = part(
        "spot price of a local node, $/h; default: 32 % of `price`", default=None, least=0, most=MOST_PRICE
    )


@checks_fields
@dataclass(frozen=True)
class Ec2Resources:
    """What only EC2 has."""

    profile: str | None = part("instance profile of the nodes", default=None)
    subnet: str | None = part("subnet id", default=None)
    security_groups: tuple[str, ...] = part("security group ids", form="words", default=())
    key: str | None = part("key pair for SSH", default=None)
    public_ip: bool | None = part("give nodes a public address", default=None)
    placement_group: str | None = part("an existing placement group", default=None)
    reservation: str | None = part("capacity reservation or block", default=None)
    efa: bool = part("attach Elastic Fabric Adapters", default=False)
    overrides: dict[str, Any] = part("merged last into the RunInstances request", form="mapping", factory=dict)


@checks_fields
@dataclass(frozen=True)
class GceResources:
    """What only Compute Engine has."""

    project: str | None = part("Google Cloud project", default=None)
    service_account: str | None = part("service account of the nodes", default=None)
    scopes: tuple[str, ...] = part("OAuth scopes of the nodes", form="words", default=())
    network: str | None = part("network, or `subnet:NAME`; default: the network `default`", default=None)
    public_ip: bool | None = part("give nodes a public address; default: yes", default=None)
    placement_policy: str | None = part("an existing placement policy", default=None)
    reservation: str | None = part("reservation to consume", default=None)
    overrides: dict[str, Any] = part("merged last into the instance body", form="mapping", factory=dict)


@checks_fields
@dataclass(frozen=True)
class SagemakerResources:
    """What only SageMaker has."""

    role: str | None = part(
        "execution role of the training job, by name or ARN; default: stoker-training", default=None
    )
    subnets: tuple[str, ...] = part("subnet ids; with security_groups", form="words", default=())
    security_groups: tuple[str, ...] = part("security group ids; with subnets", form="words", default=())
    keep_alive_s: float | None = part(
        "keep the machines warm this long for the next attempt or job, and pay for it; not with spot",
        form="duration",
        default=None,
        above=0,
    )
    kms_key: str | None = part("KMS key that encrypts the disks and what SageMaker writes", default=None)
    encrypt_traffic: bool = part("encrypt what nodes send to each other", default=False)
    overrides: dict[str, Any] = part("merged last into the CreateTrainingJob request", form="mapping", factory=dict)


@checks_fields
@dataclass(frozen=True)
class Resources:
    """The machines a job runs on."""

    provider: str = part("who lends the machines: local, ec2, gce, sagemaker, …", default="local")
    gpus: Gpus | None = part(
        "accelerators on each node, such as `A100:8`; machines with more only where none has exactly so many",
        form="gpus",
        default=None,
    )
    machine: tuple[str, ...] = part("machine types in order of preference", form="words", default=())
    cpus: int | None = part(
        "at least this many CPUs on each node, such as `8+`", form="at-least", default=None, least=1
    )
    memory_bytes: int | None = part(
        "at least this much memory on each node, such as `64GB+`", form="size", default=None, above=0
    )
    spot: Spot = part("true, false, or prefer (on-demand when there is none)", form="spot", default="never")
    region: str | None = part("region of the cloud", default=None)
    zones: tuple[str, ...] = part("zones to use; any by default", form="zones", default=())
    max_price: float | None = part("most $/h for a node", default=None, above=0, most=MOST_PRICE)
    disk_bytes: int | None = part("size of the node's disk", form="size", default=None, above=0)
    image: str | None = part("machine image: id, name, family or alias", default=None)
    ec2: Ec2Resources | None = part("what only EC2 has", default=None)
    gce: GceResources | None = part("what only Compute Engine has", default=None)
    sagemaker: SagemakerResources | None = part("what only SageMaker has", default=None)
    local: LocalResources | None = part("this computer's capacity and simulated spot market", default=None)


@checks_fields
@dataclass(frozen=True)
class PackageIndex:
    """Where packages come from instead of the public places."""

    url: str = part("its address, without a password; `https://user@host/…` says who asks")
    secret: str | None = part(
        "where its password or token is kept: env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME, "
        "aws-codeartifact:DOMAIN[@OWNER] or gcp-token; read on the machine, for each attempt",
        form="reference",
        default=None,
    )


@checks_fields
@dataclass(frozen=True)
class Container:
    """Run the training inside a container; the agent stays outside."""

    image: str = part(
        "image to run, or AWS's Deep Learning Container by alias: `dlc/pytorch:2.5-py311`, with `-cpu` or `@REGION`",
        form="image",
    )
    engine: Literal["docker", "podman"] = part("docker or podman", default="docker")
    run: dict[str, Any] = part("any flag of `docker run`, such as `shm_size: 16g`", form="flags", factory=dict)
    entrypoint: bool = part("run the training by the image's own entry point", default=False)
    secret: str | None = part(
        "where the registry's `user:password` is kept; ECR and Artifact Registry take the machine's own identity",
        form="reference",
        default=None,
    )


@checks_fields
@dataclass(frozen=True)
class Environment:
    """What the training finds installed."""

    python: str | None = part(
        "path, version or conda environment; default: the image's, on local the submitter's",
        form="version",
        default=None,
    )
    requirements: str | None = part(
        "file of Python packages to install: requirements*.txt, pyproject.toml, uv.lock or pylock.toml; default: "
        "requirements.txt at the root of the code; `none`: nothing",
        default=None,
    )
    conda: str | None = part("conda environment file", default=None)
    apt: tuple[str, ...] = part(
        "Debian packages; never installed on the submitter's own computer, where they must be there already",
        form="packages",
        default=(),
    )
    system_packages: bool | None = part(
        "the training sees what the image's Python has installed, such as its PyTorch; what is replaced of it is told",
        default=None,
    )
    wheels: Literal["pack"] | None = part(
        "`pack` gathers wheels at submission, for machines without an index", default=None
    )
    index: PackageIndex | None = part("where Python packages come from instead of PyPI", default=None)
    apt_mirror: PackageIndex | None = part(
        "where Debian packages come from; `url` may be all that stands behind `deb` in a line of sources.list",
        default=None,
    )
    conda_channel: PackageIndex | None = part("the one channel that conda packages come from", default=None)
    container: Container | None = part("run in a container", default=None)
    contract: Literal["sagemaker"] | None = part(
        "`sagemaker` gives /opt/ml, SM_* and arguments as SageMaker does", default=None
    )


@checks_fields
@dataclass(frozen=True)
class Input:
    """A data set the training reads."""

    source: str = part("a URL, or a file or folder of the submitter's, which is sent to the store once", key="from")
    mode: InputMode = part(
        "copy it before the start, mount it with what the machine has for that, or stream it: only pass the URL",
        default="copy",
    )
    shard: bool = part(
        "each node takes its part: every so-many-th file in the order of their names, as many as there are nodes",
        default=False,
    )


@checks_fields
@dataclass(frozen=True)
class Checkpoints:
    """Where the script saves, and how many are kept."""

    dir: str | tuple[str, ...] = part(
        "folder the script saves to, relative to the code or absolute; `.`, or patterns such as `out/*.pt`, for a "
        "script that saves beside its code",
        form="paths",
        default="checkpoints",
    )
    keep: int = part("how many committed checkpoints are kept", default=3, least=1)
    grace_s: float = part(
        "time to save in after a stop, at a bound, or when another node is lost", form="duration", default=60.0, least=0
    )


@checks_fields
@dataclass(frozen=True)
class Limits:
    """Nothing is unbounded."""

    max_runtime_s: float | None = part(
        "longest training time, summed over attempts", form="duration", default=None, above=0
    )
    max_cost: float | None = part("most dollars, summed over attempts", default=None, above=0, most=MOST_DOLLARS)
    max_wait_s: float | None = part("longest time without a machine", form="duration", default=None, above=0)
    stall_s: float | None = part(
        "longest time without a new step (where none are reported: without a line of the log); then it is ended, and "
        "goes on from its last checkpoint",
        form="duration",
        default=None,
        above=0,
    )


@checks_fields
@dataclass(frozen=True)
class Retry:
    """When a job is tried again."""

    user_errors: int = part("how often a failing script is started again", default=0, least=0)
    on_demand_after: int | None = part(
        "with `spot: prefer`, after more reclaims than this the next attempt is on-demand; null: never",
        default=3,
        least=0,
    )
    min_runtime_s: float = part(
        "a failure that no rule explains, of an attempt that trained this long, is resumed from the last checkpoint",
        form="duration",
        default=7200.0,
        least=0,
    )
    resumes: int = part("how often a job is resumed so", default=3, least=0)
    spot_again_s: float | None = part(
        "reclaims older than this are forgotten, so that the next attempt may be on spot again; null: never",
        form="duration",
        default=None,
        above=0,
    )
    spot_wait_s: float | None = part(
        "how long spot alone is waited for, before on-demand machines are taken too; without it, with `spot: prefer` "
        "they are at once, and with `spot: true` never",
        form="duration",
        default=None,
        least=0,
    )
    hold_on_failure_s: float = part("keep a failed machine this long", form="duration", default=0.0, least=0)


@checks_fields
@dataclass(frozen=True)
class Logs:
    """Where logs go besides the store."""

    cloudwatch: str | None = part("CloudWatch Logs group", default=None)
    cloud_logging: str | None = part("name of a log in Google's Cloud Logging, such as `stoker`", default=None)


@checks_fields
@dataclass(frozen=True)
class Spec:
    """One job, as it was asked for. The layers of settings are already merged in."""

    name: str = part(
        "what people call the job: lower-case letters, digits and `-`, at most 40, a letter first; "
        "default: from the script or the folder",
        form="name",
    )
    run: str | tuple[str, ...] = part(
        "what to run on every node, in the code folder: text for `bash -eo pipefail`, or a list as argv",
        form="command",
    )
    code: str = part("folder to pack; .gitignore and .stokerignore are honoured", default=".")
    params: dict[str, Scalar] = part(
        "appended as `--name value`, or placed by `{name}`; in STOKER_PARAMS; compared by `stoker compare`",
        form="params",
        factory=dict,
    )
    env: dict[str, str] = part("environment variables", form="env", factory=dict)
    setup: str | None = part("commands to run before the first start on a machine", default=None)
    secrets: dict[str, str] = part(
        "environment variables by reference: env, env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME, each name with "
        "`#KEY` for one value of a JSON object, and tokens: aws-codeartifact:DOMAIN, aws-ecr, gcp-token; read on the "
        "machine for each attempt, masked in the log, never in the spec or the bucket",
        form="secrets",
        factory=dict,
    )
    nodes: int = part("how many machines train together", default=1, least=1, most=MOST_NODES)
    resources: Resources = part("the machines", factory=Resources)
    environment: Environment = part("what is installed on them", factory=Environment)
    inputs: dict[str, Input] = part("data sets by name; each in STOKER_INPUT_<NAME>", form="inputs", factory=dict)
    checkpoints: Checkpoints = part("where the script saves, and how many are kept", factory=Checkpoints)
    resume_from: str | None = part("JOB[:REF], or a URL or folder of plain files", default=None)
    outputs: str | tuple[str, ...] | None = part(
        "folders, files or patterns synced to the store as plain files during training, such as `artifacts`, `.` or "
        "`[artifacts, '*.png', 'runs/**', '!runs/cache']`; what else the script makes beside its code is kept at the "
        "end, up to a bound",
        form="paths",
        default=None,
    )
    metrics: dict[str, str] = part(
        "regular expressions that find metrics in the log; the group is the value",
        form="regexes",
        factory=dict,
    )
    limits: Limits = part("bounds on time, money and waiting", factory=Limits)
    retry: Retry = part("when it is tried again", factory=Retry)
    logs: Logs = part("where logs go besides the store", factory=Logs)
    notify: tuple[str, ...] = part(
        "where to send notifications about it, besides where the policy does: sns:ARN, https://…, an Apprise URL, or a "
        "reference to one: env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME",
        form="addresses",
        default=(),
    )
    tags: dict[str, str] = part("labels for people and rules", form="tags", factory=dict)
    # How numbers among `params` were written where that is not how they print (`3e-4`, `1.10`), so that the
    # command line gets what the person wrote. Not a field of the job file: the parser fills it in.
    params_written: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def written_tags(self) -> dict[str, str]:
        """The tags that a person wrote: what clouds are told. An identity seldom fits into their tags."""
        return {name: value for name, value in self.tags.items() if name != SUBMITTER}


def master_port(spec: Spec) -> int:
    """The port for the rendezvous where each node has an address of its own: `env.MASTER_PORT`, else the usual one."""
    text = spec.env.get("MASTER_PORT", "")
    return int(text) if is_port(text) else DEFAULT_MASTER_PORT


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


@checks_fields
@dataclass(frozen=True)
class Code:
    """The packed code folder. `digest` and `generation` name the archive in the store."""

    digest: str
    size: int
    files: int
    commit: str | None = None
    dirty: bool | None = None
    generation: int = 1


@checks_fields
@dataclass(frozen=True)
class Wheel:
    """A package for machines without an index: its file's name and size. Digest and generation name it in the store."""

    name: str
    digest: str
    size: int
    generation: int = 1

    @property
    def project(self) -> str:
        return self.name.split("-")[0]

    @property
    def version(self) -> str:
        return self.name.split("-")[1]


def wheels_target(python: str, arch: str) -> str:
    """What machines a set of wheels is for, such as `3.12-x86_64`: the version of their Python, and their processor."""
    version = ".".join(python.split(".")[:2])
    return f"{version}-{'arm64' if arch == 'aarch64' else arch}"


@checks_fields
@dataclass(frozen=True)
class Submission:
    """`jobs/<job>/spec.json`: the spec with what was true when it was submitted. Never changes."""

    job: str
    spec: Spec
    submitter: str
    code: Code | None = None
    # On `local`, the submitter's active environment: PATH, VIRTUAL_ENV, CONDA_PREFIX. Elsewhere, where the store is to
    # be found: its endpoint and region. Nothing secret.
    environ: dict[str, str] = dataclasses.field(default_factory=dict)
    # The agents that its machines install, by Python and architecture (`cp311-x86_64`), each by its name in the store:
    # its digest, and a generation where that is not the first.
    bundles: dict[str, str] = dataclasses.field(default_factory=dict)
    # Programs that its machines fetch when they need them, by name and architecture (`uv-x86_64`), named likewise.
    tools: dict[str, str] = dataclasses.field(default_factory=dict)
    # The wheels that its machines install from, by what machines they are for (`3.12-x86_64`).
    wheels: dict[str, tuple[Wheel, ...]] = dataclasses.field(default_factory=dict)
    # On `local`, which computer and home: its Python and folders are there, and only there can its nodes be seen.
    place: str | None = None
    # What the client filled in because nothing may be unbounded, told to the user.
    defaulted: tuple[str, ...] = ()
    # The job this one was cloned from.
    origin: str | None = None
    version: int = 1
