"""A secret is planted, and shown in every way that a script can show it. Then every byte that the job left is searched.

It is in the environment of what the job runs, and nowhere else: not in the store, the home or a node's folder, not in
what the command line prints, and not in the arguments of any process.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from harness import EXAMPLES, World, until

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from secret_services import Vault, vault_service

SECRET = "hunter2/Zm9v+bar='x\" ü&9"

SHOWS = """\
import base64, json, logging, os, subprocess, sys, urllib.parse
from stoker import train

token = os.environ["TOKEN"]
print("plain:", token)
print("repr:", repr(token), "bytes:", token.encode())
print("json:", json.dumps({"token": token}))
print("url: https://host/?key=" + urllib.parse.quote(token, safe=""))
print("basic:", base64.b64encode(b"user:" + token.encode()).decode())
print("hex:", token.encode().hex())
sys.stderr.write(f"to the other stream: {token}\\n")
logging.warning("logged: %s", token)
for letter in token:
    sys.stdout.write(letter)
    sys.stdout.flush()
print()
print(dict(os.environ))
subprocess.run(["env"], check=True)
subprocess.run(["sh", "-c", "set -x; : $TOKEN; echo $TOKEN"], check=True)
subprocess.run([sys.executable, "-c", "import os; raise RuntimeError('from a child: ' + os.environ['TOKEN'])"])
train.report(step=1, loss=0.5, **{token: 1.0, f"prefix {token}": 2.0})
print("all is said", flush=True)
"""
FAILS = 'raise SystemExit("it failed with " + token)\n'
TRACES = "assert False, token\n"


def spellings(secret: str) -> dict[str, bytes]:
    raw = secret.encode()
    return {
        "plain": raw,
        "without its last letter": raw[:-1],
        "its second half": raw[len(raw) // 2 :],
        "url": quote(secret, safe="").encode(),
        "base64": base64.b64encode(raw)[:-4],
        "base64, shifted once": base64.b64encode(b"x" + raw)[4:-4],
        "base64, shifted twice": base64.b64encode(b"xx" + raw)[4:-4],
        "hex": binascii.hexlify(raw),
        "repr": repr(secret)[1:-1].encode(),
        "ascii": ascii(secret)[1:-1].encode(),
    }


def contents(path: Path) -> Iterator[bytes]:
    """A file's name and bytes, and what they hold when they are packed."""
    yield os.fsencode(path)
    try:
        data = path.read_bytes()
    except OSError:
        return
    yield data
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    elif data.startswith(b"\x78"):
        try:
            yield zlib.decompress(data)
        except zlib.error:
            return


def found_in(folder: Path, secret: str) -> list[tuple[str, str]]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            for data in contents(path):
                found += [(str(path), how) for how, word in spellings(secret).items() if word in data]
    return found


def arguments() -> dict[int, bytes]:
    """Of every process on this computer but this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
    return found


def shown_by_the_command_line(world: World, job: str) -> bytes:
    shown = b""
    for words in (("logs", job), ("show", job), ("show", job, "--json"), ("ps", "--json"), ("explain", job)):
        done = world.cli(*words)
        shown += (done.stdout + done.stderr).encode()
    assert b"all is said" in shown
    return shown


@pytest.mark.parametrize("ending", ["", FAILS, TRACES], ids=["succeeds", "fails", "traceback"])
def test_it_is_nowhere(world: World, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    world.write(SHOWS + ending)
    setup = 'echo "set-up: $TOKEN"; python -c "import os; print(os.environ)"'
    summary = world.run(secrets={"TOKEN": "env"}, setup=setup, metrics={"found": r"loss=(\d+)"})
    assert summary.phase == ("failed" if ending else "succeeded"), world.story(summary.id)
    printed = world.printed(summary.id).decode()
    assert "plain: ***\n" in printed
    assert "set-up: ***\n" in printed
    assert "logged: ***\n" in printed
    assert "from a child: ***\n" in printed
    assert printed.count("***") >= 14
    if ending:
        (claim,) = world.state(summary.id).attempts
        assert claim.closed is not None and any("***" in line for line in claim.closed.tail)
    # The governor and its agents may have it in memory, since they run where it was exported; it is on no disk.
    assert found_in(world.root, SECRET) == []
    shown = shown_by_the_command_line(world, summary.id)
    assert not [how for how, word in spellings(SECRET).items() if word in shown]
    assert world.store.get(f"work/{summary.id}/x") is None


def test_a_set_up_that_fails_tells_no_secret(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    world.write("print('never')\n")
    summary = world.run(secrets={"TOKEN": "env"}, setup='echo "no access with $TOKEN"; exit 3')
    assert summary.phase == "failed"
    assert "setup: exited with 3: no access with ***" in str(summary.attempts[0].reason)
    assert found_in(world.root, SECRET) == []


def test_the_example(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_an-example")
    world.write((EXAMPLES / "secrets" / "train.py").read_text())
    fields = yaml.safe_load((EXAMPLES / "secrets" / "stoker.yaml").read_text())
    summary = world.run(**fields)
    assert summary.phase == "succeeded", world.story(summary.id)
    assert world.lines(summary.id)[-2:] == ["signing in with a token of 13 letters", "left in by mistake: ***"]


WAITS = """
import os, pathlib, time
truth = pathlib.Path(os.environ["TRUTH"])
print("running with", os.environ["TOKEN"], flush=True)
(truth / "running").touch()
while not (truth / "go").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with vault_service("AKIAEXAMPLE", "the/key+of=somebody") as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETSMANAGER", made.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the/key+of=somebody")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        made.secrets = {"team/token": '{"token": "the first one, long"}'}
        yield made


