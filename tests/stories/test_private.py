"""A private repository: its machine fetches it through the service, and never has a token of GitHub's."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from runner.rows import job_rows
from tests.support.jobd import Repository, make_repository
from tests.support.machines import open_sshd
from tests.support.world import FIX, WRITE_REPORT, World, open_world

pytestmark = [pytest.mark.slow, pytest.mark.sshd]

GIT = """
import subprocess
def git(*words, where="."):
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()
def show(*words, **more):
    print("GIT", words[0], git(*words, **more), flush=True)
"""
FETCHES = """
show("config", "remote.origin.url")
show("fetch", "--depth=1", "origin", "main")
url = git("config", "remote.origin.url")
show("clone", "--quiet", "--no-checkout", "--filter=blob:none", url, str(output / "partial"))
print("MISSING", git("rev-list", "--objects", "--all", "--missing=print", where=output / "partial").count("?"))
print("LAZY", git("show", "HEAD:README.md", where=output / "partial"))
show("push", "origin", "HEAD:refs/heads/mine")
show("ls-remote", url.replace("widgets", "secrets"))
"""
WAIT = """
print("waiting", flush=True)
while not (output / "go").exists():
    time.sleep(0.05)
"""


@asynccontextmanager
async def open_private(
    folder: Path, agent: str, repository_toml: str = "", more_toml: str = ""
) -> AsyncIterator[World]:
    script = WRITE_REPORT + GIT + agent
    world_of = partial(open_world, repository_toml=repository_toml, more_toml=more_toml)
    async with open_sshd(folder) as ssh, world_of(folder, agent=script, ssh=ssh, private=True) as world:
        await world.open_issue()
        yield world


def scan(world: World, job_id: str) -> None:
    """Look through the machine while a job is at work there: its own token may be there, and no other."""
    own = world.find_on_machine(f"ptq-{job_id}-")
    assert any(where.endswith("/environ") for where in own), "what was looked through has the job's own token"
    assert not any(where.endswith("/cmdline") for where in own), "not where everybody can read it"
    assert world.find_secrets() == []


async def test_a_private_repository_comes_to_its_machine_without_a_token_of_githubs(tmp_path: Path) -> None:
    """Also over two restarts: in the middle of its fetch, and while its agent is about to fetch."""
    async with open_private(tmp_path, WAIT + FETCHES + FIX) as world:
        git_http = world.github.git_http
        world.commit({"large.txt": secrets.token_hex(2_000_000)})
        git_http.pause_s = 60.0
        await world.label()
        await world.wait(lambda: git_http.packs or None, "a fetch")
        (job,) = await world.jobs()
        await asyncio.to_thread(scan, world, job.id)
        await world.playground.stop_service()
        git_http.pause_s = 0.0
        await world.playground.start_service()

        await world.wait_for_job("running")
        await world.wait_for_log(job.id, b"waiting")
        assert len(git_http.packs) > 1
        await asyncio.to_thread(scan, world, job.id)
        await world.playground.stop_service()
        # What git asks from now on waits for the service.
        (tmp_path / "machine" / "workspace" / "jobs" / job.id / "files" / "output" / "go").touch()
        await asyncio.sleep(0.5)
        await world.playground.start_service()

        report = await world.wait_for_report()
        assert world.find_secrets() == []
        planted, (pack, *_) = tmp_path / "machine" / "account" / "planted", git_http.packs
        assert pack.token
        planted.write_bytes(b64encode(f"x-access-token:{pack.token.value}".encode()))
        assert world.find_secrets() == [str(planted)], "it would have been found"
        log = await fetch_agent_log(world)
    assert f"GIT config {world.github.url}/{NAME}.git\n" in log, "a clone is known by its own address"
    assert "GIT fetch From http://127.0.0.1:" in log
    assert "-> FETCH_HEAD" in log
    assert "GIT clone \nMISSING 6\nLAZY # widgets\n" in log, "what a partial clone lacks comes when it is needed"
    assert "GIT push remote: ptq-bot: pushing is not possible by the gateway" in log
    assert "GIT ls-remote fatal: could not read Username" in log
    assert "fix staged" in report.lower()


def add_repository(world: World, name: str, files: dict[str, str], *, private: bool = True) -> str:
    """Put another repository on "GitHub"; its only commit."""
    folder = world.playground.folder / name
    made = make_repository(folder.with_name(f"{folder.name}-made"), files)
    subprocess.run(["git", "clone", "--quiet", "--bare", str(made.folder), f"{folder}.git"], check=True)
    world.github.add_repository(name, Path(f"{folder}.git"), private=private)
    return made.git("rev-parse", "HEAD")


def add_submodules(world: World, **submodules: tuple[str, str]) -> None:
    """Put submodules on the base branch, by their folders: where each is, and its commit."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(world.playground.git_dir), folder], check=True)
        repository = Repository(Path(folder))
        about = [f'[submodule "{name}"]\n\tpath = {name}\n\turl = {url}\n' for name, (url, _) in submodules.items()]
        Path(folder, ".gitmodules").write_text("".join(about))
        repository.git("add", ".gitmodules")
        for name, (_, commit) in submodules.items():
            repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
        repository.git("commit", "--quiet", "--message=submodules")
        repository.git("push", "--quiet")


