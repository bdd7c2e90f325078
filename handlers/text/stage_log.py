"""Converts the logs of jobd's own stages to entries for people: jobd's sentences, its commands, and their output. Pure.

Commands of the repository and of agents also print into these logs, and may imitate jobd's lines. So jobd begins each
of its own lines with a mark, and removes the mark from the output of commands (`runner.jobd.stages.log`). A line
without a mark was printed by a command, whatever it looks like. In an agent's log, marks do not count, except on the
line between two processes of a session (`runner.agents.events.GOES_ON`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from handlers.text.transcript import Entry, EntryKind

MARK = "\x1e"
"""The beginning of jobd's own lines. `runner.jobd.stages.log` writes it."""

_MARKED = re.compile(rf"^{MARK}", re.MULTILINE)

_LINE = re.compile(r"[^\n]*\n|[^\n]+")

_RUN = re.compile(r"(.+), run (\d{1,9}) of \d{1,9}")
"""The heading of one run of a check (`runner.jobd.verbs.check`), without its brackets and full stop."""

_TIMES = re.compile(r"\b\d{1,9}(?:\.\d{1,9})? ?(?:ms|s|seconds?)\b")
"""A duration in the output of a run. It differs from run to run."""

NO_OUTPUT = "No output."


def drop_marks(text: str) -> str:
    """The text of a log without jobd's marks."""
    return _MARKED.sub("", text)


def tell_lines(text: str) -> Iterator[Entry]:
    """The entries of whole lines of a stage's log."""
    # Python's `splitlines` would also split at the mark.
    for is_marked, lines in groupby(_LINE.findall(text), lambda line: line.startswith(MARK)):
        if is_marked:
            yield from (_tell_own(line[len(MARK) :].rstrip("\n")) for line in lines)
        else:
            yield Entry(EntryKind.PLAIN, "".join(lines))


def _tell_own(line: str) -> Entry:
    if not (line.startswith("[") and line.endswith("]")):
        return Entry(EntryKind.COMMAND, line)
    sentence = line[1:-1]
    title = sentence.removesuffix(".")
    return Entry(EntryKind.RUN, title) if _RUN.fullmatch(title) else Entry(EntryKind.NOTE, sentence)


def fold_runs(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of an ended log, without repeated outputs of a check.

    If several runs of a check on one side have the same output, except for times, the first of them is kept. A
    reference to it replaces the others. A run without output gets the entry `NO_OUTPUT`.
    """
    first_runs: dict[tuple[str, str], tuple[str, str]] = {}
    run: re.Match[str] | None = None
    for entry in [*entries, None]:
        if run and (entry is None or entry.kind is not EntryKind.PLAIN):
            yield Entry(EntryKind.NOTE, NO_OUTPUT)
        if entry is None:
            return
        if run and entry.kind is EntryKind.PLAIN:
            key = run[1], _TIMES.sub("", entry.text)
            number, text = first_runs.setdefault(key, (run[2], entry.text))
            yield entry if number == run[2] else _refer(number, is_equal=text == entry.text)
        else:
            yield entry
        run = _RUN.fullmatch(entry.text) if entry.kind is EntryKind.RUN else None


def _refer(number: str, *, is_equal: bool) -> Entry:
    which = "the first run" if number == "1" else f"run {number}"
    return Entry(EntryKind.NOTE, f"The same output as in {which}{'' if is_equal else ', except for times'}.")
