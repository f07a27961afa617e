"""The report about one job: the output of `show`, and the end of `run`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from stoker.cli.format import clock, counted, phase, price_source, print_json, say, size, table, to_json
from stoker.cli.timeline import MOST_REASON, timeline
from stoker.core.saved_work import NOTHING_SAVED, checkpoint_title, is_about_training, with_step, without_saved_part
from stoker.core.summary import AttemptSummary, HeldMachines, NodeSummary, Summary
from stoker.model.errors import StokerError, UserError
from stoker.model.job_state import JobState
from stoker.read.decision_text import rule_text
from stoker.read.format import ago, as_of, dollars, duration, number, one_line
from stoker.read.safe_text import legible
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord

if TYPE_CHECKING:
    from stoker.read.outputs import FoundOutputs

_TAIL_LINES = 12
_MOST_LINKS = 8
_MOST_LEFT_OUT = 5


def last_words(state: JobState) -> tuple[str, ...]:
    """The last lines of the log of the attempt that ended the job."""
    closed = [claim.closed for claim in state.attempts if claim.closed is not None]
    return closed[-1].tail[-_TAIL_LINES:] if closed else ()


def job_text(
    summary: Summary, tail: tuple[str, ...] = (), *, has_stack_dumps: bool = False, merged: FoundOutputs | None = None
) -> str:
    """The whole job: its state, its attempts as a timeline, its last checkpoint, its cost, and why it failed.

    `has_stack_dumps`: stack dumps were stored when the job stalled or wasted its machines. `merged`: what `pull` would
    fetch as outputs.
    """
    summary, tail = legible(summary), legible(tail)
    story = timeline(summary)
    if any(NOTHING_SAVED in line for line in story):
        summary = replace(summary, reason=without_saved_part(summary.reason))
    head = f"{click.style(summary.id, bold=True)}  {phase(summary.phase)}"
    # A failed job's whole reason is shown further below.
    reason = one_line(summary.reason, MOST_REASON if summary.phase == "failed" else len(summary.reason))
    lines = [f"{head}  {reason}" if reason else head]
    lines += [f"  {line}" for line in table((), _facts(summary, merged)).splitlines()]
    if story:
        lines += ["", *(f"  {line}" for line in story)]
    for text in left_out_lines(summary):
        lines.append(click.style(f"  {text}", fg="yellow"))
    for text in (*summary.warnings, *_node_warnings(summary)):
        # The timeline already shows warnings about the end of an attempt.
        if not (text.startswith("attempt ") and any(text.partition(": ")[2] in line for line in story)):
            lines.append(click.style(f"  warning: {text}", fg="yellow"))
    if has_stack_dumps:
        lines.append(f"  stack dumps from when a rule was violated: `stoker logs {summary.id} --evidence`")
    if summary.phase == "failed":
        lines += _failure(summary, tail)
    return "\n".join(lines)


def _facts(summary: Summary, merged: FoundOutputs | None) -> list[list[str]]:
    rows = [["submitted", f"{ago(summary.submitted_at)} by {summary.submitter}, at {clock(summary.submitted_at)}"]]
    if summary.origin:
        rows.append(["clone of", summary.origin])
    if summary.code is not None:
        rows.append(["code", _code(summary)])
    images = dict.fromkeys(attempt.image for attempt in summary.attempts if attempt.image)
    if images:
        rows.append(["image", ", then ".join(images)])
    if summary.params:
        rows.append(["params", "  ".join(f"{name}={_as_written(value)}" for name, value in summary.params.items())])
    rows.append(["trained", _trained(summary)])
    if summary.metrics:
        rows.append(["metrics", "  ".join(f"{name} {number(value)}" for name, value in summary.metrics.items())])
    rows.append(["checkpoint", _safety(summary)])
    # Files beside the code are stored when an attempt ends: until then, "none" would mean nothing.
    if summary.outputs is not None and (summary.outputs.files or summary.ended_at is not None):
        rows.append(["outputs", outputs_text(summary, merged)])
    if summary.cost is not None or summary.attempts:
        rows.append(["cost", cost_text(summary)])
    if summary.held is not None:
        known = {node.instance: _machine_names(node) for attempt in summary.attempts for node in attempt.nodes}
        kept = tuple(known.get(instance, instance) for instance in summary.held.instances)
        rows.append(["held", held_text(replace(summary.held, instances=kept))])
    rows += _links(summary)
    if summary.tags:
        rows.append(["tags", "  ".join(f"{name}={value}" for name, value in summary.tags.items())])
    return [[click.style(name, dim=True), text] for name, text in rows]


def _as_written(value: object) -> str:
    """A parameter as it is written in a job file."""
    return value if isinstance(value, str) else json.dumps(value)


def _code(summary: Summary) -> str:
    code = summary.code
    assert code is not None
    commit = f", commit {code.commit[:9]}{' with changes' if code.dirty else ''}" if code.commit else ""
    return f"{counted(code.files, 'file')}, {size(code.size)}{commit}"


def _trained(summary: Summary) -> str:
    if not summary.attempts:
        return "not yet" if summary.ended_at is None else "never: it had no machine"
    parts = [duration(summary.trained_s)]
    if summary.step is not None:
        parts.append(f"to step {summary.step}")
    parts.append(f"in {counted(len(summary.attempts), 'attempt')}")
    if summary.interruptions:
        parts.append(f"with {counted(summary.interruptions, 'reclaim')}")
    heard = as_of(summary.heard_at)
    return " ".join(parts) + (f", {heard}" if heard else "")


def _safety(summary: Summary) -> str:
    """The last durable checkpoint, its age, and what a reclaim now would lose."""
    found = summary.last_checkpoint
    if found is None:
        text = "none" if summary.ended_at is not None else "none in the store yet"
    else:
        title = checkpoint_title(found.key, {attempt.claim: attempt.n for attempt in summary.attempts})
        text = f"{with_step(title, found.step)}, stored {ago(found.committed_at)}"
    if summary.at_risk_s is None:
        return text
    attempt = summary.attempts[-1] if summary.attempts else None
    price = attempt.price if attempt is not None else None
    money = ""
    if price:
        money = f" ({dollars(price * summary.nodes * summary.at_risk_s / 3600)})"
    what = "a reclaim now" if attempt is not None and attempt.spot else "losing the machine now"
    return f"{text}; {what} would lose {duration(summary.at_risk_s)} of training{money}"


def merged_outputs(store: Store, summary: Summary) -> FoundOutputs | None:
    """Return the outputs as `pull` would fetch them; None where the summary says it, or the store does not answer."""
    from stoker.read.outputs import FoundOutputs, list_outputs

    with_files = _attempts_with_outputs(summary)
    if len(with_files) < 2 and not any(attempt.outputs.unfinished for attempt in with_files if attempt.outputs):
        return None
    try:
        return list_outputs(store, summary.id)
    except UserError:
        return FoundOutputs()
    except StokerError:
        return None


def _attempts_with_outputs(summary: Summary) -> list[AttemptSummary]:
    return [attempt for attempt in summary.attempts if attempt.outputs is not None and attempt.outputs.files]


def outputs_text(summary: Summary, merged: FoundOutputs | None = None) -> str:
    """`3 files, 1.2 MB kept; stoker pull gpt-7f3k --outputs`. `merged`: what this command would fetch."""
    found, with_files = summary.outputs, _attempts_with_outputs(summary)
    assert found is not None
    if not found.files:
        return "none kept"
    unfinished = [attempt for attempt in with_files if attempt.outputs is not None and attempt.outputs.unfinished]
    pull = f"`stoker pull {summary.id} --outputs`"
    files, total = found.files, found.size
    if merged is not None:
        files, total = len(merged.files), sum(file.size for file in merged.files)
    each = f" in {len(with_files)} attempts" if len(with_files) > 1 else ""
    kept = f"{counted(files, 'file')}, {size(total)} kept{each}"
    if not files:
        parts = ["none kept"]
    elif merged is None and each:
        # A file that several attempts wrote counts for each of them, but is pulled once.
        parts = [kept, f"{pull} merges them"]
    else:
        parts = [kept, pull]
    for attempt in unfinished:
        assert attempt.outputs is not None
        count = attempt.outputs.unfinished
        what = f"{counted(count, 'file')} of attempt {attempt.n} {'is' if count == 1 else 'are'} perhaps unfinished"
        parts.append(f"{what}: `stoker pull {summary.id} --attempt {attempt.n}`" if each or not files else what)
    return "; ".join(parts)


def left_out_lines(summary: Summary) -> list[str]:
    """The files that were not stored as outputs, with the reasons, largest first."""
    found = summary.outputs
    if found is None or not found.left_out:
        return []
    what = f"{counted(found.left_out, 'file')} not kept"
    lines = [f"{what}, {size(found.left_out_size)}:" if found.left_out_size else f"{what}:"]
    for one in found.named[:_MOST_LEFT_OUT]:
        named = f"{one_line(one.path, MOST_REASON)}{f' ({size(one.size)})' if one.size else ''}"
        lines.append(f"  {named}: {one_line(one.why, MOST_REASON)}")
    if found.left_out > _MOST_LEFT_OUT:
        lines.append(f"  and {found.left_out - _MOST_LEFT_OUT} more; --json names the largest")
    if any("more than" in one.why for one in found.named):
        lines.append("  files that `outputs` in the job file names are kept whatever their size")
    return lines


def cost_text(summary: Summary) -> str:
    """`$0.02, on-demand $0.06: saved 68 % (prices: job file)`."""
    if summary.cost is None:
        return "unknown: a price was not known"
    text = dollars(summary.cost)
    share = round(summary.saved_share, 2) if summary.saved_share is not None else 0.0
    if summary.on_demand_cost and share:
        text += f", on-demand {dollars(summary.on_demand_cost)}"
        if share > 0:
            text += f": saved {share:.0%}"
    named = (price_source(attempt.price_source) for attempt in summary.attempts)
    sources = [source for source in dict.fromkeys(named) if source]
    if not summary.cost and not sources:
        return "nothing: no price is set" if summary.attempts else text
    return f"{text} (prices: {', '.join(sources)})" if sources else text


def held_text(held: HeldMachines, now: datetime | None = None) -> str:
    """`i-7 until 14:32:10 (12m 03s left) at $1.20/h; …`."""
    left_s = (held.until - (now or datetime.now(timezone.utc))).total_seconds()
    price = "an unknown price" if held.price is None else f"{dollars(held.price)}/h"
    names = ", ".join(held.instances)
    return f"{names} until {clock(held.until)} ({duration(left_s)} left) at {price}; `stoker stop` gives it back"


def _machine_names(node: NodeSummary) -> str:
    """A machine by its name in the cloud's console and its instance id."""
    return f"{node.name} ({node.instance})" if node.name else node.instance


