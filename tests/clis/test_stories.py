"""The whole story with the real command lines of agents, against a scripted model on loopback (`make test-agents`)."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runner import store
from tests.support.clis import find_command
from tests.support.model_endpoint import Hang, ModelEndpoint, Refuse, Run, Say
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.agents

KINDS = ["claude", "codex", "pi"]
KEY = "sk-a-key-of-the-operators-1234567890"
WORK = Run(f"{sys.executable} -c {shlex.quote(WRITE_REPORT + FIX)}")


def describe_agent(kind: str, url: str, folder: Path) -> dict[str, Any]:
    """The `[agents.script]` table that leads one of them to the scripted model."""
    if kind == "claude":
        return {"env": {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}}
    if kind == "codex":
        provider = f'{{name="scripted", base_url="{url}/v1", wire_api="responses", env_key="MODEL_KEY"}}'
        settings = ["-c", 'model_provider="scripted"', "-c", f"model_providers.scripted={provider}"]
        return {"env": {"MODEL_KEY": KEY}, "args": settings, "model": "gpt-5.5"}
    model = {"id": "m", "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0}}
    provider_of_pi = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "MODEL_KEY", "models": [model]}
    (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider_of_pi}}))
    return {"env": {"MODEL_KEY": KEY, "PI_CODING_AGENT_DIR": str(folder)}, "model": "scripted/m"}


@asynccontextmanager
async def open_story(folder: Path, kind: str, *script: Any, more_toml: str = "") -> AsyncIterator[World]:
    async with ModelEndpoint(*script).running() as endpoint:
        (folder / "settings").mkdir()
        table = {"command": find_command(kind), **describe_agent(kind, endpoint.url, folder / "settings")}
        lines = [f'[agents.real]\nkind = "{kind}"']
        lines += [f"{name} = {json.dumps(value)}" for name, value in table.items() if name != "env"]
        lines += ["[agents.real.env]", *(f"{name} = {json.dumps(value)}" for name, value in table["env"].items())]
        toml = "\n".join([*lines, more_toml])
        async with open_world(folder, more_toml=toml, repository_agent="real") as world:
            await world.open_issue()
            await world.label()
            yield world


async def read_log(world: World) -> str:
    (job,) = await world.jobs()
    async with world.playground.service.context.db.read() as connection:
        return (await store.fetch_log(connection, job.id, "agent") or b"").decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_agent_goes_from_label_to_draft_pull_request(tmp_path: Path, kind: str) -> None:
    async with open_story(
        tmp_path, kind, WORK, Run("python -c 'import sys; print(sys.prefix)'; env"), Say("Done.")
    ) as world:
        assert "It is mended" in await world.wait_for_report()
        log = await read_log(world)
        assert "/venv" in log, "`python` is the job's own"
        assert "message_update" not in log
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        pull = await world.wait_for_pull()
        assert pull.draft
        assert "len(items), size" in world.git("show", f"{pull.head}:widgets/chunks.py")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_that_fails_is_told_as_that_whatever_the_exit_status(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, WORK, Refuse(400)) as world:
        report = await world.wait_for_report()
        assert "the agent's model failed" in report
        assert "It is mended" in report, "what it had found by then is there all the same"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_that_never_answers_ends_with_the_time_limit(tmp_path: Path, kind: str) -> None:
    async with open_story(tmp_path, kind, Hang(), more_toml="[limits]\ntimeout_s = 3\n") as world:
        assert "3 seconds, its time limit" in await world.wait_for_report()


async def test_codex_does_not_show_the_model_key_to_its_tools(tmp_path: Path) -> None:
    async with open_story(tmp_path, "codex", WORK, Run("env"), Say("Done.")) as world:
        await world.wait_for_report()
        log = await read_log(world)
        assert "PTQ_OUTPUT_DIR" in log
        assert KEY not in log
