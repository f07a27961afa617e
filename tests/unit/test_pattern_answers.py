"""Expressions found in a handful of texts, quickly: the same matches, groups and places as `re` finds."""

from __future__ import annotations

import re

import pytest

from stoker.core import safe_regex
from stoker.core.safe_regex import MAX_CHARS, MAX_INSTRUCTIONS, MAX_STEPS, PatternError, StepBudget, compile_pattern

TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "aab",
    "abc",
    "aaaa",
    "abab abab",
    "loss=0.25 step=9",
    "LOSS=7",
    "x\ny",
    "a\n",
    "\na",
    "foo bar_1 é",
    "-]^ \\",
    "été K ſ",
    "aaa bbb aaa",
    "xay xby xcy",
    "AbC aBc",
    "12 34",
]
EXPRESSIONS = [
    "",
    "a",
    "[ab]",
    "[^ab]",
    "[^a]",
    "a*",
    "a+",
    "a?",
    "a*?",
    "a+?b",
    "a??b",
    "a{2}",
    "a{2,3}",
    "a{1,2}?",
    "a{0}b",
    "a{2,}",
    "(a)(b)?",
    "(a|b)+",
    "(a)|(b)|(c)",
    "(?:ab|a)b",
    "(?P<x>a)(?P<y>b)",
    "((a)b)+",
    "x([abc])y",
    ".",
    "(?s).",
    ".*b",
    "^a",
    "a$",
    "(?m)^.$",
    "(?m)^a|y$",
    r"\Aa",
    r"a\Z",
    r"\b\w+\b",
    r"\Ba",
    r"\d+",
    r"\D+",
    r"\s",
    r"\S+",
    r"\w",
    r"\W",
    r"(?a)\w+",
    r"[\d.]+",
    r"[^\s\w]",
    r"[a-c]+",
    "(?i)abc",
    "(?i:A)b",
    "(?i)[a-b]+",
    "(?i)loss=(\\d+)",
    "(?i)k|s",
    "(?-i:a)b",
    "(?i)a(?-i:b)",
    "loss=([0-9.]+) step=(\\d+)",
    "(a*)(b*)",
    "(ab)*",
    "[]^-]",
    "\\\\",
    "a|",
    "(?:)",
    "(?:a|b){2}",
    "(?:aa|a)*b",
    "a(?:b|c)*?c",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_matches_are_those_of_re(expression: str) -> None:
    ours, theirs = compile_pattern(expression), re.compile(expression)
    for text in TEXTS:
        wanted = [tuple(match.span(group) for group in range(theirs.groups + 1)) for match in theirs.finditer(text)]
        assert [found.spans for found in ours.finditer(text)] == wanted, text
        whole, own = theirs.fullmatch(text), ours.fullmatch(text)
        assert (own.spans if own else None) == (tuple(map(whole.span, range(theirs.groups + 1))) if whole else None)
        first, searched = theirs.search(text, 1), ours.search(text, 1)
        if text and not expression.startswith(("^", r"\A")):
            assert (searched.start if searched else None) == (first.start() if first else None)


def test_a_match_tells_its_groups_by_number_and_by_name() -> None:
    found = compile_pattern("(?P<x>a)(b)?").search("cab ca", 3)
    assert found is not None and (found.start, found.end) == (5, 6)
    assert (found.group(), found.group(0), found.group("x"), found.group(1), found.group(2)) == (
        "a",
        "a",
        "a",
        "a",
        None,
    )


@pytest.mark.parametrize("expression", ["(a|a)*[bc]", "(a+)+$", "(a?){30}[bc]", "(?:a|aa)+[bc]", "(a*)*[bc]"])
def test_no_state_is_entered_twice(expression: str) -> None:
    """Of each place in the expression and in the text, once: the search is over long before its bound."""
    work = StepBudget()
    assert compile_pattern(expression).search("a" * 200 + "!", budget=work) is None
    assert 0 < MAX_STEPS - work.left <= 201 * MAX_INSTRUCTIONS


def test_searches_share_the_steps_that_they_may_take() -> None:
    pattern, work = compile_pattern("(a|b)*c"), StepBudget(left=500)
    assert pattern.search("abc", budget=work) is not None and 0 < work.left < 500
    used = 500 - work.left
    assert pattern.search("abc", budget=work) is not None and work.left == 500 - 2 * used
    assert pattern.search("ab" * 500 + "c", budget=work) is None and work.left == 0
    assert pattern.search("abc", budget=work) is None, "nothing is left"
    assert list(pattern.finditer("abc", budget=work)) == [] and pattern.fullmatch("abc", budget=work) is None


def test_a_search_with_just_enough_steps_finds_what_it_looks_for() -> None:
    pattern, work = compile_pattern("abc"), StepBudget()
    assert pattern.search("abc", budget=work) is not None
    needed = MAX_STEPS - work.left
    assert pattern.search("abc", budget=StepBudget(needed)) is not None
    assert pattern.search("abc", budget=StepBudget(needed - 1)) is None


@pytest.mark.parametrize(
    ("expression", "needed"),
    [
        ("loss=(\\d+)", "loss="),
        ("a(bcd)ef", "bcd"),
        ("ab|cd", ""),
        ("(?i)loss", ""),
        ("x(?i:loss)", "x"),
        ("ab*cde?fgh", "fgh"),
        ("(?:abc)?de", "de"),
    ],
)
def test_a_text_without_what_every_match_has_is_not_searched(expression: str, needed: str) -> None:
    pattern, work = compile_pattern(expression), StepBudget()
    assert pattern.needed == needed
    pattern.search("-" * 50, budget=work)
    assert (work.left == MAX_STEPS) is bool(needed)


def test_what_can_only_match_at_the_start_is_tried_there_alone() -> None:
    def steps(expression: str) -> int:
        work = StepBudget()
        compile_pattern(expression).search("b" * 100, budget=work)
        return MAX_STEPS - work.left

    assert steps("^[ac]") <= 3 and steps(r"(?m)^[ac]") >= 100 and steps("[ac]") >= 100


def test_an_expression_may_be_as_long_as_the_bound_and_no_longer() -> None:
    assert compile_pattern("(?:)" * (MAX_CHARS // 4)).search("x") is not None
    with pytest.raises(PatternError, match=f"has {MAX_CHARS + 1} characters; use at most {MAX_CHARS}"):
        compile_pattern("x" * (MAX_CHARS + 1))


def test_counted_repeats_may_fill_the_program_and_no_more() -> None:
    """The last instruction is that it matches."""
    most = MAX_INSTRUCTIONS - 1
    assert compile_pattern(f"a{{{most}}}").fullmatch("a" * most) is not None
    with pytest.raises(PatternError, match="is too large"):
        compile_pattern(f"a{{{most + 1}}}")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(?=a)", "lookahead and lookbehind such as (?=…) are not supported: expressions are matched in linear time"),
        ("(?<=a)", "lookahead and lookbehind such as (?=…) are not supported"),
        ("(?!a)", "lookahead and lookbehind such as (?!…) are not supported"),
        ("(?<!a)", "lookahead and lookbehind such as (?!…) are not supported"),
        (r"(a)\1", r"references to groups such as \1 are not supported"),
        ("(a)(?(1)b|c)", "conditions such as (?(1)…) are not supported"),
        ("[", "not a regular expression: "),
        ("a**", "not a regular expression: "),
    ],
)
def test_what_is_refused_says_what_it_is(expression: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        compile_pattern(expression)


def test_of_a_set_only_so_many_characters_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may hold every character there is. The answers stay the same."""
    monkeypatch.setattr(safe_regex, "_REMEMBERED_CHARS", 3)
    pattern = compile_pattern("[^!]+!{7}")
    text = "abcdefgh" * 3 + "!" * 7
    found = pattern.fullmatch(text)
    assert found is not None and found.group() == text
    assert max(len(step.chars) for step in pattern._program if step.chars is not None) == 3
