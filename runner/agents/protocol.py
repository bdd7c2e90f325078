"""The interface of agent backends: a description of the process to start, and a parser of its log lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runner.agents.events import AgentEvent

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""Matches names of variables whose values are secrets."""

SECRET_VALUE = re.compile(
    r"://[^/\s]*@|-----BEGIN |(?<![A-Za-z0-9])(?=[A-Za-z]*+[0-9])(?=[0-9]*+[A-Za-z])[A-Za-z0-9]{20,}"
)
"""Matches values that are secrets under any name: credentials in an address, PEM, or 20 letters and digits in a row."""

PATH_VALUE = re.compile(r"(/|~/|\{home\}/)[^\n]*")
"""Matches a path or a list of paths. These may be long, but are not secrets."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable in an agent's `env` holds a secret. If the name does not say so, the value decides."""
    return bool(SECRET_NAME.search(name) or (SECRET_VALUE.search(value) and not PATH_VALUE.fullmatch(value)))


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One `[agents.NAME]` table of the configuration."""

    name: str
    kind: str
    command: tuple[str, ...] = ()
    """The program and its first arguments. Empty means the backend's default program."""

    args: tuple[str, ...] = ()
    """The last arguments, after those of the backend."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the agent's otherwise clean environment. Values are secrets: never logged, redacted in posts."""

    model: str | None = None
    """Passed to the agent, and named in reports and pull requests."""

    models: tuple[str, ...] = ()
    """Other models that `--model` may request."""

    thinking: str | None = None
    """The thinking effort, as a value of the backend."""

    behind_gateway: bool = False
    """Whether the agent reaches its models through the gateway, so that it needs no key."""

    gateway_api: str = ""
    """The API to use with the gateway, for backends that support several APIs. Empty means the backend's default."""

    @property
    def key_on_machines(self) -> bool:
        """Whether the agent's key is on the machines: in a variable, or as a login of Cursor's program."""
        return not self.behind_gateway and (bool(self.secret_names) or self.kind == "cursor")

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables of `env` that hold secrets, sorted."""
        return tuple(sorted(name for name, value in self.env.items() if is_secret(name, value)))


@dataclass(frozen=True, slots=True)
class Tail:
    """A file that a backend writes while it runs, with information that its output lacks."""

    glob: str
    """A pattern relative to the home. The newest match is used."""
    word: str
    """Lines of the file that contain this word are added to the log."""


TOKEN_VARIABLE, URL_VARIABLE = "PTQ_GATEWAY_TOKEN", "PTQ_GATEWAY_URL"
"""The variables with the gateway's token and address."""


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of one run."""

    session_id: str
    """A UUID, for backends whose session id can be chosen."""

    resumes: str = ""
    """The id of the run's earlier session, which this process resumes. Empty means a new session."""

    model: str | None = None
    """Overrides the configured model."""

    thinking: str | None = None
    """Overrides the configured level of thinking."""

    has_skills: bool = False
    """Whether there are skills in `Launch.skills_folder`."""

    max_turns: int | None = None
    max_cost_usd: float | None = None

    token: str = field(default="", repr=False)
    """The job's token for the gateway, instead of a key. Empty if the agent has its own key."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The process to start. It runs in the worktree, with the contract's `PTQ_*` variables.

    In `argv` and in the values of `env`, a leading `{home}/` is replaced by the job's home, which is new for each job.
    In the paths of `files`, `{worktree}` is replaced by the worktree's path, with `-` for every character other than
    letters and digits. For a run with a `token`, `{gateway}` in `argv`, `env` and `settings` is replaced by the
    gateway's address.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    prompt_on_stdin: bool = False
    """Whether the prompt is the process's standard input. Otherwise standard input is empty."""

    drop_lines: tuple[str, ...] = ()
    """Prefixes of output lines that are not kept."""

    hidden: tuple[str, ...] = ()
    """Names of files and folders to hide in the checkout. They would configure the agent, and no flag prevents that."""

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files to write into the home before the start."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Text files to write into the home."""

    skills_folder: str = ""
    """The folder in the home where the backend looks for skills. Empty if it does not look for any."""

    tail: Tail | None = None


class Agent(Protocol):
    """One backend, configured. Every method is pure."""

    spec: AgentSpec
    speaks: bool
    """Whether an event reports the end of a run. If not, only the exit status does."""
    levels: tuple[str, ...]
    """The levels of thinking that `--thinking` can request, the lowest first. Empty if the backend has no levels."""
    resumes: bool
    """Whether it can resume a session with a message on standard input. If not, it has to read messages from a file."""

    def launch(self, run: Run) -> Launch:
        """The process to start."""

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """The events on one line of the agent's log. Empty if the line has none."""
