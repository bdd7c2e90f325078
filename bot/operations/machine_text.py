"""The tables of machines in the text of `ptq.toml`: added and taken out, while every other byte stays. Pure.

It knows just enough of TOML to find a table; whether that was the right one is asked of a real parser.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

HEADER = re.compile(r"[ \t]*\[")
"""What a line begins with that begins a table."""

OURS = re.compile(r"[ \t]*\[\[[ \t]*machines[ \t]*\]\][ \t]*(#.*)?$")


class NotEdited(Exception):  # noqa: N818
    """The text is not one that can be edited for somebody; the message says what to do by hand."""


def add_table(text: str, values: Mapping[str, str | int | list[str]], comment: str) -> str:
    """The text with one more machine at its end, and a comment in its table. Raises `NotEdited`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = ["[[machines]]", f"# {comment}", *(f"{key} = {_spell(value)}" for key, value in values.items()), ""]
    gap = "" if not text or text.endswith(newline * 2) else newline if text.endswith("\n") else newline * 2
    edited = f"{text}{gap}{newline.join(lines)}"
    _check(text, edited, lambda machines: [*machines, dict(values)], "add it")
    return edited


def remove_table(text: str, name: str) -> str:
    """The text without the machine of this name, and what else stands between its header and its last key.

    Raises `NotEdited`.
    """
    names = [table.get("name") for table in _parse(text).get("machines", [])]
    lines = text.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if OURS.match(line.rstrip("\r\n"))]
    if name not in names or len(begins) != len(names):
        raise NotEdited(f"the table of {name} cannot be told from the rest of the file: take it out by hand")
    place = names.index(name)
    first = begins[place]
    behind = next((number for number in range(first + 1, len(lines)) if HEADER.match(lines[number])), len(lines))
    # Comments below the last key are about what follows.
    while behind > first + 1 and (not (line := lines[behind - 1].strip()) or line.startswith("#")):
        behind -= 1
    if first and not lines[first - 1].strip():
        while behind < len(lines) and not lines[behind].strip():
            behind += 1
    edited = "".join(lines[:first] + lines[behind:])
    _check(text, edited, lambda machines: machines[:place] + machines[place + 1 :], "take it out")
    return edited


def _check(before: str, after: str, change: Any, what: str) -> None:
    """Whether the machines are changed so, and nothing else is. Raises `NotEdited`."""
    try:
        wanted, found = _parse(before), tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        raise NotEdited(f"the file is written in a way that only a person can edit: {what} by hand") from None
    wanted["machines"] = change(wanted.get("machines", []))
    if not wanted["machines"]:
        del wanted["machines"]
    if wanted != found:
        raise NotEdited(f"the file is written in a way that only a person can edit: {what} by hand")


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise NotEdited("the file is no TOML as it is") from None


def _spell(value: str | int | list[str]) -> str:
    """A value in TOML, which takes JSON's numbers, lists, and strings without escaped pairs of surrogates."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
