"""The rules of a policy as a table: for `stoker policy --help`, and for docs/governance.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.model.policy import SUBJECTS


@dataclass(frozen=True)
class RuleRow:
    """One rule as it is written, and what holds."""

    written: str
    holds: str


# Each rule as it is written, by its subject, and what holds. The text is Markdown, with links of docs/governance.md.
RULES: dict[str, RuleRow] = {
    "tags": RuleRow("tags: {NAME: …}", "the job has these tags, with a value that [matches](#patterns)"),
    "providers": RuleRow("providers: […]", "machines are of these providers"),
    "regions": RuleRow("regions: […]", "machines are in these regions"),
    "machines": RuleRow(
        "machines: […]",
        "machines are of these types; other offerings are left out. A job is refused if no offering is left, also "
        "where only several rules together leave none",
    ),
    "images": RuleRow("images: […]", "images of machines and containers, where the job names any"),
    "deny": RuleRow(
        "deny: {machines: […], images: […]}",
        "nothing of this is used: `providers`, `regions`, `machines`, `images`, or values of `tags`",
    ),
    "max_nodes": RuleRow("max_nodes: 8", "a job has no more nodes"),
    "max_runtime_s": RuleRow(
        "max_runtime: 72h",
        "it trains no longer. `stop`: the tighter of this bound and the job's own; `refuse`: a job must ask for less; "
        "`warn`: people are notified when it is reached",
    ),
    "max_cost": RuleRow(
        "max_cost: 500",
        "it costs no more; `then` as for `max_runtime`. Machines without a known price are left out (for spot, the "
        "on-demand price is enough). A job that has trained waits until a price is known",
    ),
    "max_wait_s": RuleRow(
        "max_wait: 6h",
        "it waits no longer for a machine. `on-demand`: a [spot](spot.md#when-on-demand-will-do) job takes on-demand "
        "machines after this time",
    ),
    "defaults": RuleRow(
        "defaults: {max_runtime: 12h, spot: prefer}",
        "what a job [leaves open](#defaults) is filled in: `tags`, `spot`, `max_runtime`, `max_cost`, `max_wait`",
    ),
    "concurrent": RuleRow(
        "concurrent: {gpus: 16, nodes: 4, by: team}",
        "jobs have no more machines [at the same time](#machines-at-the-same-time)",
    ),
    "budget": RuleRow(
        "budget: {dollars: 5000, period: month, by: team}",
        "jobs cost no more [together](#money): a launch reserves its possible cost",
    ),
    "max_retries": RuleRow("max_retries: 3", "`retry.user_errors` is no more"),
    "stall": RuleRow("stall: {window: 5m, windows: 3, steps: 1h}", "a job does not [stand still](#standing-still)"),
    "min_gpu_utilization": RuleRow(
        "min_gpu_utilization: {value: 80%, over: 1h, after: 30m}",
        "mean utilisation of its accelerators is at least [this](#low-utilisation)",
    ),
    "metric": RuleRow(
        "metric: {name: loss, nan: true}", "an [experiment](#experiments-that-lead-nowhere) can still succeed"
    ),
    "resume": RuleRow(
        "resume: {min_runtime: 2h, times: 3}", "[unexplained failures](#failures) of long attempts are resumed"
    ),
    "spot": RuleRow(
        "spot: {on_demand_after: 3, back_after: 6h}",
        "after more reclaims than this the job moves from [spot](spot.md#when-on-demand-will-do) to on-demand; "
        "reclaims older than `back_after` are forgotten. While no on-demand machine is available, it uses spot again",
    ),
    "market": RuleRow(
        "market: {most_reclaims: 5, over: 24h}",
        "[spot](spot.md#what-others-saw) of a machine type in a zone with more reclaims than this, from any job, is "
        "not used; `over` is at most a week. A job that accepts nothing else waits",
    ),
    "failure": RuleRow("failure: {log: …, exit_code: …, evidence: …}", "the meaning of a [failure](#failures)"),
}

assert set(RULES) == set(SUBJECTS), "each rule is in the table"

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def rules_markdown() -> str:
    """The table for the page."""
    rows = ["| rule | holds | `then` |", "|---|---|---|"]
    for subject, row in RULES.items():
        rows.append(f"| `{row.written}` | {row.holds} | {', '.join(f'`{each}`' for each in SUBJECTS[subject])} |")
    return "\n".join(rows) + "\n"


def rules_help() -> Iterator[tuple[str, str]]:
    """The rows for a terminal: the rule, and what holds with the values of `then`."""
    for subject, row in RULES.items():
        holds = _LINK.sub(lambda link: link[1], row.holds).replace("`", "")
        yield row.written, f"{holds} (then: {', '.join(SUBJECTS[subject])})"
