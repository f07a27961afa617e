"""The spec of a job: frozen, validated, versioned.

These classes hold the canonical form that is stored in the bucket: durations in seconds, sizes in bytes, one spelling
for each choice. `stoker.jobfile` reads the forms that people write (`24h`, `200GB`, `A100:8`, `spot: true`); the
metadata of each field gives its form and its documentation. The reference page and the JSON schema come from the same
metadata.
"""

# `file_field` makes a field(), which is what dataclass defaults are for.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from stoker.model.file_field import MAX_DOLLARS, MAX_NODES, file_field
from stoker.model.keywords import checks_fields
from stoker.model.resources import Resources

# A parameter's value: one of YAML's scalar types, unchanged.
Scalar = str | int | float | bool | None

InputMode = Literal["copy", "mount", "stream"]

# The tag with the submitter of a job. The client sets it, and a job file cannot: see `stoker.submit.identity`.
SUBMITTER_TAG = "submitter"
# How a submitter begins that no cloud has named: a user of a computer, both of which have any name that a person gives.
LOCAL_SUBMITTER = "os:"

# Default of `MASTER_PORT` if each node has its own address; the job's `env` may name another.
DEFAULT_MASTER_PORT = 29500


@checks_fields
@dataclass(frozen=True)
class PackageIndex:
    """A package source that replaces the public ones."""

    url: str = file_field("its address, without a password; `https://user@host/…` names the user")
    secret: str | None = file_field(
        "reference to its password or token: env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME, "
        "aws-codeartifact:DOMAIN[@OWNER] or gcp-token; read on the machine, for each attempt",
        form="reference",
        default=None,
    )


@checks_fields
@dataclass(frozen=True)
class Container:
    """Run the training inside a container; the agent stays outside."""

    image: str = file_field(
        "image to run, or AWS's Deep Learning Container by alias: `dlc/pytorch:2.5-py311`, with `-cpu` or `@REGION`",
        form="image",
    )
    engine: Literal["docker", "podman"] = file_field("docker or podman", default="docker")
    run: dict[str, Any] = file_field("any flag of `docker run`, such as `shm_size: 16g`", form="flags", factory=dict)
    entrypoint: bool = file_field("run the training by the image's own entry point", default=False)
    secret: str | None = file_field(
        "reference to the registry's `user:password`; ECR and Artifact Registry take the machine's own identity",
        form="reference",
        default=None,
    )


@checks_fields
@dataclass(frozen=True)
class Environment:
    """The packages and the container of the training."""

    python: str | None = file_field(
        "path, version or conda environment; default: the image's, on local the submitter's",
        form="version",
        default=None,
    )
    requirements: str | None = file_field(
        "file of Python packages to install: requirements*.txt, pyproject.toml, uv.lock or pylock.toml; default: "
        "requirements.txt at the root of the code; `none`: nothing",
        default=None,
    )
    conda: str | None = file_field("conda environment file", default=None)
    apt: tuple[str, ...] = file_field(
        "Debian packages; never installed on the submitter's own computer, where they must be there already",
        form="packages",
        default=(),
    )
    system_packages: bool | None = file_field(
        "true: packages go on top of those of the Python, such as its PyTorch; false: a clean environment; default: on "
        "top of an environment that a machine's image brings, else clean",
        default=None,
    )
    wheels: Literal["pack"] | None = file_field(
        "`pack` gathers wheels at submission, for machines without an index", default=None
    )
    index: PackageIndex | None = file_field("where Python packages come from instead of PyPI", default=None)
    apt_mirror: PackageIndex | None = file_field(
        "where Debian packages come from; `url` may be everything after `deb` in a line of sources.list",
        default=None,
    )
    conda_channel: PackageIndex | None = file_field("the one channel that conda packages come from", default=None)
    container: Container | None = file_field("run in a container", default=None)
    contract: Literal["sagemaker"] | None = file_field(
        "`sagemaker` gives /opt/ml, SM_* and arguments as SageMaker does", default=None
    )


@checks_fields
@dataclass(frozen=True)
class Input:
    """A data set the training reads."""

    source: str = file_field(
        "a URL, or a file or folder of the submitter's, which is sent to the store once", key="from"
    )
    mode: InputMode = file_field(
        "copy it before the start, mount it with what the machine has for that, or stream it: only pass the URL",
        default="copy",
    )
    shard: bool = file_field(
        "each node takes its part: every so-many-th file in the order of their names, as many as there are nodes",
        default=False,
    )


@checks_fields
@dataclass(frozen=True)
class Checkpoints:
    """Folder of the checkpoints, and how many are retained."""

    dir: str | tuple[str, ...] = file_field(
        "folder the script saves to, relative to the code or absolute; `.`, or patterns such as `out/*.pt`, for a "
        "script that saves beside its code",
        form="paths",
        default="checkpoints",
    )
    keep: int = file_field("how many committed checkpoints are retained", default=3, least=1)
    copy_to: str | None = file_field(
        "URL that gets the newest committed checkpoint as plain files, for other programs to read", default=None
    )
    grace_s: float = file_field(
        "time to save in after a stop, at a bound, or when another node is lost", form="duration", default=60.0, least=0
    )


