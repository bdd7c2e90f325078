"""Adds and removes the tables of machines in the text of `ptq.toml`, and leaves all other text unchanged. Pure.

tomlkit finds a table in the text, and writes a new one. Then the result is parsed, and must have the expected values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

Value = str | int | list[str]
Tables = list[dict[str, Any]]


class NotEdited(Exception):  # noqa: N818
    """The text cannot be edited automatically; the message says what to do by hand."""


class _Found(NamedTuple):
    """The text of a file, split around one of its tables."""

    before: str
    table: str
    """From the header to the end of the last value."""
    after: str
    """Starts with the comments after the last value, because they are about the next table."""


def add_table(text: str, values: Mapping[str, Value], comment: str) -> str:
    """Add a machine after the last one, with a comment inside its table. Returns the new text. Raises `NotEdited`."""
    table = tomlkit.table()
    table.add(tomlkit.comment(comment))
    table.update(values)
    machines = tomlkit.aot()
    machines.append(table)
    newline = "\r\n" if "\r\n" in text else "\n"
    added = f"\n{tomlkit.dumps({'machines': machines})}".replace("\n", newline)

    lines = text if text.endswith("\n") else f"{text}{newline}"
    found = _find(lines, -1, "add it")
    edited = f"{found.before}{found.table}{added}{found.after}"
    _check(text, edited, lambda machines: [*machines, dict(values)], "add it")
    return edited


def remove_table(text: str, name: str) -> str:
    """Remove a machine and the comments inside its table. Returns the new text. Raises `NotEdited`."""
    what = f"take the table of {name} out"
    names = [table.get("name") for table in _parse(text).get("machines", [])]
    if name not in names:
        raise NotEdited(f"no table has the name {name}: {what} by hand")
    place = names.index(name)
    before, _, after = _find(text, place, what)
    # Also remove the blank lines before the table.
    kept = before.rstrip("\r\n")
    newline = "".join(before[len(kept) :].splitlines(keepends=True)[:1])
    edited = f"{kept}{newline}{after}" if kept else after.lstrip("\r\n")
    _check(text, edited, lambda machines: machines[:place] + machines[place + 1 :], what)
    return edited


def _find(text: str, place: int, what: str) -> _Found:
    """Split the text around the table of the machine with index `place`. Raises `NotEdited`."""
    try:
        machines = tomlkit.parse(text).get("machines")
    except TOMLKitError:
        raise _by_hand(what) from None
    if not isinstance(machines, AoT):
        raise _by_hand(what)
    table = machines[place]
    content = table.as_string()
    if not content or text.count(content) != 1:
        raise _by_hand(what)
    behind = takewhile(lambda item: item[0] is None, reversed(table.value.body))
    start, about_next = text.index(content), sum(len(item.as_string()) for _, item in behind)
    header, end = text.rfind("\n", 0, text.rindex("[[", 0, start)) + 1, start + len(content) - about_next
    return _Found(text[:header], text[header:end], text[end:])


def _check(before: str, after: str, change: Callable[[Tables], Tables], what: str) -> None:
    """Raise `NotEdited` unless the values of both texts are the same, except for the `change` of the machines."""
    wanted = _parse(before)
    wanted["machines"] = change(wanted.get("machines", []))
    if not wanted["machines"]:
        del wanted["machines"]
    try:
        found = tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        raise _by_hand(what) from None
    if wanted != found:
        raise _by_hand(what)


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise NotEdited("the file is no TOML as it is") from None


def _by_hand(what: str) -> NotEdited:
    return NotEdited(f"the file is written in a way that only a person can edit: {what} by hand")
