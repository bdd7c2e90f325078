"""What an operator can follow in the log while the main story happens, and what must not stand there."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from bot.demo.playground import SECRET
from bot.demo.repository import NAME
from bot.observability.log import configure_logging
from tests.support.plain_logs import log_plainly
from tests.support.world import NOTE, open_world

pytestmark = pytest.mark.slow

IDS = {
    "job.queued": {"delivery", "installation", "repository", "issue", "case", "job"},
    "job.leased": {"repository", "issue", "case", "job", "machine"},
    "job.moved": {"repository", "issue", "case", "job", "machine"},
    "job.ended": {"repository", "issue", "case", "job", "machine"},
    "report.written": {"repository", "issue", "case", "job", "machine"},
    "reply.posted": {"repository", "issue", "case", "job", "comment"},
    "note.accepted": {"delivery", "installation", "repository", "case", "job"},
    "pull.opened": {"repository", "issue", "case", "job", "machine", "number"},
}
"""The steps of the story, and what each line says of whom it is about."""


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log as `ptq-bot serve` writes it."""
    stream, root = io.StringIO(), logging.getLogger()
    level = root.level
    with redirect_stderr(stream):
        # No secret is named here: one that is in the log would be seen, and not redacted.
        configure_logging(())
        (handler,) = root.handlers
        yield stream
    root.removeHandler(handler)
    root.setLevel(level)
    log_plainly()


async def test_every_step_of_the_story_is_a_line_with_its_ids_and_without_secrets(
    tmp_path: Path, written: io.StringIO
) -> None:
    async with open_world(tmp_path) as world:
        # A recovery that is still looking could answer the label before its webhook is worked.
        await world.wait(lambda: "recovery.finished" in written.getvalue() or None, "the first recovery's end")
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_pull()
        job = (await world.jobs())[0]
        minted = [call for call in world.github.exchanges if call.path.endswith("/access_tokens")]
    text = written.getvalue()
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    by_event = {line["event"]: line for line in lines if line.get("kind", "report") == "report"}
    whom = {"repository": NAME, "case": f"{NAME}#1", "job": job.id, "machine": "gpu-1"}
    for event, ids in IDS.items():
        line = by_event[event]
        assert {name for name in ids if line.get(name) is None} == set(), line
        assert {name: line[name] for name in whom if line.get(name)}.items() <= whom.items()
    tokens = [json.loads(call.response_body)["token"] for call in minted]
    assert tokens
    for secret in (*tokens, SECRET, *(tmp_path / "app.pem").read_text().splitlines()[1:-1]):
        assert secret not in text
    assert "[redacted]" not in text, "nothing had to be held back at the last moment"
    assert re.search(r"eyJ[A-Za-z0-9_-]{8,}\.", text) is None
