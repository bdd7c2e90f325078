"""The ways that strangers' and agents' text goes through the product, each as a function from what goes in to what
comes out; and what has to be true of that, whatever went in."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from handlers.cases.casebook import Pull
from handlers.commands.table import COMMANDS, MAX_COMMANDS, Command, parse_commands
from handlers.events import Issue, IssueLabel, User
from handlers.jobs.brief import render_brief
from handlers.jobs.snapshot import NewestComments, Snapshot, freeze_issue
from handlers.ports import Comment
from handlers.rules import PRESETS, RepositoryRules
from handlers.text.hidden_text import STEPS, reveal
from handlers.text.sanitize import (
    KEY_SHAPES,
    RULES,
    TITLE_RULES,
    Rule,
    defuse,
    make_safe,
    make_safe_title,
    one_line,
    redact,
)
from handlers.words.pull_body import render_commit_message, render_pull_body, render_pull_title
from handlers.words.report_comment import MAX_COMMENT
from runner.changes.artifacts import BadArtifacts, read_report
from runner.characters import is_invisible
from runner.model.environment import Profile
from runner.model.job import FileChange, Report
from tests.support.corpus import Case
from tests.support.jobs import NOON, make_job
from tests.support.patches import render_patch
from tests.support.readers import MENTION, ends_outside, find_live, read_blocks

NONCE = "5eed5eed5eed5eed"
LIVE = (
    *("hunter22", 'the "second" key\nof two lines', "my_live_secret"),
    "the first line of a long secret\nthe second line of a long secret",
)
"""Secrets of the service."""

REPOSITORY = RepositoryRules("octo/widgets", agent="mine")
JOB = make_job(base_commit="ab" * 20, issue_title="an issue")
MAX_LINE = 60
"""Characters of the titles here."""


def without(rules: tuple[Rule, ...], name: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.name != name)


# In


def read_comment(case: Case) -> str:
    """The commands of a comment, a line each; those that do not exist behind a `?`."""
    return "\n".join(
        f"{found.verb} {found.argument}".strip() if isinstance(found, Command) else f"?{found.word}"
        for found in parse_commands(case.text)
    )


def _freeze(case: Case) -> Snapshot:
    """An issue in which everything is the same text, but for who wrote its comment."""
    text, author = case.text, case.fields.get("author", "bob")
    at = NOON - timedelta(seconds=1) + timedelta(seconds=case.fields.get("edited_s", 0))
    newest = NewestComments(NOON, "ptq-bot[bot]", None)
    newest.add(Comment(1, author, text, NOON - timedelta(seconds=1), at, "", by_bot=author.endswith("[bot]")))
    opened_at, labels = NOON - timedelta(days=1), (IssueLabel(name=text),)
    issue = Issue(
        number=7,
        title=text,
        user=User(login="alice"),
        body=text,
        labels=labels,
        created_at=opened_at,
        updated_at=opened_at,
    )
    return freeze_issue(issue, newest, ("widgets",))


def read_brief(case: Case) -> dict[str, str]:
    """The blocks of the prompt, by source."""
    return read_blocks(render_brief(PRESETS["fix"], _freeze(case), REPOSITORY, "", NONCE))


def read_issue(case: Case, off: str = "") -> str:
    """What an agent is given of an issue's text."""
    if off:
        return reveal(case.text, [step for step in STEPS if step != off])
    return read_brief(case).get("issue body by alice", "")


def read_subject(case: Case) -> str:
    """What an agent is given of an issue's title."""
    return read_brief(case).get("issue title", "")


def read_author(case: Case) -> str:
    """Whose comment an agent is told it is; nothing where the comment is left out."""
    return "\n".join(source for source in read_brief(case) if source.startswith("comment by"))


def read_change(case: Case) -> str:
    """Why a change may not be proposed, and what its reader is warned of."""
    path, mode, target = case.text, case.fields.get("mode", "100644"), case.fields.get("target", "x\n").encode()
    old_mode = case.fields.get("old_mode", "100644")
    modes: Mapping[str, Any] = {"mode": mode or None, "old_mode": old_mode or None}
    content = None if mode in ("", "160000") else target
    changes = [FileChange(path, modes["mode"], content, modes["old_mode"])]
    changes += [FileChange(other, "100644", b"x\n", None) for other in case.fields.get("beside", ())]
    rows = [
        {"path": change.path, "mode": change.mode, "old_mode": change.old_mode, "content": _encode(change.content)}
        for change in changes
    ]
    texts = {"report": "fixed", "worklog": "", "pr_title": "", "repro": "", "problems": []}
    patch = case.fields.get("patch", render_patch(changes))
    try:
        report = read_report(
            JOB,
            {**texts, "changes": rows, "patch": patch},
            Profile("octo/widgets"),
            b"secret",
        )
    except BadArtifacts as error:
        return f"not read: {error}"
    return "\n".join([*report.refusals, *(f"warned: {warning}" for warning in report.warnings)])


