"""The texts of a draft pull request.

The body begins with the human's note, verbatim. The results of the service's own checks follow, and then the agent's
texts. Each part says who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from handlers.addresses import job_url
from handlers.cases.casebook import Pull
from handlers.ports import Author
from handlers.text.sanitize import (
    close_fence,
    collapse,
    commands_in_commit,
    cut,
    disarm,
    fence,
    make_safe_title,
    redact,
)
from handlers.text.voice import Label, quote, say_who_wrote
from handlers.words.pull_template import render_template
from handlers.words.report_comment import MAX_COMMENT, MAX_TITLE, propose_title, say_whose
from handlers.words.verified import render_checks
from runner.characters import show_invisible
from runner.checks.verification import Check
from runner.model.job import DIGEST_SHOWN, Job, Report

MAX_EDITS = 20_000
"""The most characters of people's own text that are kept when a body is written again."""

_MARKER = re.compile(r"^<!-- ptq:pull=\w+ -->$", re.MULTILINE)
"""The line at the beginning of our part of a body. People may have edited the text above it.

An agent cannot forge this line, because its lines are quoted.
"""


def render_marker(job_id: str) -> str:
    """The hidden line with which the service finds its pull request again if GitHub's answer was lost."""
    return f"<!-- ptq:pull={job_id} -->"


def render_note(pull: Pull) -> str:
    """The note, under the name of its author."""
    return f"{say_who_wrote(pull.approver)}\n\n{pull.note}"


def render_pull_title(pull: Pull, job: Job, report: Report, secrets: Collection[str]) -> str:
    """The approver's title, or else the one that the report shows."""
    return make_safe_title(pull.title or "", secrets, MAX_TITLE) or propose_title(job, report, secrets)


def render_commit_message(title: str, job: Job, pull: Pull, signer: Author | None = None) -> str:
    """The commit message: title, issue, authors, approval, and the sign-off, if any. `job` wrote the change.

    Without an issue (a task), the message does not name one.
    """
    approval = f"{Label.APPROVED} {pull.approver} for digest {pull.digest[:DIGEST_SHOWN]}."
    issue = f"For issue #{job.thread}. " if job.thread is not None else ""
    written = f"{issue}Written by {_name_authors(job, f' ({job.agent})')}."
    sign_off = f"\nSigned-off-by: {signer.name} <{signer.email}>\n" if signer else ""
    return f"{title}\n\n{written}\n{approval}\n{sign_off}"


def render_pull_body(
    pull: Pull,
    job: Job,
    report: Report,
    checks: Sequence[Check] = (),
    *,
    template: str = "",
    edits: str = "",
    author: Job | None = None,
    model: str | None,
    public_url: str,
    secrets: Collection[str],
) -> str:
    """The body of the pull request, with the repository's `template`, if any, after the note and the checks.

    If `job` only rebased the change, `author` is the job that wrote it, and `model` is the model of that job. `edits`
    are people's own texts (`find_edits`), which follow the note. We write `Fixes #N` ourselves, because an agent's text
    cannot close an issue. A task has no issue, so its pull request has no such line.
    """
    url = job_url(public_url, job.id) if public_url else ""
    author = author or job
    note = redact(render_note(pull), secrets)
    fixes = f"Fixes #{job.thread}" if job.thread is not None else ""
    disclosure = f"---\n\n{_render_disclosure(pull, job, author, model, url)}"
    found, repro, worklog = _render_texts(author, report, secrets, url)
    seen = disarm(render_checks(job, checks, report, public_url, secrets))
    headings = render_template(template, job, report, secrets)
    edits = close_fence(cut(redact(edits, secrets), MAX_EDITS, "… (GitHub keeps all of this text among its edits)"))
    above = "\n\n".join(part for part in (note, edits, render_marker(job.id)) if part)
    says = say_whose(author) if found or repro or worklog else ""
    room = MAX_COMMENT - sum(len(part) + 2 for part in (above, seen, headings, fixes, says, disclosure))
    found, repro, worklog = _fit([found, repro, worklog], room, url)
    parts = (above, seen, headings, fixes, says, found, repro, worklog, disclosure)
    return "\n\n".join(part for part in parts if part)


