"""`ptq-bot jobs results`: a job's report, diff, repro, worklog, checks and logs, as files in a folder.

It needs the database and the service's data folder, and neither a session nor GitHub.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bot.config.settings import Settings
from bot.operations.context import read_database, require_job
from bot.operations.jobs import NO_LOG, NotDone, read_log
from bot.operations.reports import read_report
from handlers.text.sanitize import redact
from runner.changes.concerns import is_withheld
from runner.characters import encode_exactly, show_for_terminal
from runner.model.job import Report
from runner.model.jobd_answers import Worklog
from runner.rows import job_rows
from runner.rows.worklogs import fetch_worklog
from runner.steps.spool import STAGES

CONFIDENTIAL = "Confidential: this names a security concern, or may. Do not share it.\n"


async def write_results(settings: Settings, job_id: str, folder: Path) -> str:
    """Write a job's results into a folder, which is created. Returns the text for the terminal.

    Diff and repro are written byte for byte, so that they can be applied and run. Raises `UnknownJob`, `NotDone` if a
    file exists already or cannot be written, and `DatabaseError`.
    """
    async with read_database(settings) as connection:
        job = await require_job(connection, job_id)
        report = await job_rows.fetch_report(connection, job_id)
        worklog = await fetch_worklog(connection, job_id)
    files = {**_list_files(settings, report, worklog), "summary.txt": (await read_report(settings, job.id)).encode()}
    for stage in STAGES:
        log = await read_log(settings, job.id, stage)
        if log != NO_LOG:
            files[f"{stage}.log"] = log.encode(errors="replace")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if there := sorted(name for name in files if (folder / name).exists()):
            raise NotDone(f"{folder} has {', '.join(there)} already: name an empty or a new folder")
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise NotDone(f"cannot write to {folder}: {error.strerror}") from None
    listed = "".join(f"  {name}\n" for name in sorted(files))
    warning = CONFIDENTIAL if is_withheld(job, report) else ""
    return f"Wrote to {folder}:\n{listed}{warning}An agent wrote most of it: read it before you run any of it.\n"


def _list_files(settings: Settings, report: Report | None, worklog: Worklog | None) -> Mapping[str, bytes]:
    """The files of a report. Without one, `worklog` is what the agent has written so far."""
    secrets = settings.secret_values()
    read, exact = {"worklog.md": worklog.text if worklog else ""}, dict[str, str]()
    if report:
        read = {"report.md": report.body, "worklog.md": report.worklog}
        exact = {"changes.diff": report.patch, "repro.py": report.repro}
    shown = {name: show_for_terminal(redact(text, secrets, shapes=())).encode() for name, text in read.items()}
    files = {**shown, **{name: encode_exactly(text) for name, text in exact.items()}}
    return {name: content for name, content in files.items() if content.strip()}