def _encode(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


# Out


def write_post(case: Case, off: str = "") -> str:
    """What an agent wrote, in a comment."""
    if off:
        return defuse(redact(case.text, LIVE), without(RULES, off))
    return make_safe(case.text, LIVE, case.fields.get("limit", MAX_COMMENT))


def write_log(case: Case, off: str = "") -> str:
    """What is left of secrets, anywhere."""
    return redact(case.text, LIVE, without(KEY_SHAPES, off))


def write_title(case: Case, off: str = "") -> str:
    """A title of a pull request."""
    if not off:
        return make_safe_title(case.text, LIVE, MAX_LINE)
    return one_line(redact(case.text, LIVE), MAX_LINE, without(TITLE_RULES, off))


def write_commit(case: Case) -> str:
    """The message of the commit whose title an agent wrote."""
    return render_commit_message(render_pull_title(_PULL, JOB, _report(case), LIVE), JOB, _PULL)


def write_pull(case: Case) -> str:
    """The body of a pull request in which all of an agent's texts are the same, without the marker that is ours."""
    body = render_pull_body(_PULL, JOB, _report(case), model=None, public_url="https://ptq.example", secrets=LIVE)
    return body.replace(f"<!-- ptq:pull={JOB.id} -->\n", "", 1)


_PULL = Pull(
    job_id=JOB.id,
    digest="ab" * 32,
    note="It is right, and I have tried it.",
    approver="maintainer",
    note_url="https://github.example/octo/widgets/issues/7#issuecomment-1",
    branch="ptq/issue-7-0123456789",
    created_at=NOON,
    next_attempt_at=NOON,
)


def _report(case: Case) -> Report:
    text = case.text
    return Report(job_id=JOB.id, body=text, worklog=text, pr_title=text, repro=text, patch="", changes=(), digest=None)


WAYS: Mapping[str, Callable[[Case], str]] = {
    "comment": read_comment,
    "issue": read_issue,
    "subject": read_subject,
    "author": read_author,
    "change": read_change,
    "post": write_post,
    "secret": write_log,
    "title": write_title,
    "commit": write_commit,
    "pull": write_pull,
}
"""By channel; `page` and `log`, which need a server, are in the runner."""

SWITCHES: Mapping[str, tuple[Callable[[Case, str], str], tuple[str, ...]]] = {
    "issue": (read_issue, STEPS),
    "post": (write_post, tuple(rule.name for rule in RULES)),
    "secret": (write_log, tuple(rule.name for rule in KEY_SHAPES)),
    "title": (write_title, tuple(rule.name for rule in TITLE_RULES)),
}
"""By channel the way that can be gone with a rule off, and its rules."""


# What always holds

_COMMANDS_IN_COMMIT = re.compile(
    r"\[(?:skip ci|ci skip|no ci|skip actions|actions skip)\]|\*\*\*NO_CI\*\*\*|skip-checks:[ \t]{0,9}true"
    r"|\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?::[ \t]*|[ \t]+)"
    r"(?:(?:[a-z0-9][a-z0-9-]{0,38}/[\w.-]{1,99})?#|GH-|https?://github\.com/[a-z0-9][a-z0-9-]*/[\w.-]+/(?:issues|pull)/)"
    r"[0-9]+|^(?:Reviewed By|Differential Revision|Change-Id|Co-authored-by|Signed-off-by)[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)
"""What acts in a commit's message: on GitHub Actions and Azure, on issues, and as a field of Phabricator or git."""


def find_breaches(channel: str, out: str) -> list[str]:
    """What is wrong with what came out, whatever went in."""
    match channel:
        case "comment":
            lines = out.split("\n") if out else []
            known = [line for line in lines if line.split()[0] in COMMANDS or re.fullmatch(r"\?[\w?-]+", line)]
            return [] if len(known) == len(lines) <= MAX_COMMANDS else [out]
        case "issue" | "subject" | "author":
            forged = re.findall(r"<\s*/?\s*(?:untrusted|steering)\b", out, re.IGNORECASE)
            return [char for char in out if is_invisible(char)] + forged
        case "post":
            return [*find_live(out), *([] if ends_outside(out) else ["what follows is not outside"])]
        case "pull":
            ours = find_live("Fixes #7 @maintainer")
            titles = r"The agent's (?:full report|repro|worklog)|The rest of the agent's report"
            html = re.compile(rf"(?:</?details>|</?summary>|{titles}|\s)*")
            lively = [live for live in find_live(out) if live not in ours and not html.fullmatch(live)]
            return lively + [found[0] for found in _COMMANDS_IN_COMMIT.finditer(out) if found[0] != "Fixes #7"]
        case "title" | "commit":
            subject = out.partition("\n")[0]
            return MENTION.findall(subject) + [char for char in subject if is_invisible(char)]
    return []