async def fetch_agent_log(world: World) -> str:
    (job,) = await world.jobs()
    async with world.playground.service.context.db.read() as connection:
        return (await job_rows.fetch_log(connection, job.id, "agent") or b"").decode()


SHOW_COMPANIONS = """
companions = pathlib.Path(os.environ["PTQ_COMPANIONS_DIR"])
print("COMPANIONS", *sorted(str(path.relative_to(companions)) for path in companions.glob("*/*/*.txt")))
"""
SHOW_SUBMODULES = 'print("SUBMODULES", *sorted(os.listdir("parts") + os.listdir("docs")))\n'
ASKS = """
address = [value for name, value in os.environ.items() if name.startswith("GIT_CONFIG_KEY") and "url." in value][0]
gateway = address.removeprefix("url.").partition("octo/")[0]
show("ls-remote", gateway + "octo/secrets")
show("fetch", "origin", "main")
"""


async def test_submodules_and_companions_come_from_wherever_they_may(tmp_path: Path) -> None:
    """Without a network the gateway is all that the agent reaches, and it gives no more than that."""
    toml = 'private_repositories = ["octo/parts"]\nwith = ["octo/kit", "octo/tools"]\nnetwork = "none"'
    table = '[repos."octo/kit"]\nagent = "script"\n'
    agent = SHOW_SUBMODULES + SHOW_COMPANIONS + ASKS + FIX
    async with open_private(tmp_path, agent, toml, table) as world:
        parts = add_repository(world, "octo/parts", {"part.txt": "one part\n"})
        # Its name begins as that of the job's own does, and it is none that the gateway gives.
        docs = add_repository(world, "octo/widgets-docs", {"doc.txt": "about\n"}, private=False)
        kit = add_repository(world, "octo/kit", {"kit.txt": "one kit\n"})
        tools = add_repository(world, "octo/tools", {"tool.txt": "one tool\n"}, private=False)
        submodules = {"parts": ("../parts.git", parts), "docs": (f"{world.github.url}/octo/widgets-docs", docs)}
        add_submodules(world, **submodules)
        await world.label()
        report = await world.wait_for_report()
        assert f"octo/kit `{kit[:10]}`, octo/tools `{tools[:10]}`" in report
        log = await fetch_agent_log(world)
        assert "SUBMODULES .git .git doc.txt part.txt\n" in log
        assert "COMPANIONS octo/kit/kit.txt octo/tools/tool.txt\n" in log
        assert "remote: ptq-bot: octo/secrets is not among the repositories that this job may fetch" in log
        assert '`private_repositories` of [repos."octo/widgets"]' in log
        assert "-> FETCH_HEAD" in log
        packs = world.github.git_http.packs
        assert {pack.repository for pack in packs if pack.token} == {NAME, "octo/parts", "octo/kit"}
        for pack in packs:
            assert (pack.token is None) == (pack.repository in ("octo/widgets-docs", "octo/tools"))
            if pack.token:
                assert pack.token.permissions == {"metadata": "read", "contents": "read"}
                assert len(pack.token.repository_ids or ()) == 1
        assert world.find_secrets() == []

        # A private submodule that nobody has named is refused, with words that help.
        secret = add_repository(world, "octo/secrets", {"secret.txt": "a secret\n"})
        add_submodules(world, **submodules, other=(f"{world.github.url}/octo/secrets.git", secret))
        await world.comment("/ptq fix --fresh")
        report = await world.wait_for_report(2)
        assert "the submodules could not be fetched" in report
        assert "private_repositories" in report.replace("\\", "")
        assert "octo/secrets" not in {pack.repository for pack in packs}


async def test_jobs_of_a_public_repository_get_only_public_companions_and_without_any_login(tmp_path: Path) -> None:
    script, companion = WRITE_REPORT + SHOW_COMPANIONS, 'with = ["octo/parts"]'
    async with open_world(tmp_path, agent=script, repository_toml=companion, on_real_machine=True) as world:
        parts = add_repository(world, "octo/parts", {"part.txt": "one part\n"}, private=False)
        await world.open_issue()
        await world.label()
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert f"octo/parts `{parts[:10]}`" in report
        assert ("octo/parts", parts) in job.facts
        assert "`octo/parts` in `$PTQ_COMPANIONS_DIR/octo/parts`" in job.prompt
        assert "COMPANIONS octo/parts/part.txt\n" in await fetch_agent_log(world)
        world.github.set_private("octo/parts", True)
        await world.comment("/ptq retry")
        report = await world.wait_for_report(2)
        assert "the companion octo/parts could not be fetched" in report
        assert "Jobs of a public repository get public repositories only." in report
        assert (await world.jobs())[0].started_at is None
        assert [pack.token for pack in world.github.git_http.packs if pack.repository == "octo/parts"] == [None]
