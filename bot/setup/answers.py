"""What an operator has said so far, as frozen values. Pure: it refuses to know pages and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.transport.ssh import DEFAULT_PORT

TESTS = "python -m pytest"
SCRIPT = "python"
"""How tests, and repro scripts, are run where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where GitHub is, and where we shall be."""

    web_url: str = "https://github.com"
    api_url: str = "https://api.github.com"
    ca_file: str = ""
    organization: str = ""
    """Whose the App will be; empty for the person's own."""
    app_name: str = "ptq-bot"
    public_url: str = "http://127.0.0.1:8080"
    webhook_url: str = ""
    """A forwarder's address; empty for `/webhook` of `public_url`."""
    port: int = 8080
    proxy: str = ""
    """By which GitHub is asked; empty where it is reached without."""
    proxy_credentials: str = field(default="", repr=False)

    @property
    def delivery_url(self) -> str:
        """Where GitHub is to send deliveries."""
        return self.webhook_url or f"{self.public_url}/webhook"


@dataclass(frozen=True, slots=True)
class App:
    """The App as GitHub made it, with all that it tells once."""

    id: str
    slug: str
    html_url: str
    private_key: str = field(repr=False)
    webhook_secret: str = field(repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)

    @property
    def key_file(self) -> str:
        """The name of the file with its key, beside the configuration."""
        return f"ptq-app-{self.id}.pem"


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """One machine, as it was typed, and what was found there."""

    name: str
    workspace: str = ""
    """Empty: a folder in the home of its account."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    port: int = DEFAULT_PORT
    user: str = ""
    client_key_file: str = ""
    """Empty: the key that set-up makes."""
    slots: int = 1
    host_key: str = ""
    """Kind and Base64, as the host showed it and the operator confirmed it."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Which programs were found there, with what each says of itself."""

    @property
    def known_hosts_line(self) -> str:
        """What makes us know it again."""
        host = self.host.strip("[]")
        name = host if self.port == DEFAULT_PORT else f"[{host}]:{self.port}"
        return f"{name} {self.host_key}\n"


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """One agent."""

    name: str
    kind: str
    command: tuple[str, ...] = ()
    model: str = ""
    gateway_url: str = ""
    key: str = field(default="", repr=False)
    """Its vendor's: the gateway's, and for Cursor's program its own."""


@dataclass(frozen=True, slots=True)
class RepositoryAnswer:
    """One repository, and how its jobs are made."""

    name: str
    private: bool = False
    setup: tuple[str, ...] = ()
    tests: str = TESTS
    script: str = SCRIPT
    """What runs a repro script."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything."""

    place: Place = Place()
    app: App | None = None
    repositories: tuple[RepositoryAnswer, ...] = ()
    diagnose_label: str = "ptq"
    fix_label: str = "ptq:fix"
    machines: tuple[MachineAnswer, ...] = ()
    looked_at: MachineAnswer | None = None
    """A machine whose host key waits to be confirmed, or that could not run a job yet."""
    agents: tuple[AgentAnswer, ...] = ()

    def secrets(self) -> tuple[str, ...]:
        """What no page may show."""
        app = (self.app.private_key, self.app.webhook_secret, self.app.client_secret) if self.app else ()
        proxy = (self.place.proxy_credentials, self.place.proxy_credentials.partition(":")[2])
        return tuple(secret for secret in (*app, *proxy, *(agent.key for agent in self.agents)) if secret)


STEPS: Mapping[str, str] = {
    "app": "GitHub App",
    "repositories": "Repositories",
    "machines": "Machines",
    "agents": "Agents",
    "finish": "Finish",
}
"""The pages, in their order."""


def list_done(answers: Answers) -> frozenset[str]:
    """The steps that nothing is missing of."""
    done = {
        "app": answers.app is not None,
        "repositories": bool(answers.repositories),
        "machines": bool(answers.machines),
        "agents": bool(answers.agents),
    }
    return frozenset(name for name, is_done in done.items() if is_done)


def find_next(answers: Answers) -> str:
    """The first step that something is missing of."""
    done = list_done(answers)
    return next(name for name in STEPS if name not in done)
