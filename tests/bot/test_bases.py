"""`ptq-bot machines prepare` and `check`, as processes that an operator starts, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bot.cli.options import load
from bot.config.tables import find_web_url
from bot.operations.bases import prepare_bases
from bot.operations.machines import UnknownMachine
from runner.rows import job_rows
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.jobd import Repository, make_repository, wait_until
from tests.support.jobs import NOON, make_job, open_database

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "origin")


def write_config(folder: Path, repository: Repository, *lines: str) -> Path:
    config = configure(folder, 0)
    text = config.read_text()
    head, table, rest = text.partition('[repos."octo/widgets"]\n')
    assert table
    config.write_text("\n".join([head + table, f'clone_url = "{repository.url}"', *lines, rest]))
    return config


def test_a_base_is_made_at_the_branch_for_environments_before_the_first_job_and_shown_as_it_goes(
    tmp_path: Path, repository: Repository
) -> None:
    green = repository.git("rev-parse", "main")
    repository.git("branch", "viable/strict", "main")
    repository.commit({"broken.txt": "does not build\n"})
    first, second = "s3cret-", "0123456789abcdef"
    # The command itself, which is shown, has the secret in pieces, too.
    pieces = f"printf {first}; sleep 1.5; echo {second}; printf last"
    lines = ['create_venv = ["mkdir"]', 'environment_branch = "viable/strict"']
    lines.append(f'setup = ["echo being built", "test ! -e broken.txt", "{pieces}"]')
    config = write_config(tmp_path, repository, *lines)
    config.write_text(re.sub("webhook_secrets.*\n", "", config.read_text()))
    environ = {"PTQ_GITHUB__WEBHOOK_SECRETS": json.dumps([first + second])}
    made = program.run("machines", "prepare", "here", "--config", config, **environ)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "\nbeing built\n" in made.stdout
    assert f"octo/widgets: its base is at commit {green}" in made.stdout
    assert f"\n{first}" not in made.stdout
    assert "\n[redacted]\nlast" in made.stdout, "a secret that was printed in two pieces"
    again = program.run("machines", "prepare", "here", "--repo", "octo/widgets", "--config", config, **environ)
    assert again.returncode == 0
    assert "being built\n" not in again.stdout.replace("`echo being built`", "")


def test_a_base_that_cannot_be_made_is_told_with_the_last_words(tmp_path: Path, repository: Repository) -> None:
    config = write_config(
        tmp_path, repository, 'create_venv = ["mkdir"]', 'setup = ["seq 60; echo no compiler; false"]'
    )
    made = program.run("machines", "prepare", "here", "--config", config)
    assert made.returncode == 1
    assert "no compiler" in made.stdout.splitlines()[-1]


@pytest.fixture
def ignored_ctrl_c() -> Iterator[None]:
    """The tests ignore SIGINT, as they do where a shell has started them in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_ctrl_c")
def test_what_was_broken_off_is_gone_on_with(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, repository: Repository
) -> None:
    # Jobs on this machine do not see the folder of the configuration.
    shared = tmp_path_factory.mktemp("shared")
    mark, go = shared / "mark", shared / "go"
    setup = f'setup = ["date >> {mark}-1", "touch {mark}; until [ -e {go} ]; do sleep 0.1; done"]'
    config = write_config(tmp_path, repository, 'create_venv = ["mkdir"]', setup)
    table, opened = "[[machines]]\n", f"writable = [{json.dumps(str(shared))}]\n"
    config.write_text(config.read_text().replace(table, table + opened))
    with program.start(tmp_path, "machines", "prepare", "here", "--config", config) as running:
        wait_until(mark.exists)
        assert running.stop(signal.SIGINT)[0] == 130
    go.touch()
    made = program.run("machines", "prepare", "here", "--config", config)
    assert made.returncode == 0, made.stdout
    assert "\n[Continuing an interrupted build of this repository's base: later jobs start from it.]\n" in made.stdout
    assert len(Path(f"{mark}-1").read_text().splitlines()) == 1


async def test_a_machine_for_public_repositories_is_sent_nothing_of_a_private_one(
    tmp_path: Path, repository: Repository
) -> None:
    settings = load(write_config(tmp_path, repository, 'create_venv = ["mkdir"]'))
    shown: list[str] = []
    settings.server.data_dir.mkdir(parents=True, exist_ok=True)
    async with open_database(settings.server.database_url) as database, database.write() as connection:
        await job_rows.insert_job(connection, make_job(private=True, created_at=NOON))
    with pytest.raises(UnknownMachine, match="is not for octo/widgets"):
        await prepare_bases(settings, "here", "octo/widgets", shown.append)
    assert shown == []


def test_machines_and_repositories_that_do_not_go_together_are_refused(tmp_path: Path, repository: Repository) -> None:
    config = write_config(tmp_path, repository)
    for words in (["there"], ["here", "--repo", "octo/others"]):
        done: subprocess.CompletedProcess[str] = program.run("machines", "prepare", *words, "--config", config)
        assert done.returncode == 2
        assert done.stderr.startswith("ptq-bot: ")
        assert "Traceback" not in done.stderr


def test_a_machine_says_whether_it_seals_jobs(tmp_path: Path, repository: Repository) -> None:
    done = program.run("machines", "check", "--config", write_config(tmp_path, repository))
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert first.startswith(("here  sealed: user, mount, pid, ipc", "here  not sealed: "))
    assert first.rpartition(" ")[2] in ("overlay", "copy", "slot")
    assert all(line.startswith("  open: ") for line in rest)
    assert bool(os.getuid()) != ("  open: the account is root: give jobs an account of their own" in rest)


class _AsksForLogin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="GitHub"')
        self.end_headers()


def test_of_a_private_repository_it_is_said_who_makes_its_base(tmp_path: Path, repository: Repository) -> None:
    config = write_config(tmp_path, repository, 'create_venv = ["mkdir"]')
    with HTTPServer(("127.0.0.1", 0), _AsksForLogin) as github:
        threading.Thread(target=github.serve_forever, daemon=True).start()
        api_url = f"http://127.0.0.1:{github.server_port}/api/v3"
        text = config.read_text().replace(f'clone_url = "{repository.url}"', "")
        config.write_text(text.replace("[github]\n", f'[github]\napi_url = "{api_url}"\n'))
        made = program.run("machines", "prepare", "here", "--config", config)
        github.shutdown()
    assert made.returncode == 1
    assert "machines fetch such by the gateway, which only the running service has" in made.stdout


@pytest.mark.parametrize(
    ("api_url", "web_url"),
    [
        ("https://api.github.com", "https://github.com"),
        ("https://api.octo.ghe.com", "https://octo.ghe.com"),
        ("https://ghe.example:8443/api/v3", "https://ghe.example:8443"),
    ],
)
def test_repositories_are_cloned_from_where_the_api_belongs_to(api_url: str, web_url: str) -> None:
    assert find_web_url(api_url) == web_url
