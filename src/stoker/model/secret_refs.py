"""References to secrets, as people write them. The secret itself is never written anywhere.

    env, env:NAME[#KEY]                  a variable of the computer that submits; on `local` alone
    aws-sm:NAME[#KEY]                    Secrets Manager, by name or ARN
    aws-ssm:NAME[#KEY]                   a parameter of Systems Manager, by name or ARN
    gcp-sm:NAME[@VERSION][#KEY]          Secret Manager, by name or as projects/…/secrets/NAME
    aws-codeartifact:DOMAIN[@OWNER]      a token for CodeArtifact, made anew
    aws-ecr[:REGION]                     a password for ECR (of the user AWS), made anew
    gcp-token                            an access token of Google's, made anew

`#KEY` takes one value out of a secret that is a JSON object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Pattern of the text after each kind.
_NAMES = {
    "env": r"(?::[A-Za-z_][A-Za-z0-9_]*(?:#[^\s]+)?)?",
    "aws-sm": r":[^\s#]+(?:#[^\s]+)?",
    "aws-ssm": r":[^\s#]+(?:#[^\s]+)?",
    "gcp-sm": r":[^\s#@]+(?:@[A-Za-z0-9_-]+)?(?:#[^\s]+)?",
    "aws-codeartifact": r":[a-z][a-z0-9-]*(?:@[0-9]{12})?",
    "aws-ecr": r"(?::[a-z0-9-]+)?",
    "gcp-token": r"",
}
KINDS = tuple(_NAMES)
PATTERN = "|".join(kind + name for kind, name in _NAMES.items())
_WHOLE = re.compile(PATTERN)
# For a secret without a name of its own, for which `env` alone would name no variable.
NAMELESS_PATTERN = PATTERN.replace(_NAMES["env"], _NAMES["env"].removesuffix("?"), 1)

# Examples for messages.
EXAMPLES = {
    "env": "env:NAME",
    "aws-sm": "aws-sm:NAME",
    "aws-ssm": "aws-ssm:NAME",
    "gcp-sm": "gcp-sm:NAME",
    "aws-codeartifact": "aws-codeartifact:DOMAIN",
    "aws-ecr": "aws-ecr",
    "gcp-token": "gcp-token",
}


@dataclass(frozen=True)
class Reference:
    """A parsed reference. `name` is empty if the kind needs none; `detail` is a version, an owner or a region."""

    kind: str
    name: str = ""
    detail: str = ""
    key: str | None = None


def parse(text: str) -> Reference:
    """Read a reference. Raises ValueError, which does not repeat the text: it may be the secret itself."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"expected {expected()}")
    kind, _, rest = text.partition(":")
    name, mark, key = rest.partition("#")
    detail = ""
    if kind in ("gcp-sm", "aws-codeartifact"):
        name, _, detail = name.partition("@")
    elif kind == "aws-ecr":
        name, detail = "", name
    return Reference(kind, name, detail, key if mark else None)


def expected(kinds: tuple[str, ...] = KINDS) -> str:
    """List the accepted forms, for messages."""
    forms = [EXAMPLES[kind] for kind in kinds]
    return forms[0] if len(forms) == 1 else f"{', '.join(forms[:-1])} or {forms[-1]}"
