"""A complete installation on loopback: the GitHub stand-in, a repository, a machine with SSH, and the service.

The demo plays its story on it, and tests make its parts fail. Like an operator's service, this one is configured with a
`ptq.toml` on disk. This module does not know the story.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from bot.app import Service
from bot.config.manifest import load_manifest
from bot.config.settings import load_settings
from bot.demo.loopback import ADDRESS, find_free_port
from bot.demo.repository import BRANCH, NAME, make_repository
from bot.demo.sshd import EmbeddedSshServer
from bot.github import Timings
from bot.pace import Pace
from github_standin import StandIn
from github_standin.model.registration import make_key
from runner.jobd.sandbox.processes import kill_processes
from runner.transport.hosts import HostOpener, open_host

MAINTAINER = "maintainer"
CONTRIBUTOR = "contributor"
STRANGER = "drive-by"
DIAGNOSE_LABEL = "ptq"
LABEL = "ptq:fix"
APP_ID = "4711"
SECRET = "a secret of this playground only"  # noqa: S105 - only used on loopback

PACE = Pace(
    poll_s=0.5,
    grace_s=5.0,
    settles_s=0.5,
    github=Timings(write_interval_s=0.0, backoff_s=0.05, writes_per_minute=1_000, writes_per_hour=10_000),
)


class SshServer(Protocol):
    """A running SSH server that makes a folder of this host usable as a machine."""

    user: str
    port: int
    client_key_file: Path
    known_hosts_file: Path


class Playground:
    """`async with Playground(folder)` starts everything; the parts are attributes."""

    def __init__(
        self,
        folder: Path,
        *,
        ssh: SshServer | None = None,
        agent: tuple[str, ...] | None = None,
        more_toml: str = "",
        repository_agent: str = "script",
        repository_toml: str = "",
        verify_runs: int = 3,
        database_url: str = "sqlite+aiosqlite:///ptq.db",
        pace: Pace = PACE,
        python: str = sys.executable,
        private: bool = False,
        opens: HostOpener = open_host,
        app_key: tuple[str, str] | None = None,
        writable: tuple[str, ...] = (),
    ) -> None:
        """Machines clone a `private` repository through the service's gateway, and a public one from its folder.

        `app_key` is the App's private and public key; by default a new pair is generated. `opens` opens connections to
        machines.
        """
        self._opens, self._app_key = opens, app_key
        self._private, self._writable = private, writable
        self.folder = folder
        self.git_dir = folder / "octo" / "widgets.git"
        self.config = folder / "ptq.toml"
        self.embedded_ssh = EmbeddedSshServer(folder / "machine" / "ssh")
        self.ssh = ssh or self.embedded_ssh
        self.agent = agent or (sys.executable, str(Path(__file__).with_name("agent.py")))
        self._more_toml = more_toml
        self._python = python
        self._repository_agent = repository_agent
        self._repository_toml = repository_toml
        self._verify_runs = verify_runs
        self.pace = pace
        """The pace of the service, from its next start."""
        self._database_url = database_url
        self.service_port = find_free_port()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the GitHub stand-in, the machine and the service, in this order."""
        async with AsyncExitStack() as stack:
            private_key, public_key = self._app_key or make_key()
            self.base_commit = make_repository(self.git_dir)
            self.github = self._make_stand_in(public_key)
            await self.github.start()
            stack.push_async_callback(self.github.stop)
            if self.ssh is self.embedded_ssh:
                await self.embedded_ssh.start()
                stack.push_async_callback(self.embedded_ssh.stop)
            key_file = self.folder / "app.pem"
            for path, text in ((key_file, private_key), (self.config, self._render_config())):
                path.touch(mode=0o600)
                path.write_text(text)
            await self.start_service()
            stack.push_async_callback(self.stop_service)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything in the reverse order, and kill the jobs' processes, which survive SSH connections."""
        await self._stack.aclose()
        for job in (self.folder / "machine" / "workspace" / "jobs").glob("*"):
            await asyncio.to_thread(kill_processes, job.name)

    async def start_service(self) -> None:
        """Start the service with the current content of `ptq.toml`."""
        settings = load_settings(self.config)
        self.service = Service(settings, self.pace, self._opens)
        await self.service.__aenter__()
        self.running = True
        self.github.webhook_url = settings.server.webhook_url or f"{self.service.url}/webhook"

    async def stop_service(self) -> None:
        """Stop the service; agents keep running."""
        if self.running:
            self.running = False
            await self.service.__aexit__(None, None, None)

    def _make_stand_in(self, public_key: str) -> StandIn:
        manifest = load_manifest()
        github = StandIn(
            app_id=APP_ID,
            app_slug=manifest.name,
            app_public_key=public_key,
            webhook_secret=SECRET,
            app_permissions=manifest.permissions,
            app_events=manifest.events,
        )
        for login in ("octo", MAINTAINER, CONTRIBUTOR, STRANGER):
            github.add_user(login)
        github.add_repository(NAME, self.git_dir, default_branch=BRANCH, private=self._private)
        github.set_permission(NAME, MAINTAINER, "maintain")
        github.set_permission(NAME, CONTRIBUTOR, "write")
        for label in (DIAGNOSE_LABEL, LABEL):
            github.add_label(NAME, label)
        return github

    def _render_config(self) -> str:
        # The JSON form of these strings and lists is also valid TOML.
        quote = json.dumps
        # Only this host can reach the service, and the log of its agent is part of the demo.
        dashboard = "" if "[dashboard]" in self._more_toml else "[dashboard]\npublic_logs = true"
        clone_url = "" if self._private else f"clone_url = {quote(self.git_dir.resolve().as_uri())}"
        return f"""\
[github]
api_url = {quote(self.github.api_url)}
app_id = "{APP_ID}"
private_key_file = "app.pem"
webhook_secrets = [{quote(SECRET)}]

[server]
host = "{ADDRESS}"
port = {self.service_port}
public_url = "http://{ADDRESS}:{self.service_port}"
database_url = {quote(self._database_url)}
data_dir = "var"

[agents.script]
kind = "command"
command = {quote(list(self.agent))}

[[machines]]
name = "gpu-1"
host = "{ADDRESS}"
port = {self.ssh.port}
user = {quote(self.ssh.user)}
client_key_file = {quote(str(self.ssh.client_key_file))}
known_hosts_file = {quote(str(self.ssh.known_hosts_file))}
slots = 2
labels = ["gpu"]
workspace = {quote(str(self.folder / "machine" / "workspace"))}
python = {quote(self._python)}
min_free_gb = 0
writable = {quote(list(self._writable))}
serves = ["{"private" if self._private else "public"}"]

{dashboard}

{self._more_toml}

[repos."{NAME}"]
{clone_url}
agent = {quote(self._repository_agent)}
labels = {{ "{DIAGNOSE_LABEL}" = "diagnose", "{LABEL}" = "fix" }}
requires = ["gpu"]
create_venv = [{quote(sys.executable)}, "-m", "venv", "--without-pip"]
test_command = "python -m unittest"
import_names = ["widgets"]
verify = {{ runs = {self._verify_runs}, script = "PYTHONPATH=. python", tests = "python -m unittest" }}
{self._repository_toml}
"""
