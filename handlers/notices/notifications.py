"""The texts of the operator's notifications, from the facts in `runner.rows.notifications`. Pure.

Chats show them, so strangers' texts must not mention people or link there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from handlers.text.report import parse_report
from handlers.text.sanitize import make_safe_title
from runner.model.job import Job, Report
from runner.rows.notifications import Facts, Notification, NotificationKind, draft

MAX_WORDS = 1_000
"""The most characters of a stranger's text."""

FOREIGN = ("summary", "reason", "cap")
"""The facts with texts of agents, machines and people."""

NAMED = 20
"""The most issues that a notification names."""

_ADDRESS = re.compile(r"(?<=[a-z0-9]):(?=//)|(?<=mailto):|(?<=tel):|(?<=www)\.", re.IGNORECASE)
"""The character that makes a text an address in chats. It is written in brackets, as in `https[:]//`."""

_LINK = re.compile(r"\](?=\()")
"""The bracket that ends the words of a Markdown link. A space after it makes the link plain text (CommonMark, 6.3)."""

OUT, BACK = "out", "back"
"""The states of a machine in notifications."""


def draft_concern(job: Job, report: Report | None, now: datetime, *, inherited: bool = False) -> Notification:
    """The notification that a job's result is confidential. It is sent once for each job.

    `inherited` says that the result is confidential only because an earlier report on the issue was.
    """
    facts: dict[str, Any] = {"job": job.id, "repository": job.repository, "issue": job.logged_issue}
    facts |= {"summary": parse_report(report.body).summary if report else "", "inherited": inherited}
    kind = NotificationKind.CONCERN
    return Notification(f"{kind} {job.id}", kind, job.case_key, facts, now, next_attempt_at=now)


def draft_machine(name: str, standing: str, occasion: datetime, facts: Facts, now: datetime) -> Notification:
    """The notification that a machine is out of service or back, once for each `standing` and `occasion`."""
    return draft(
        NotificationKind.MACHINE, name, f"{standing} {occasion.isoformat()}", {"standing": standing, **facts}, now
    )


def draft_held(issues: Iterable[str], labels: int, sweep_max: int, now: datetime) -> Notification:
    """The notification that there are too many missed labels. It is sent once a day for the same issues."""
    listed = sorted(issues)
    which = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:16]
    more = max(len(listed) - NAMED, 0)
    facts = {"labels": labels, "sweep_max": sweep_max, "issues": listed[:NAMED], "more": more}
    return draft(NotificationKind.HELD, "labels", f"{which} {now:%F}", facts, now)


def draft_recovery(since: datetime | None, until: datetime, recovered: int, lost: int, labels: int) -> Notification:
    """The notification about a search for missed events. The service was away since `since`, unless that is None.

    The operator is notified of every absence, and otherwise at most once an hour.
    """
    facts = {"recovered": recovered, "lost": lost, "labels": labels}
    times = {"since": since and f"{since:%F %R} UTC", "until": f"{until:%F %R} UTC"}
    occasion = f"{since:%F %T}" if since else f"{until:%F %H}"
    return draft(NotificationKind.RECOVERY, "deliveries", occasion, {**facts, **times}, until)


def draft_namesake(repository: str, known: int, number: int | None, now: datetime) -> Notification:
    """The notification that another repository has the name of a known one, once for each other repository."""
    facts = {"repository": repository, "known": known, "id": number}
    return draft(NotificationKind.NAMESAKE, repository, str(number), facts, now)


