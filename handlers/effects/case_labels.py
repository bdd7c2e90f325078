"""Lets issues show by a label where their cases stand, in repositories that want it; elsewhere takes ours off.

Level-triggered: only the newest state is written, and not too often. A label is written down before it is put on, so
that a repeat after a crash or a lost answer knows what may stand there; no other label is ever taken off.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog

from handlers.cases import casebook
from handlers.cases.case import LABELS, Case
from handlers.cases.casebook import CaseLabel
from handlers.context import Context
from handlers.effects.retry_policy import MAX_COUNTED, judge
from handlers.ports import GitHubError, GitHubUnavailable, OverBudget
from runner.rows.claims import ClaimLost

log = structlog.get_logger()

BUDGET_WAIT = timedelta(minutes=1)
"""How soon at the latest a turn to write is asked for again."""


async def show_cases(context: Context, rest: timedelta) -> None:
    """Bring every label that is due to GitHub. One that has changed rests for a while; one that fails waits."""
    configured = {rules.name: rules.case_labels for rules in context.repositories.values()}
    showing = [name for name, shows in configured.items() if shows]
    hiding = [name for name, shows in configured.items() if not shows]
    tried: set[str] = set()
    while True:
        # Looked up anew each time: writes are slow by GitHub's own rules, and cases move meanwhile.
        async with context.db.read() as connection:
            due = await casebook.fetch_mislabelled_cases(connection, showing, hiding, context.now())
        case = next((case for case in due if case.key not in tried), None)
        if case is None:
            return
        tried.add(case.key)
        with structlog.contextvars.bound_contextvars(
            repository=case.repository, issue=case.issue_number, case=case.key
        ):
            await _show(context, case, LABELS.get(case.state) if case.repository in showing else None, rest)


async def _show(context: Context, case: Case, wanted: str | None, rest: timedelta) -> None:
    async with context.db.read() as connection:
        label = await casebook.fetch_case_label(connection, case.key) or CaseLabel(case.key, context.now())
    try:
        if label.standing and label.standing != wanted:
            await context.github.remove_label(case.repository, case.issue_number, label.standing)
            label = await _save(context, label, standing=None, settled=True)
        if wanted:
            label = await _save(context, label, standing=wanted, settled=False)
            await context.github.add_label(case.repository, case.issue_number, wanted)
    except OverBudget as error:
        at = context.now() + min(timedelta(seconds=error.retry_after_s), BUDGET_WAIT)
        await _save(context, label, next_attempt_at=at)
    except ClaimLost:
        raise
    except Exception as error:
        await _put_off(context, label, error)
    else:
        at = context.now() + rest
        await _save(context, label, settled=True, next_attempt_at=at, attempts=0, refusals=0, trouble=None)
        log.info("label.shown", label=wanted)


async def _put_off(context: Context, label: CaseLabel, error: Exception) -> None:
    """Try again later; or never, where GitHub keeps saying no."""
    attempts = min(label.attempts + 1, MAX_COUNTED)
    verdict = judge(error, attempts=attempts, refusals=label.refusals, editing=False)
    if verdict.wait_s is None:
        log.error("label.abandoned", reason=str(error))
        await _save(context, label, abandoned=verdict.trouble, trouble=None)
        return
    is_ours = not isinstance(error, (GitHubError, GitHubUnavailable))
    log.warning("label.waits_for_github", reason=str(error), wait_s=verdict.wait_s, exc_info=is_ours)
    at = context.now() + timedelta(seconds=verdict.wait_s)
    changes = {"attempts": attempts, "refusals": verdict.refusals, "trouble": verdict.trouble}
    await _save(context, label, next_attempt_at=at, **changes)


async def _save(context: Context, label: CaseLabel, **changes: object) -> CaseLabel:
    label = replace(label, **changes)  # type: ignore[arg-type]
    async with context.db.write() as connection:
        await casebook.save_case_label(connection, label)
    return label
