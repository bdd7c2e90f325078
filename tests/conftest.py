from __future__ import annotations

import os

import pytest
import structlog
from hypothesis import settings

from tests.support.sshd import find_sshd

# Not /tmp, which a job sees as its own: agents of these tests leave signs in folders of the tests.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")

# A deadline would measure the machine, not the code: other work on it makes any example take long.
settings.register_profile("ptq", deadline=None)
settings.load_profile("ptq")

# As long as a test configures no logs of its own: a coloured traceback with all local values takes tenths of a second.
_CONSOLE = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _CONSOLE])

pytest_plugins = ["tests.support.machines", "tests.support.postgres", "tests.crash.matrix", "tests.support.browser"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long tests, so that no worker is left alone with one in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_sshd() is None:
        terminalreporter.write_line("sshd is missing: what needs OpenSSH's server was skipped (package openssh-server)")
