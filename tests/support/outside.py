"""What stands outside of quotes in a comment of ours, as GitHub shows it."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.support.github_markdown import render_github

_VOID = {"br", "hr", "img", "input"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(f"<{tag}>")
        if tag not in _VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.stack:
            del self.stack[len(self.stack) - 1 - self.stack[::-1].index(tag) :]
        self._note(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self._note(data.strip())

    def handle_comment(self, data: str) -> None:
        self._note(f"<!--{data}-->")

    def _note(self, what: str) -> None:
        if "blockquote" not in self.stack:
            self.found.append(what)


def read_outside(markdown: str) -> list[str]:
    """The tags and texts outside of quotes, in order; several quotes in a row count as one."""
    reader = _Reader()
    reader.feed(render_github(markdown))
    reader.close()
    quote = ["<blockquote>", "</blockquote>"]
    found: list[str] = []
    for what in reader.found:
        found.append(what)
        if found[-4:] == quote * 2:
            del found[-2:]
    return found
