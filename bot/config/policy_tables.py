"""The tables of `ptq.toml` about policy, one model each, and the plain values for lower floors.

A field's docstring is its documentation; `ptq.example.toml` shows every one of them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from bot.config.tables import Command, Secret, SecretFile, Table, Text, Url, read_secret
from handlers.cases.retention import REDELIVERED_DAYS
from handlers.rules import PRESETS, Preset, RepositoryRules, Role
from runner.agents.prices import Price
from runner.agents.skills import Skill, is_skill_folder, read_skill
from runner.model.caps import Caps, Scope
from runner.model.environment import NEWEST, PROTECTED_PATHS, Companion, Limits, Profile, Verification

SHIPPED_SKILLS = (
    # In a checkout, and in an installed wheel.
    Path(__file__).parents[2] / "prompts" / "skills",
    Path(__file__).parents[2] / "handlers" / "_prompts" / "skills",
)


PROFILES = Path(__file__).parent / "profiles"
"""Shipped profiles: default values of a repository's table, which its own keys override.

A profile's `brief` is a file in the same folder. The repository's own brief is added to it.
"""

NOT_IN_PROFILES = ("profile", "agent", "agents", "clone_url", "labels", "pause_label", "requires", "routes", "caps")
"""Keys that only a repository's own table has: they depend on the installation."""

Profiles = Mapping[str, Mapping[str, Any]]
"""Name -> a profile's values."""


SKILL = r"^[a-z0-9][a-z0-9-]{0,60}$"
"""The name of a skill."""

REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
"""The full name of a repository."""


def _check_repository(name: str) -> str:
    if not REPOSITORY.fullmatch(name):
        raise ValueError("a repository is named owner/name")
    return name


MAX_INSTRUCTIONS = 20_000
"""The most characters of an operator's preset, and of a brief."""

HOST_ENTRY = r"^(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?$"
"""A host, or `*.` and a domain; with a port, if it is not 443."""


def _read_instructions(file: Path) -> Path:
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise ValueError(f"does not exist: {file}") from None
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"cannot be read as text: {file}") from None
    if not text.strip() or len(text) > MAX_INSTRUCTIONS:
        raise ValueError(f"must hold 1 to {MAX_INSTRUCTIONS:,} characters")
    return file


def _check_notify_url(url: SecretStr) -> SecretStr:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url.get_secret_value()):
        raise ValueError("must be an http(s) URL")
    return url


UNLIMITED = "unlimited"
"""As an amount of money: no cap, and no default either."""


def _read_amount(value: Any) -> float:
    try:
        return math.inf if value == UNLIMITED else float(value)
    except (TypeError, ValueError):
        raise ValueError(f'must be an amount in US dollars, or "{UNLIMITED}"') from None


def _check_inner_path(path: str) -> str:
    parts = path.split("/")
    if not all(re.fullmatch(r"[A-Za-z0-9._][A-Za-z0-9._-]*", part) and part.strip(".") for part in parts):
        raise ValueError("must be the path of a folder in the repository")
    return path


def _check_named_skill(skill: str) -> str:
    if is_skill_folder(skill):
        _check_inner_path(skill.removesuffix("/"))
    elif not re.fullmatch(SKILL, skill):
        raise ValueError("must be the name of a skill, or the path of a folder in the repository, with a slash")
    return skill


def _check_skill(folder: Path) -> Path:
    try:
        read_skill(folder)
    except OSError as error:
        raise ValueError(f"is not a skill: {error.filename}: {error.strerror}") from None
    return folder


def read_profiles() -> dict[str, dict[str, Any]]:
    """Name -> built-in profile."""
    return {path.stem: place_briefs(tomllib.loads(path.read_text()), PROFILES) for path in PROFILES.glob("*.toml")}


