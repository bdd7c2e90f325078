"""Runs a target on texts of the grammar until one fails, and makes that one as small as it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from tests.fuzz.grammar import make_text

Target = Callable[[str], Sequence[str]]
"""What is wrong with what the product makes of a text: a sentence each. It depends on the text alone."""


@dataclass(frozen=True)
class Failure:
    """A text on which a target fails, and what is wrong. `smallest` fails in the same way, as far as we can tell."""

    number: int
    text: str
    smallest: str
    faults: Sequence[str]


def make_numbered(seed: int, number: int) -> str:
    """The text of that number of a seed."""
    return make_text(Random(f"{seed}:{number}"))


def find_failure(target: Target, seed: int, numbers: Iterable[int]) -> Failure | None:
    """The first of the numbered texts on which the target fails; None if there is none."""
    for number in numbers:
        text = make_numbered(seed, number)
        if target(text):
            smallest = _shrink(text, target)
            return Failure(number, text, smallest, target(smallest))
    return None


def _shrink(text: str, target: Target) -> str:
    """The text without every part that it fails without."""
    size = len(text) // 2
    while size:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + size :]
            if target(shorter):
                text = shorter
            else:
                at += size
        size //= 2
    return text
