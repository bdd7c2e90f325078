"""What every agent backend gives: a pure description of the process to start, and a reader of its log lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runner.agents.events import AgentEvent

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""What the name of a variable contains when its value is a secret."""

SECRET_VALUE = re.compile(
    r"://[^/\s]*@|-----BEGIN |(?<![A-Za-z0-9])(?=[A-Za-z]*+[0-9])(?=[0-9]*+[A-Za-z])[A-Za-z0-9]{20,}"
)
"""What a secret looks like under any other name: a log-in in an address, a PEM text, 20 letters and digits in a row."""

PATH_VALUE = re.compile(r"(/|~/|\{home\}/)[^\n]*")
"""A path, or a list of paths. Their parts may be long, and they are no secrets."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of an agent's `env` holds a secret. An unknown name is judged by its value."""
    return bool(SECRET_NAME.search(name) or (SECRET_VALUE.search(value) and not PATH_VALUE.fullmatch(value)))


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One `[agents.NAME]` table of the configuration."""

    name: str
    kind: str
    command: tuple[str, ...] = ()
    """The program, where it is not the backend's own name; with arguments that come before ours."""

    args: tuple[str, ...] = ()
    """Arguments after ours."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the agent's clean environment. Values are secrets: never logged, redacted from what is posted."""

    model: str | None = None
    """Passed on, and disclosed in reports and pull requests."""

    models: tuple[str, ...] = ()
    """What `--model` may ask for besides it."""

    thinking: str | None = None
    """How much the model should think, in the backend's own words."""

    behind_gateway: bool = False
    """Whether the service asks its models for it, so that it needs no key."""

    gateway_api: str = ""
    """The language that it shall speak with the gateway, for backends that know several; empty for its own choice."""

    @property
    def key_on_machines(self) -> bool:
        """Whether a key of its own is where it runs: by the name of a variable, or in a log-in of Cursor's program."""
        return not self.behind_gateway and (bool(self.secret_names) or self.kind == "cursor")

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables of `env` that hold secrets, sorted."""
        return tuple(sorted(name for name, value in self.env.items() if is_secret(name, value)))


@dataclass(frozen=True, slots=True)
class Tail:
    """A file that a backend writes while it runs, and that says what its output does not."""

    glob: str
    """Below the home; the newest that matches."""
    word: str
    """Lines with it join the log."""


TOKEN_VARIABLE, URL_VARIABLE = "PTQ_GATEWAY_TOKEN", "PTQ_GATEWAY_URL"
"""Where an agent finds what lets it ask the gateway, and where that is."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is particular to one run."""

    session_id: str
    """A UUID of our choice, for backends that let us choose."""

    model: str | None = None
    """In place of the configured one."""

    skills: tuple[str, ...] = ()
    """Names of the skills that are laid out below `Launch.skills_folder`."""

    max_turns: int | None = None
    max_cost_usd: float | None = None

    token: str = field(default="", repr=False)
    """Lets this one job ask models through the gateway, in place of a key. Empty: it has a key of its own."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The process to start: it runs in the worktree, with the contract's `PTQ_*` variables set.

    In `argv` and in the values of `env`, a leading `{home}/` stands for the job's own home, which is new for each job;
    in the paths of `files`, `{worktree}` for the worktree's path with `-` for whatever is no letter and no digit. Of a
    run with a `token`, `{gateway}` in `argv`, `env` and `settings` stands for the gateway's address.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    prompt_on_stdin: bool = False
    """Whether its standard input is the prompt; it is empty otherwise."""

    drop_lines: tuple[str, ...] = ()
    """How lines of its output begin that are not worth keeping."""

    hidden: tuple[str, ...] = ()
    """Names of files and folders of a checkout that would command it, and that no flag keeps from it."""

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Laid out below the home before the start."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Texts laid out below the home."""

    skills_folder: str = ""
    """Where below the home the backend looks for skills, each a folder of its own; empty when it knows none."""

    tail: Tail | None = None


class Agent(Protocol):
    """One backend, configured. Every method is pure."""

    spec: AgentSpec
    speaks: bool
    """Whether it tells by an event how it ended; where not, only its exit status does."""

    def launch(self, run: Run) -> Launch:
        """The process that is this agent."""

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """What one line of its log says; nothing for a line that is not worth a word."""
