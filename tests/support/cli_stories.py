"""Stories and single runs with the real command lines of agents, against a scripted model on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.agents import AgentSpec, Launch, build_agent
from runner.agents import Run as AgentRun
from runner.agents.events import GOES_ON, AgentEvent, Tally
from runner.jobd.environment.home import SHOW_NOTICE
from runner.model.job import Job
from runner.rows import job_rows
from tests.support.clis import find_command
from tests.support.model_endpoint import Cut, ModelEndpoint, Refuse, Run, Say, Step
from tests.support.world import FIX, WRITE_REPORT, World, open_world

KINDS = ("claude", "codex", "pi")
KEY = "sk-a-key-of-the-operators-1234567890"
PATIENCE_S = 60.0
SESSION = "11111111-1111-4111-8111-111111111111"

WORK = Run(f"{sys.executable} -c {shlex.quote(WRITE_REPORT + FIX)}")
"""What every good run does."""


def describe_agent(kind: str, url: str, settings: Path) -> AgentSpec:
    """One of them, led to the scripted model."""
    command = tuple(find_command(kind))
    if kind == "claude":
        return AgentSpec("real", kind, command, (), {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY})
    if kind == "codex":
        provider = f'{{name="scripted", base_url="{url}/v1", wire_api="responses", env_key="MODEL_KEY"}}'
        lead = ("-c", 'model_provider="scripted"', "-c", f"model_providers.scripted={provider}")
        return AgentSpec("real", kind, command, lead, {"MODEL_KEY": KEY}, "gpt-5.5")
    model = {"id": "m", "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0}}
    provider_of_pi = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "MODEL_KEY", "models": [model]}
    settings.mkdir(exist_ok=True)
    (settings / "models.json").write_text(json.dumps({"providers": {"scripted": provider_of_pi}}))
    return AgentSpec("real", kind, command, (), {"MODEL_KEY": KEY, "PI_CODING_AGENT_DIR": str(settings)}, "scripted/m")


def describe_behind_gateway(kind: str, url: str, model: str | None, output_price: float) -> str:
    """One of them, without a key of its own, as tables of the configuration."""
    model = {"claude": model, "codex": model or "gpt-5.5", "pi": "scripted/m"}[kind]
    keys = {"kind": kind, "command": list(find_command(kind))} | ({"model": model} if model else {})
    gateway = {"url": url, "key": KEY} | ({"api": "openai-completions"} if kind == "pi" else {})
    price = {"input": 0, "cached": 0, "output": output_price}
    tables: Mapping[str, Mapping[str, Any]] = {
        "agents.real": keys,
        "agents.real.gateway": gateway,
        'prices."m"': price,
    }
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def render_toml(spec: AgentSpec) -> str:
    """The same as a table of the configuration."""
    keys = {"kind": spec.kind, "command": list(spec.command), "args": list(spec.args)}
    keys |= {"model": spec.model} if spec.model else {}
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    env = [f"{name} = {json.dumps(value)}" for name, value in spec.env.items()]
    return "\n".join(["[agents.real]", *lines, "[agents.real.env]", *env, ""])


@dataclass
class Story:
    """A whole installation whose agent is a real one."""

    world: World
    endpoint: ModelEndpoint

    async def read_log(self, job: Job) -> str:
        """What the agent printed, once its job has ended."""
        async with self.world.playground.service.context.db.read() as connection:
            return (await job_rows.fetch_log(connection, job.id, "agent") or b"").decode()

    async def read_meter(self, job: Job) -> Any:
        async with self.world.playground.service.context.db.read() as connection:
            return await job_rows.fetch_meter(connection, job.id)


@asynccontextmanager
async def open_story(
    folder: Path,
    kind: str,
    *script: Step,
    more_toml: str = "",
    repository_toml: str = "",
    base: Mapping[str, str] = {},
    gateway: bool = False,
    model: str | None = None,
    output_price: float = 2.0,
    label: bool = True,
    **options: Any,
) -> AsyncIterator[Story]:
    """An issue is open, and its label has been set."""
    async with ModelEndpoint(*script).running() as endpoint:
        toml = render_toml(describe_agent(kind, endpoint.url, folder / "settings"))
        toml = describe_behind_gateway(kind, endpoint.url, model, output_price) if gateway else toml
        toml += more_toml
        given = {"more_toml": toml, "repository_agent": "real", "repository_toml": repository_toml, **options}
        world_of = open_world(folder, on_real_machine=True, **given)
        async with world_of as world:
            story = Story(world, endpoint)
            if base:
                world.commit(base)
            await world.open_issue()
            if label:
                await world.label()
            yield story


# Single runs, without a service


@dataclass(frozen=True)
class Scenario:
    """What a model does, and what else happens to the run."""

    script: Sequence[Step]
    run: AgentRun = field(default_factory=lambda: AgentRun(SESSION))
    without: tuple[str, ...] = ()
    """Arguments of ours that are left out."""
    more: tuple[str, ...] = ()
    """Arguments behind ours."""
    signal: int | None = None
    """Sent once a tool is at work."""
    notice: str = ""
    """What the service has to say, while the model thinks about its second answer."""
    told: str = ""
    """What a second process is told, which resumes the session of the first one."""


AT_WORK = Run("touch at-work; sleep 20")

SCENARIOS: Mapping[str, Scenario] = {
    "finished": Scenario([Run("echo hello"), Say("All done.")]),
    "refused_twice": Scenario([Refuse(529, times=2), Run("echo hello"), Say("All done.")]),
    "cut_once": Scenario([Cut(times=1), Run("echo hello"), Say("All done.")]),
    "cut_midway": Scenario([Cut(times=1, after=3), Run("echo hello"), Say("All done.")]),
    "model_failed": Scenario([Refuse(400)]),
    "model_failed_later": Scenario([Run("echo hello"), Refuse(400)]),
    "denied": Scenario([Run("touch hello"), Say("All done.")], without=("--dangerously-skip-permissions",)),
    "max_turns": Scenario([Run("echo one"), Run("echo two"), Say("All done.")], AgentRun(SESSION, max_turns=1)),
    "max_budget": Scenario([Run("echo one"), Run("echo two"), Say("All done.")], AgentRun(SESSION, max_cost_usd=0.01)),
    "interrupted": Scenario([AT_WORK, Say("All done.")], signal=signal.SIGINT),
    "terminated": Scenario([AT_WORK, Say("All done.")], signal=signal.SIGTERM),
    "killed": Scenario([AT_WORK, Say("All done.")], signal=signal.SIGKILL),
}


@dataclass(frozen=True)
class Ended:
    """A single run that is over."""

    exit_status: int
    lines: list[str]
    requests: list[dict[str, Any]]
    home: Path
    worktree: Path
    kind: str

    def events(self) -> list[AgentEvent]:
        agent = build_agent(AgentSpec("real", self.kind))
        return [event for line in self.lines for event in agent.read_line(line)]


async def run_scenario(folder: Path, kind: str, scenario: Scenario, plant: Mapping[str, str] = {}) -> Ended:
    """Run one of them by itself, as its backend says it should be run."""
    home, worktree = folder / "home", folder / "worktree"
    home.mkdir()
    worktree.mkdir()
    for name, text in plant.items():
        path = (home if name.startswith("~/") else worktree) / name.removeprefix("~/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    async with ModelEndpoint(*scenario.script).running() as endpoint:
        spec = describe_agent(kind, endpoint.url, folder / "settings")
        spec = replace(spec, args=(*spec.args, *scenario.more))
        agent, run = build_agent(spec), scenario.run
        notice = folder / "notice"
        endpoint.on_request = lambda number: _tell(notice, scenario.notice) if number == 2 else None
        for name in (".profile", ".bash_env"):
            (home / name).write_text(SHOW_NOTICE)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PTQ_NOTICE_FILE": str(notice)}
        env |= {"BASH_ENV": str(home / ".bash_env")}
        lines: list[str] = []
        for words in ("Do it.", *([scenario.told] if scenario.told else [])):
            launch = agent.launch(run)
            process = await asyncio.create_subprocess_exec(
                *_leave_out(_place(launch, home, worktree), scenario.without),
                cwd=worktree,
                env={**env, **launch.env},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=2**24,
                start_new_session=True,
            )
            ended = asyncio.create_task(process.communicate(words.encode()))
            if scenario.signal and not run.resumes:
                await _wait_for(worktree / "at-work")
                os.killpg(process.pid, scenario.signal)
            async with asyncio.timeout(PATIENCE_S):
                output, _ = await ended
            lines += [GOES_ON] if run.resumes else []
            lines += output.decode(errors="replace").splitlines()
            told = Tally().add(event for line in lines for event in agent.read_line(line))
            run = replace(run, resumes=told.session_id or "")
        status = process.returncode or 0
        return Ended(128 - status if status < 0 else status, lines, endpoint.requests, home, worktree, kind)


def _place(launch: Launch, home: Path, worktree: Path) -> list[str]:
    """Lay out what the machine-side program would, and give the command line."""
    slug = re.sub(r"[^A-Za-z0-9]", "-", str(worktree))
    for name, content in launch.files.items():
        path = home / name.replace("{worktree}", slug)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [re.sub(r"^\{home\}", str(home), word) for word in launch.argv]


def _leave_out(argv: Sequence[str], without: Sequence[str]) -> list[str]:
    """The words but for some options; one that ends in `=` goes with the word behind it."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if f"{word}=" in without:
            next(words)
        elif word not in without:
            kept.append(word)
    return kept


def _tell(path: Path, text: str) -> None:
    if text:
        path.write_text(text)


async def _wait_for(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():
            await asyncio.sleep(0.05)


__all__ = ["AT_WORK", "KEY", "KINDS", "SCENARIOS", "WORK", "Scenario", "Story", "open_story", "replace", "run_scenario"]