def _links(summary: Summary) -> list[list[str]]:
    """The web addresses of the last attempt's machines and their logs."""
    nodes = summary.attempts[-1].nodes if summary.attempts else ()
    rows = []
    for what, links in (
        ("machine", [(node, node.link) for node in nodes]),
        ("log", [(node, node.log_link) for node in nodes]),
        ("logs of the machine", [(node, node.logs_link or node.logs_query) for node in nodes]),
    ):
        known = [(node, link) for node, link in links if link is not None]
        for node, link in known[:_MOST_LINKS]:
            rank = f"node {node.rank} " if len(nodes) > 1 else ""
            rows.append([what, f"{rank}{_machine_names(node)}  {link}" if what == "machine" else f"{rank}{link}"])
        if len(known) > _MOST_LINKS:
            rows.append([what, f"and {len(known) - _MOST_LINKS} more; --json has them all"])
    return rows


def _node_warnings(summary: Summary) -> list[str]:
    if not summary.attempts:
        return []
    found = [text for node in summary.attempts[-1].nodes for text in node.warnings]
    over = summary.ended_at is not None
    new = [text for text in dict.fromkeys(found) if text not in summary.warnings]
    return [text for text in new if not (over and is_about_training(text))]


def _failure(summary: Summary, tail: tuple[str, ...]) -> list[str]:
    name, _, meaning = rule_text(summary.rule or "").partition(": ")
    rule = f"`{name}` ({meaning})" if meaning else f"`{name}`"
    lines = ["", f"  failed by the rule {rule}: {summary.reason}"]
    # The exit code of a script that was asked to stop says nothing more.
    own = summary.rule == "user-error"
    if own and summary.exit_code is not None and str(summary.exit_code) not in summary.reason:
        lines[-1] += f" (exit code {summary.exit_code})"
    if tail:
        lines += ["  the log ends with:", *(f"    {line}" for line in tail)]
    return lines


def print_end(record: IndexRecord, store: Store, *, as_json: bool = False) -> int:
    """Print how an ended job went. Returns the exit code: 0 when it succeeded."""
    if as_json:
        print_json(to_json(record.summary))
    else:
        say()
        say(job_text(record.summary, last_words(record.state), merged=merged_outputs(store, record.summary)))
    return 0 if record.summary.outcome == "succeeded" else 1


def lasted_s(summary: Summary) -> float:
    """Seconds from submission to the end, or to now."""
    end = summary.ended_at or datetime.now(timezone.utc)
    return (end - summary.submitted_at).total_seconds()
