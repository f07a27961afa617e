"""JSON that others may have written is parsed in one place, whose one error stands for all that is wrong with it."""

from __future__ import annotations

import ast
from pathlib import Path

import stoker

# Files that parse JSON themselves, and why they may.
ALLOWED = {
    "model/codec.py": "the one place",
    # Programs of machines that have no Stoker yet: one file of the standard library. They catch RecursionError.
    "cloudapi/aws/imds.py": "the boot of a machine",
    "cloudapi/google/metadata.py": "the boot of a machine",
    "providers/boot/install.py": "the boot of a machine; reads its own settings",
    "providers/boot/start.py": "the boot of a machine; reads what install.py wrote",
    "providers/sagemaker/bootstrap.py": "the boot of a container",
    "train.py": "runs in the training, and reads what the agent wrote",
    "agent/checkpoints/save_protocol.py": "runs in the training; catches RecursionError",
    "agent/checkpoints/format_check.py": "judges files of any format; catches everything",
    # What Stoker or this person wrote on this computer.
    "cli/deploy_options.py": "a template that Stoker made",
    "cloudapi/google/secrets.py": "the credentials of this person or machine",
    "deploy/gcp.py": "a request that Stoker made",
    "agent/container/registry_login.py": "the engine's settings of this person",
    "providers/ec2/statements.py": "a policy that Stoker made",
    "providers/gce/machine.py": "the agent's own settings",
    "providers/gce/settings.py": "the settings of this person",
    "providers/packaged_data.py": "a file of the package",
    "providers/price_book.py": "a table of prices that Stoker wrote",
    "providers/sagemaker/machine.py": "settings that SageMaker wrote",
    "store/google_accounts.py": "the credentials of this person",
    "submit/identity.py": "the credentials of this person",
    "submit/python_interpreter.py": "the answer of a Python of this person",
    "testing/provider_contract.py": "a test",
}
ROOT = Path(stoker.__file__).parent


def parses_json(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            name, of = node.attr, node.value.id if isinstance(node.value, ast.Name) else ""
            if (of == "json" and name in ("load", "loads", "JSONDecoder")) or (name == "json" and of == "answer"):
                return True
    return False


def test_json_of_others_is_parsed_in_one_place() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if parses_json(path.read_text("utf-8"))}
    assert found == set(ALLOWED), "use stoker.model.codec.parse"
