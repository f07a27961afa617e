"""What is refused, and in which words: the first thing that is wrong, before anybody is asked and anything is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker import client
from stoker.jobfile import Job, job_layers, named_provider, shared_layers
from stoker.model.errors import UserError
from stoker.submit.send import check_writable, send

pytestmark = pytest.mark.slow

CLI = Path(sys.executable).with_name("stoker")
OTHER = {"gce": "s3://bucket/team", "ec2": "gs://bucket/team"}
FORM = {"gce": "gs://BUCKET/PREFIX", "ec2": "s3://BUCKET/PREFIX"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "code"
    found.mkdir()
    (found / "train.py").write_text("print(1)")
    return found


def stoker(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clouds = ("STOKER_", "AWS_", "GOOGLE_", "CLOUDSDK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(clouds)}
    home = {"HOME": str(folder.parent / "person"), "STOKER_HOME": str(folder.parent / "home")}
    return subprocess.run([CLI, *words], cwd=folder, env=kept | home | environ, capture_output=True, text=True)


def said(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line of a mistake."""
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr.strip()


# ── The store of another cloud ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("provider", ["gce", "ec2"])
@pytest.mark.parametrize("how", ["the job file", "--provider", "--set"])
def test_the_store_of_another_cloud_is_refused_before_its_credentials_are_wanted(
    folder: Path, provider: str, how: str
) -> None:
    words = {
        "the job file": (),
        "--provider": ("--provider", provider),
        "--set": ("--set", f"resources.provider={provider}"),
    }[how]
    named = f"\nresources: {{provider: {provider}}}" if how == "the job file" else ""
    (folder / "stoker.yaml").write_text(f"run: python train.py{named}\n")
    text = said(stoker(folder, "run", *words, "-y", "--store", OTHER[provider]))
    assert text.startswith(f"stoker: --store: machines on {provider} cannot reach {OTHER[provider]}; ")
    assert text.endswith(FORM[provider]) and "credentials" not in text


@pytest.mark.parametrize("provider", ["gce", "ec2"])
def test_from_python_too(provider: str) -> None:
    job = Job(run="python train.py", resources={"provider": provider})
    with pytest.raises(UserError, match="cannot reach"):
        client.submit(job, store=OTHER[provider])


def test_what_is_shared_names_no_provider_for_sure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "config.yaml").write_text("resources: {provider: gce}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shared = shared_layers(None)
    assert named_provider(shared) is None
    assert named_provider((*shared, *job_layers(sets=["resources.provider=ec2"]))) == "ec2"
    assert named_provider((*shared, *job_layers(sets=["resources=ec2"]))) is None


@pytest.mark.parametrize("provider", ["gce", "ec2"])
def test_where_no_store_is_named_none_is_blamed(folder: Path, provider: str) -> None:
    (folder / "stoker.yaml").write_text(f"run: python train.py\nresources: {{provider: {provider}}}\n")
    text = said(stoker(folder, "run", "-y"))
    assert text == f"stoker: no store is named; set STOKER_STORE, or give --store, as {FORM[provider]}"
    own = (folder.parent / "home" / "store").as_uri()
    assert f"cannot reach {own}" in said(stoker(folder, "run", "-y", STOKER_STORE=own)), "somebody has named it"


# ── `stoker iam` ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("provider", ["gce", "ec2"])
def test_roles_for_no_store_ask_for_one(folder: Path, provider: str) -> None:
    text = said(stoker(folder, "iam", provider))
    assert text == f"stoker: no store is named; set STOKER_STORE, or give --store, as {FORM[provider]}"


@pytest.mark.parametrize("provider", ["gce", "ec2"])
def test_roles_for_the_wrong_store_blame_what_was_given(folder: Path, provider: str) -> None:
    wrong = OTHER[provider]
    told = f"machines on {provider} cannot reach {wrong}; "
    assert f": --bucket: {told}give it as {FORM[provider]}" in said(stoker(folder, "iam", provider, "--bucket", wrong))
    for ran in (stoker(folder, "iam", provider, "--store", wrong), stoker(folder, "iam", provider, STOKER_STORE=wrong)):
        assert f": --store: {told}set STOKER_STORE or --store to {FORM[provider]}" in said(ran)


# ── Nothing is left ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("made", [True, False])
def test_a_refused_submission_leaves_nothing_in_its_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    root = tmp_path / "store"
    if made:
        root.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "link", link)
    store = client.open_any(str(root))
    with client.prepare_any(Job(run="python train.py"), store) as prepared:
        check_writable(store)
        with pytest.raises(UserError, match="hard links"):
            send(prepared, store)
    assert [str(path) for path in tmp_path.rglob("*") if path.is_relative_to(root)] == ([str(root)] if made else [])


def test_a_check_leaves_nothing_in_its_folder(folder: Path, tmp_path: Path) -> None:
    ran = stoker(folder, "check", "gce", "--store", str(tmp_path / "store"))
    assert "can be written" in ran.stdout
    assert not (tmp_path / "store").exists()
