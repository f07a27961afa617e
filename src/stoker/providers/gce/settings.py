"""This computer's Google settings, read from the files that Google's own tools use. Makes no call."""

from __future__ import annotations

import configparser
import json
import os
from pathlib import Path
from typing import Any

_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
# Descriptions of the types of credential files.
_KINDS = {
    "authorized_user": "a person's login (application default credentials)",
    "external_account": "an account of another identity provider",
    "external_account_authorized_user": "a person's login by another identity provider",
    "impersonated_service_account": "an impersonated service account",
}


def project() -> str | None:
    """The project of the credentials: the one in their file, else, for a person's login, gcloud's current project.

    None where neither names one. Environment variables have precedence, and are not read here.
    """
    found = _json(credentials_file())
    named = found.get("project_id")
    if isinstance(named, str) and named:
        return named
    return _gcloud_project() if found and not os.environ.get(_KEY_VARIABLE) else None


def credentials_file() -> Path:
    """The file in which credentials are looked for first; it may not exist."""
    key = os.environ.get(_KEY_VARIABLE)
    return Path(key) if key else gcloud_folder() / "application_default_credentials.json"


def describe_credentials() -> str:
    """Describe credentials that do not name their account: their type and their file."""
    file = credentials_file()
    if not file.is_file():
        return "this machine's own"
    kind = str(_json(file).get("type") or "")
    return f"{_KINDS.get(kind, kind.replace('_', ' ') or 'credentials')}, from {file}"


def gcloud_folder() -> Path:
    """The folder of gcloud's configuration."""
    moved = os.environ.get("CLOUDSDK_CONFIG")
    return Path(moved) if moved else Path("~/.config/gcloud").expanduser()


def _gcloud_project() -> str | None:
    folder = gcloud_folder()
    name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _text(folder / "active_config").strip() or "default"
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read_string(_text(folder / "configurations" / f"config_{name}"))
    except configparser.Error:
        return None
    return settings.get("core", "project", fallback=None) or None


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str:
    """The file's text; empty for a missing file, or one that is not text."""
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return ""
