"""Many questions to one process, for as long as somebody holds it open: to start one for each would cost far more.

A line of standard input is a question behind its number, a line of standard output is the answer behind the same. One
that waits for something new holds up no other: answers come when they are ready. It knows one verb, `poll`.
"""

from __future__ import annotations

import json
import os
import select
from typing import Any

from ..files import refuse, respond
from ..requests import read_request
from ..stages.states import LOOK_S, Question

IDLE_S = 600.0
"""After so long without a question it ends: the other side may be gone without a word."""

MAX_QUESTION = 100_000
"""Bytes of a question."""


def converse() -> None:
    """Answer until there will be no more questions."""
    waiting: dict[bytes, Question] = {}
    unread = b""
    while True:
        if select.select([0], [], [], LOOK_S if waiting else IDLE_S)[0]:
            data = os.read(0, MAX_QUESTION)
            *lines, unread = (unread + data).split(b"\n")
            if not data or len(unread) > MAX_QUESTION:
                return
            for line in lines:
                number, _, body = line.partition(b" ")
                try:
                    waiting[number] = Question(read_request("poll", body))
                except Exception as fault:
                    say(number, refuse(fault))
        elif not waiting:
            return
        for number in [number for number, question in waiting.items() if question.is_ready()]:
            say(number, respond(waiting.pop(number).answer))


def say(number: bytes, answer: dict[str, Any]) -> None:
    """Write one line."""
    left = memoryview(number + b" " + json.dumps(answer).encode() + b"\n")
    while left:
        left = left[os.write(1, left) :]