def clean_for_chat(text: str, secrets: Collection[str]) -> str:
    """A text on one line, without mentions, links of Markdown, and addresses that have a scheme or `www.`.

    Some chats also link bare host names. Those are not changed, because the end of a sentence looks the same.
    The three characters that are replaced are those of https://docs.slack.dev/messaging/formatting-message-text/#escaping
    """
    line = make_safe_title(text, secrets, MAX_WORDS)
    line = _LINK.sub("] ", _ADDRESS.sub(r"[\g<0>]", line))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def render_payload(notification: Notification, secrets: Collection[str]) -> Mapping[str, Any]:
    """The JSON to send: `text` is for chats, the rest for programs."""
    facts = {**notification.facts}
    facts |= {name: clean_for_chat(str(facts[name]), secrets) for name in FOREIGN if name in facts}
    text = _WORDS[notification.kind](notification.about, facts).strip()
    look = (
        {"command": f"ptq-bot report {facts['job']} --config ptq.toml"}
        if notification.kind is NotificationKind.CONCERN
        else {}
    )
    return {"text": text, "kind": str(notification.kind), **facts, **look}


def render_for_slack(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The payload for Slack's incoming webhooks, which refuse unknown fields. Pure."""
    look = f"\n`{payload['command']}`" if "command" in payload else ""
    return {"text": f"{payload['text']}{look}", "unfurl_links": False}


def _say_concern(about: str, facts: Facts) -> str:
    what = "a run on this confidential issue has ended" if facts["inherited"] else "an agent reports a security concern"
    return f"{about}: {what}. {facts['summary']}"


def _say_machine(about: str, facts: Facts) -> str:
    if facts["standing"] == BACK:
        return f"Machine {about} is back."
    if facts["permanent"]:
        return f"Machine {about} is out of service until it is fixed: {facts['reason']}."
    return f"Machine {about} is out of service: {facts['reason']}. It gets no jobs until it works again."


def _say_base(about: str, facts: Facts) -> str:
    return (
        f"{about}: the base environment cannot be built on {facts['machine']}: {facts['reason']}. "
        "Until this is fixed, jobs there use an older one, or fail."
    )


def _say_cap(about: str, facts: Facts) -> str:
    ended = "" if facts["counts"] == "jobs" else " Running agents are stopped."
    return (
        f"{about}: {facts['cap']} is used up. No new jobs start.{ended} You can raise it: {facts['key']} in ptq.toml."
    )


def _say_cap_near(about: str, facts: Facts) -> str:
    share = int(100 * facts["spent"] / facts["limit"])  # Not rounded up to 100 %.
    ended = "" if facts["counts"] == "jobs" else ", and running agents are stopped"
    return (
        f"{about}: {share} % of {facts['cap']} is used. At 100 % no new jobs start{ended}. "
        f"You can raise it: {facts['key']} in ptq.toml."
    )


def _say_held(about: str, facts: Facts) -> str:
    more = f" and {facts['more']} more" if facts["more"] else ""
    return (
        f"{facts['labels']} labels that request jobs were missed, which is more than sweep_max = {facts['sweep_max']}: "
        f"no job was started. Issues: {', '.join(facts['issues'])}{more}."
    )


def _say_recovery(about: str, facts: Facts) -> str:
    away = f"The service was away from {facts['since']} to {facts['until']}. " if facts["since"] else ""
    found = f"Missed deliveries fetched: {facts['recovered']}, labels answered: {facts['labels']}"
    return f"{away}{found}, deliveries that GitHub no longer has: {facts['lost']}."


def _say_namesake(about: str, facts: Facts) -> str:
    return (
        f"{about}: GitHub sends events of another repository with this name (id {facts['id']}, not {facts['known']}). "
        "ptq-bot ignores them. ptq-bot doctor says what to do."
    )


_WORDS: Mapping[NotificationKind, Callable[[str, Facts], str]] = {
    NotificationKind.CONCERN: _say_concern,
    NotificationKind.MACHINE: _say_machine,
    NotificationKind.BASE: _say_base,
    NotificationKind.CAP: _say_cap,
    NotificationKind.CAP_NEAR: _say_cap_near,
    NotificationKind.HELD: _say_held,
    NotificationKind.RECOVERY: _say_recovery,
    NotificationKind.NAMESAKE: _say_namesake,
}
