"""Find AWS credentials without an SDK: in the environment, in `~/.aws`, else the role of the container or machine.

Credentials that only an SDK can read (single sign-on, roles of profiles) are left to boto3 if it is installed.
"""

from __future__ import annotations

import configparser
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cloudapi.aws import container
from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.cloudapi.aws.sigv4 import Credentials
from stoker.cloudapi.machine_vendor import is_elsewhere

_KEYS = ("aws_access_key_id", "aws_secret_access_key")
# Settings of a profile that replace keys and that only an SDK understands.
_SDK_ONLY = (
    "sso_session",
    "sso_start_url",
    "role_arn",
    "credential_process",
    "web_identity_token_file",
    "login_session",
)
_SDK_VARIABLES = ("AWS_WEB_IDENTITY_TOKEN_FILE",)
_HOW = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class NoIdentity(Exception):
    """There are no credentials; the message says what to do."""


@dataclass(frozen=True)
class AwsIdentity:
    """Credentials, and their default region. `machine`: they are the role of this machine."""

    credentials: Credentials = field(repr=False)
    region: str
    machine: bool
    domain: str = "amazonaws.com"


def find(environ: Mapping[str, str], imds: Imds | None = None) -> AwsIdentity:
    """Return the first identity that exists. A computer that is no machine of EC2 is asked for no role.

    Raises NoIdentity, and ImdsError if only the machine's metadata could have it.
    """
    profile = _Profile(environ)
    credentials = _from_variables(environ) or profile.credentials() or _from_sdk(environ, profile)
    if credentials is not None:
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile.get("region")
        return AwsIdentity(credentials, region, machine=False, domain=domain_of(region))
    unnamed = imds is None and not environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    imds = imds or container.metadata(environ)
    contained = isinstance(imds, container.ContainerRole)
    disabled = environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if not contained and (disabled or (unnamed and is_elsewhere("amazon"))):
        raise NoIdentity(f"there are no AWS credentials; {_HOW}")
    credentials = imds.credentials()
    if credentials is None:
        raise ImdsError("the machine has no instance profile")
    # The machine's own region: the environment has the bucket's.
    region = imds.get("meta-data/placement/region") or ""
    domain = imds.get("meta-data/services/domain") or domain_of(region)
    return AwsIdentity(credentials, region, machine=True, domain=domain)


def domain_of(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _from_variables(environ: Mapping[str, str]) -> Credentials | None:
    key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    return Credentials(key, secret, environ.get("AWS_SESSION_TOKEN")) if key and secret else None


class _Profile:
    """The chosen profile of the files in `~/.aws`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.named = environ.get("AWS_PROFILE")
        name = self.named or "default"
        config = _read(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
        section = name if name == "default" and config.has_section(name) else f"profile {name}"
        self._values: dict[str, str] = dict(config[section]) if config.has_section(section) else {}
        keys = _read(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
        if keys.has_section(name):
            self._values |= dict(keys[name])

    def get(self, name: str) -> str:
        return self._values.get(name, "")

    @property
    def sdk_only(self) -> bool:
        return any(self.get(name) for name in _SDK_ONLY)

    def credentials(self) -> Credentials | None:
        if self.sdk_only or not all(self.get(name) for name in _KEYS):
            return None
        return Credentials(self.get(_KEYS[0]), self.get(_KEYS[1]), self.get("aws_session_token") or None)


def _read(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(path).expanduser(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise NoIdentity(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    return parser


def _from_sdk(environ: Mapping[str, str], profile: _Profile) -> Credentials | None:
    wanted = next((f"{name}" for name in _SDK_VARIABLES if environ.get(name)), None)
    if profile.named or profile.sdk_only:
        wanted = f"AWS_PROFILE={profile.named}" if profile.named else "the default profile of ~/.aws"
    if wanted is None:
        return None
    if importlib.util.find_spec("boto3") is None:
        raise NoIdentity(f"{wanted} needs boto3: install it, or set AWS_ACCESS_KEY_ID")
    try:
        session: Any = importlib.import_module("boto3").Session()
        found: Any = session.get_credentials()
        frozen: Any = found.get_frozen_credentials() if found is not None else None
    except Exception as error:
        # botocore has many exception types without a common base, and all of them concern the user's files.
        lines = str(error).splitlines() or [type(error).__name__]
        raise NoIdentity(f"{wanted} gives no credentials: {lines[0]}") from error
    if frozen is None or not frozen.access_key:
        raise NoIdentity(f"{wanted} gives no credentials; {_HOW}")
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)