def place_briefs(profile: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A profile, with the files of its brief in the folder that the profile is from. Pure."""
    briefs = _as_list(profile.get("brief", []))
    known = isinstance(briefs, list) and all(isinstance(file, str) for file in briefs)
    return {**profile, "brief": [folder / file for file in briefs]} if known else profile


def _check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    return folder


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


def _check_briefs(files: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(map(_read_instructions, files))


def list_shipped_skills() -> Mapping[str, Path]:
    """Name -> folder of a built-in skill."""
    return {folder.name: folder for place in SHIPPED_SKILLS if place.is_dir() for folder in place.iterdir()}


class LimitsTable(Table):
    """`[limits]`, and `limits` of a repository: limits of a job. A repository inherits keys that it omits."""

    timeout_s: Annotated[int, Field(gt=0)] | None = None
    prepare_timeout_s: Annotated[int, Field(gt=0)] | None = None
    base_timeout_s: Annotated[int, Field(gt=0)] | None = None
    collect_timeout_s: Annotated[int, Field(gt=0)] | None = None
    verify_timeout_s: Annotated[int, Field(gt=0)] | None = None
    repro_timeout_s: Annotated[int, Field(gt=0)] | None = None
    unreachable_after_s: Annotated[int, Field(gt=0)] | None = None
    orphan_after_s: Annotated[int, Field(gt=0)] | None = None
    stuck_after_s: Annotated[int, Field(gt=0)] | None = None
    stop_grace_s: Annotated[int, Field(gt=0, le=600)] | None = None
    # Together with the diff they must fit into one answer of the machine (`Host.run`).
    max_session_bytes: Annotated[int, Field(gt=0, le=10_000_000)] | None = None
    max_disk_bytes: Annotated[int, Field(gt=0)] | None = None
    max_files: Annotated[int, Field(gt=0)] | None = None
    max_log_bytes: Annotated[int, Field(gt=0)] | None = None
    max_text_bytes: Annotated[int, Field(gt=0)] | None = None
    max_change_bytes: Annotated[int, Field(gt=0, le=5_000_000)] | None = None
    max_changes: Annotated[int, Field(gt=0, le=2_000)] | None = None

    def over(self, inherited: Limits) -> Limits:
        """The plain value: these bounds, and the inherited ones where there is none."""
        return replace(inherited, **self.model_dump(exclude_none=True))


class CapsTable(Table):
    """`[caps.SCOPE]`: how much can be used before a run is ended, or none starts. Repositories inherit omitted keys."""

    jobs: Annotated[int, Field(gt=0)] | None = None
    turns: Annotated[int, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None
    cost_usd: Annotated[float, BeforeValidator(_read_amount), Field(gt=0)] | None = None
    run_s: Annotated[int, Field(gt=0)] | None = None
    output_bytes: Annotated[int, Field(gt=0)] | None = None

    def over(self, inherited: Caps) -> Caps:
        """The plain value: these caps, and the inherited ones where there is none.

        The operator's own caps replace the defaults for runs of unknown cost.
        """
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        if self.cost_usd is not None:
            money = None if math.isinf(self.cost_usd) else self.cost_usd
            given |= {"cost_usd": money, "unpriced_turns": None, "unpriced_run_s": None}
            return replace(inherited, **given)
        replaced = {"turns": inherited.unpriced_turns, "run_s": inherited.unpriced_run_s}
        given |= {f"unpriced_{name}": given[name] for name in replaced if name in given and replaced[name]}
        return replace(inherited, **given)


class CapsTables(Table):
    """`[caps]`: one table for each scope."""

    job: CapsTable = CapsTable()
    issue: CapsTable = CapsTable()
    user_day: CapsTable = CapsTable()
    repository_day: CapsTable = CapsTable()
    repository_month: CapsTable = CapsTable()

    def over(self, inherited: Mapping[Scope, Caps]) -> Mapping[Scope, Caps]:
        """The plain values: these caps, and the inherited ones where there is none."""
        return {scope: getattr(self, scope).over(inherited.get(scope, Caps())) for scope in Scope}


class PriceTable(Table):
    """`[prices."MODEL"]`: USD for a million tokens; overrides the built-in table."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached: Annotated[float, Field(ge=0)] | None = None
    written: Annotated[float, Field(ge=0)] | None = None
    long_input: Annotated[float, Field(ge=0)] | None = None
    long_output: Annotated[float, Field(ge=0)] | None = None

    def as_price(self) -> Price:
        """The plain value; what came out of a cache costs as much as anything else unless it is said."""
        cached = self.input if self.cached is None else self.cached
        return Price(self.input, cached, self.output, self.written, self.long_input, self.long_output)


class SkillTable(Table):
    """`[skills.NAME]`: instructions for agents: shipped ones, the operator's or the base branch's."""

    labels: frozenset[Text] = frozenset()
    folder: Annotated[Path, AfterValidator(_check_skill)] | None = None
    in_repository: Annotated[str, AfterValidator(_check_inner_path)] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> SkillTable:
        if self.folder and self.in_repository:
            raise ValueError("give only one of folder and in_repository")
        return self

    def as_skill(self, name: str) -> Skill:
        """The plain value, with the files in it."""
        if self.in_repository:
            return Skill(name, self.labels, in_repository=self.in_repository)
        return Skill(name, self.labels, files=read_skill(self.folder or list_shipped_skills()[name]))


class PresetTable(Table):
    """`[presets.NAME]`: the operator's own kind of work, for `/ptq run NAME` and for labels.

    With the name of a built-in preset, it replaces that one's instructions, and has no other keys.
    """

    file: Annotated[Path, AfterValidator(_read_instructions)]
    goal: Text | None = None
    may_change: bool = False
    carries_on: bool = False

    @model_validator(mode="after")
    def _may_keep_edits(self) -> PresetTable:
        if self.carries_on and not self.may_change:
            raise ValueError("carries_on needs may_change = true, because the last attempt's edits are in the worktree")
        return self

    def as_preset(self, name: str) -> Preset:
        """The plain value, with what is in the file."""
        usual = PRESETS.get(name) or self.make(Preset, name=name, goal=self.goal or "")
        return replace(usual, instructions=self.file.read_text())


class GatewayTable(Table):
    """`[gateway]`: how agents reach the gateway, which asks models for them."""

    url: Url | None = None


class ProfilesTable(Table):
    """`[profiles]`: the operator's own profiles of repositories."""

    folder: Annotated[Path, AfterValidator(_check_folder)] | None = None


class NotifyTable(Table):
    """`[notify]`: where the operator learns of problems and of security concerns."""

    url: Annotated[SecretStr, AfterValidator(_check_notify_url)] | None = None
    format: Literal["plain", "slack"] = "plain"
    machine_rest_minutes: Annotated[int, Field(ge=1, le=1440)] = 10


class DashboardTable(Table):
    """`[dashboard]`: sign-in to the pages, and what people see without it. Without a client id nobody can sign in."""

    client_id: Text | None = None
    client_secret_file: SecretFile | None = None
    client_secret: Secret | None = None
    public: bool = True
    public_logs: bool = False
    operators: frozenset[Text] = frozenset()

    @model_validator(mode="after")
    def _complete(self) -> DashboardTable:
        secrets = sum(secret is not None for secret in (self.client_secret, self.client_secret_file))
        if secrets != (1 if self.client_id else 0):
            raise ValueError("give client_id and exactly one of client_secret_file and client_secret, or none of them")
        if not self.client_id and (self.operators or not self.public):
            raise ValueError("operators and public = false need a client_id, because otherwise nobody can sign in")
        return self

    def read_client_secret(self) -> str:
        """The App's client secret; empty if there is none."""
        return read_secret(self.client_secret_file, self.client_secret)


class RecoveryTable(Table):
    """`[recovery]`: what happens to labels whose events GitHub could not deliver."""

    sweep_max: Annotated[int, Field(ge=0, le=1000)] = 5


class RetentionTable(Table):
    """`[retention]`: for how many days unneeded data is kept."""

    deliveries_days: Annotated[int, Field(gt=REDELIVERED_DAYS)] = 30
    logs_days: Annotated[int, Field(ge=1)] = 180


PYTHON = re.compile(r"(?:^|[\s/])python[\d.]*(?: -\S+)*$")
"""The end of a command that runs Python and takes more arguments."""


class VerifyTable(Table):
    """`[repos."owner/name".verify]`: how the service runs repros and tests itself."""

    runs: Annotated[int, Field(ge=0, le=10)] = 3
    script: Text = "python"
    tests: Text = "python -m pytest"
    network: Literal["none", "host"] = "none"


class RepositoryTable(Table):
    """`[repos."owner/name"]`: one repository, and how its jobs run."""

    profile: str | None = None
    agent: Text
    agents: tuple[Text, ...] = ()
    clone_url: Text | None = None
    base_branch: Text | None = None
    environment_branch: Text | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    pause_label: Text = "ptq:pause"
    case_labels: bool = False
    who_may_start: Literal["triage", "write", "maintain", "admin"] = "write"
    who_may_open: Literal["write", "maintain", "admin"] = "write"
    requires: tuple[str, ...] = ()
    routes: dict[Text, tuple[Text, ...]] = Field(default_factory=dict)
    programs: tuple[Text, ...] = ()
    setup: tuple[Text, ...] = ()
    update: tuple[Text, ...] | None = None
    smoke_test: tuple[Text, ...] = ()
    rebuild: tuple[Text, ...] = ()
    submodules: bool = True
    private_repositories: tuple[Annotated[str, AfterValidator(_check_repository)], ...] = ()
    companions: Annotated[
        tuple[Annotated[str, AfterValidator(_check_repository)], ...], Field(alias="with", max_length=5)
    ] = ()
    network: Literal["host", "none"] = "host"
    package_hosts: tuple[Annotated[str, Field(pattern=HOST_ENTRY)], ...] = ()
    refresh_hours: Annotated[int, Field(ge=0)] = 24
    lint: tuple[Text, ...] = ()
    create_venv: Command = ("python3", "-m", "venv")
    test_command: Text = "python -m pytest"
    brief: Annotated[tuple[Path, ...], BeforeValidator(_as_list), AfterValidator(_check_briefs)] = ()
    import_names: tuple[str, ...] = ()
    tools: tuple[Text, ...] = ()
    skills: tuple[Annotated[str, AfterValidator(_check_named_skill)], ...] = ()
    protected_paths: tuple[Text, ...] = PROTECTED_PATHS
    push_to: Annotated[str, AfterValidator(_check_repository)] | None = None
    commit_author: Literal["app", "approver"] = "app"
    sign_off: bool = False
    max_open_pulls: Annotated[int, Field(gt=0)] = 5
    takeover: bool = True
    verify: VerifyTable = VerifyTable()
    limits: LimitsTable = LimitsTable()
    caps: CapsTables = CapsTables()

    @model_validator(mode="before")
    @classmethod
    def _begin_with_profile(cls, given: object, info: ValidationInfo) -> object:
        """The profiles are the validation's context; without one, the shipped ones."""
        if not isinstance(given, dict) or (name := given.get("profile")) is None:
            return given
        known: Profiles = read_profiles() if info.context is None else info.context
        if name not in known:
            raise ValueError(f"unknown profile; available: {', '.join(sorted(known))}")
        profile = known[name]
        both = {**profile, **given}
        if isinstance(limits := given.get("limits"), dict):
            both["limits"] = {**profile.get("limits", {}), **limits}
        if isinstance(brief := _as_list(given.get("brief")), list):
            both["brief"] = [*profile.get("brief", []), *brief]
        return both

    @model_validator(mode="after")
    def _fetched_one_way(self) -> RepositoryTable:
        if self.clone_url and self.private_repositories:
            raise ValueError(
                "private_repositories cannot be used with clone_url, because the gateway then fetches nothing"
            )
        return self

    def as_rules(self, name: str, caps: Mapping[Scope, Caps]) -> RepositoryRules:
        """What the handlers need of it."""
        return self.make(
            RepositoryRules,
            name=name,
            agents=(self.agent, *(name for name in self.agents if name != self.agent)),
            who_may_start=Role[self.who_may_start.upper()],
            who_may_open=Role[self.who_may_open.upper()],
            lint_command=" && ".join(self.lint) or None,
            rebuild_command=" && ".join(self.rebuild) or None,
            brief="\n\n".join(file.read_text().strip() for file in self.brief),
            caps=caps,
        )

    def as_profile(
        self, name: str, limits: Limits, caps: Mapping[Scope, Caps], companions: Iterable[Companion] = ()
    ) -> Profile:
        """What the runner needs of it."""
        return self.make(
            Profile,
            repository=name,
            by_gateway=self.clone_url is None,
            companions=tuple(companions),
            base_branch=self.base_branch or NEWEST,
            verification=self.verify.make(Verification, rebuild=self.rebuild),
            imports=self.import_names if PYTHON.search(self.verify.script) else (),
            limits=limits,
            caps=caps,
        )
