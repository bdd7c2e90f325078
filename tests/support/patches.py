"""Patches as git writes them, for changes that a test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.job import FileChange

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
    yield f"diff --git a/{change.path} b/{change.path}\n"
    if change.old_mode is None or turns:
        yield f"new file mode {change.mode}\n"
    elif change.old_mode != change.mode:
        yield f"old mode {change.old_mode}\nnew mode {change.mode}\n"
    if change.binary:
        yield f"Binary files a/{change.path} and b/{change.path} differ\n"
    elif change.content:
        lines = change.content.decode().split("\n")
        ends = lines[-1] == ""
        shown = "".join(f"+{line}\n" for line in (lines[:-1] if ends else lines))
        old = "-before\n" if change.old_mode and not turns else ""
        yield f"@@ -{'1' if old else '0,0'} +1,{len(lines) - ends} @@\n{old}{shown}"
        if not ends:
            yield "\\ No newline at end of file\n"
