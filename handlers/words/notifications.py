"""The words of what only the operator may hear: pure, out of the facts in `runner.rows.notifications`.

Chats show them: no text of a stranger notifies or links there. Refuses to know where the operator listens.
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
"""Characters of what somebody else has written."""

FOREIGN = ("summary", "reason", "cap")
"""The facts that hold words of agents, machines and people."""

NAMED = 20
"""How many issues the operator is told of by name."""

_ADDRESS = re.compile(r"(?<=[a-z0-9]):(?=//)|(?<=mailto):|(?<=tel):|(?<=www)\.", re.IGNORECASE)
"""The sign by which a chat knows an address. Security reports write such ones as `https[:]//`."""

OUT, BACK = "out", "back"
"""How a machine stands."""


def draft_concern(job: Job, report: Report, now: datetime) -> Notification:
    """What the operator is told of a run whose report is withheld. A job has one."""
    facts = {"job": job.id, "repository": job.repository, "issue": job.logged_issue}
    facts["summary"] = parse_report(report.body).summary
    return Notification(f"{NotificationKind.CONCERN} {job.id}", NotificationKind.CONCERN, job.case_key, facts, now, now)


def draft_machine(name: str, standing: str, occasion: datetime, facts: Facts, now: datetime) -> Notification:
    """That a machine is out since then, or back from that outage."""
    return draft(
        NotificationKind.MACHINE, name, f"{standing} {occasion.isoformat()}", {"standing": standing, **facts}, now
    )


def draft_held(issues: Iterable[str], labels: int, sweep_max: int, now: datetime) -> Notification:
    """That missed labels on these issues are too many, which is said of the same ones once a day."""
    listed = sorted(issues)
    which = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:16]
    more = max(len(listed) - NAMED, 0)
    facts = {"labels": labels, "sweep_max": sweep_max, "issues": listed[:NAMED], "more": more}
    return draft(NotificationKind.HELD, "labels", f"{which} {now:%F}", facts, now)


def clean_for_chat(text: str, secrets: Collection[str]) -> str:
    """Somebody's words on one line, in which chats find no mention and no address with a scheme or `www.`.

    Some chats make a link of a bare name of a host, too: that is left as it is, for a sentence's end looks the same.
    The three characters are those of https://docs.slack.dev/messaging/formatting-message-text/#escaping
    """
    line = make_safe_title(text, secrets, MAX_WORDS)
    line = _ADDRESS.sub(r"[\g<0>]", line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def render_payload(notification: Notification, secrets: Collection[str]) -> Mapping[str, Any]:
    """The JSON that is sent: `text` is what chats show, the rest is for programs."""
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
    """The same as Slack's incoming webhooks take it, which refuse what they do not know. Pure."""
    look = f"\n`{payload['command']}`" if "command" in payload else ""
    return {"text": f"{payload['text']}{look}", "unfurl_links": False}


def _say_concern(about: str, facts: Facts) -> str:
    return f"{about}: an agent reports a security concern. {facts['summary']}"


def _say_machine(about: str, facts: Facts) -> str:
    if facts["standing"] == BACK:
        return f"Machine {about} is back."
    if facts["permanent"]:
        return f"Machine {about} is out until somebody has mended it: {facts['reason']}."
    return f"Machine {about} is out: {facts['reason']}. It gets no jobs until it is well again."


def _say_base(about: str, facts: Facts) -> str:
    return (
        f"{about}: its base cannot be made on {facts['machine']}: {facts['reason']}. "
        "Until that is mended, jobs there begin from an older one, or fail."
    )


def _say_cap(about: str, facts: Facts) -> str:
    ended = "" if facts["counts"] == "jobs" else " Runs under way are ended."
    return f"{about}: {facts['cap']} is used up, and no new run begins.{ended}"


def _say_held(about: str, facts: Facts) -> str:
    more = f" and {facts['more']} more" if facts["more"] else ""
    return (
        f"{facts['labels']} labels ask for jobs and were missed, which is more than sweep_max = {facts['sweep_max']}: "
        f"none was started. They are on {', '.join(facts['issues'])}{more}."
    )


def _say_recovery(about: str, facts: Facts) -> str:
    away = f"The service was away from {facts['since']} to {facts['until']}. " if facts["since"] else ""
    found = f"Of what was missed, deliveries fetched: {facts['recovered']}, labels answered: {facts['labels']}"
    return f"{away}{found}, deliveries that GitHub no longer has: {facts['lost']}."


_WORDS: Mapping[NotificationKind, Callable[[str, Facts], str]] = {
    NotificationKind.CONCERN: _say_concern,
    NotificationKind.MACHINE: _say_machine,
    NotificationKind.BASE: _say_base,
    NotificationKind.CAP: _say_cap,
    NotificationKind.HELD: _say_held,
    NotificationKind.RECOVERY: _say_recovery,
}
