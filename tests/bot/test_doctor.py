"""`ptq-bot doctor` on a working installation, and on many that are broken on purpose."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from bot.config.manifest import load_manifest
from bot.demo.loopback import find_free_port
from bot.demo.playground import SECRET
from bot.demo.repository import NAME
from bot.doctor.examination import examine
from bot.doctor.findings import DoctorVerdict, Finding, has_failed
from github_standin.model.registration import make_key
from runner.db.schema import enabled_repositories
from tests.support import program
from tests.support.doctor_models import make_models
from tests.support.forwarder import open_forwarder
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow

MANIFEST = load_manifest()
WORKFLOW = "on: push\njobs:\n  test:\n    steps:\n      - run: ./deploy\n        env: {KEY: '${{ secrets.KEY }}'}\n"


@dataclass(frozen=True, slots=True)
class Broken:
    """One fault, and the finding that the doctor must report."""

    about: str
    check: str
    words: str
    edits: tuple[tuple[str, str], ...] = ()
    """Of `ptq.toml`; PORT stands for one on which nobody listens."""
    breaks: Callable[[World], Awaitable[None] | None] = field(default=lambda world: None)
    verdict: DoctorVerdict = DoctorVerdict.FAILED
    follows: tuple[tuple[str, str], ...] = ()
    """What else fails by it, as part and check."""
    private: bool = False
    """Whether the repository is."""


def edit(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((old, new),)


def lacks_contents(world: World) -> None:
    world.playground.github.change_app(permissions={**MANIFEST.permissions, "contents": "read"})


def may_administrate(world: World) -> None:
    world.playground.github.change_app(permissions={**MANIFEST.permissions, "administration": "write"})


def hears_no_comments(world: World) -> None:
    world.playground.github.change_app(events=["issues"])


def is_sent_elsewhere(world: World) -> None:
    world.playground.github.webhook_url = "https://old.example/webhook"


def is_sent_nothing(world: World) -> None:
    world.playground.github.webhook_url = None


async def signs_otherwise(world: World) -> None:
    await world.playground.stop_service()
    text = world.playground.config.read_text()
    world.playground.config.write_text(text.replace(SECRET, "another secret"))
    await world.playground.start_service()
    await world.github.ping()


async def is_down(world: World) -> None:
    await world.playground.stop_service()
    await world.github.ping()


def has_another_key(world: World) -> None:
    (world.playground.folder / "app.pem").write_text(make_key()[0])


def has_broken_rules(world: World) -> None:
    world.commit({".github/ptq.toml": 'who_may_start = "everybody"\n'})


def has_open_workflow(world: World) -> None:
    world.commit({".github/workflows/deploy.yml": WORKFLOW})


def has_few_calls_left(world: World) -> None:
    world.playground.github.spend_calls(NAME, 4_600)


def has_no_calls_left(world: World) -> None:
    world.playground.github.spend_calls(NAME, 5_000)


def generate_key(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)


def has_another_host_key(world: World) -> None:
    ssh = world.playground.ssh
    key = Path(ssh.client_key_file).with_name("another")
    generate_key(key)
    kind, public, *_ = key.with_suffix(".pub").read_text().split()
    ssh.known_hosts_file.write_text(f"[127.0.0.1]:{ssh.port} {kind} {public}\n")


def has_another_client_key(world: World) -> None:
    key = world.playground.ssh.client_key_file
    key.unlink()
    generate_key(key)


def has_a_strangers_database(world: World) -> None:
    with sqlite3.connect(world.playground.folder / "other.db") as connection:
        connection.execute("CREATE TABLE somebodys (id)")
    (world.playground.folder / "other.db").chmod(0o600)


def has_a_file(world: World) -> None:
    (world.playground.folder / "file").touch()


AGENT = '[agents.script]\nkind = "command"'
MODELS = '[agents.models]\nkind = "claude"\ngateway = {{ url = "{url}", key = "k3y-k3y-k3y" }}\n\n'

NOT_INSTALLED = ((f"repository {NAME}", "installed"),)
NOT_LOOKED_AT = ((f"repository {NAME}", "reachable"),)

BROKEN = {
    "a key that is none": Broken("configuration", "ptq.toml", "did you mean slots", edit("slots = 2", "slot = 2")),
    "another app_id": Broken(
        "GitHub App", "key", "no App with this App ID", edit('"4711"', '"4712"'), follows=NOT_INSTALLED
    ),
    "another private key": Broken(
        "GitHub App", "key", "rejected the private key", breaks=has_another_key, follows=NOT_LOOKED_AT
    ),
    "no GitHub there": Broken(
        "GitHub App", "reachable", "does not answer", edit("API_URL", "http://127.0.0.1:PORT"), follows=NOT_LOOKED_AT
    ),
    "a permission less": Broken(
        "GitHub App", "permissions", "contents: write", breaks=lacks_contents, follows=NOT_INSTALLED
    ),
    "a permission more": Broken(
        "GitHub App", "permissions", "administration: write", breaks=may_administrate, verdict=DoctorVerdict.WARNING
    ),
    "an event less": Broken("GitHub App", "events", "issue_comment", breaks=hears_no_comments),
    "an old webhook": Broken("GitHub App", "webhook", "https://old.example/webhook", breaks=is_sent_elsewhere),
    "no webhook": Broken("GitHub App", "webhook", "to nobody", breaks=is_sent_nothing),
    "another webhook secret": Broken("GitHub App", "deliveries", "answered 401", breaks=signs_otherwise),
    "a service that is down": Broken("GitHub App", "deliveries", "did not arrive", breaks=is_down),
    "an App that is not installed": Broken(
        "repository octo/away", "installed", "not installed", edit(f'[repos."{NAME}"]', '[repos."octo/away"]')
    ),
    "no such base branch": Broken(
        f"repository {NAME}",
        "base branch",
        "no branch trunk",
        edit("import_names", 'base_branch = "trunk"\nimport_names'),
    ),
    "broken rules of its own": Broken(f"repository {NAME}", "own rules", "who_may_start", breaks=has_broken_rules),
    "a trigger label that is not there": Broken(
        f"repository {NAME}",
        "labels",
        "no label perf on GitHub",
        edit("labels = { ", 'labels = { "perf" = "fix", '),
        verdict=DoctorVerdict.WARNING,
    ),
    "few calls left": Broken(
        f"repository {NAME}",
        "rate limit",
        "of 5,000 calls left",
        breaks=has_few_calls_left,
        verdict=DoctorVerdict.WARNING,
    ),
    "no calls left": Broken(
        f"repository {NAME}", "rate limit", "0 of 5,000 calls", breaks=has_no_calls_left, follows=NOT_LOOKED_AT
    ),
    "CI with secrets": Broken(
        f"repository {NAME}", "CI secrets", "deploy.yml", breaks=has_open_workflow, verdict=DoctorVerdict.WARNING
    ),
    "no App in the fork": Broken(
        f"repository {NAME}", "push_to", "octo/fork", edit("import_names", 'push_to = "octo/fork"\nimport_names')
    ),
    "no machine for its kind": Broken(
        f"repository {NAME}", "machines", "public repositories", edit('["public"]', '["private"]')
    ),
    "a private repository where nobody signs in": Broken(
        f"repository {NAME}", "pages", "sign-in is not configured", verdict=DoctorVerdict.WARNING, private=True
    ),
    "nobody at the port": Broken(
        "machine gpu-1", "connection", "the connection failed", edit("port = SSH", "port = PORT")
    ),
    "another host key": Broken("machine gpu-1", "host key", "known_hosts", breaks=has_another_host_key),
    "another client key": Broken("machine gpu-1", "login", "user name and key", breaks=has_another_client_key),
    "no Python": Broken("machine gpu-1", "python", "cannot be run", edit("python = PYTHON", 'python = "/opt/none"')),
    "no room for a workspace": Broken("machine gpu-1", "program", "", edit("machine/workspace", "file"), has_a_file),
    "a full disk": Broken("machine gpu-1", "disk", "min_free_gb", edit("min_free_gb = 0", "min_free_gb = 1e9")),
    "no GPU where one is promised": Broken(
        "machine gpu-1",
        "GPUs",
        "nvidia-smi finds none",
        edit("min_free_gb", "gpus_per_slot = 1\nmin_free_gb"),
        verdict=DoctorVerdict.WARNING,
    ),
    "no way to make virtual environments": Broken(
        "machine gpu-1", "first job", "No module named no_venv", edit('"-m", "venv"', '"-m", "no_venv"')
    ),
    "no program of the agent": Broken(
        "machine gpu-1", "agent script", "mine is not installed", edit("command = [", 'command = ["mine", ')
    ),
    "a stranger's database": Broken(
        "service", "database", "other tables", edit("///ptq.db", "///other.db"), has_a_strangers_database
    ),
    "no folder for a new database": Broken(
        "service", "database", "the folder does not exist", edit("///ptq.db", "///nowhere/ptq.db")
    ),
    "a file for data_dir": Broken(
        "service", "data_dir", "is not a folder", edit('data_dir = "var"', 'data_dir = "file"'), has_a_file
    ),
    "no database server": Broken(
        "service",
        "database",
        "",
        edit("sqlite+aiosqlite:///ptq.db", "postgresql+asyncpg://ptq:hunter2-hunter2@127.0.0.1:PORT/ptq"),
    ),
    "another public_url": Broken(
        "service",
        "public_url",
        "does not answer",
        edit('public_url = "', 'public_url = "http://127.0.0.1:PORT" # "'),
        verdict=DoctorVerdict.WARNING,
        follows=(("GitHub App", "webhook"),),
    ),
    "models that are not there": Broken(
        "agent models", "models", "does not answer", edit(AGENT, MODELS.format(url="http://127.0.0.1:PORT") + AGENT)
    ),
    "a key that models do not take": Broken(
        "agent models", "models", "rejected the key (401)", edit(AGENT, MODELS.format(url="MODELS/401") + AGENT)
    ),
    "an address of models with /v1": Broken(
        "agent models", "models", "answers 404", edit(AGENT, MODELS.format(url="MODELS/200/v1") + AGENT)
    ),
    "a key on machines": Broken(
        "agent models",
        "key",
        "on the machines",
        edit(AGENT, '[agents.models]\nkind = "claude"\nenv = { ANTHROPIC_API_KEY = "k3y-k3y-k3y" }\n\n' + AGENT),
        verdict=DoctorVerdict.WARNING,
    ),
}


def rewrite(world: World, edits: tuple[tuple[str, str], ...], models: str) -> None:
    """Edit the configuration. Words in capitals stand for what only a run knows."""
    playground = world.playground
    known = {
        "port = SSH": f"port = {playground.ssh.port}",
        "python = PYTHON": f"python = {json.dumps(sys.executable)}",
        "API_URL": playground.github.api_url,
        "MODELS": models,
    }
    text = playground.config.read_text()
    for old, new in edits:
        for word, value in known.items():
            old, new = old.replace(word, value), new.replace(word, value)
        assert old in text
        text = text.replace(old, new.replace("PORT", str(find_free_port())), 1)
    playground.config.write_text(text)


TOGETHER: tuple[tuple[str, ...], ...] = (
    ("a key that is none",),
    ("another app_id", "nobody at the port", "a stranger's database", "models that are not there"),
    ("another private key", "another host key", "no folder for a new database", "a key that models do not take"),
    ("no GitHub there", "another client key", "a file for data_dir", "an address of models with /v1"),
    ("a permission less", "no Python", "no database server", "a key on machines"),
    ("a permission more", "no such base branch", "no room for a workspace"),
    ("an event less", "broken rules of its own", "a full disk", "another public_url"),
    ("an old webhook", "a trigger label that is not there", "no GPU where one is promised"),
    ("no webhook", "few calls left", "no way to make virtual environments"),
    ("another webhook secret", "CI with secrets", "no program of the agent"),
    ("a service that is down", "no App in the fork"),
    ("no calls left",),
    ("an App that is not installed",),
    ("no machine for its kind",),
    ("a private repository where nobody signs in",),
)
"""What is broken in one installation at the same time: parts of it that the doctor looks at separately."""


def test_everything_that_can_be_broken_is_broken_once() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(BROKEN)


@pytest.mark.parametrize("names", TOGETHER, ids=", ".join)
async def test_what_is_broken_is_named(tmp_path: Path, names: tuple[str, ...]) -> None:
    faults = [BROKEN[name] for name in names]
    private = any(broken.private for broken in faults)
    async with make_models() as models, open_world(tmp_path, on_real_machine=True, private=private) as world:
        edits = tuple(one for broken in faults for one in broken.edits)
        rewrite(world, edits, str(models.make_url("")).rstrip("/"))
        for broken in faults:
            if waiting := broken.breaks(world):
                await waiting
        findings = await examine(world.playground.config)
    for broken in faults:
        (found,) = [finding for finding in findings if (finding.about, finding.check) == (broken.about, broken.check)]
        assert (found.verdict, broken.words in found.words) == (broken.verdict, True), found.words
        assert found.fix
    named = {(broken.about, broken.check) for broken in faults if broken.verdict is DoctorVerdict.FAILED}
    failed = {(finding.about, finding.check) for finding in findings if finding.verdict is DoctorVerdict.FAILED}
    assert failed == named.union(*(broken.follows for broken in faults))
    assert "k3y-k3y-k3y" not in str(findings)
    assert "hunter2" not in str(findings)


def not_well(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.about, finding.check) for finding in findings if finding.verdict is not DoctorVerdict.OK]


async def test_an_installation_that_is_well_is_left_alone(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True) as world:
        await world.open_issue()
        findings = await examine(world.playground.config)
        # What a sandbox leaves open, and whether there is a GPU, depends on where the tests run.
        assert set(not_well(findings)) <= {("machine gpu-1", "sandbox"), ("machine gpu-1", "GPUs")}
        assert await world.jobs() == []
        told = await asyncio.to_thread(program.run, "doctor", "--config", world.playground.config)
        assert told.returncode == int(has_failed(findings)), "unsealed jobs on the service's own host are a failure"
        assert "App ptq-bot (4711)" in told.stdout
        rows = json.loads(
            (await asyncio.to_thread(program.run, "doctor", "--json", "--config", world.playground.config)).stdout
        )
        assert [row["check"] for row in rows] == [finding.check for finding in findings]


async def test_what_a_forwarder_took_and_lost_is_named(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True) as world, open_forwarder(world) as forwarder:
        async with world.playground.service.context.db.write() as connection:
            long_ago = datetime.now(UTC) - timedelta(hours=1)
            await connection.execute(update(enabled_repositories).values(enabled_at=long_ago))
        forwarder.is_away = True
        on_time, world.github.clock = world.github.clock, lambda: datetime.now(UTC) - timedelta(minutes=2)
        await world.open_issue()
        await world.label()
        await world.github.settle()
        world.github.clock = on_time
        assert [delivery.status_code for delivery in world.github.deliveries] == [200, 200]
        findings = await examine(world.playground.config)
    (found,) = [finding for finding in findings if finding.check == "deliveries"]
    assert found.verdict is DoctorVerdict.FAILED
    assert "GitHub delivered 1, but 1 did not reach the service" in found.words
    assert "the forwarder runs" in found.fix


async def test_whoever_runs_it_from_a_script_hears_of_a_failure(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True) as world:
        hears_no_comments(world)
        told = await asyncio.to_thread(program.run, "doctor", "--config", world.playground.config)
        assert told.returncode == 1
        assert "FAILED   events" in told.stdout
        assert "-> subscribe" in told.stdout
        assert "1 failed" in told.stdout
