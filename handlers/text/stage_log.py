"""The logs of jobd's own stages for people: its sentences, its commands, and what the commands print. Pure.

Commands of the repository and of agents print into these logs, too, and may imitate jobd's lines. So each line of
jobd's own begins with a mark, and jobd removes the mark from what commands print (`runner.jobd.stages.log`). A line
without a mark is a command's, whatever it looks like. In an agent's log no mark counts, except on the one line
between two processes of a session (`runner.agents.events.GOES_ON`).
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
"""How long something took. It differs from run to run."""

NO_OUTPUT = "No output."


def drop_marks(text: str) -> str:
    """The text of a log as jobd's lines would be without marks."""
    return _MARKED.sub("", text)


def tell_lines(text: str) -> Iterator[Entry]:
    """The entries of whole lines of such a log."""
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
    """The entries of a log that has ended, with each output of a check once for each side that it ran on."""
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
