"""What maintainers tell a running agent. Each message reaches it once, in order.

The service stores numbered messages (verb `tell`), and the stage `agent` gives those that it has not given yet to the
next process of the agent's session. One lock decides whether a message comes before the end of the stage. If it does,
the agent gets the message. If not, the service gets the answer that it was not taken. So a service that was killed can
ask again without harm.

To deliver a message, the agent's current process is ended. If that process has not read its input yet, the input is
lost. The log shows the service whether the process has read it. So a message names the process that it is meant for,
and is refused if another process runs by now.

A message without a command line is for an agent whose sessions cannot be resumed: it is added to a file that the agent
reads.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..files import JobPaths, open_plain, read_json, require_folders, write_file
from .tombstone import not_ended

STAGE = "agent"

GOES_ON = "[Somebody has told the agent something. Its session goes on.]"
"""The line of the log between two processes of a session."""


class Messages(NamedTuple):
    """Messages for the next process of a session."""

    argv: Sequence[str]
    """The command line that resumes the session."""
    prompt: str
    numbers: Sequence[int]


def tell(request: Mapping[str, Any]) -> dict[str, Any]:
    """Store a message for the agent, only once. `taken` in the answer says whether the message was accepted.

    It is refused if the agent has not begun or has ended, or if the agent's session has another process by now.
    """
    job, number = JobPaths(request), request["number"]
    with not_ended(job):
        if not job.of_stage(STAGE, "request").exists():
            return {"taken": False}
        with _open(job) as book:
            if number <= count_left(job, book):
                return {"taken": True}
            if book.get("is_closed") or job.of_stage(STAGE, "json").exists():
                return {"taken": False}
            if request["argv"] and request["process"] != book.get("process", 0):
                return {"taken": False}
            book["messages"] = [*book.get("messages", ()), {name: request[name] for name in ("number", "text", "argv")}]
            if not request["argv"]:
                _show(job, book["messages"])
                book["given"] = number
            _save(job, book)
    return {"taken": True}


def count_given(job: JobPaths) -> int:
    """The number of the last message that the agent got. The first ones were part of its prompt."""
    in_prompt: int = read_json(job.of_stage(STAGE, "request")).get("told", 0)
    in_book: int = read_json(job.told_book).get("given", 0)
    return max(in_prompt, in_book)


def count_left(job: JobPaths, book: Mapping[str, Any]) -> int:
    """The number of the last message that was stored for the agent."""
    last: int = book["messages"][-1]["number"] if book.get("messages") else 0
    return max(count_given(job), last)


def is_told(job: JobPaths) -> bool:
    """Whether there is a message that the agent has not got. Called very often."""
    messages: list[dict[str, Any]] = read_json(job.told_book).get("messages", [])
    return bool(messages) and messages[-1]["number"] > count_given(job)


def take_messages(job: JobPaths, *, is_over: bool) -> Messages | None:
    """Take the messages that the agent has not got, and record them as given.

    Returns None if there are none, or if the run `is_over`. After that, no further message is accepted.
    """
    with _open(job) as book:
        given = count_given(job)
        new = [message for message in book.get("messages", ()) if message["number"] > given]
        if is_over or not new:
            _save(job, {**book, "is_closed": True})
            return None
        numbers = [message["number"] for message in new]
        _save(job, {**book, "given": numbers[-1], "process": book.get("process", 0) + 1})
        return Messages(new[-1]["argv"], "\n".join(message["text"] for message in new), numbers)


def put_back(job: JobPaths, messages: Messages) -> None:
    """Record that the agent did not get these messages, because no process could be started for them.

    No further message is accepted.
    """
    with _open(job) as book:
        _save(job, {**book, "given": messages.numbers[0] - 1, "is_closed": True})


def _show(job: JobPaths, messages: Sequence[Mapping[str, Any]]) -> None:
    """Write all messages to the file that the agent reads. Writing it again changes nothing."""
    require_folders(job.root)
    write_file(job.told, "\n".join(message["text"] for message in messages))


@contextmanager
def _open(job: JobPaths) -> Iterator[dict[str, Any]]:
    """The messages so far, which nobody else changes inside the block."""
    with open(job.told_book.with_suffix(".lock"), "a", opener=open_plain) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_json(job.told_book)


def _save(job: JobPaths, book: Mapping[str, Any]) -> None:
    write_file(job.told_book, json.dumps(book))
