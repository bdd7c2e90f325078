"""How git fetches what only the service may: by a relay, which it is told of in its environment, while a command runs.

Nothing of that is on a command line, which everybody on a machine can read, or in a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..files import Failure
from ..proxy.relay import Relay, fill_in
from ..stages.stage import Stage

TRIES, PAUSE_S = 4, 1.0
"""At one fetch, and in between, unless a request has a `fetch_pause_s`. Each may wait as long as the relay does."""

CUT = (
    *("early EOF", "unexpected disconnect", "Connection reset", "Recv failure", "Empty reply", "transfer closed"),
    *("the remote end hung up", "requested URL returned error: 50"),
)
"""How git says that a connection was broken off, or that nobody could answer it just now."""

WANTS_LOGIN = "could not read Username"
"""What git says where a server gives a repository to nobody without a name."""

UNNAMED = (
    "\nA private repository beside the job's own comes by the gateway where `private_repositories` of the repository's "
    "table names it, as it is written there (docs/gateway.md)."
)


class Led(NamedTuple):
    """What a command gets by which git finds its way."""

    env: Mapping[str, str]
    start_beside: Callable[[], None] | None
    """Starts the relay, where there is one."""


def lead_git(stage: Stage) -> Led:
    """The way for the next command of a stage that makes an environment. Raises `Failure` where it is not there."""
    request = stage.request
    if "git" not in request:  # Nothing is to be fetched any more.
        return Led({}, None)
    # Not in a network of its own: what makes an environment has the machine's.
    relay = Relay(stage.job, has_network=True) if request["relay"] else None
    return Led({name: fill_in(value, relay) for name, value in request["git"].items()}, relay.start if relay else None)


def must_fetch(
    stage: Stage, name: str, what: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, *, in_cell: bool = True
) -> None:
    """Run a git command that fetches, once more where the service was cut off meanwhile. Raises `Failure`."""
    for tries_left in reversed(range(TRIES)):
        more, start_beside = lead_git(stage)
        try:
            stage.must(name, what, argv, {**env, **more}, cwd, in_cell=in_cell, start_beside=start_beside)
        except Failure as failure:
            was_cut = any(words in failure.message for words in CUT)
            if not more or not was_cut or not tries_left or time.monotonic() > stage.deadline:
                raise explain(failure) if more else failure from None
        else:
            return
        stage.log.write(b"[the service was cut off meanwhile: once more]\n")
        time.sleep(stage.request.get("fetch_pause_s", PAUSE_S))


def explain(failure: Failure) -> Failure:
    """The failure, with what to do about it where that is known."""
    return Failure(failure.name, failure.message + UNNAMED) if WANTS_LOGIN in failure.message else failure
