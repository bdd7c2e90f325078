"""`ptq-bot doctor` on a working installation, and on many that are broken on purpose and repaired as it says."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text, update

from bot.config.manifest import load_manifest
from bot.demo.loopback import find_free_port
from bot.demo.playground import SECRET
from bot.demo.repository import NAME
from bot.doctor.examination import examine
from bot.doctor.findings import DoctorVerdict, Finding, has_failed
from github_standin.model.registration import make_key
from runner.db.schema import enabled_repositories
from runner.db.versions import list_versions
from tests.support import program
from tests.support.doctor_models import make_models
from tests.support.forwarder import open_forwarder
from tests.support.world import World, open_world

pytestmark = pytest.mark.slow

MANIFEST = load_manifest()
WORKFLOW = "on: push\njobs:\n  test:\n    steps:\n      - run: ./deploy\n        env: {KEY: '${{ secrets.KEY }}'}\n"
WARNING = DoctorVerdict.WARNING

Act = Callable[[World], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Broken:
    """One broken set-up, what the doctor must say about it, and its remedy."""

    about: str
    check: str
    words: str
    fix: str
    edits: tuple[str, str] = ("", "")
    """Of `ptq.toml`, before and after. The remedy undoes it, unless `repairs` does something else. Words in capitals
    are replaced by what only a run knows: PORT is one on which nobody listens."""
    breaks: Act = lambda world: None
    repairs: Act | None = None
    """Follows the remedy to the letter."""
    types: str | None = None
    """The remedy ends with a command, which is run; a person types this at its questions, here it is an argument."""
    verdict: DoctorVerdict = DoctorVerdict.FAILED


# What is broken, and how the remedies are followed


def change_mode(name: str) -> Act:
    return lambda world: (world.playground.folder / name).chmod(0o644)


def lacks_contents(world: World) -> None:
    world.playground.github.change_app(permissions={**MANIFEST.permissions, "contents": "read"})


def may_administrate(world: World) -> None:
    world.playground.github.change_app(permissions={**MANIFEST.permissions, "administration": "write"})


def has_the_permissions(world: World) -> None:
    world.playground.github.change_app(permissions=MANIFEST.permissions)


def leaves_main(world: World) -> None:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    alone = world.git(*who, "commit-tree", "-m", "x", "-p", "main", "main^{tree}").strip()
    world.git("update-ref", "refs/heads/green", alone)


def hears_no_comments(world: World) -> None:
    world.playground.github.change_app(events=["issues"])


def hears_all(world: World) -> None:
    world.playground.github.change_app(events=MANIFEST.events)


def sends_to(url: str | None) -> Act:
    def send(world: World) -> None:
        world.playground.github.webhook_url = url

    return send


def sends_here(world: World) -> None:
    world.playground.github.webhook_url = f"{world.playground.service.url}/webhook"


async def signs_otherwise(world: World) -> None:
    world.github.change_app(webhook_secret="another secret")
    await world.github.ping()


async def signs_as_agreed(world: World) -> None:
    world.github.change_app(webhook_secret=SECRET)
    await world.github.redeliver(world.github.deliveries[-1].guid)


async def is_down(world: World) -> None:
    await world.playground.stop_service()
    await world.comment("/ptq help")


async def is_started(world: World) -> None:
    await world.playground.start_service()
    await world.wait(lambda: world.github.deliveries[-1].status_code == 202 or None, "the delivery that was missed")


def has_clock(offset: timedelta) -> Act:
    def turn(world: World) -> None:
        world.github.clock = lambda: datetime.now(UTC) + offset

    return turn


def refuses_graphql(world: World) -> None:
    world.github.faults.add("POST", "/graphql", 404, times=1000)


def takes_graphql(world: World) -> None:
    world.github.faults.api.clear()


def keep(path: Path) -> None:
    path.with_name(f"{path.name}.good").write_bytes(path.read_bytes())


def put_back(path: Path) -> None:
    path.write_bytes(path.with_name(f"{path.name}.good").read_bytes())


def has_another_key(world: World) -> None:
    keep(file := world.playground.folder / "app.pem")
    file.write_text(make_key()[0])


def has_a_new_key(world: World) -> None:
    put_back(world.playground.folder / "app.pem")


def has_broken_rules(world: World) -> None:
    world.commit({".github/ptq.toml": 'who_may_start = "everybody"\n'})


def has_good_rules(world: World) -> None:
    world.commit({".github/ptq.toml": 'who_may_start = "write"\n'})


def has_open_workflow(world: World) -> None:
    world.commit({".github/workflows/deploy.yml": WORKFLOW})


def has_closed_workflow(world: World) -> None:
    world.commit({".github/workflows/deploy.yml": WORKFLOW.replace("on: push", "on: {push: {branches: [main]}}")})


def has_label(world: World) -> None:
    world.github.add_label(NAME, "perf")


def is_private(world: World) -> None:
    world.github.set_private(NAME, True)


def spends(calls: int) -> Act:
    return lambda world: world.github.spend_calls(NAME, calls)


def generate_key(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)


def has_another_host_key(world: World) -> None:
    ssh = world.playground.ssh
    keep(ssh.known_hosts_file)
    key = Path(ssh.client_key_file).with_name("another")
    generate_key(key)
    kind, public, *_ = key.with_suffix(".pub").read_text().split()
    ssh.known_hosts_file.write_text(f"[127.0.0.1]:{ssh.port} {kind} {public}\n")


def has_the_host_key(world: World) -> None:
    put_back(world.playground.ssh.known_hosts_file)


def has_another_client_key(world: World) -> None:
    key = world.playground.ssh.client_key_file
    keep(key)
    generate_key(new := key.with_name("new"))
    key.write_bytes(new.read_bytes())


def has_the_client_key(world: World) -> None:
    put_back(world.playground.ssh.client_key_file)


def has_a_public_key(world: World) -> None:
    keep(key := world.playground.ssh.client_key_file)
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], check=True, capture_output=True)
    key.write_bytes(public.stdout)


def has_a_passphrase(world: World) -> None:
    key = world.playground.ssh.client_key_file
    subprocess.run(["ssh-keygen", "-q", "-p", "-a", "1", "-N", "secret", "-f", key], check=True, capture_output=True)


def has_a_strangers_database(world: World) -> None:
    with sqlite3.connect(world.playground.folder / "other.db") as connection:
        connection.execute("CREATE TABLE somebodys (id)")
    (world.playground.folder / "other.db").chmod(0o600)


def has_schema(version: str) -> Act:
    async def change(world: World) -> None:
        async with world.playground.service.context.db.write() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})

    return change


def has_a_file(world: World) -> None:
    (world.playground.folder / "file").touch()


def makes_the_folder(world: World) -> None:
    (world.playground.folder / "nowhere").mkdir()


AGENT = '[agents.script]\nkind = "command"'
MODELS = '[agents.models]\nkind = "claude"\ngateway = {{ url = "{url}", key = "k3y-k3y-k3y" }}\n\n' + AGENT
KEYLESS = '[agents.models]\nkind = "claude"\n\n' + AGENT
ON_MACHINES = '[agents.models]\nkind = "claude"\nenv = { ANTHROPIC_API_KEY = "k3y-k3y-k3y" }\n\n' + AGENT
ON_GATEWAY = MODELS.format(url="MODELS/200")
UNLIMITED = "[caps]\n" + "".join(
    f'{scope}.cost_usd = "unlimited"\n' for scope in ("job", "user_day", "repository_month")
)
SIGN_IN = 'client_id = "Iv1"\nclient_secret = "hush-hush"\n'
OPERATORS = 'operators = ["maintainer"]'
TABLE = f'[repos."{NAME}"]'


GITHUB, SERVICE, MACHINE, REPOSITORY = "GitHub App", "service", "machine gpu-1", f"repository {NAME}"
CONFIGURATION = ("configuration", "ptq.toml")

TOGETHER: tuple[dict[str, Broken], ...] = (
    {
        "a misspelt key": Broken(*CONFIGURATION, "did you mean slots", "fix it in ptq.toml", ("slots = 2", "slot = 2")),
        "a missing CA file": Broken(
            *CONFIGURATION,
            "github.ca_file: there is no file /etc/none.pem",
            "fix it in ptq.toml",
            ("[github]", '[github]\nca_file = "/etc/none.pem"'),
        ),
        "a missing SSH key": Broken(
            *CONFIGURATION,
            "machines[0].client_key_file: ",
            "fix it in ptq.toml",
            ('client_key_file = "', 'client_key_file = "/etc/none.key" # "'),
        ),
        "an agent that has no table": Broken(
            *CONFIGURATION, "agent", "fix it in ptq.toml", ('agent = "script"', 'agent = "codex"')
        ),
    },
    {
        "another app_id": Broken(GITHUB, "key", "no App with this App ID", "[github] app_id", ('"4711"', '"4712"')),
        "nobody at the port": Broken(
            MACHINE, "connection", "the connection failed", "ssh -p", ("port = SSH", "port = PORT")
        ),
        "a stranger's database": Broken(
            SERVICE,
            "database",
            "other tables",
            "to a new database",
            ("///ptq.db", "///other.db"),
            has_a_strangers_database,
        ),
        "models that are not there": Broken(
            "agent models",
            "models",
            "does not answer",
            "[agents.models.gateway] url",
            (AGENT, MODELS.format(url="http://127.0.0.1:PORT")),
        ),
        "an App key with mode 0644": Broken(
            "files", "app.pem", "mode 0644", "chmod go-rwx", breaks=change_mode("app.pem"), types=""
        ),
    },
    {
        "another private key": Broken(
            GITHUB,
            "key",
            "rejected the private key",
            "create a new private key",
            breaks=has_another_key,
            repairs=has_a_new_key,
        ),
        "another host key": Broken(
            MACHINE,
            "host key",
            "known_hosts",
            "known_hosts_file",
            breaks=has_another_host_key,
            repairs=has_the_host_key,
        ),
        "a database of a newer version": Broken(
            SERVICE,
            "database",
            "only knows schemas up to",
            "install the version of ptq-bot that ran last",
            breaks=has_schema("r9999"),
            repairs=has_schema(list_versions()[-1]),
        ),
        "a key that models do not take": Broken(
            "agent models",
            "models",
            "rejected the key (401)",
            "[agents.models.gateway] key",
            (AGENT, MODELS.format(url="MODELS/401")),
        ),
        "a ptq.toml with mode 0644": Broken(
            "files", "ptq.toml", "mode 0644", "chmod go-rwx", breaks=change_mode("ptq.toml"), types=""
        ),
    },
    {
        "no GitHub there": Broken(
            GITHUB, "reachable", "does not answer", "[github] api_url", ("API_URL", "http://127.0.0.1:PORT")
        ),
        "another client key": Broken(
            MACHINE,
            "login",
            "user name and key",
            "authorized_keys",
            breaks=has_another_client_key,
            repairs=has_the_client_key,
        ),
        "a file for data_dir": Broken(
            SERVICE,
            "data_dir",
            "is not a folder",
            "[server] data_dir",
            ('data_dir = "var"', 'data_dir = "file"'),
            has_a_file,
        ),
        "an address of models with /v1": Broken(
            "agent models", "models", "answers 404", "without /v1", (AGENT, MODELS.format(url="MODELS/200/v1"))
        ),
    },
    {
        "a clock that is 15 minutes off": Broken(
            GITHUB,
            "clock",
            "s ahead of GitHub",
            "timedatectl set-ntp true",
            breaks=has_clock(-timedelta(minutes=15)),
            repairs=has_clock(timedelta()),
        ),
        "an SSH key with a passphrase": Broken(
            MACHINE, "SSH key", "has a passphrase", "ssh-keygen -p", breaks=has_a_passphrase, types="-P secret"
        ),
        "no database server": Broken(
            SERVICE,
            "database",
            "",
            "start the database server",
            ("sqlite+aiosqlite:///ptq.db", "postgresql+asyncpg://ptq:hunter2-hunter2@127.0.0.1:PORT/ptq"),
        ),
        "a key on machines": Broken(
            "agent models", "key", "on the machines", "[gateway]", (AGENT, ON_MACHINES), verdict=WARNING
        ),
    },
    {
        "a permission less": Broken(
            GITHUB,
            "permissions",
            "contents: write",
            "accept them in each installation",
            breaks=lacks_contents,
            repairs=has_the_permissions,
        ),
        "no Python": Broken(
            MACHINE, "python", "cannot be run", "fix `python`", ("python = PYTHON", 'python = "/opt/none"')
        ),
        "claude without a key": Broken(
            "agent models", "key", "no API key", "[agents.models.gateway]", (AGENT, KEYLESS), verdict=WARNING
        ),
        "nobody is operator": Broken(
            SERVICE,
            "operators",
            "nobody sees deliveries",
            "[dashboard] operators",
            (OPERATORS, "operators = []"),
            verdict=WARNING,
        ),
        "an SSH key with mode 0644": Broken(
            "files", "client_key", "mode 0644", "chmod go-rwx", breaks=change_mode("machine/ssh/client_key"), types=""
        ),
    },
    {
        "a permission more": Broken(
            GITHUB,
            "permissions",
            "administration: write",
            "remove them",
            breaks=may_administrate,
            repairs=has_the_permissions,
            verdict=WARNING,
        ),
        "an event less": Broken(
            GITHUB, "events", "issue_comment", "subscribe to them", breaks=hears_no_comments, repairs=hears_all
        ),
        "no GraphQL": Broken(
            REPOSITORY,
            "GraphQL",
            "refuses ptq-bot (404)",
            "GraphQL API",
            breaks=refuses_graphql,
            repairs=takes_graphql,
            verdict=WARNING,
        ),
        "no such base branch": Broken(
            REPOSITORY, "base branch", "no branch trunk", "base_branch", (TABLE, f'{TABLE}\nbase_branch = "trunk"')
        ),
        "a trigger label that is not there": Broken(
            REPOSITORY,
            "labels",
            "no label perf on GitHub",
            "gh label create perf",
            ("labels = { ", 'labels = { "perf" = "fix", '),
            repairs=has_label,
            verdict=WARNING,
        ),
        "CI with secrets": Broken(
            REPOSITORY,
            "CI secrets",
            "deploy.yml",
            "branches of `on: push`",
            breaks=has_open_workflow,
            repairs=has_closed_workflow,
            verdict=WARNING,
        ),
        "no caps": Broken(
            REPOSITORY, "caps", "nothing limits", "remove cost_usd", (AGENT, UNLIMITED + AGENT), verdict=WARNING
        ),
        "no room for a workspace": Broken(
            MACHINE, "program", "", "writable for the account", ('machine/workspace"', 'file"'), has_a_file
        ),
    },
    {
        "an old webhook": Broken(
            GITHUB,
            "webhook",
            "https://old.example/webhook",
            "set the service's address in the App's settings",
            breaks=sends_to("https://old.example/webhook"),
            repairs=sends_here,
        ),
        "broken rules of its own": Broken(
            REPOSITORY,
            "own rules",
            "who_may_start",
            "fix the file on the default branch",
            breaks=has_broken_rules,
            repairs=has_good_rules,
        ),
        "no machine for its kind": Broken(
            REPOSITORY, "machines", "public repositories", "`serves`", ('["public", "private"]', '["private"]')
        ),
        "a public SSH key": Broken(
            MACHINE,
            "SSH key",
            "is a public key",
            "enter the path of its private key",
            breaks=has_a_public_key,
            repairs=has_the_client_key,
        ),
    },
    {
        "no webhook": Broken(
            GITHUB,
            "webhook",
            "to nobody",
            "set the service's address in the App's settings",
            breaks=sends_to(None),
            repairs=sends_here,
        ),
        "no such branch for environments": Broken(
            REPOSITORY,
            "environment branch",
            "no branch green",
            "fix environment_branch",
            (TABLE, f'{TABLE}\nenvironment_branch = "green"'),
        ),
        "few calls left": Broken(
            REPOSITORY,
            "rate limit",
            "of 5,000 calls left",
            "wait an hour",
            breaks=spends(4_600),
            repairs=spends(-4_600),
            verdict=WARNING,
        ),
        "a full disk": Broken(
            MACHINE, "disk", "min_free_gb", "lower min_free_gb", ("min_free_gb = 0", "min_free_gb = 1e9")
        ),
        "no GPU where one is promised": Broken(
            MACHINE,
            "GPUs",
            "no tool lists one (nvidia-smi, amd-smi or rocm-smi, xpu-smi)",
            "remove gpus_per_slot and the label gpu",
            ('labels = ["fast"]', 'labels = ["fast", "gpu"]'),
            verdict=WARNING,
        ),
        "no way to make virtual environments": Broken(
            MACHINE, "first job", "No module named no_venv", "create_venv", ('"-m", "venv"', '"-m", "no_venv"')
        ),
        "an agent that is installed nowhere": Broken(
            MACHINE,
            "agent script",
            "mine is not installed",
            "install mine there",
            ("command = [", 'command = ["mine", '),
        ),
    },
    {
        "another webhook secret": Broken(
            GITHUB,
            "deliveries",
            "answered 401",
            "enter one of webhook_secrets",
            breaks=signs_otherwise,
            repairs=signs_as_agreed,
        ),
        "no App in the fork": Broken(
            REPOSITORY, "push_to", "octo/fork", "install it in the fork", (TABLE, f'{TABLE}\npush_to = "octo/fork"')
        ),
    },
    {
        "a service that is down": Broken(
            SERVICE, "running", "no service is running", "ptq-bot serve", breaks=is_down, repairs=is_started
        ),
        "an App that is not installed": Broken(
            "repository octo/away",
            "installed",
            "not installed",
            "the repository's name in ptq.toml",
            (TABLE, '[repos."octo/away"]'),
        ),
    },
    {
        "another public_url": Broken(
            GITHUB,
            "webhook",
            "but the service is at http://127.0.0.1:",
            "correct [server] public_url",
            ('public_url = "', 'public_url = "http://127.0.0.1:PORT" # "'),
        ),
        "no program that a repository needs": Broken(
            MACHINE,
            f"programs of {NAME}",
            "no-such-make is not installed",
            "install no-such-make there",
            (TABLE, f'{TABLE}\nprograms = ["no-such-make"]'),
        ),
        "no calls left": Broken(
            REPOSITORY, "rate limit", "0 of 5,000 calls", "wait an hour", breaks=spends(5_000), repairs=spends(-5_000)
        ),
    },
    {
        "no folder for a new database": Broken(
            SERVICE,
            "database",
            "the folder does not exist",
            "create that folder",
            ("///ptq.db", "///nowhere/ptq.db"),
            repairs=makes_the_folder,
        ),
        "a public address that leads nowhere": Broken(
            SERVICE,
            "public_url",
            "does not answer",
            "correct [server] public_url",
            (
                'public_url = "',
                'webhook_url = "http://127.0.0.1:SERVICE/webhook"\npublic_url = "http://127.0.0.1:PORT" # "',
            ),
            verdict=WARNING,
        ),
        "a branch for environments with a commit of its own": Broken(
            REPOSITORY,
            "environment branch",
            "the newest commit of green is not on main, so no job can begin",
            "wait until main has that commit",
            (TABLE, f'{TABLE}\nenvironment_branch = "green"'),
            breaks=leaves_main,
        ),
        "a private repository where nobody signs in": Broken(
            REPOSITORY,
            "pages",
            "sign-in is not configured",
            "set up [dashboard]",
            (SIGN_IN + OPERATORS, "# nobody signs in"),
            is_private,
            verdict=WARNING,
        ),
    },
)
"""What is broken at the same time: parts of an installation that the doctor looks at separately."""


def rewrite(world: World, old: str, new: str, models: str) -> tuple[str, str]:
    """Edit the configuration. Returns both texts, with the values for their words in capitals."""
    playground = world.playground
    known = {
        "port = SSH": f"port = {playground.ssh.port}",
        "python = PYTHON": f"python = {json.dumps(sys.executable)}",
        "API_URL": playground.github.api_url,
        "MODELS": models,
        ":SERVICE": f":{playground.service_port}",
        "PORT": str(find_free_port()),
    }
    for word, value in known.items():
        old, new = old.replace(word, value), new.replace(word, value)
    content = playground.config.read_text()
    assert old in content, old
    playground.config.write_text(content.replace(old, new, 1))
    return old, new


async def act(does: Act, world: World) -> None:
    if isinstance(waiting := does(world), Awaitable):
        await waiting


def find(findings: list[Finding], broken: Broken) -> Finding:
    named = [one for one in findings if (one.about, one.check) == (broken.about, broken.check)]
    (found,) = [one for one in named if broken.words in one.words] or named[:1]
    return found


def list_problems(findings: list[Finding]) -> list[tuple[str, str, DoctorVerdict]]:
    # What a sandbox leaves open depends on where the tests run. Deliveries that were missed are told of for a while.
    return sorted(
        (one.about, one.check, one.verdict)
        for one in findings
        if one.verdict is not DoctorVerdict.OK and one.check != "sandbox" and not one.fix.startswith("none needed")
    )


def test_many_broken_set_ups_are_tried() -> None:
    assert len({name for faults in TOGETHER for name in faults}) >= 40


async def test_what_is_broken_is_named_and_well_again_after_its_remedy(tmp_path: Path) -> None:
    """One installation is broken and repaired again and again. What is named in a round is exactly what was broken in
    it: nothing that only follows, and nothing from the round before."""
    more = f"[dashboard]\n{SIGN_IN}{OPERATORS}"
    async with make_models() as models, open_world(tmp_path, on_real_machine=True, more_toml=more) as world:
        await world.open_issue()
        config = world.playground.config
        config.write_text(config.read_text().replace('"gpu"', '"fast"').replace('["public"]', '["public", "private"]'))
        at = str(models.make_url("")).rstrip("/")
        for faults in TOGETHER:
            edits: dict[str, tuple[str, str]] = {}
            for name, broken in faults.items():
                edits[name] = rewrite(world, *broken.edits, at)
                await act(broken.breaks, world)
            findings = await examine(config)
            assert "k3y-k3y-k3y" not in str(findings)
            assert "hunter2" not in str(findings)
            assert list_problems(findings) == sorted(
                (broken.about, broken.check, broken.verdict) for broken in faults.values()
            ), findings
            for name, broken in reversed(faults.items()):
                found = find(findings, broken)
                assert (broken.words in found.words, broken.fix in found.fix) == (True, True), found
                if broken.types is not None:
                    command = f"{found.fix.rpartition(': ')[2]} {broken.types}"
                    subprocess.run(command, shell=True, check=True, capture_output=True)
                elif broken.repairs:
                    await act(broken.repairs, world)
                else:
                    before, after = edits[name]
                    rewrite(world, after, before, at)
        assert list_problems(await examine(config)) == []


def not_well(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.about, finding.check) for finding in findings if finding.verdict is not DoctorVerdict.OK]


async def test_an_installation_that_is_well_is_left_alone_and_a_failure_is_told_to_scripts(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True) as world:
        await world.open_issue()
        findings = await examine(world.playground.config)
        # What a sandbox leaves open, and whether there is a GPU, depends on where the tests run.
        assert set(not_well(findings)) <= {("machine gpu-1", "sandbox"), ("machine gpu-1", "GPUs")}
        assert await world.jobs() == []
        told = await asyncio.to_thread(program.run, "doctor", "--json", "--config", world.playground.config)
        assert told.returncode == int(has_failed(findings)), "unsealed jobs on the service's own host are a failure"
        assert [row["check"] for row in json.loads(told.stdout)] == [finding.check for finding in findings]
        hears_no_comments(world)
        told = await asyncio.to_thread(program.run, "doctor", "--config", world.playground.config)
        assert told.returncode == 1, "a script hears of a failure"
        assert "App ptq-bot (4711)" in told.stdout
        assert "FAILED   events" in told.stdout
        assert "-> subscribe" in told.stdout
        assert "1 failed" in told.stdout


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
