"""Lambda on loopback, for tests: a package under AWS's own runtime interface emulator and AWS's own Python runtime."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import free_port, isolated

_INVOKE = "/2015-03-31/functions/function/invocations"
_START_S = 60.0
_CALL_S = 120.0


def emulator() -> Path | None:
    """Where scripts/need-rie.sh put it; None where it could not be had."""
    found = Path(sys.prefix) / "rie" / "aws-lambda-rie"
    return found if found.is_file() else None


def why_no_emulator() -> str | None:
    """One line that says why no function can be run here; None where one can."""
    return None if emulator() else "AWS's runtime emulator is not here: scripts/need-rie.sh fetches it"


@dataclass(frozen=True)
class LambdaFunction:
    """A package that runs. `folder` is what it was unpacked to, `env` what its process was started with."""

    endpoint: str
    folder: Path
    env: Mapping[str, str]
    output: Path

    def invoke(self, event: object) -> Any:
        """What the handler answers, or `{"errorType": …}` where it raised."""
        return json.loads(self.invoke_raw(json.dumps(event).encode()))

    def invoke_raw(self, payload: bytes) -> bytes:
        request = urllib.request.Request(self.endpoint + _INVOKE, payload, method="POST")
        try:
            with _direct().open(request, timeout=_CALL_S) as answer:
                data: bytes = answer.read()
        except urllib.error.HTTPError as error:
            data = error.read()
        return data


@contextmanager
def lambda_function(package: bytes, handler: str, environ: Mapping[str, str]) -> Iterator[LambdaFunction]:
    """Run a package as Lambda would, until the context ends. What Lambda has besides it (boto3) is this Python's."""
    program = emulator()
    if program is None:
        raise RuntimeError(why_no_emulator())
    if not isolated():
        raise RuntimeError("the emulator is started only where nothing but loopback can be reached")
    root = Path(tempfile.mkdtemp(prefix="stoker-lambda-"))
    try:
        task = root / "task"
        with zipfile.ZipFile(io.BytesIO(package)) as archive:
            archive.extractall(task)
        at, api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        env = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(task),
            "LAMBDA_TASK_ROOT": str(task),
            "HOME": str(root),
            "TMPDIR": str(root),
            "AWS_LAMBDA_FUNCTION_NAME": "governor",
            "AWS_LAMBDA_FUNCTION_TIMEOUT": "300",
            "STOKER_HOME": str(root / "stoker"),
            **environ,
        }
        flags = ("--runtime-interface-emulator-address", at, "--runtime-api-address", api, "--log-level", "error")
        command = [str(program), *flags, sys.executable, "-m", "awslambdaric", handler]
        output = root / "output"
        with output.open("wb") as said:
            process = subprocess.Popen(command, env=env, cwd=task, stdout=said, stderr=subprocess.STDOUT)
        try:
            _wait(process, at, output)
            yield LambdaFunction(f"http://{at}", task, env, output)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], at: str, output: Path) -> None:
    until_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < until_s:
        try:
            # It answers for paths that it does not know, too.
            _direct().open(f"http://{at}/", timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the emulator does not start:\n{output.read_text(errors='replace')}")


def _direct() -> urllib.request.OpenerDirector:
    """Past any proxy that the environment names."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
