"""`ptq-bot bundle`: collects a job's history, logs and settings for debugging in one archive, without secrets.

The brief and the results are left out. The logs can contain text from agents and strangers, which the recipient sees.
"""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from bot.config.settings import Settings
from bot.operations.context import read_database
from bot.operations.jobs import NO_LOG, read_log, show_job
from bot.operations.machines import list_machines
from handlers.cases.withheld import fetch_withheld
from handlers.text.report import has_words
from handlers.text.sanitize import redact
from runner.own_files import open_private
from runner.rows import job_rows
from runner.steps.spool import STAGES

PROGRAMS = ("ptq-bot", "aiohttp", "asyncssh", "gidgethub", "SQLAlchemy", "aiosqlite", "asyncpg", "uvloop")

COMMANDS = frozenset({"args", "command", "setup", "lint", "rebuild", "test_command"})
"""Keys of the configuration whose values are commands."""

MASK = "**********"

_WORD = r"(?:key|token|secret|password|passwd)s?(?![a-z])"
_OPTION = re.compile(rf"--?[\w-]*{_WORD}[\w-]*", re.IGNORECASE)
_NAMED = re.compile(
    rf"(?<![\w-])((?:--?[\w-]{{0,60}}{_WORD}[\w-]{{0,60}}[=\s]|\w{{0,60}}{_WORD}\w{{0,60}}=(?!=))\s*+)\S+",
    re.IGNORECASE,
)
"""An option or a variable with one of these words in its name, and its value."""


class NotBundled(Exception):  # noqa: N818
    """No archive was written; the message says why, without a final period."""


async def make_bundle(settings: Settings, job_id: str, target: Path) -> str:
    """Write the archive of a job to a new file. Returns the text for the operator.

    Raises `NotBundled` if the file exists or the report is confidential, `UnknownJob` and `DatabaseError`.
    """
    files = {"job.txt": await show_job(settings, job_id)}
    async with read_database(settings) as connection:
        report, withheld = await job_rows.fetch_report(connection, job_id), await fetch_withheld(connection, job_id)
    if withheld:
        raise NotBundled("what the job found may be for you alone, and its logs say it: see ptq-bot report")
    for stage in STAGES:
        if (log := await read_log(settings, job_id, stage, raw=True)) != NO_LOG:
            files[f"logs/{stage}.txt"] = log
    files["machines.txt"] = await list_machines(settings)
    files["configuration.json"] = describe_configuration(settings)
    files["about.txt"] = describe_program()
    try:
        _write(target, f"ptq-bot-{job_id}", files)
    except OSError as error:
        raise NotBundled(f"{target} cannot be written: {error.strerror}") from None
    unjudged = "" if has_words(report) else " This job has no report, so its log may tell of a security concern."
    return f"Written to {target}: {', '.join(files)}. Look through it before you send it to anybody.{unjudged}\n"


def describe_configuration(settings: Settings) -> str:
    """The configuration as JSON. Secret values are masked, and secrets inside other values are redacted."""
    database = make_url(settings.server.database_url).render_as_string(hide_password=True)
    server = settings.server.model_copy(update={"database_url": database})
    shown = settings.model_copy(update={"server": server})
    values = _mask_named(shown.model_dump(mode="json"))
    return redact(json.dumps(values, indent=2, ensure_ascii=False), settings.secret_values()) + "\n"


def _mask_named(value: Any, *, is_command: bool = False) -> Any:
    """Mask the values of options and variables in commands that are named after a key, token, secret or password."""
    if isinstance(value, dict):
        return {key: _mask_named(inner, is_command=key in COMMANDS) for key, inner in value.items()}
    if isinstance(value, list):
        masked = [_mask_named(inner, is_command=is_command) for inner in value]
        follows = [False, *(is_command and isinstance(one, str) and bool(_OPTION.fullmatch(one)) for one in value)]
        return [MASK if behind else inner for behind, inner in zip(follows, masked, strict=False)]
    return _NAMED.sub(rf"\g<1>{MASK}", value) if is_command and isinstance(value, str) else value


def describe_program() -> str:
    """The versions of Python and of `PROGRAMS`, one per line."""
    lines = [f"Python {platform.python_version()} on {platform.platform()}"]
    for name in PROGRAMS:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "\n".join(lines) + "\n"


def _write(target: Path, folder: str, files: dict[str, str]) -> None:
    with open(target, "xb", opener=open_private) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode(errors="backslashreplace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime = len(content), int(time.time())
            archive.addfile(member, io.BytesIO(content))
