"""How much work a call is, in seconds of this process's CPU: other work on the machine counts for little."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Work = Callable[[], object]


def measure_cpu(work: Work, runs: int = 3) -> float:
    """Seconds of CPU of the fastest of some runs."""
    with no_garbage_collection():
        return min(_measure_once(work) for _ in range(runs))


def takes_at_most(factor: float, short: Work, long: Work) -> bool:
    """Whether the long work takes at most this many times as long as the short one, in one of five comparisons."""
    return any(_is_within(factor, short, long) for _ in range(5))


def _is_within(factor: float, short: Work, long: Work) -> bool:
    """The short work is measured before and after: a machine that is slow for a moment must not hide a fault."""
    before, took, after = measure_cpu(short, 2), measure_cpu(long, 1), measure_cpu(short, 2)
    return took <= factor * min(before, after)


def measure_longest_call(work: Work, runs: int = 3) -> float:
    """Seconds of CPU of the longest call into C, without what that calls in Python: no other thread runs meanwhile.

    The shortest of some runs counts, because the kernel sometimes takes long to find memory.
    """
    return min(_measure_longest_call_once(work) for _ in range(runs))


def _measure_longest_call_once(work: Work) -> float:
    last, longest = time.thread_time(), 0.0

    def look(frame: FrameType, event: str, called: object) -> None:
        nonlocal last, longest
        now = time.thread_time()
        if event == "c_return":
            longest = max(longest, now - last)
        last = now

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return longest


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """The collector looks at all objects of all tests that ran before, which takes a second or more."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _measure_once(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
