"""The stage `collect`: what came out of the agent's run, as its texts and the change in its worktree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .change import compute_change
from .files import Failure, is_folder, read_piece, write_file
from .processes import kill_processes
from .stage import Stage

TEXTS = {"report": "report.md", "worklog": "worklog.md", "pr_title": "pr_title.txt", "repro": "repro.py"}
"""The files of the output folder, by their names in the result."""


def collect(stage: Stage) -> dict[str, Any]:
    """Lint, then write the result. Raises `Failure` without a change, when the result still has the texts."""
    job, request = stage.job, stage.request
    kill_processes(job.id)
    problems: list[str] = []
    found: dict[str, Any] = {"changes": [], "patch": ""}
    try:
        if not is_folder(job.worktree):
            raise Failure("worktree_gone", "the agent deleted its worktree, or put something else in its place")
        for command in request["lint"]:
            lint(stage, command, problems)
        found = compute_change(job, request, problems)
    finally:
        texts = {name: read_text(job.output, file, request, problems) for name, file in TEXTS.items()}
        write_file(job.result, json.dumps({**found, **texts, "problems": problems}))
    return {}


def lint(stage: Stage, command: str, problems: list[str]) -> None:
    """Run one of the profile's lint commands; that it fails is worth a word, and no more."""
    try:
        stage.must("lint_failed", "failed", ["/bin/sh", "-ec", command], stage.job.environment(), stage.job.worktree)
    except Failure as failure:
        problems.append(f"the lint command `{command}` {failure.message.splitlines()[0]}".rstrip(":"))


def read_text(output: Path, name: str, request: Mapping[str, Any], problems: list[str]) -> str:
    """A text that the agent wrote; empty when there is none."""
    path, limit = output / name, request["max_text_bytes"]
    piece = read_piece(path, 0, limit) if is_folder(output) else None
    if piece is None:
        if path.is_symlink() or path.exists():
            problems.append(f"{name} was left out: it is no plain file")
        return ""
    if piece.size > limit:
        problems.append(f"{name} was cut: it has {piece.size} bytes, and {limit} are allowed")
    return piece.data.decode(errors="replace")
