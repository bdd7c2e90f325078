"""A new operator sets ptq-bot up by its pages alone, against the stand-in, and gets a first report."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bot.app import Service
from bot.config.settings import load_settings
from bot.demo.playground import PACE
from bot.demo.tryout import Tryout
from tests.support.installer import open_setup
from tests.support.openapi import load_openapi
from tests.support.world import PATIENCE_S

pytestmark = pytest.mark.slow


async def test_from_nothing_to_a_first_report_by_the_pages_alone(tmp_path: Path, unused_tcp_port: int) -> None:
    config = tmp_path / "here" / "ptq.toml"
    async with Tryout(tmp_path / "tryout") as tryout:
        tryout.github.observers.append(load_openapi().check)
        async with open_setup(config.parent) as operator:
            await operator.create_app(tryout.github.url)
            await operator.choose_repository(tryout.github.url)
            looked = await operator.look_at(tryout)
            await operator.post("/machines/confirm", {"host_key": looked.hidden("host_key")})
            await operator.add_agent(sys.executable)
            await operator.post("/finish/write")
            await operator.post("/finish/end")
        # The port that set-up proposes may be somebody's, where tests run side by side.
        text = config.read_text().replace("port = 8080", f"port = {unused_tcp_port}")
        config.write_text(text.replace("verify = {", "verify = { runs = 0,"))  # That takes its time elsewhere.
        async with Service(load_settings(config), PACE) as service:
            tryout.github.webhook_url = f"{service.url}/webhook"
            async with asyncio.timeout(PATIENCE_S):
                await tryout.label_once_it_answers()
                address = await tryout.wait_for_report()
        report = next(
            comment.body
            for comment in tryout.github.issue("octo/widgets", tryout.number).comments
            if address.endswith(f"#issuecomment-{comment.id}")
        )
        assert "### Fix staged" in report
        assert load_settings(config).dashboard.operators == {"maintainer"}, "the owner of the App"
        assert "+    for start in range(0, len(items), size):" in report
        assert tryout.github.complaints == []
