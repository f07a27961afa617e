"""A computer that is no cloud's machine is not asked for a cloud's metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cloudapi import machine_vendor
from stoker.cloudapi.aws import identity
from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.cloudapi.google import secrets as google
from stoker.cloudapi.google.metadata import Metadata, MetadataError
from stoker.cloudapi.machine_vendor import is_elsewhere
from stoker.model.errors import SetupFailed, UserError
from stoker.secrets.fetch_secrets import fetch


def firmware(folder: Path, **fields: str) -> Path:
    for name, text in fields.items():
        (folder / name).write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("fields", "elsewhere"),
    [
        ({}, False),
        ({"sys_vendor": "Amazon EC2", "product_name": "g5.xlarge"}, False),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, False),
        ({"sys_vendor": "Xen", "bios_version": "4.2"}, False),
        ({"sys_vendor": "LENOVO", "product_name": "20XW"}, True),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, True),
    ],
)
def test_only_certainty_counts(tmp_path: Path, fields: dict[str, str], elsewhere: bool) -> None:
    assert is_elsewhere("amazon", firmware(tmp_path, **fields)) is elsewhere


def test_no_metadata_is_asked_for_on_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(self: object, *_words: object, **_named: object) -> None:
        raise ImdsError("asked") if isinstance(self, Imds) else MetadataError("asked")

    monkeypatch.setattr(Imds, "_call", asked)
    monkeypatch.setattr(Metadata, "token", asked)
    monkeypatch.setattr(machine_vendor, "DMI", firmware(tmp_path, sys_vendor="LENOVO"))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    nothing = {"AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none"}
    with pytest.raises(identity.NoIdentity, match="there are no AWS credentials; set AWS_ACCESS_KEY_ID"):
        identity.find(nothing)
    with pytest.raises(SetupFailed, match=r"secrets\.TOK: there are no AWS credentials; set AWS_ACCESS"):
        fetch("secrets.TOK", "aws-sm:x", nothing)
    with pytest.raises(UserError, match="there are no Google credentials"):
        google.find({})
    # A metadata server that the environment names is asked.
    with pytest.raises(ImdsError):
        identity.find(nothing | {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"})
    with pytest.raises(MetadataError):
        google.find({"GCE_METADATA_HOST": "127.0.0.1:1"})
    # So is the usual one where the firmware says nothing.
    monkeypatch.setattr(machine_vendor, "DMI", tmp_path / "none")
    with pytest.raises(ImdsError):
        identity.find(nothing)
    with pytest.raises(MetadataError):
        google.find({})
