"""The operator's answers so far, as frozen values. Pure: it knows neither pages nor files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner.model.caps import DEFAULT_CAPS, Scope
from runner.transport.ssh import DEFAULT_PORT

TESTS = "python -m pytest"
SCRIPT = "python"
"""The defaults for running tests and repro scripts."""


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of GitHub and of the service."""

    web_url: str = "https://github.com"
    api_url: str = "https://api.github.com"
    ca_file: str = ""
    organization: str = ""
    """The owner of the App. Empty: the person's own account."""
    app_name: str = "ptq-bot"
    public_url: str = "http://127.0.0.1:8080"
    webhook_url: str = ""
    """The address of a forwarder. Empty: `/webhook` of `public_url`."""
    port: int = 8080
    proxy: str = ""
    """The proxy for requests to GitHub. Empty: none."""
    proxy_credentials: str = field(default="", repr=False)

    @property
    def delivery_url(self) -> str:
        """The address to which GitHub sends deliveries."""
        return self.webhook_url or f"{self.public_url}/webhook"


@dataclass(frozen=True, slots=True)
class App:
    """The App as GitHub created it, with the secrets that it shows only once."""

    id: str
    slug: str
    html_url: str
    private_key: str = field(repr=False)
    webhook_secret: str = field(repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    owner: str = ""
    """The login of the person who owns it; empty if an organization does."""

    @property
    def signs_in(self) -> bool:
        """Whether people can sign in to the pages through it."""
        return bool(self.client_id and self.client_secret)

    @property
    def key_file(self) -> str:
        """The name of the file with its key, next to the configuration."""
        return f"ptq-app-{self.id}.pem"


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """One machine: what was entered, and what was found there."""

    name: str
    workspace: str = ""
    """Empty: a folder in the account's home."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    port: int = DEFAULT_PORT
    user: str = ""
    client_key_file: str = ""
    """Empty: the key that set-up generates."""
    slots: int = 1
    host_key: str = ""
    """Kind and Base64, as the operator confirmed them."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Program -> the version that it reports."""
    replaces: str = ""
    """The name of the machine whose place this one takes once it has passed its test; empty for another machine."""

    @property
    def known_hosts_line(self) -> str:
        """The machine's line in a known_hosts file."""
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
    """The vendor's key. The gateway uses it; Cursor's program needs it itself."""


@dataclass(frozen=True, slots=True)
class RepositoryAnswer:
    """One repository, and the commands of its jobs."""

    name: str
    private: bool = False
    setup: tuple[str, ...] = ()
    tests: str = TESTS
    script: str = SCRIPT
    """The command that runs a repro script."""


def _default(scope: Scope) -> str:
    return f"{DEFAULT_CAPS[scope].cost_usd:g}"


@dataclass(frozen=True, slots=True)
class CapsAnswer:
    """The caps on money by their scopes, each as an amount in US dollars, or `unlimited`."""

    job: str = _default(Scope.JOB)
    user_day: str = _default(Scope.USER_DAY)
    repository_month: str = _default(Scope.REPOSITORY_MONTH)


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers."""

    place: Place = Place()
    app: App | None = None
    repositories: tuple[RepositoryAnswer, ...] = ()
    diagnose_label: str = "ptq"
    fix_label: str = "ptq:fix"
    machines: tuple[MachineAnswer, ...] = ()
    looked_at: MachineAnswer | None = None
    """A machine whose host key is not confirmed yet, or that could not run a job yet."""
    agents: tuple[AgentAnswer, ...] = ()
    caps: CapsAnswer = CapsAnswer()
    entered_operators: tuple[str, ...] | None = None
    """None: not asked yet."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The logins of those who see deliveries, costs and confidential reports: by default the App's owner."""
        suggested = (self.app.owner,) if self.app and self.app.owner else ()
        return suggested if self.entered_operators is None else self.entered_operators

    def secrets(self) -> tuple[str, ...]:
        """The texts that no page may show."""
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
"""The pages, in order."""


def list_completed(answers: Answers) -> frozenset[str]:
    """The steps that are complete."""
    done = {
        "app": answers.app is not None,
        "repositories": bool(answers.repositories),
        "machines": bool(answers.machines),
        "agents": bool(answers.agents),
    }
    return frozenset(name for name, is_done in done.items() if is_done)


def find_next(answers: Answers) -> str:
    """The first step that is not complete."""
    done = list_completed(answers)
    return next(name for name in STEPS if name not in done)
