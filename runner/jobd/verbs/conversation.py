"""Answers many requests in one process while the connection is open: a process for each request would cost far more.

Each line of standard input is a number and a request; each line of standard output is the same number and the answer.
A request that waits does not delay others: answers come when they are ready. The only verb is `poll`.
"""

from __future__ import annotations

import json
import os
import select
from typing import Any

from ..files import failure_answer, respond, write_all
from ..requests import read_request
from ..stages.states import LOOK_S, PollRequest

IDLE_S = 600.0
"""The process ends after this time without a request, because the other side may be gone without notice."""

MAX_REQUEST = 100_000
"""The size limit of a request, in bytes."""


def converse() -> None:
    """Answer requests until no more can come."""
    waiting: dict[bytes, PollRequest] = {}
    unread = b""
    while True:
        if select.select([0], [], [], LOOK_S if waiting else IDLE_S)[0]:
            data = os.read(0, MAX_REQUEST)
            *lines, unread = (unread + data).split(b"\n")
            if not data or len(unread) > MAX_REQUEST:
                return
            for line in lines:
                number, _, body = line.partition(b" ")
                try:
                    waiting[number] = PollRequest(read_request("poll", body))
                except Exception as error:
                    write_answer(number, failure_answer(error))
        elif not waiting:
            return
        for number in [number for number, request in waiting.items() if request.is_ready()]:
            write_answer(number, respond(waiting.pop(number).answer))


def write_answer(number: bytes, answer: dict[str, Any]) -> None:
    """Write the line of one answer."""
    write_all(1, number + b" " + json.dumps(answer).encode() + b"\n")
