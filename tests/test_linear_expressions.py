"""No regular expression of ours takes more than linear time on any text.

Texts are made from each expression's own parts. An expression holds the interpreter until it is done, so that neither
a thread nor a time limit helps against one that goes back and forth.
"""

from __future__ import annotations

import re

import pytest

import bot
import handlers
import runner
from tests.support.expressions import Expression, find_expressions, make_attacks

pytestmark = pytest.mark.slow

SIZES = (50, 1_000)
"""Characters, the fewest first: for some expressions more would take until tomorrow."""
MORE = 2
SLOW_S = 0.0001
"""A longer text is tried only if the first one takes this long. On a fast machine, the shortest attack below takes
0.0003 s."""

BOUNDED = {"runner.agents.prices._EDITION": "a model's name has 4,000 characters at most"}


def find_attack(expression: Expression) -> str | None:
    """What an expression takes more than linear time for, or None."""
    for size in SIZES:
        attacks = (make_attacks(expression.pattern, one) for one in (size, MORE * size))
        for text, longer in dict.fromkeys(zip(*attacks, strict=True)):
            if expression.measure(text) < SLOW_S:
                continue
            once = min(expression.measure(text) for _ in range(3))
            if once < SLOW_S or expression.measure(longer) <= 1.5 * MORE * once:
                continue
            once, more = (min(expression.measure(one) for _ in range(3)) for one in (text, longer))
            if more > 1.5 * MORE * once:
                return f"{text[:40]!r} ... {text[-10:]!r}: {once:.3f} s, and {MORE} times as much {more:.3f} s"
    return None


def test_no_expression_of_ours_takes_more_than_linear_time() -> None:
    expressions = find_expressions(handlers, runner, bot)
    assert len(expressions) > 250
    found = {one.place: attack for one in expressions if (attack := find_attack(one))}
    assert found.keys() <= BOUNDED.keys(), found


@pytest.mark.parametrize(
    "pattern",
    [
        r"\([ \t]*(a*)(?:[ \t]+b)?[ \t]*\)",
        r"<(?=\s*/?\s*word)",
        r"[.!?]+(?=\s)",
        r"\\+u([0-9a-f]{4})",
        r"(-\d{2}|\[\w+\])+$",
    ],
)
def test_an_expression_that_goes_back_and_forth_is_found(pattern: str) -> None:
    assert find_attack(Expression("here", re.compile(pattern), scans=True))
