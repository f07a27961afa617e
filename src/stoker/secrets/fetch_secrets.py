"""Fetch secrets by reference: where they are used, again for each attempt, and stored in memory only.

`stoker.model.secret_refs` describes the references. The values go into the environment of the job's commands
(`Command.secrets`), and nowhere else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping

from stoker.model import codec, secret_refs
from stoker.model.errors import CodecError, SetupFailed, UserError
from stoker.model.secret_refs import Reference

_log = logging.getLogger(__name__)

# How long requests are repeated while a service does not answer, or refuses a machine's new credentials.
PATIENCE_S = 120.0
# A metadata service is local and answers quickly; on a machine without one, requests get no answer either.
_METADATA_PATIENCE_S = 6.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class _Later(Exception):
    """A temporary failure. `patience_s` is how long retries are useful, `hint` another possible cause."""

    def __init__(self, why: str, patience_s: float | None = None, hint: str = "") -> None:
        super().__init__(why)
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        self.hint = hint


class _Never(Exception):
    """A permanent refusal: the message says what is wrong, and what to do."""


def fetch_all(secrets: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the job's `secrets`, by variable. Raises SetupFailed."""
    named = {name: f"env:{name}" if reference == "env" else reference for name, reference in secrets.items()}
    return {name: fetch(f"secrets.{name}", reference, environ) for name, reference in named.items()}


def fetch(
    field: str,
    reference: str,
    environ: Mapping[str, str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    patience_s: float = PATIENCE_S,
) -> str:
    """Return the secret that `reference` names, for `field`. Not empty.

    Repeats the request for `patience_s` at most while a service does not answer. Raises SetupFailed, naming the field:
    with `user` if the secret is refused or missing, without if there was no answer.
    """
    try:
        wanted = secret_refs.parse(reference)
    except ValueError as error:
        raise SetupFailed(f"{field}: {error}", user=True) from None
    began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
    while True:
        try:
            return _text(wanted, _read(wanted, environ))
        except _Never as refused:
            raise SetupFailed(f"{field}: {refused}", user=True) from None
        except _Later as later:
            if time.monotonic() + pause_s - began_s >= min(patience_s, later.patience_s):
                hint = f"; {later.hint}" if later.hint else ""
                raise SetupFailed(f"{field}: {later}{hint}", user=bool(later.hint)) from None
            _log.warning("%s: %s; asking again", field, later)
        sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _read(wanted: Reference, environ: Mapping[str, str]) -> bytes:
    if wanted.kind == "env":
        return _from_variable(wanted.name, environ)
    return _from_aws(wanted, environ) if wanted.kind.startswith("aws-") else _from_google(wanted, environ)


def _from_variable(name: str, environ: Mapping[str, str]) -> bytes:
    if name not in environ:
        raise _Never(f"{name} is not set in the environment that launched this node; set it where you run stoker")
    return os.fsencode(environ[name])


def _text(wanted: Reference, value: bytes) -> str:
    """Decode the value as the text of a variable."""
    if wanted.key is not None:
        value = _member(wanted.key, value)
    if not value:
        raise _Never("is empty; put the secret there")
    if b"\0" in value:
        raise _Never("contains a NUL byte, which a variable cannot; store it as base64")
    return os.fsdecode(value)


def _member(key: str, value: bytes) -> bytes:
    try:
        tree = codec.parse_object(value)
    except CodecError:
        raise _Never(f"is not a JSON object, so it has no {key!r}; remove `#{key}`") from None
    if key not in tree:
        raise _Never(f"has no {key!r}; it has {', '.join(sorted(tree)) or 'nothing'}")
    found = tree[key]
    return (found if isinstance(found, str) else json.dumps(found)).encode()


# ── AWS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_aws(wanted: Reference, environ: Mapping[str, str]) -> bytes:
    from stoker.cloudapi.aws import identity
    from stoker.cloudapi.aws.imds import ImdsError
    from stoker.cloudapi.aws.secrets import Aws, AwsError

    try:
        caller = identity.find(environ)
    except identity.NoIdentity as error:
        raise _Never(str(error)) from None
    except ImdsError as error:
        hint = "there are no AWS credentials; set AWS_ACCESS_KEY_ID, or give the machine a profile"
        raise _Later(str(error), _METADATA_PATIENCE_S, hint) from None
    aws = Aws(caller, environ)
    try:
        match wanted.kind:
            case "aws-sm":
                return aws.secret(wanted.name)
            case "aws-ssm":
                return aws.parameter(wanted.name)
            case "aws-codeartifact":
                return aws.artifact_token(wanted.name, wanted.detail).encode()
            case _:
                return aws.registry_password(wanted.detail).encode()
    except AwsError as error:
        if error.later:
            raise _Later(str(error)) from None
        if error.stale:
            if caller.machine:
                raise _Later(str(error)) from None
            raise _Never(f"AWS does not accept your credentials: {error}") from None
        if error.absent:
            place = aws.region_of(wanted.name)
            raise _Never(f"there is no {wanted.name} in {place}; correct the name, or give the ARN") from None
        if error.denied:
            raise _Never(_aws_denied(wanted, caller.machine, error)) from None
        raise _Never(str(error)) from None


def _aws_denied(wanted: Reference, machine: bool, error: Exception) -> str:
    owner = "the machine's role" if machine else "your AWS credentials"
    written = f"{wanted.kind}:{wanted.name}" if wanted.name else wanted.kind
    advice = f"; `stoker iam ec2 --secret {written}` prints the policy that allows it" if machine else ""
    return f"{owner} may not read {written}: {error}{advice}"


# ── Google ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_google(wanted: Reference, environ: Mapping[str, str]) -> bytes:
    from stoker.cloudapi.google import secrets as google
    from stoker.cloudapi.google.metadata import MetadataError

    try:
        caller = google.find(environ)
    except UserError as error:
        raise _Never(str(error)) from None
    except MetadataError as error:
        hint = (
            "there are no Google credentials; `gcloud auth application-default login`, or give the machine an account"
        )
        raise _Later(str(error), _METADATA_PATIENCE_S, hint) from None
    except google.GoogleError as error:
        raise _Later(str(error)) from None
    if wanted.kind == "gcp-token":
        return caller.token.encode()
    try:
        return google.SecretManager(caller, environ).access(wanted.name, wanted.detail)
    except google.GoogleError as error:
        if error.later or (error.stale and caller.machine):
            raise _Later(str(error)) from None
        if error.absent:
            version = f", version {wanted.detail}," if wanted.detail else ""
            place = "" if "/" in wanted.name else f" in {caller.project}"
            raise _Never(f"there is no {wanted.name}{version}{place}; correct the name, or add a version") from None
        if error.denied:
            owner = "the machine's account" if caller.machine else "your Google credentials"
            advice = (
                f"; `stoker iam gce --secret gcp-sm:{wanted.name}` prints the policy that allows it"
                if caller.machine
                else ""
            )
            raise _Never(f"{owner} may not read gcp-sm:{wanted.name}: {error}{advice}") from None
        raise _Never(str(error)) from None
