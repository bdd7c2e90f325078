from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.compiled_statements import share_compiled_statements
from tests.support.compiled_templates import share_compiled_templates
from tests.support.plain_logs import log_plainly
from tests.support.sshd import find_sshd

SEEN_BY_JOBS = Path("/srv/ptq-tests")
"""Agents of these tests leave signs in folders of the tests. Of /tmp, /var/tmp and the home a job sees only its own."""


def find_temporary_root() -> Path:
    """Where tests have their folders: best where jobs see them, too. An account that is not root may not make that."""
    with suppress(OSError):
        SEEN_BY_JOBS.mkdir(parents=True, exist_ok=True)
    return SEEN_BY_JOBS if os.access(SEEN_BY_JOBS, os.W_OK) else Path("/var/tmp")


os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(find_temporary_root()))

# The `python` of a version manager is a shell script that starts ten programs before Python. Jobs look for `python`.
_FOLDERS = [folder for folder in os.environ["PATH"].split(":") if Path(folder).name != "shims"]
os.environ["PATH"] = ":".join([str(Path(sys.executable).resolve().parent), *_FOLDERS])

# Deadlines and this check would measure the machine, not the code: other work on it makes any example take long.
settings.register_profile("ptq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ptq")

log_plainly()
share_compiled_statements()
share_compiled_templates()

pytest.register_assert_rewrite("tests.crash.whole_story")

pytest_plugins = ["tests.support.machines", "tests.support.postgres", "tests.crash.matrix", "tests.support.browser"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long tests, so that no worker is left alone with one in the end."""
    items.sort(key=find_seconds, reverse=True)


def find_seconds(item: pytest.Item) -> float:
    """The seconds in a test's marker `slow`: 1 if it has no number, and 0 without the marker."""
    marker = item.get_closest_marker("slow")
    return 0.0 if marker is None else next(iter(marker.args), 1.0)


gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of garbage collections, which are fewer than usual."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_sshd() is None:
        terminalreporter.write_line("sshd is missing: what needs OpenSSH's server was skipped (package openssh-server)")
