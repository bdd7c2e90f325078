"""Replies about takeover, holds and release. Pure.

Commands are always in code, as in `handlers.words.replies`. No reply contains the SSH command.
"""

from __future__ import annotations

from collections.abc import Collection

from handlers.addresses import link_job
from handlers.text.sanitize import make_plain_line
from handlers.text.voice import Label
from runner.model.job import Job, JobKind
from runner.rows.holds import Hold


def render_taken_over(
    job: Job, held: Job, hold: Hold, keys: int, before: str | None, public_url: str, *, signs_in: bool = False
) -> str:
    """`/ptq takeover`, accepted. `held` is the job itself, or the worktree that rebuilds its environment; `before` is
    the earlier holder. If people sign in to the pages, the SSH command is there."""
    time, before_that, when = f"until {_render_time(hold)}", "", "within moments"
    if held.kind is JobKind.WORKTREE and held.active:
        time = f"for {_describe_lasting(hold)}"
        before_that, when = "The environment is being rebuilt, and the time starts when it is ready. ", "then"
    elif held.active:
        before_that, when = "The job is being stopped. ", "as soon as its report is posted"
    where = "Ask the operator for the SSH command (`ptq-bot holds`)."
    if signs_in:
        where = f"The SSH command is on {link_job(public_url, held.id, 'its page')} after you sign in."
    which = "your GitHub SSH key" if keys == 1 else f"your {keys} GitHub SSH keys"
    lines = [
        f"@{hold.person}, you have the environment of {link_job(public_url, job.id, 'this job')} {time}."
        + f" It was held by `{before}` before." * bool(before),
        f"{before_that}You can log in {when}, with {which}. {where} `/ptq status` shows whether access is ready.",
        "`/ptq release` collects your edits and reports them here; `/ptq release drop` discards them. "
        "**Edits that are not released in time are lost.**",
    ]
    return "\n\n".join(lines)


def _render_time(hold: Hold) -> str:
    return f"{hold.expires_at:%Y-%m-%d %H:%M} UTC"


def _describe_lasting(hold: Hold) -> str:
    return f"{(hold.expires_at - hold.begun_at).total_seconds() / 3600:g} hours"


def render_held(hold: Hold, secrets: Collection[str]) -> str:
    """The holder of an environment, in a status. It may be a person without a GitHub account."""
    entered = "access is ready" if hold.admitted_at else "access is not ready yet"
    why = f": {make_plain_line(hold.trouble, secrets, 300)}" if hold.trouble else ""
    head = f"{Label.RESERVED.bold} `{hold.person}` until {_render_time(hold)}"
    return f"{head}; {entered}{why}. `/ptq release` ends this."


def render_not_made(worktree: Job, secrets: Collection[str]) -> str:
    """Why an environment could not be rebuilt, in a status."""
    why = make_plain_line(worktree.failure or "it was lost", secrets, 300)
    return f"The environment for `{worktree.requested_by}` could not be rebuilt: {why}."


def render_no_longer_allowed(hold: Hold) -> str:
    """A hold ends because its person has lost access to the repository."""
    what = "gets no access to the environment" if hold.waits_for_report else "no longer holds this environment"
    return (
        f"`{hold.person}` {what}, because they can no longer open pull requests here. "
        "Edits that were not released are lost. Anyone who can open pull requests can run `/ptq takeover`, which "
        "rebuilds the environment."
    )


def render_nothing_to_take_over() -> str:
    """`/ptq takeover` on an issue without a job."""
    return "No job has run on this issue, so there is no environment to take over. Start one with `/ptq diagnose`."


def render_takeover_off(repository: str) -> str:
    """`/ptq takeover` if the operator has turned it off."""
    return f"Takeover is turned off for `{repository}`."


def render_takeover_refused() -> str:
    """`/ptq takeover` or `release` of a confidential run. It does not say why."""
    return "Only the operator of this App can give access to environments of this issue."


def render_no_keys(login: str) -> str:
    """`/ptq takeover` by somebody without a usable SSH key."""
    return (
        f"@{login}, you have no SSH key on GitHub that ptq-bot can use (Ed25519, ECDSA, RSA, or a security key). "
        'Please add one in your settings, under "SSH and GPG keys", and try again. The operator of this App can also '
        "give you access with another key (`ptq-bot takeover --key`)."
    )


def render_not_taken_over(why: str, secrets: Collection[str]) -> str:
    """A refused `/ptq takeover`; `why` may hold a machine's text."""
    return f"Not taken over: {make_plain_line(why, secrets, 400)}."


def render_too_late() -> str:
    """The reply to a command that is older than the job or hold that it would end."""
    return (
        "Nothing was done: this comment reached ptq-bot late, and the current job or takeover began after it was "
        "written. If you mean the current one, please comment again."
    )


def render_nothing_held() -> str:
    """`/ptq release` without a hold."""
    return "Nobody holds an environment of this issue. `/ptq takeover` gives you one."


def render_release_unclear() -> str:
    """`/ptq release` with an unknown argument."""
    return (
        "Not released. Use `/ptq release` to collect the edits, or `/ptq release drop` to discard them. "
        "Nothing else may follow."
    )


def render_not_released(why: str, secrets: Collection[str]) -> str:
    """A refused `/ptq release`; `why` may hold a machine's text."""
    return f"Not released: {make_plain_line(why, secrets, 400)}."


def render_only_dropped() -> str:
    """`/ptq release` in a public repository, of an environment from when it was private."""
    return (
        "Not released: the environment is from when this repository was private, and a report would publish its edits. "
        "Copy what you need, and use `/ptq release drop`."
    )


def render_released(person: str, collecting: Job | None, public_url: str) -> str:
    """`/ptq release`, accepted: `collecting` is the job that collects the edits, or None if they are discarded."""
    head = f"Released the environment of `{person}`."
    if collecting is None:
        return f"{head} The edits are discarded."
    attempt = link_job(public_url, collecting.id, f"attempt {collecting.attempt}")
    return f"{head} Collecting the edits as {attempt}; its report will follow."