def test_while_it_runs_only_the_training_has_it(world: World, vault: Vault) -> None:
    """From a store of secrets, so that nobody who launched it knows it. Read again for the next attempt."""
    first, second = "the first one, long", "the second one, longer"
    world.write(WAITS)
    job = world.submit(secrets={"TOKEN": "aws-sm:team/token#token"}, resources={"spot": True})
    until(lambda: (world.truth / "running").exists(), f"it runs\n{world.story(job)}")
    assert not [(pid, words) for pid, words in arguments().items() if first.encode() in words]
    holders = [process for process in world.processes() if first.encode() in environ_of(process.pid)]
    assert holders and {process.pid for process in holders} == {process.pid for process in world.processes("training")}
    assert found_in(world.root, first) == []
    (world.truth / "running").unlink()
    vault.secrets = {"team/token": f'{{"token": "{second}"}}'}
    world.interrupt(job, grace_s=5)
    until(lambda: (world.truth / "running").exists(), f"it runs again\n{world.story(job)}")
    assert world.processes("training")
    for process in world.processes("training"):
        assert second.encode() in environ_of(process.pid)
    (world.truth / "go").touch()
    summary = world.ended(job)
    assert summary.phase == "succeeded" and len(summary.attempts) == 2
    for attempt in (1, 2):
        assert b"running with ***\n" in world.printed(job, attempt)
    assert found_in(world.root, first) == [] == found_in(world.root, second)


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_secret_that_is_not_there_ends_the_job_at_once(world: World, vault: Vault) -> None:
    world.write("print('never')\n")
    summary = world.run(secrets={"TOKEN": "aws-sm:team/other"})
    assert summary.phase == "failed" and len(summary.attempts) == 1
    wanted = "secrets.TOKEN: there is no team/other in us-east-1; correct the name, or give the ARN"
    assert wanted in str(summary.attempts[0].reason)


def test_a_service_that_is_silent_for_a_while_costs_no_attempt(world: World, vault: Vault) -> None:
    world.write("import os; print(len(os.environ['TOKEN']))\n")
    vault.secrets = {"x": "0123456789"}
    vault.trouble = ["", "503 x", "400 ThrottlingException"]
    summary = world.run(secrets={"TOKEN": "aws-sm:x"})
    assert summary.phase == "succeeded" and len(summary.attempts) == 1
    assert len(vault.asked) == 4


def test_a_dry_run_shows_where_it_is_kept_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    world.write("print()\n")
    (world.code / "stoker.yaml").write_text("run: python train.py\nsecrets: {TOKEN: env}\n")
    for words in (("run", "--dry-run"), ("run", "--dry-run", "--json")):
        done = world.cli(*words)
        assert done.returncode == 0, done.stderr
        shown = (done.stdout + done.stderr).encode()
        assert not [how for how, word in spellings(SECRET).items() if word in shown]
    assert found_in(world.root, SECRET) == []


def test_a_variable_goes_to_no_cloud(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    world.write("print()\n")
    arguments = ("run", "--dry-run", "--set", "secrets.TOKEN=env", "--store", "s3://bucket/x")
    for provider, wanted in (("ec2", "aws-sm:NAME or aws-ssm:NAME"), ("gce", "gcp-sm:NAME")):
        store = {"ec2": "s3://bucket/x", "gce": "gs://bucket/x"}[provider]
        environ = world.environ() | {"STOKER_STORE": store}
        done = subprocess.run(
            [sys.executable, "-m", "stoker.cli", *arguments[:-2], "--provider", provider, "--", "python", "train.py"],
            cwd=world.code,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert "secrets.TOKEN: a variable of your computer cannot go to" in done.stderr
        assert f"write {wanted}" in done.stderr and SECRET not in done.stdout + done.stderr


LOUD = """
import os, pathlib
truth, token = pathlib.Path(os.environ["TRUTH"]) / "printed", os.environ["TOKEN"]
attempt = os.environ["STOKER_ATTEMPT"]
line = 0
while attempt == "1":
    for line in range(line, line + 500):
        os.write(1, b"%d %s\\n" % (line, token.encode()))
    line += 1
    truth.write_text(str(line))
"""


def test_what_was_printed_before_an_agent_was_killed_is_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    world.write(LOUD)
    job = world.submit(secrets={"TOKEN": "env"})
    printed = world.truth / "printed"
    # The script empties the file each time before it writes it.
    until(lambda: printed.exists() and int(printed.read_text() or 0) > 5000, "it prints")
    assert world.kill("agent")
    world.ended(job)
    count = int(printed.read_text() or 0)
    lines = world.printed(job).decode().splitlines()
    numbers = [int(line.split()[0]) for line in lines if line.endswith(" ***")]
    assert numbers[:count] == list(range(count))
    assert found_in(world.root, SECRET) == []
