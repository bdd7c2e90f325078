"""Reads values from lines of untrusted JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.agents.events import MAX_TEXT
from runner.bounded_json import parse_bounded

MAX_COUNT = 10**9
"""No run uses this many tokens. Numbers from here on are ignored, because they would use up the caps of others."""

MAX_MONEY = 10**4


def parse_line(line: str) -> Mapping[str, Any] | None:
    """The JSON object on a line. None for anything else, such as a warning between the events."""
    # This check is faster: the parser needs several microseconds to refuse a line.
    if not line.lstrip().startswith("{") or not line.rstrip().endswith("}"):
        return None
    try:
        value = parse_bounded(line.encode(errors="replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def part(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The object at the end of a path of names. Empty if there is none."""
    for name in names:
        inner = value.get(name)
        value = inner if isinstance(inner, dict) else {}
    return value


def parts(value: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """The objects in a list. Nothing if there is no list."""
    items = value.get(name)
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())


def show(value: Any) -> str:
    """A text or a number, as a text that can be stored. Empty for other values.

    It is shortened, and lone surrogates, which JSON allows, are replaced.
    """
    return str(value)[:MAX_TEXT].encode(errors="replace").decode() if isinstance(value, str | int | float) else ""


def text_of(value: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is a text, shortened. Empty if none of them is a text."""
    return next((show(value[name]) for name in names if isinstance(value.get(name), str)), "")


def count_of(value: Mapping[str, Any], *names: str) -> int:
    """The sum of these fields. Anything but a number, and numbers that are negative or too large, count as 0."""
    numbers = (value.get(name) for name in names)
    return sum(int(number) for number in numbers if isinstance(number, int | float) and 0 < number < MAX_COUNT)


def money_of(value: Mapping[str, Any], name: str) -> float | None:
    """An amount of money. None if there is none, or if it is negative or too large."""
    amount = value.get(name)
    return float(amount) if isinstance(amount, int | float) and 0 <= amount < MAX_MONEY else None


def texts_in(value: Any) -> str:
    """The text of a message's content. The content is a text, or a list of blocks with texts."""
    if isinstance(value, str):
        return show(value)
    blocks = value if isinstance(value, list) else []
    return "".join(text_of(block, "text", "content") for block in blocks if isinstance(block, dict))[:MAX_TEXT]
