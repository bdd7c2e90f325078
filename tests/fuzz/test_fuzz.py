"""Some hundred texts of `make fuzz`, the same ones each time; and a fuzz test has to be able to fail."""

from __future__ import annotations

import pytest

from handlers.text.sanitize import RULES, defuse
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.outbound import judge
from tests.fuzz.run import find_failure, make_numbered

TEXTS = 400


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_text_deceives(target: str) -> None:
    failure = find_failure(TARGETS[target], 1, range(TEXTS))
    assert failure is None, failure


def test_a_seed_repeats_its_texts() -> None:
    assert make_numbered(3, 7) == make_numbered(3, 7) != make_numbered(3, 8)


def test_a_text_that_fails_is_made_small() -> None:
    failure = find_failure(lambda text: ["it has a bar"] if "|" in text else [], 1, range(100))
    assert failure is not None
    assert (failure.smallest, failure.faults) == ("|", ["it has a bar"])


SEEDS = {"closing keywords": 41, "definitions of links": 2, "entities": 5}
"""Rule -> a seed that soon makes a text that only this rule makes safe. Others take hundreds or thousands of texts."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        *("html", "entities", "mentions", "closing keywords", "images", "marks of code", "links to threads"),
        *("definitions of links", "links with more than an address", "references to other repositories"),
    ],
)
def test_the_outbound_target_fails_without_a_rule(rule: str) -> None:
    rules = [known for known in RULES if known.name != rule]
    assert len(rules) == len(RULES) - 1
    seed = SEEDS.get(rule, 1)
    assert any([*judge(defuse(make_numbered(seed, number), rules))] for number in range(10_000))
