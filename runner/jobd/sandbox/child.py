"""Does work in a child process, so that it changes nothing in this one, and closes what a child must not keep open."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..files import write_all

ANSWER = 3
"""The descriptor to which a child of `ask_child` writes its answer."""


def ask_child(find_out: Callable[[], Any]) -> Any:
    """What `find_out` returns in a child process, so that it changes nothing in this one. None if it raises or dies.

    The returned value must fit into JSON. The child inherits only the standard descriptors. Raises `OSError` if there
    is no room for another process.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        try:
            child = os.fork()
            if not child:
                with suppress(BaseException):
                    if writer != ANSWER:
                        os.dup2(writer, ANSWER, inheritable=False)
                    close_others()
                    write_all(ANSWER, json.dumps(find_out()).encode())
                os._exit(0)
        finally:
            os.close(writer)
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def close_others() -> None:
    """In a child of `ask_child`, close all descriptors except the standard ones and the one for the answer."""
    close_all({*list_descriptors()} - {0, 1, 2, ANSWER})


def list_descriptors() -> list[int]:
    """The open descriptors of this process, and one that was open only while the list was made."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors. Some may be closed already."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
