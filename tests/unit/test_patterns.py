"""Expressions of job files and policies: the answers of `re`, in bounded time, or a refusal when they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.agent.metric_scan import MAX_LINE_BYTES, MetricScanner
from stoker.core.attempt_verdict import matches_failure
from stoker.core.policy_patterns import matches_value
from stoker.core.safe_regex import MAX_INSTRUCTIONS, MAX_STEPS, PatternError, StepBudget, compile_pattern
from stoker.jobfile import parse_job, read_layer
from stoker.model.errors import SpecError
from stoker.model.policy import FailureRule
from stoker.policy.policy_file import parse_policy

pytestmark = pytest.mark.slow

# With `re`, each takes longer than anybody has.
HANGING = [
    r"(a+)+$",
    r"(a|a)*b$",
    r"(a*)*b$",
    r"(?:a|aa)+$",
    r"(.*)(.*)(.*)(.*)(.*)(.*)(.*)!!",
    r"(\w+\s?)+$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(a?){40}a{40}b",
    r"(.*a){20}",
    r"loss(.*?,){30}x",
]
TEXTS = ["a" * 16_000 + "!", "loss" + "a," * 8000, "word " * 3000 + "!", "a" * 16_000 + "Z"]

EXPRESSIONS = [
    r"loss=([0-9.]+)",
    r"(a|b)*c",
    r"a*?b",
    r"(?i)LoSS: (?P<value>\d+)",
    r"^x|y$",
    r"\bfoo\b|\Bo",
    r"[^a-c]+b",
    r"(?:ab|a)(?:bc|c)?",
    r"a{2,4}b{0,2}?c?",
    r"(a)|b",
    r".*a.*b",
    r"(?m)^a$",
    r"(?s)a.b",
    r"\d+\s*\w",
    r"\A[\w.]+\Z",
    r"(?i:A)b",
    r"[\s\S]a\S",
    r"\B",
    r"a??b??",
    r"\b|x",
    r"(?i)s|é",
    r"(?i)[k-s]+|[^a-z]",
    r"(?a)\w+",
    r"[]^a\-]x|[^\W\d_]",
    r"",
]


@pytest.mark.parametrize("expression", HANGING)
@pytest.mark.parametrize("text", TEXTS, ids=["a", "commas", "words", "Z"])
@pytest.mark.timeout(60)
def test_a_search_takes_no_more_steps_than_it_may(expression: str, text: str) -> None:
    pattern = compile_pattern(expression)
    work = StepBudget()
    pattern.search(text, budget=work)
    pattern.fullmatch(text)
    list(pattern.finditer(text))
    assert 0 <= work.left <= MAX_STEPS
    # Linear: twice the text, twice the steps and no more.
    short, long = StepBudget(), StepBudget()
    pattern.search(text[:500] + "?", budget=short)
    pattern.search(text[:500] + text[:500] + "?", budget=long)
    assert MAX_STEPS - long.left <= 3 * (MAX_STEPS - short.left) + 10 * MAX_INSTRUCTIONS


@pytest.mark.parametrize("expression", HANGING)
@pytest.mark.timeout(60)
def test_no_log_line_hangs_the_agent(expression: str) -> None:
    scanner = MetricScanner({f"metric{number}": f"({expression})" for number in range(50)} | {"loss": r"loss=(\d+)"})
    line = b"a" * MAX_LINE_BYTES + b"!\n" + b"word " * 800 + b"\n" + b"loss" + b"a," * 1800 + b"\n"
    found = scanner.feed(line * 20 + b"loss=7\n", 1.0)
    assert found[-1].values.get("loss") == 7.0


@pytest.mark.parametrize("expression", HANGING)
@pytest.mark.timeout(60)
def test_no_policy_hangs_a_governor(expression: str) -> None:
    for text in TEXTS:
        matches_failure(FailureRule(log=expression), ["a" * 100_000, text], 1, ())
        matches_value((f"/{expression}/",), text)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(text=st.text(alphabet="abcxyZ=lLoOsS: 0.9\nfé_ſKÉ^-]", max_size=20))
@settings(max_examples=60, deadline=None)
def test_the_answers_are_those_of_re(expression: str, text: str) -> None:
    ours, theirs = compile_pattern(expression), re.compile(expression)
    assert (ours.groups, dict(ours.names)) == (theirs.groups, dict(theirs.groupindex))
    expected = [(match.span(), match.groups()) for match in theirs.finditer(text)]
    found = [(match.spans[0], tuple(map(match.group, range(1, ours.groups + 1)))) for match in ours.finditer(text)]
    assert found == expected
    assert (ours.fullmatch(text) is None) == (theirs.fullmatch(text) is None)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (r"\d+(?= items)", "lookahead and lookbehind"),
        (r"(?<!x)(\d)", "lookahead and lookbehind"),
        (r"(a)\1", "references to groups"),
        (r"(a)?(?(1)b|c)", "conditions"),
        (r"(a{1000}){1000}", "too large"),
        (r"(" * 60 + ")" * 60 + "{5}{5}", "multiple repeat"),
        ("x" * 1001, "1001 characters"),
        ("(", "not a regular expression"),
    ],
)
def test_what_cannot_be_matched_so_is_told_when_it_is_written(expression: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        compile_pattern(expression)
    escaped = expression.replace("'", "''")
    with pytest.raises(SpecError, match=r"metrics\.loss: .*" + re.escape(reason)):
        parse_job([read_layer(f"run: x\nmetrics: {{loss: '{escaped}'}}\n", "stoker.yaml")], folder=Path("/nowhere"))
    with pytest.raises(SpecError, match=r"rules\[0\]\.failure\.log: .*" + re.escape(reason)):
        parse_policy(f"rules:\n- failure: {{log: '{escaped}'}}\n".encode(), "p.yaml")


@pytest.mark.timeout(60)
def test_a_count_of_the_empty_expression_takes_no_time() -> None:
    """`re` itself would go round four thousand million times."""
    found = compile_pattern("(?:){4000000000}(?:(?:a){0}){60000}b").search("ab")
    assert found is not None and found.spans == ((1, 2),)


def test_an_expression_of_another_client_is_left_out() -> None:
    scanner = MetricScanner({"bad": r"(?=x)(\d)", "loss": r"loss=(\d+)"})
    assert [sample.values for sample in scanner.feed(b"x1 loss=3\n", 1.0)] == [{"loss": 3.0}]


def test_of_very_many_expressions_of_another_client_some_are_used() -> None:
    scanner = MetricScanner({f"metric{number}": rf"m{number}=(\d+)" for number in range(10_000)})
    found = scanner.feed(b"m0=1\nm99=2\nm100=3\nm9999=4\n", 1.0)
    assert [sample.values for sample in found] == [{"metric0": 1.0}, {"metric99": 2.0}]
