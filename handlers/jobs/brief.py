"""Renders an agent's prompt from the frozen issue and the templates in `prompts/`.

Pure except for reading the templates. Untrusted text is put into a prompt only between fences. A brief depends on no
machine: it has only relative paths and environment variables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NoReturn

from jinja2 import FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from handlers.jobs.previous_attempts import EarlierAttempt
from handlers.jobs.snapshot import Snapshot, SnapshotComment
from handlers.rules import COMMANDED, Preset, RepositoryRules
from handlers.text.earlier_blocks import OF_EARLIER
from handlers.text.hidden_text import reveal
from runner.agents.skills import is_skill_folder
from runner.changes.concerns import OUTCOMES, SECURITY_CONCERN
from runner.model.environment import NAMED_PATHS

MAX_STEERING = 10_000
"""The most characters of a person's words for an agent: a task, advice, or a message."""

TASK_OUTCOMES: Mapping[str, str] = {
    "done": "the task is done, and you saw that it is",
    "not done": "it is not, or only in part: say what is left",
    SECURITY_CONCERN: OUTCOMES[SECURITY_CONCERN],
}
"""The outcomes of a person's task."""

_FORGED_MARKER = re.compile(r"<(?=\s*+/?\s*+(?:untrusted|steering)\b)", re.IGNORECASE)
_UNFIT_FOR_MARKER = re.compile(r"[^\w .,:#()\[\]-]", re.ASCII)


class RawTextRefused(TypeError):  # noqa: N818
    """Untrusted text was about to be used in a prompt, a log line or a message without a fence."""


class Untrusted:
    """Untrusted text. It can only be fenced, and tested for being empty. `source` describes its origin in our words."""

    __slots__ = ("_text", "source")

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self.source = _UNFIT_FOR_MARKER.sub("?", source)[:120]

    def __bool__(self) -> bool:
        return bool(self._text.strip())

    def __repr__(self) -> str:
        return f"<untrusted text of {len(self._text)} characters>"

    def __str__(self) -> NoReturn:
        raise RawTextRefused("untrusted text has to pass the filter `fenced`")

    def __format__(self, spec: str) -> NoReturn:
        raise RawTextRefused("untrusted text has to pass the filter `fenced`")

    def __html__(self) -> NoReturn:
        raise RawTextRefused("untrusted text has to pass the filter `fenced`")


def render_brief(
    preset: Preset,
    snapshot: Snapshot,
    rules: RepositoryRules,
    steering: str,
    nonce: str,
    *,
    skills: Sequence[str] = (),
    earlier: EarlierAttempt | None = None,
) -> str:
    """The prompt of one job.

    `nonce` is part of the fences, and must be unpredictable for the authors of the issue. `steering` is the requester's
    advice, possibly empty. `skills` are the job's skills. `earlier` is an earlier attempt, which the job continues, or
    whose texts it gets.
    """
    values = {
        **_describe_job(preset, rules, skills, earlier),
        **_describe(snapshot),
        "outcomes": _choose_outcomes(preset),
        "task": None,
        "worktree": None,
        "steering": _read_words(steering, "the maintainer who asked"),
    }
    return _render(_choose_template(preset), nonce, values)


def render_task(worktree: str, rules: RepositoryRules, task: str, nonce: str, *, skills: Sequence[str] = ()) -> str:
    """The prompt for an agent that continues in a person's worktree, with that person's instructions."""
    preset = Preset("task", True, "do the task below, in a worktree that they began")
    values = {
        **_describe_job(preset, rules, skills, None),
        "outcomes": TASK_OUTCOMES,
        "task": _read_words(task, "the person who gave the task"),
        "worktree": worktree,
        "steering": None,
    }
    return _render("task.md.j2", nonce, values)


def render_off_thread(
    preset: Preset,
    rules: RepositoryRules,
    task: str,
    nonce: str,
    *,
    skills: Sequence[str] = (),
    steering: str = "",
    earlier: EarlierAttempt | None = None,
) -> str:
    """The prompt for an agent with a preset and a person's instructions instead of an issue.

    `steering` is the person's advice for an attempt that continues the `earlier` one.
    """
    goal = "do the task below" if preset.needs_advice else preset.goal
    values = {
        **_describe_job(replace(preset, goal=goal), rules, skills, earlier),
        "parent": _choose_template(preset),
        "outcomes": _choose_outcomes(preset),
        "task": _read_words(task, "the person who gave the task"),
        "worktree": None,
        "steering": _read_words(steering, "the person who asked"),
    }
    return _render("off_thread.md.j2", nonce, values)


def render_told(words: str, at: datetime, nonce: str) -> str:
    """A maintainer's message to an agent, written after the agent's brief was rendered.

    The message is added to the end of the brief, or sent to the running agent.
    """
    return _render("told.md.j2", nonce, {"at": _render_time(at), "words": Untrusted(reveal(words), "a maintainer")})


