"""`ptq-bot report` and `costs`: one job's result, and the costs of all jobs. They only read the database.

Both work beside a running service. Text from agents is escaped, so that no terminal or spreadsheet executes it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import PurePath
from typing import Any

from bot.config.settings import Settings
from bot.operations.context import read_database, require_job
from handlers.addresses import note_url
from handlers.cases import casebook
from handlers.text.sanitize import redact
from handlers.text.shown_patch import show_patch
from handlers.words.verified import render_checks
from runner.characters import show_for_terminal
from runner.checks.verification import Check
from runner.model.job import Job, Report
from runner.rows import job_rows
from runner.rows.check_rows import fetch_checks


class NoNotePage(Exception):  # noqa: N818
    """This job has no page for a note. The message says why."""


async def find_note_page(settings: Settings, job_id: str) -> str:
    """The address of the page on which a person writes a note on a job's diff, as a line for a terminal.

    Raises `UnknownJob`, `NoNotePage` and `DatabaseError`.
    """
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        report = await casebook.fetch_awaiting_note(connection, job)
        pull = await casebook.fetch_pull(connection, job_id)
    if pull and not pull.abandoned:
        where = f"is in pull request #{pull.number} already" if pull.number else "has its note, and is being opened"
        raise NoNotePage(f"the diff of job {job.id} {where}")
    if report is None:
        raise NoNotePage(f"no diff of job {job.id} waits for a note: see ptq-bot report {job.id}")
    if settings.dashboard.client_id is None:
        why = "there is no page for a note, because sign-in is not set up: set client_id in [dashboard] of ptq.toml"
        instead = ". Or write the note as a comment on the issue: the report there says how"
        raise NoNotePage(why if job.thread is None else why + instead)
    return f"{note_url(settings.server.public_url, job.id)}\n"


async def read_report(settings: Settings, job_id: str, *, as_json: bool = False) -> str:
    """All results of a job, as text for a terminal or as JSON. Raises `UnknownJob` and `DatabaseError`."""
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        report, checks = await job_rows.fetch_report(connection, job_id), await fetch_checks(connection, job_id)
    # Only redact the configured secrets. A report may be about text that looks like a secret.
    secrets = settings.secret_values()
    if as_json:
        return render_json(describe_report(job, report, checks), secrets)
    seen = render_checks(job, checks, report, settings.server.public_url, secrets)
    return show_for_terminal(render_report(job, report, seen, secrets=secrets))


def describe_report(job: Job, report: Report | None, checks: Sequence[Check]) -> dict[str, Any]:
    """A job's results as plain values. Pure."""
    texts = {name: getattr(report, name, None) for name in ("body", "worklog", "pr_title", "repro", "patch", "digest")}
    told = {name: list(getattr(report, name, ())) for name in ("refusals", "warnings")}
    names = ("id", "repository", "case_key", "attempt", "preset", "state", "failure", "base_commit", "requested_by")
    return {**{name: getattr(job, name) for name in names}, **texts, **told, "checks": [*checks]}


def render_report(job: Job, report: Report | None, seen: str = "", *, secrets: Collection[str] = ()) -> str:
    """A job, the service's own checks (`seen`), and the titled texts of the report, without the `secrets`. Pure."""
    head = f"{job.case_key} · {job.preset} attempt {job.attempt}, requested by {job.requester} · {job.state}"
    failure = [job.failure] if job.failure else []
    texts = [(title, text) for title, text in (report.texts() if report else ()) if text.strip()]
    shown = [f"=== {title} ===\n\n{_show(title, text, secrets)}" for title, text in texts]
    above = redact("\n\n".join([f"job {job.id} · {head}", *failure, *([seen] if seen else [])]), secrets, shapes=())
    return "\n\n".join([above, *(shown or ["Nothing was collected."])]) + "\n"


def _show(title: str, text: str, secrets: Collection[str]) -> str:
    if title != "Diff":
        return redact(text, secrets, shapes=()).strip("\n")
    shown = show_patch(text, secrets, shapes=())
    return "\n".join([*shown.remarks(), shown.text.strip("\n")])


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal. The cells must be safe for one, and the first row is the head. Pure."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def render_json(value: object, secrets: Collection[str]) -> str:
    """Plain values and dataclasses as JSON, without the `secrets`. Pure.

    Texts are redacted before they are quoted, because quoting changes secrets of several lines.
    """
    return json.dumps(_make_plain(value, secrets), indent=2) + "\n"


def _make_plain(value: Any, secrets: Collection[str]) -> Any:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {redact(str(key), secrets, shapes=()): _make_plain(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(inner, secrets) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return redact(str(value), secrets, shapes=()) if isinstance(value, str | PurePath) else value


async def read_costs(settings: Settings, since: date | None, until: date | None, *, as_json: bool = False) -> str:
    """The costs as CSV or JSON, of jobs created from `since` to `until` (UTC, inclusive). Raises `DatabaseError`."""
    async with read_database(settings) as connection:
        after = _begin(until + timedelta(days=1)) if until else None
        bill = await job_rows.fetch_bill(connection, _begin(since) if since else None, after)
    configured = {spec.name: spec.model for spec in settings.agent_specs()}
    rows = [{**row, **_name_counts(row), "model": row["model"] or configured.get(row["agent"])} for row in bill]
    return render_json(rows, settings.secret_values()) if as_json else render_costs(rows)


def _name_counts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The counts that an agent reports, each None if it reported none of them."""
    counts = {name: row[name] for name in ("turns", "input_tokens", "cached_tokens", "output_tokens")}
    return counts if any(counts.values()) else dict.fromkeys(counts)


def _begin(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def render_costs(bill: Sequence[Mapping[str, Any]]) -> str:
    """The costs as CSV with a header. Pure."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    names = [column.name for column in job_rows.BILL]
    writer.writerow(names)
    writer.writerows([_cell(row[name]) for name in names] for row in bill)
    return written.getvalue()


def _cell(value: Any) -> str:
    """A CSV cell that no spreadsheet reads as a formula. Other people choose the model and the requester's name."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    text = value.isoformat() if isinstance(value, datetime) else show_for_terminal(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
