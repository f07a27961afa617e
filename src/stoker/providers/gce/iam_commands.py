"""The gcloud commands that create roles and accounts, and bind them.

They are written for `sh -eu`, and run in this order: the commands of person and governor use what those of the node
create. They may be repeated: an existing account is left alone, an existing role is updated. The output of `describe`
is discarded, because only its exit status matters.
"""

from __future__ import annotations

import shlex
from textwrap import indent

from stoker.providers.gce import permissions
from stoker.providers.gce.iam_bindings import Binding, Condition, ProjectRole

SETUP = """\
export CLOUDSDK_CORE_DISABLE_PROMPTS=1 CLOUDSDK_CORE_VERBOSITY=error
PROJECT=${GOOGLE_CLOUD_PROJECT:-$(gcloud config get-value project 2>/dev/null)}
: "${PROJECT:?is not known: set GOOGLE_CLOUD_PROJECT, or gcloud config set project}"
# Of example.com:vision, accounts are in vision.example.com.
ACCOUNTS=${PROJECT##*:}.iam.gserviceaccount.com
case $PROJECT in *:*) ACCOUNTS=${PROJECT##*:}.${PROJECT%%:*}.iam.gserviceaccount.com ;; esac"""

_ROLE = """\
PERMISSIONS=(PERMISSIONS)
if gcloud iam roles describe (ID) --project "$PROJECT" >/dev/null 2>&1; then
  gcloud iam roles update (ID) --project "$PROJECT" --permissions "$PERMISSIONS" >/dev/null
else
  gcloud iam roles create (ID) --project "$PROJECT" --title (TITLE) --stage GA \\
    --permissions "$PERMISSIONS" >/dev/null
fi"""


def create_role(role: ProjectRole) -> str:
    text = _ROLE.replace("(ID)", role.id).replace("(TITLE)", shlex.quote(role.title))
    return text.replace("(PERMISSIONS)", ",".join(permissions.names(role.permissions)))


def create_account(account: str) -> str:
    """Create a service account, and wait: a new account is not visible in all of Google at once, and a binding for an
    unknown account is refused."""
    return (
        f'gcloud iam service-accounts describe "{account_email(account)}" --project "$PROJECT" >/dev/null 2>&1 || {{\n'
        f'  gcloud iam service-accounts create {account} --project "$PROJECT" \\\n'
        "    --display-name 'Machines of Stoker' >/dev/null\n"
        "  sleep 15\n"
        "}"
    )


def bind(binding: Binding) -> str:
    if binding.on == "project":
        what = 'projects add-iam-policy-binding "$PROJECT"'
    elif binding.on.startswith("gs://"):
        what = f'storage buckets add-iam-policy-binding {shlex.quote(binding.on)} --project "$PROJECT"'
    elif "secrets/" in binding.on:
        project, _, name = binding.on.rpartition("secrets/")
        where = shlex.quote(project.removeprefix("projects/").rstrip("/")) if project else '"$PROJECT"'
        what = f"secrets add-iam-policy-binding {shlex.quote(name)} --project {where}"
    else:
        what = f'iam service-accounts add-iam-policy-binding "{account_email(binding.on)}" --project "$PROJECT"'
    # Where a policy has conditions, gcloud requires --condition for a binding without one as well.
    condition = "None" if binding.condition is None else shlex.quote(_flag(binding.condition))
    whom = f'--member "$MEMBER" --role "{binding.role}"'
    return f"gcloud {what} \\\n  {whom} \\\n  --condition {condition} >/dev/null"


def _flag(condition: Condition) -> str:
    """Encode several values as one argument of gcloud: separated by a character that none of them contains."""
    both = condition.title + condition.expression
    separator = next(sign for sign in ";#~%@|^" if sign not in both)
    return f"^{separator}^title={condition.title}{separator}expression={condition.expression}"


def bind_each(variable: str, what: str, bindings: list[Binding]) -> str:
    """Bind every member that the variable names when the commands run: they are not known before."""
    inside = indent("\n".join(bind(binding) for binding in bindings), "  ")
    again = f"stoker iam gce | {variable}=user:jane@example.com sh"
    return (
        f"for MEMBER in ${{{variable}:-}}; do\n{inside}\ndone\n"
        f'[ -n "${{{variable}:-}}" ] || echo "for each {what} who does not own the project, once more: {again}"'
    )


def account_email(account: str) -> str:
    """The address of a service account, with a variable that the shell expands."""
    return f"{account}@$ACCOUNTS"
