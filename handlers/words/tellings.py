"""The sentences about messages to a running agent, for threads, pages and terminals. Pure.

The sentences have no Markdown except code. Commands in them are in code, so they are not carried out
(`handlers.words.replies`).
"""

from __future__ import annotations

from handlers.addresses import link_job
from runner.model.job import Job, JobKind, JobState

RETRY = "`/ptq retry`, followed by your words, starts another attempt with them."
"""How to continue in a thread if it is too late for a message to an agent."""


def render_told(job: Job, public_url: str) -> str:
    """The reply to an accepted message."""
    page = f" · {link_job(public_url, job.id, 'job')}" if public_url else ""
    return f"{say_told(job)}{page}"


def say_told(job: Job, where: str = "the report") -> str:
    """When the agent gets the message. `where` names the place that says if the agent did not get it."""
    if job.state is JobState.RUNNING:
        return (
            "Noted. The agent gets your message when its current command finishes. If the command does not finish "
            f"within one minute, it is stopped. If the agent ends before it gets the message, {where} says so."
        )
    if job.kind is JobKind.REBASE:
        return "Noted. If there are conflicts, the agent gets your message together with its instructions."
    return "Noted. The agent gets your message together with its instructions."


def say_no_words() -> str:
    """The message is empty."""
    return "Not sent: the message is empty. Say what the agent should know or do."


def say_too_long(limit: int) -> str:
    """The message is longer than `limit` characters."""
    return f"Not sent: a message can have up to {limit:,} characters."


def say_too_many(limit: int) -> str:
    """The job already has `limit` messages."""
    return f"Not sent: this job already has {limit} messages, the most for one job."


def say_ended() -> str:
    """No job is active."""
    return "Not sent: no agent is running."


def say_ending() -> str:
    """The job is being cancelled, or its agent is being stopped."""
    return "Not sent: the agent is being stopped."


def say_at_result() -> str:
    """The agent has ended, and its result is being collected or verified."""
    return "Not sent: the agent has finished, and its result is being checked."


def say_no_agent() -> str:
    """The job is of a kind without an agent."""
    return "Not sent: no agent works in this job."
