"""What `ptq-bot demo` tells."""

from __future__ import annotations

ACTS = (
    "A stranger files an issue",
    "chunked() drops the last chunk when it is shorter",
    "A maintainer labels it",
    "signed: the service answered 202",
    "A machine takes the job",
    ": queued by @maintainer",
    ": preparing",
    ": running",
    ": collecting",
    "environment",
    "$ git --git-dir=",
    "checkout",
    " -m venv ",
    "agent log",
    "Ran the issue's script: exit status 1",
    "Ran all tests: exit status 0",
    "The issue gets its report",
    "Root cause",
    "The maintainer is in a hurry",
    "in your own words",
    "The maintainer writes a human note",
    "Draft pull request #2: Keep the last, shorter chunk in chunked()",
    "The range stopped at the last start of a full chunk",
    "Fixes #1",
    "+    for start in range(0, len(items), size):",
    "That was the whole story",
)
"""What is told, in this order."""


def assert_in_order(text: str, parts: tuple[str, ...]) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not told, or too early:\n{text}"
        at = found + len(part)
