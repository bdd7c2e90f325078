"""What a database saw happen to jobs and cases, written down by the database itself as it happens.

Triggers see every write, also one that goes round the code that means to note it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

TRIGGERS = """
CREATE TABLE seen_moves (number INTEGER PRIMARY KEY, subject TEXT, name TEXT, before TEXT, after TEXT);
CREATE TRIGGER see_job_made AFTER INSERT ON jobs BEGIN
    INSERT INTO seen_moves (subject, name, after) VALUES ('job', NEW.id, NEW.state);
END;
CREATE TRIGGER see_job_changed AFTER UPDATE ON jobs BEGIN
    INSERT INTO seen_moves (subject, name, before, after) VALUES ('job', NEW.id, OLD.state, NEW.state);
END;
CREATE TRIGGER see_case_made AFTER INSERT ON cases BEGIN
    INSERT INTO seen_moves (subject, name, after) VALUES ('case', NEW.key, NEW.state);
END;
CREATE TRIGGER see_case_moved AFTER UPDATE ON cases WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO seen_moves (subject, name, before, after) VALUES ('case', NEW.key, OLD.state, NEW.state);
END;
"""


class Witness:
    """Looks at a database of SQLite from beside the service."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript(TRIGGERS)
        self._read_up_to = 0

    def ask(self, query: str, *values: object) -> list[Mapping[str, Any]]:
        return [dict(row) for row in self._connection.execute(query, values)]

    def read_moves(self) -> list[Mapping[str, Any]]:
        """What has happened since the last look."""
        moves = self.ask("SELECT * FROM seen_moves WHERE number > ? ORDER BY number", self._read_up_to)
        self._read_up_to = moves[-1]["number"] if moves else self._read_up_to
        return moves

    def close(self) -> None:
        self._connection.close()


def check_moves(
    moves: Collection[Mapping[str, Any]],
    subject: str,
    first: str,
    legal: Collection[tuple[str, str]],
    *,
    may_change: Collection[str] = (),
) -> None:
    """Each begins in the `first` state, and goes on by `legal` moves alone.

    One that cannot move never changes, but in a state in which it `may_change`.
    """
    can_change = {before for before, _ in legal} | {*may_change}
    for seen in (seen for seen in moves if seen["subject"] == subject):
        before, after = seen["before"], seen["after"]
        if before is None:
            assert after == first, f"{subject} {seen['name']} began as {after}"
        elif before == after:
            assert before in can_change, f"{subject} {seen['name']} had ended as {before}, and was changed"
        else:
            assert (before, after) in legal, f"{subject} {seen['name']} went from {before} to {after}"
