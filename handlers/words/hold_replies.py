"""What people are told who take environments over, hold them, and give them back.

Pure, and without live commands, as all that we say (`handlers.words.replies`); and without any way in.
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
    """`/ptq takeover`, heard: `held` is the job itself, or the one in which its environment is made anew; `before` is
    who had it. Where people sign in to the pages, the way in is there for whoever holds it."""
    time, before_that, when = f"until {_render_time(hold)}", "", "within moments"
    if held.kind is JobKind.WORKTREE and held.active:
        time = f"for {_describe_lasting(hold)}"
        before_that, when = "Its environment is being made anew. ", "once it is there, which is when the time begins"
    elif held.active:
        before_that, when = "It is being ended. ", "once its report is here"
    where = "Where to is for the operator of this App to tell: `ptq-bot holds` shows it."
    if signs_in:
        where = f"Where to is on {link_job(public_url, held.id, 'its page')}, once you have signed in there."
    which = "the SSH key that GitHub has of you" if keys == 1 else f"{keys} SSH keys that GitHub has of you"
    lines = [
        f"@{hold.person}, {link_job(public_url, job.id, 'this job')} is yours {time}; its slot stays taken meanwhile."
        + f" Until now `{before}` held it." * bool(before),
        f"{before_that}You are let in {when}, by {which}. {where} `/ptq status` says whether you may enter yet.",
        "`/ptq release` has your edits collected and reported here, `/ptq release drop` throws them away. "
        "**What is not released in time is lost.**",
    ]
    return "\n\n".join(lines)


def _render_time(hold: Hold) -> str:
    return f"{hold.expires_at:%Y-%m-%d %H:%M} UTC"


def _describe_lasting(hold: Hold) -> str:
    return f"{(hold.expires_at - hold.begun_at).total_seconds() / 3600:g} hours"


def render_held(hold: Hold, secrets: Collection[str]) -> str:
    """Who holds an environment, in a status. A person of the operator's need not be one of GitHub's."""
    entered = "who may enter it" if hold.admitted_at else "who cannot enter it yet"
    why = f": {make_plain_line(hold.trouble, secrets, 300)}" if hold.trouble else ""
    head = f"{Label.HELD.bold} `{hold.person}` until {_render_time(hold)}"
    return f"{head}, {entered}{why}. `/ptq release` gives it back."


def render_not_made(worktree: Job, secrets: Collection[str]) -> str:
    """Why an environment that was to be made anew is not there, in a status."""
    why = make_plain_line(worktree.failure or "it was lost", secrets, 300)
    return f"The environment that was to be made anew for `{worktree.requested_by}` is not there: {why}."


def render_no_longer_allowed(hold: Hold) -> str:
    """In a thread, of a hold that ends because its person has lost their access to the repository."""
    what = "is not let in" if hold.waits_for_report else "no longer holds the environment of this issue"
    return (
        f"`{hold.person}` {what}: GitHub says that they may no longer open pull requests here. "
        "Edits that were not released are lost. Somebody who may open pull requests can run `/ptq takeover`, which "
        "builds the environment again."
    )


def render_nothing_to_take_over() -> str:
    """`/ptq takeover` on an issue that has had no job."""
    return "There has been no job on this issue, so there is no environment to take over. `/ptq diagnose` makes one."


def render_takeover_off(repository: str) -> str:
    """`/ptq takeover` where the operator has forbidden it."""
    return (
        f"Nothing was taken over: the operator of this App lets nobody enter environments of `{repository}` this way."
    )


def render_takeover_refused() -> str:
    """`/ptq takeover` or `release` of what only the operator may know about: says nothing about why."""
    return "The operator of this App decides who enters environments of this issue, and what becomes of them."


def render_no_keys(login: str) -> str:
    """`/ptq takeover` by somebody who could not be let in."""
    return (
        f"Nothing was taken over: GitHub has no public SSH key of @{login} that machines take (Ed25519, ECDSA, RSA, or "
        'one of a security key). Please add one in your settings, under "SSH and GPG keys", and ask again; or the '
        "operator of this App lets you in by another one, with `ptq-bot takeover --key`."
    )


def render_not_taken_over(why: str, secrets: Collection[str]) -> str:
    """`/ptq takeover` of what cannot be taken over; `why` may hold a machine's words."""
    return f"Nothing was taken over: {make_plain_line(why, secrets, 400)}."


def render_nothing_held() -> str:
    """`/ptq release` where nobody holds anything."""
    return "Nobody holds an environment of this issue, so there is nothing to release. `/ptq takeover` holds one."


def render_release_unclear() -> str:
    """`/ptq release` with words that mean nothing."""
    return (
        "Nothing was released: `/ptq release` has the edits collected, and `/ptq release drop` throws them away. "
        "Behind them nothing is read."
    )


def render_not_released(why: str, secrets: Collection[str]) -> str:
    """`/ptq release` of what cannot be released yet; `why` may hold a machine's words."""
    return f"Nothing was released: {make_plain_line(why, secrets, 400)}."


def render_released(person: str, collecting: Job | None, public_url: str) -> str:
    """`/ptq release`, heard: the job that collects what was edited, or None where that is dropped."""
    head = f"Nobody enters the environment any more that was held for `{person}`."
    if collecting is None:
        return f"{head} What was edited in it is dropped."
    attempt = link_job(public_url, collecting.id, f"attempt {collecting.attempt}")
    return f"{head} What was edited in it comes as {attempt}, whose report follows."