@checks_fields
@dataclass(frozen=True)
class Limits:
    """Limits on time, money and waiting: no job is unbounded."""

    max_runtime_s: float | None = file_field(
        "longest training time, summed over attempts", form="duration", default=None, above=0
    )
    max_cost: float | None = file_field("most dollars, summed over attempts", default=None, above=0, most=MAX_DOLLARS)
    max_wait_s: float | None = file_field("longest time without a machine", form="duration", default=None, above=0)
    stall_s: float | None = file_field(
        "longest time without a new step (where none are reported: without a line of the log); then it is ended, and "
        "goes on from its last checkpoint",
        form="duration",
        default=None,
        above=0,
    )


@checks_fields
@dataclass(frozen=True)
class Retry:
    """When a job is restarted."""

    user_errors: int = file_field("how often a failing script is started again", default=0, least=0)
    on_demand_after: int | None = file_field(
        "with `spot: prefer`, after more reclaims than this the next attempt is on-demand; null: never",
        default=3,
        least=0,
    )
    min_runtime_s: float = file_field(
        "a failure that no rule explains, of an attempt that trained this long, is resumed from the last checkpoint",
        form="duration",
        default=7200.0,
        least=0,
    )
    resumes: int = file_field("how often a job is resumed so", default=3, least=0)
    spot_again_s: float | None = file_field(
        "reclaims older than this are forgotten, so that the next attempt may be on spot again; null: never",
        form="duration",
        default=None,
        above=0,
    )
    spot_wait_s: float | None = file_field(
        "how long spot alone is waited for, before on-demand machines are taken too; without it, with `spot: prefer` "
        "they are at once, and with `spot: true` never",
        form="duration",
        default=None,
        least=0,
    )
    hold_on_failure_s: float = file_field("keep a failed machine this long", form="duration", default=0.0, least=0)


@checks_fields
@dataclass(frozen=True)
class Logs:
    """Destinations of logs besides the store."""

    cloudwatch: str | None = file_field("CloudWatch Logs group", default=None)
    cloud_logging: str | None = file_field("name of a log in Google's Cloud Logging, such as `stoker`", default=None)


@checks_fields
@dataclass(frozen=True)
class Spec:
    """One job as requested. The layers of settings are already merged."""

    name: str = file_field(
        "what people call the job: lower-case letters, digits and `-`, at most 40, a letter first; "
        "default: from the script or the folder",
        form="name",
    )
    run: str | tuple[str, ...] = file_field(
        "what to run on every node, in the code folder: text for `bash -eo pipefail`, or a list as argv",
        form="command",
    )
    code: str = file_field("folder to pack; .gitignore and .stokerignore are honoured", default=".")
    params: dict[str, Scalar] = file_field(
        "appended as `--name value`, or placed by `{name}`; in STOKER_PARAMS; compared by `stoker compare`",
        form="params",
        factory=dict,
    )
    env: dict[str, str] = file_field("environment variables", form="env", factory=dict)
    setup: str | None = file_field("commands to run before the first start on a machine", default=None)
    secrets: dict[str, str] = file_field(
        "environment variables by reference: env, env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME, each name with "
        "`#KEY` for one value of a JSON object, and tokens: aws-codeartifact:DOMAIN, aws-ecr, gcp-token; read on the "
        "machine for each attempt, masked in the log, never in the spec or the bucket",
        form="secrets",
        factory=dict,
    )
    nodes: int = file_field("how many machines train together", default=1, least=1, most=MAX_NODES)
    resources: Resources = file_field("the machines", factory=Resources)
    environment: Environment = file_field("packages and container", factory=Environment)
    inputs: dict[str, Input] = file_field("data sets by name; each in STOKER_INPUT_<NAME>", form="inputs", factory=dict)
    checkpoints: Checkpoints = file_field(
        "where the script saves, and how many checkpoints are retained", factory=Checkpoints
    )
    resume_from: str | None = file_field("JOB[:REF], or a URL or folder of plain files", default=None)
    outputs: str | tuple[str, ...] | None = file_field(
        "folders, files or patterns synced to the store as plain files during training, such as `artifacts`, `.` or "
        "`[artifacts, '*.png', 'runs/**', '!runs/cache']`; other files that the script creates beside its code are "
        "saved at the end, up to a limit",
        form="paths",
        default=None,
    )
    metrics: dict[str, str] = file_field(
        "regular expressions that find metrics in the log; the group is the value",
        form="regexes",
        factory=dict,
    )
    limits: Limits = file_field("bounds on time, money and waiting", factory=Limits)
    retry: Retry = file_field("when it is tried again", factory=Retry)
    logs: Logs = file_field("where logs go besides the store", factory=Logs)
    notify: tuple[str, ...] = file_field(
        "where to send notifications about it, besides where the policy does: sns:ARN, https://…, an Apprise URL, or a "
        "reference to one: env:NAME, aws-sm:NAME, aws-ssm:NAME, gcp-sm:NAME",
        form="addresses",
        default=(),
    )
    tags: dict[str, str] = file_field("labels for people and rules", form="tags", factory=dict)
    # Original text of numbers in `params` that print differently (`3e-4`, `1.10`), so that the command line gets what
    # the person wrote. Not a field of the job file: the parser sets it.
    params_written: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def written_tags(self) -> dict[str, str]:
        """The tags that a person wrote, without the submitter. Clouds get these: an identity seldom fits into their
        tags."""
        return {name: value for name, value in self.tags.items() if name != SUBMITTER_TAG}


def master_port(spec: Spec) -> int:
    """The rendezvous port if each node has its own address: `env.MASTER_PORT`, else the default."""
    text = spec.env.get("MASTER_PORT", "")
    return int(text) if is_port(text) else DEFAULT_MASTER_PORT


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536