def _render_texts(author: Job, report: Report, secrets: Collection[str], url: str) -> list[str]:
    """Report, repro and worklog, each collapsed and quoted.

    On GitHub, the body can become the message of a commit. So words in them that would act as commands there are
    changed, in prose and in code (`disarm`). A script with such words is left out.
    """
    notice = f"… (cut: [all of it is here]({url}))" if url else "… (cut)"
    agents = (Label.AGENTS_REPORT, Label.AGENTS_REPRO, Label.AGENTS_WORKLOG)
    titles = (Label.FULL_REPORT, Label.FULL_REPRO, Label.FULL_WORKLOG) if author.by_hand_alone else agents
    parts = (
        disarm(quote(report.body, secrets, MAX_COMMENT, notice)),
        _render_repro(show_invisible(redact(report.repro, secrets)), url),
        disarm(quote(report.worklog, secrets, MAX_COMMENT, notice)),
    )
    return [collapse(title, shown) if shown else "" for title, shown in zip(titles, parts, strict=True)]


def _render_repro(script: str, url: str) -> str:
    """The unchanged script, or a sentence why it is left out.

    A script is left out if it would have to be changed, because a changed script is not the one that ran. It is quoted,
    because other bots obey lines that begin with `/close` or `@bot`, also in code.
    """
    if not commands_in_commit(script):
        return "> " + fence(script, "python").replace("\n", "\n> ") if script.strip() else ""
    place = f"on [the job's page]({url})" if url else "left out"
    return f"The script is {place}: it holds words that command when they are in a commit's message."


def find_edits(body: str, notes: Sequence[str], secrets: Collection[str]) -> str | None:
    """People's own text above our part of a body, without the `notes` (`render_note`).

    None if somebody has deleted the marker, because an agent's text could then be taken for people's text.
    """
    above, *ours = _MARKER.split(body.replace("\r\n", "\n"), maxsplit=1)
    if not ours:
        return None
    above = above.strip()
    for note in (redact(note, secrets).strip() for note in notes):
        rest = above.removeprefix(note)
        if not rest or rest.startswith("\n"):
            above = rest.strip()
    return above


def _render_disclosure(pull: Pull, job: Job, author: Job, model: str | None, url: str) -> str:
    agent = f"`{author.agent}`" + (f" ({disarm(model)})" if model else "")
    base = f"{'and rebased ' * (author != job)}on base `{(job.base_commit or '')[:10]}`"
    shown = f"digest `{pull.digest[:DIGEST_SHOWN]}`"
    note = f"({shown}) with the note above" if job.thread is None else f"({shown}, [note]({pull.note_url}))"
    return (
        f"{Label.WRITTEN} {_name_authors(author, f', {agent},')} {base}"
        f"{f' ([log]({url}))' if url else ''}. Approved by @{pull.approver} {note}."
    )


def _name_authors(job: Job, named: str) -> str:
    """Who wrote a change.

    If a person edited the change, it is uncertain which agent worked on it before. In a worktree, no agent did.
    """
    if job.by_hand_alone:
        return job.requested_by
    return f"a coding agent, and edited by {job.requested_by}" if job.by_hand else f"a coding agent{named}"


def _fit(parts: Sequence[str], room: int, url: str) -> list[str]:
    """The collapsed parts, in order. A part that does not fit is replaced by a sentence, with a link if possible."""
    elsewhere = f"(Part of this is too long: [see here]({url}).)" if url else "(Part of this is too long.)"
    room -= len(parts) * (len(elsewhere) + 2)
    fitted = []
    for part in parts:
        fits = len(part) <= room
        room -= len(part) if fits else 0
        fitted.append(part if fits else elsewhere)
    return fitted
