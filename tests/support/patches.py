"""Patches as git writes them, for changes that a test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.changes.patch import is_shown_as_binary
from runner.characters import decode_exactly
from runner.model.job import FileChange

LINK = "120000"


def render_patch(changes: Iterable[FileChange]) -> str:
    """A patch that replaces whatever was there before, for names that git does not quote."""
    return "".join("".join(_render(change)) for change in changes)


def _render(change: FileChange) -> Iterator[str]:
    turns = (change.mode == LINK) != (change.old_mode == LINK)
    if change.old_mode and (change.mode is None or turns):
        yield f"diff --git a/{change.path} b/{change.path}\ndeleted file mode {change.old_mode}\n"
    if change.mode is None:
        return
    adds = change.old_mode is None or turns
    yield f"diff --git a/{change.path} b/{change.path}\n"
    if adds:
        yield f"new file mode {change.mode}\n"
    elif change.old_mode != change.mode:
        yield f"old mode {change.old_mode}\nnew mode {change.mode}\n"
    before = "/dev/null" if adds else f"a/{change.path}"
    if is_shown_as_binary(change.content or b""):
        yield f"Binary files {before} and b/{change.path} differ\n"
    elif change.content:
        tab = "\t" * (" " in change.path)
        yield f"--- {before}{'' if adds else tab}\n+++ b/{change.path}{tab}\n"
        lines = decode_exactly(change.content).split("\n")
        ends = lines[-1] == ""
        shown = "".join(f"+{line}\n" for line in (lines[:-1] if ends else lines))
        old = "" if adds else "-before\n"
        count = len(lines) - ends
        yield f"@@ -{'1' if old else '0,0'} +1{f',{count}' * (count != 1)} @@\n{old}{shown}"
        if not ends:
            yield "\\ No newline at end of file\n"