def _render(template: str, nonce: str, values: Mapping[str, object]) -> str:
    """Render a template. No untrusted text in its values contains the nonce that its fences get."""
    fences = {"nonce": choose_nonce(nonce, tuple(_list_untrusted(values)))}
    return _templates().get_template(template).render({**values, **fences})


def choose_nonce(nonce: str, texts: tuple[str, ...]) -> str:
    """The nonce, or another one derived from it if a text contains it."""
    while any(nonce.casefold() in text.casefold() for text in texts):
        nonce = hashlib.sha256(nonce.encode()).hexdigest()[:16]
    return nonce


def _list_untrusted(value: object) -> Iterator[str]:
    """The untrusted texts in a value for a template, with the descriptions of their origin, which may name people."""
    if isinstance(value, Untrusted):
        yield from (value._text, value.source)
    elif isinstance(value, Mapping):
        yield from _list_untrusted([*value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from _list_untrusted(item)


def _read_words(words: str, source: str) -> Untrusted:
    """A person's words for an agent."""
    return Untrusted(reveal(words)[:MAX_STEERING], source)


def _choose_outcomes(preset: Preset) -> Mapping[str, str]:
    """The possible outcomes of this preset."""
    excluded = {"reproduced"} if preset.may_change else {"fix staged", "unable to fix"}
    fitting = {outcome: meaning for outcome, meaning in OUTCOMES.items() if outcome not in excluded}
    return fitting if preset.name in COMMANDED else {**TASK_OUTCOMES, **fitting}


def _choose_template(preset: Preset) -> str:
    """The template of a preset. All presets that are not commands share one template."""
    return f"{preset.name if preset.name in COMMANDED else 'free'}.md.j2"


def _describe(snapshot: Snapshot) -> dict[str, object]:
    """The issue's values for the templates."""
    return {
        "number": snapshot.issue_number,
        "opened_at": _render_time(snapshot.created_at),
        "frozen_at": _render_time(snapshot.frozen_at),
        "title": Untrusted(snapshot.title, "issue title"),
        "labels": Untrusted("\n".join(snapshot.labels), "issue labels"),
        "body": Untrusted(snapshot.body, f"issue body by {snapshot.author}"),
        "comments": [Untrusted(comment.body, _render_source(comment)) for comment in snapshot.comments],
        "comments_left_out": snapshot.comments_left_out,
        "links": Untrusted("\n".join(snapshot.links), "images and links of issue and comments"),
        "repros": [Untrusted(repro.code, f"{repro.language} script from {repro.origin}") for repro in snapshot.repros],
    }


def _describe_job(
    preset: Preset, rules: RepositoryRules, skills: Sequence[str], earlier: EarlierAttempt | None
) -> dict[str, object]:
    """The values that the templates of all jobs have."""
    return {
        "preset": preset,
        "rules": rules,
        "protected_paths": NAMED_PATHS,
        "skills": [skill for skill in skills if not is_skill_folder(skill)],
        "skill_folders": [skill.removesuffix("/") for skill in skills if is_skill_folder(skill)],
        "earlier": _describe_earlier(earlier) if earlier else None,
    }


def _describe_earlier(earlier: EarlierAttempt) -> dict[str, object]:
    """The earlier attempt's values for the templates."""
    return {
        "number": earlier.job.attempt,
        "preset": earlier.job.preset,
        "state": str(earlier.job.state),
        "base_commit": earlier.job.base_commit,
        "edited": earlier.edited,
        "configured": earlier.configured,
        "continued": earlier.continued,
        "failure": Untrusted(earlier.failure, f"end {OF_EARLIER}"),
        "report": Untrusted(earlier.report, f"report {OF_EARLIER}"),
        "worklog": Untrusted(earlier.worklog, f"worklog {OF_EARLIER}"),
        "repro": Untrusted(earlier.repro, f"repro.py {OF_EARLIER}"),
    }


def _render_source(comment: SnapshotComment) -> str:
    return f"comment by {comment.author}{' (a bot)' * comment.by_bot}, {_render_time(comment.created_at)}"


def _render_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


@pass_context
def _fenced(context: Context, untrusted: Untrusted, kind: str = "untrusted") -> str:
    """The template filter that adds an untrusted text between markers that it cannot contain."""
    text = _FORGED_MARKER.sub("‹", untrusted._text).strip("\n")
    marker = f"{kind}-{context['nonce']}"
    return f'<{marker} source="{untrusted.source}">\n{text}\n</{marker}>'


@cache
def _templates() -> ImmutableSandboxedEnvironment:
    """Load the templates: next to this package in a checkout, inside it in an installed wheel.

    They produce Markdown for a model, so nothing is escaped as HTML. The sandbox keeps even our templates from reading
    the text inside an `Untrusted`.
    """
    here = Path(__file__).parents[1]
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader([here / "_prompts", here.parent / "prompts"]),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = _fenced
    return environment
