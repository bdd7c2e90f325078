"""Where the service touches the world: every commit, every HTTP request and every SSH operation, as it happens.

Loaded into the service's own process, by `tests.crash.stoppable`. The parts do their work as ever: each call is only
announced, before it and after it. It refuses to know what comes of an announcement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import aiohttp
import asyncssh
from sqlalchemy import Engine, Table, event
from sqlalchemy.engine.default import DefaultDialect
from yarl import URL

from github_standin.api.endpoints import find_endpoint, find_path
from runner.db.group_commit import GroupCommit
from runner.db.relaxed_commit import RelaxedCommit
from runner.transport import hosts

Announce = Callable[[str, str], None]
"""Called with when (`before`, `sent` or `after`) and with the name of what is done."""

Result = TypeVar("Result")

WRITTEN = "written"
"""Where a connection keeps what its transaction has written so far."""


def watch_edges(announce: Announce) -> None:
    """Announce every crossing from now on, for as long as the process lives."""
    _watch_commits(announce)
    _watch_requests(announce)
    _watch_machines(announce)


def _surround(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have `around` called in place of a function, which becomes its first argument."""
    inner = getattr(owner, name)

    @wraps(inner)
    def called(*arguments: Any, **options: Any) -> Any:
        return around(inner, *arguments, **options)

    setattr(owner, name, called)


async def _announced(announce: Announce, name: str, work: Awaitable[Result]) -> Result:
    announce("before", name)
    try:
        return await work
    finally:
        announce("after", name)


# The database


def _watch_commits(announce: Announce) -> None:
    def announced(commit: Callable[..., None], dialect: DefaultDialect, connection: Any) -> None:
        written = connection.info.pop(WRITTEN, None)
        if not written:
            return commit(dialect, connection)
        name = f"commit {' + '.join(dict.fromkeys(written))}"
        announce("before", name)
        commit(dialect, connection)
        return announce("after", name)

    event.listen(Engine, "begin", lambda connection: connection.info.pop(WRITTEN, None))
    event.listen(Engine, "before_cursor_execute", _note_statement)
    _surround(DefaultDialect, "do_commit", announced)

    def insert_announced(
        insert: Any, commits: GroupCommit | RelaxedCommit, table: Table, *rest: Any, **named: Any
    ) -> Awaitable[Any]:
        inserting: Awaitable[Any] = insert(commits, table, *rest, **named)
        if not commits._db.is_embedded:  # A transaction, whose commit is announced.
            return inserting
        return _announced(announce, f"commit insert {table.name}", inserting)

    _surround(GroupCommit, "insert", insert_announced)
    _surround(RelaxedCommit, "insert", insert_announced)


def _note_statement(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if words := describe_statement(statement):
        connection.info.setdefault(WRITTEN, []).append(words)


def describe_statement(statement: str) -> str:
    """What a statement writes, without its values; nothing for one that only reads."""
    words = re.split(r"[\s(]+", statement.strip(), maxsplit=3)
    match words[0].upper():
        case "INSERT" | "DELETE":
            return f"{words[0].lower()} {words[2]}"
        case "UPDATE":
            columns = re.findall(r"(\w+)=", statement.partition(" SET ")[2].partition(" WHERE ")[0])
            return f"update {words[1]}({', '.join(columns)})"
        case "CREATE" | "ALTER" | "DROP":
            return "make the tables"
    return ""


# GitHub, and whoever else is spoken to over HTTP


def _watch_requests(announce: Announce) -> None:
    def announced(request: Any, session: Any, method: str, url: Any, **options: Any) -> Awaitable[Any]:
        return _announced(announce, name_request(method, str(url)), request(session, method, url, **options))

    _surround(aiohttp.ClientSession, "_request", announced)


def name_request(method: str, url: str) -> str:
    """A request by GitHub's name of its endpoint, which is the same for all issues."""
    found = find_endpoint(method, find_path(URL(url).raw_path))
    return f"{method} {found[0].path if found else 'elsewhere'}"


# Machines

_running: ContextVar[str | None] = ContextVar("running", default=None)


def _watch_machines(announce: Announce) -> None:
    async def run_announced(run: Any, host: Any, argv: list[str], **options: Any) -> Any:
        name = name_operation(argv, options.get("stdin", b""))
        token = _running.set(name)
        try:
            return await _announced(announce, name, run(host, argv, **options))
        finally:
            _running.reset(token)

    def write_eof_announced(write_eof: Any, channel: Any) -> None:
        write_eof(channel)
        if name := _running.get():
            announce("sent", name)

    _surround(hosts.SshHost, "run", run_announced)
    _surround(hosts, "connect", lambda connect, *given: _announced(announce, "ssh: connect", connect(*given)))
    _surround(asyncssh.SSHClientChannel, "write_eof", write_eof_announced)


def name_operation(argv: list[str], stdin: bytes) -> str:
    """A command for a machine by the verb of our program there."""
    if "-c" in argv:
        return "ssh: install"
    stage = json.loads(stdin).get("stage", "") if argv[-1] == "poll" else ""
    return f"ssh: {argv[-1]} {stage}".strip()
