"""Lets git fetch through the service: a relay carries its requests, and git's environment names that relay.

Other users of the machine cannot see git's access, because it is neither on a command line nor in a file.
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
"""Attempts per fetch, and the pause between them, unless the request sets `fetch_pause_s`.

In addition, the relay holds connections while the service is away.
"""

CONNECTION_ERRORS = (
    *("early EOF", "unexpected disconnect", "Connection reset", "Recv failure", "Empty reply", "transfer closed"),
    *("the remote end hung up", "requested URL returned error: 50"),
)
"""Git's messages for a connection that was cut, or for a server that is temporarily unavailable."""

WANTS_LOGIN = "could not read Username"
"""Git's message for a repository that needs a login."""

PRIVATE_REPOSITORY_HINT = (
    "\nTo use another private repository, list it in `private_repositories` of the repository's table, with exactly "
    "this URL (docs/gateway.md)."
)


class GitAccess(NamedTuple):
    """What a command needs for git to reach the service."""

    env: Mapping[str, str]
    start_beside: Callable[[], None] | None
    """Starts the relay, if there is one."""


def find_git_access(stage: Stage) -> GitAccess:
    """Git's access for the next command of a stage. Raises `Failure` if the relay that it needs is not set up."""
    request = stage.request
    if "git" not in request:  # Stages that make no environment fetch nothing.
        return GitAccess({}, None)
    # Stages that make an environment use the machine's network.
    relay = Relay(stage.job, has_network=True) if request["relay"] else None
    return GitAccess(
        {name: fill_in(value, relay) for name, value in request["git"].items()}, relay.start if relay else None
    )


def must_fetch(
    stage: Stage,
    name: str,
    what: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    in_sandbox: bool = True,
) -> None:
    """Run a git command that fetches; repeat it if the connection to the service was cut. Raises `Failure`."""
    for tries_left in reversed(range(TRIES)):
        more, start_beside = find_git_access(stage)
        try:
            stage.must(name, what, argv, {**env, **more}, cwd, in_sandbox=in_sandbox, start_beside=start_beside)
        except Failure as failure:
            was_cut = any(words in failure.message for words in CONNECTION_ERRORS)
            if not more or not was_cut or not tries_left or time.monotonic() > stage.deadline:
                raise explain(failure) if more else failure from None
        else:
            return
        stage.say(f"The connection to the service was cut. Tries left: {tries_left}.")
        time.sleep(stage.request.get("fetch_pause_s", PAUSE_S))


def explain(failure: Failure) -> Failure:
    """The failure, with advice if there is any."""
    return (
        Failure(failure.name, failure.message + PRIVATE_REPOSITORY_HINT) if WANTS_LOGIN in failure.message else failure
    )
