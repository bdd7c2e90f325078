"""`ptq.toml` as typed values. All problems are reported together, by key, and without secrets.

Environment variables override the file: `PTQ_GITHUB__API_URL` is `[github] api_url`; lists and tables are JSON. Lower
floors get their own plain values.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from bot.config.contradictions import find_contradictions, name_key
from bot.config.policy_tables import (
    NOT_IN_PROFILES,
    SKILL,
    CapsTables,
    DashboardTable,
    GatewayTable,
    LimitsTable,
    NotifyTable,
    PresetTable,
    PriceTable,
    Profiles,
    ProfilesTable,
    RecoveryTable,
    RepositoryTable,
    RetentionTable,
    SkillTable,
    list_shipped_skills,
    place_briefs,
    read_profiles,
)
from bot.config.tables import (
    SQLITE,
    AgentTable,
    GitHubTable,
    MachineTable,
    ProxyTable,
    ServerTable,
    Table,
    find_web_url,
)
from bot.gateway.proxy import Upstream
from bot.github.session import OutboundSettings
from handlers.addresses import find_page
from handlers.rules import PRESETS, Preset, RepositoryRules
from runner.agents import AgentSpec
from runner.agents.prices import Price
from runner.agents.skills import Skill
from runner.db.sqlite import COMPANIONS
from runner.model.caps import DEFAULT_CAPS
from runner.model.environment import NEWEST, Companion, Limits, Profile
from runner.model.job import Job
from runner.model.machines import Machine

ENV_PREFIX = "PTQ_"
NOT_SETTINGS = ("PTQ_TEST_", "PTQ_JOB_", "PTQ_PROMPT_", "PTQ_WORKTREE", "PTQ_OUTPUT_", "PTQ_PRESET")
"""Our variables that are not settings: those of the tests, and those for agents."""

PATHS = {
    "github": ("private_key_file", "ca_file"),
    "server": ("data_dir",),
    "proxy": ("credentials_file",),
    "dashboard": ("client_secret_file",),
    "machines": ("client_key_file", "known_hosts_file", "ssh_config_file"),
    "skills": ("folder",),
    "profiles": ("folder",),
    "presets": ("file",),
    "repos": ("brief",),
}
"""Keys with paths that are relative to the configuration's folder."""

BY_NAME = ("skills", "presets", "repos")
"""The keys of `PATHS` whose tables have names, such as `[skills.NAME]`."""

WORDS = {
    "missing": "is missing",
    "too_short": "must not be empty",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "string_type": "must be text in quotes",
    "string_pattern_mismatch": "may contain only letters, digits, '.', '_' and '-'",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "frozen_set_type": "must be a list",
}
"""Our messages for pydantic's errors."""


class ConfigError(Exception):
    """The configuration is not valid. The message lists every problem with its key."""

    def __init__(self, path: Path, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        count = f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"
        super().__init__(f"{path} has {count}:\n{listed}")


class Settings(Table):
    """The whole configuration. Its `repr` shows no secret."""

    github: GitHubTable
    server: ServerTable
    proxy: ProxyTable = ProxyTable()
    agents: Annotated[dict[str, AgentTable], Field(min_length=1)]
    machines: Annotated[tuple[MachineTable, ...], Field(min_length=1)]
    repos: Annotated[dict[str, RepositoryTable], Field(min_length=1)]
    profiles: ProfilesTable = ProfilesTable()
    limits: LimitsTable = LimitsTable()
    caps: CapsTables = CapsTables()
    prices: dict[str, PriceTable] = Field(default_factory=dict)
    skills: dict[Annotated[str, Field(pattern=SKILL)], SkillTable] = Field(default_factory=dict)
    presets: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")], PresetTable] = Field(default_factory=dict)
    gateway: GatewayTable = GatewayTable()
    dashboard: DashboardTable = DashboardTable()
    notify: NotifyTable = NotifyTable()
    recovery: RecoveryTable = RecoveryTable()
    retention: RetentionTable = RetentionTable()
    _file: Path | None = PrivateAttr(None)
    """The file that was read."""

    def machine_list(self) -> tuple[Machine, ...]:
        """The machines, in the order of the file."""
        machines = (table.as_machine() for table in self.machines)
        own = tuple(map(str, self.private_places()))
        return tuple(replace(machine, private=own) if machine.kind == "local" else machine for machine in machines)

    def private_places(self) -> tuple[Path, ...]:
        """What jobs on this host must not see: our configuration, database, data and keys.

        The first two are rewritten at times, so their whole folders count, except for system folders.
        """
        rewritten = [path for path in (self._file, self.server.database_file()) if path]
        whole = {form for path in rewritten for form in (path.absolute(), path.resolve())}  # Links may lead elsewhere.
        alone = {path for path in whole if is_shared(path.parent)}
        places = {path.parent for path in whole - alone}
        places |= {Path(f"{path}{companion}") for path in alone for companion in COMPANIONS}
        return tuple(sorted(places | {path.absolute() for path in (self.server.data_dir, *self.key_files())}))

    def key_files(self) -> tuple[Path, ...]:
        """The files with keys and passwords."""
        own = (self.github.private_key_file, self.dashboard.client_secret_file, self.proxy.credentials_file)
        named = (*own, *(machine.client_key_file for machine in self.machines))
        return tuple(dict.fromkeys(path for path in named if path))

    def secret_files(self) -> tuple[Path, ...]:
        """All files with secrets: the configuration, those with keys, and the database."""
        return tuple(path for path in (self._file, *self.key_files(), self.server.database_file()) if path)

    def agent_specs(self) -> tuple[AgentSpec, ...]:
        """The agents."""
        return tuple(table.as_spec(name) for name, table in self.agents.items())

    def upstreams(self) -> Mapping[str, Upstream]:
        """Agent -> address and key of its models, for agents that use the gateway."""
        return {
            name: table.gateway.as_upstream(table.own_models()) for name, table in self.agents.items() if table.gateway
        }

    def repository_rules(self) -> tuple[RepositoryRules, ...]:
        """The rules of each repository, for the handlers."""
        caps = self.caps.over(DEFAULT_CAPS)
        return tuple(table.as_rules(name, table.caps.over(caps)) for name, table in self.repos.items())

    def repository_names(self) -> frozenset[str]:
        """All repositories that the file names, in lower case, including forks and those that machines fetch from."""
        others = ((table.push_to or name, *table.private_repositories) for name, table in self.repos.items())
        return frozenset(name.lower() for name in chain(self.repos, *others))

    def profile_list(self) -> tuple[Profile, ...]:
        """The profile of each repository, for the runner."""
        limits, caps = self.limits.over(Limits()), self.caps.over(DEFAULT_CAPS)
        return tuple(
            table.as_profile(
                name, table.limits.over(limits), table.caps.over(caps), map(self._describe_companion, table.companions)
            )
            for name, table in self.repos.items()
        )

    def _describe_companion(self, name: str) -> Companion:
        """Machines fetch it from GitHub, even if its own table has a `clone_url`, which may lead to a private one."""
        tables = {known.lower(): table for known, table in self.repos.items()}
        table = tables.get(name.lower())
        branch = (table.environment_branch or table.base_branch) if table else None
        return Companion(name, f"{find_web_url(self.github.api_url)}/{name}.git", branch or NEWEST)

    def price_list(self) -> Mapping[str, Price]:
        """Model -> the operator's price."""
        return {model: table.as_price() for model, table in self.prices.items()}

    def skill_list(self) -> tuple[Skill, ...]:
        """The skills, with their files. A shipped one needs no table: a repository can name it."""
        tables = {**dict.fromkeys(list_shipped_skills(), SkillTable()), **self.skills}
        return tuple(table.as_skill(name) for name, table in tables.items())

    def preset_table(self) -> Mapping[str, Preset]:
        """Name -> preset, built-in or the operator's."""
        return {**PRESETS, **{name: table.as_preset(name) for name, table in self.presets.items()}}

    def outbound(self) -> OutboundSettings:
        """The certificates and the proxy for our requests."""
        return OutboundSettings(self.github.ca_file, self.proxy.as_proxy(self.server.host))

    def webhook_secrets(self) -> tuple[str, ...]:
        """The secrets that can sign a delivery."""
        return tuple(secret.get_secret_value() for secret in self.github.webhook_secrets)

    def find_page(self, job: Job) -> str | None:
        """The address of a job's page, if it has one."""
        return find_page(job, self.server.public_url, signs_in=self.dashboard.client_id is not None)

    def secret_values(self) -> frozenset[str]:
        """All values that must never be in a log, a comment or a page."""
        env = (value.get_secret_value() for table in self.agents.values() for value in table.env.values())
        gateways = [table.gateway for table in self.agents.values() if table.gateway]
        keys = [
            value.get_secret_value()
            for table in gateways
            for value in (*([table.key] if table.key else []), *table.headers.values())
        ]
        notify = [self.notify.url.get_secret_value()] if self.notify.url else []
        client = [secret] if (secret := self.dashboard.read_client_secret()) else []
        database = self.server.database_passwords()
        proxy = [given, given.partition(":")[2]] if (given := self.proxy.read_credentials()) else []
        app = (*self.webhook_secrets(), self.github.read_private_key())
        return frozenset((*env, *keys, *app, *notify, *client, *database, *filter(None, proxy)))


SHARED = ("/usr/local", "/usr/local/etc", "/var/lib", "/var/local", "/var/tmp", "/etc/opt")  # noqa: S108
"""Folders that many programs share, besides those directly under the root."""


def is_shared(folder: Path) -> bool:
    """Whether it is a system folder, which jobs need. Pure."""
    return len(folder.parts) <= 2 or str(folder) in SHARED


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read a configuration. Raises `ConfigError` with all problems."""
    values = _override(_read_toml(path), os.environ if environ is None else environ)
    _resolve_paths(values, path.resolve().parent)
    profiles, problems = _find_profiles(values)
    settings = None
    try:
        settings = Settings.model_validate(values, context=profiles)
        settings._file = path
    except ValidationError as error:
        problems += describe_problems(error)
    problems += find_contradictions(values, profiles)
    if problems or settings is None:
        raise ConfigError(path, problems)
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError(path, ["invalid UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        # The parser's message may quote a secret, so only the place is shown.
        place = re.search(r"\(at ([^()]*)\)$", str(error))
        raise ConfigError(path, [f"invalid TOML at {place[1] if place else 'the end of the document'}"]) from None


def _find_profiles(values: Mapping[str, Any]) -> tuple[Profiles, list[str]]:
    """All profiles, the operator's before the shipped ones, and the problems in the operator's, by file and key.

    A profile with problems becomes empty, so that they are not reported again for each repository.
    """
    table, problems = values.get("profiles"), []
    profiles = read_profiles()
    folder = table.get("folder") if isinstance(table, dict) else None
    for path in sorted(Path(folder).glob("*.toml")) if isinstance(folder, str) else ():
        try:
            profile = place_briefs(_read_toml(path), path.parent)
            found = [
                f"{key}: only a repository's own table can have this key" for key in NOT_IN_PROFILES if key in profile
            ]
            if not found:
                RepositoryTable.model_validate({**profile, "agent": "any"})
        except ConfigError as error:
            found = [*error.problems]
        except ValidationError as error:
            found = describe_problems(error, RepositoryTable)
        profiles[path.stem] = {} if found else profile
        problems += [f"{path}: {problem}" for problem in found]
    return profiles, problems


def _override(values: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The file's values, overridden by the environment."""
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name.startswith(NOT_SETTINGS) or "__" not in name:
            continue
        *tables, key = name.removeprefix(ENV_PREFIX).lower().split("__")
        place = values
        for table in tables:
            inner = place.setdefault(table, {})
            place = inner if isinstance(inner, dict) else {}
        place[key] = _parse_variable(key, environ[name])
    return values


def _parse_variable(key: str, text: str) -> Any:
    """Parse lists and tables as JSON; secrets also as plain text with commas; anything else is text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return [part.strip() for part in text.split(",")] if key == "webhook_secrets" else text


def _resolve_paths(values: dict[str, Any], folder: Path) -> None:
    """Make relative paths relative to the file, not to the current folder."""
    for name, keys in PATHS.items():
        found = values.get(name)
        tables = found if isinstance(found, list) else [found]
        for table in [*found.values()] if name in BY_NAME and isinstance(found, dict) else tables:
            if isinstance(table, dict):
                _resolve(table, keys, folder)
    server = values.get("server")
    if isinstance(server, dict):
        server.setdefault("data_dir", str(folder / "var"))
        url = server.setdefault("database_url", f"{SQLITE}ptq.db")
        if isinstance(url, str) and url.startswith(SQLITE) and len(url) > len(SQLITE):
            server["database_url"] = f"{SQLITE}{folder / url.removeprefix(SQLITE)}"


def _resolve(table: dict[str, Any], keys: Iterable[str], folder: Path) -> None:
    for key in keys:
        found = table.get(key)
        if isinstance(found, list):
            table[key] = [_find_path(one, folder) for one in found]
        elif found is not None:
            table[key] = _find_path(found, folder)


def _find_path(given: object, folder: Path) -> object:
    # Without a home, the path stays unchanged, and will be missing.
    with suppress(RuntimeError):
        return str(folder / Path(given).expanduser()) if isinstance(given, str) else given
    return given


def describe_problems(error: ValidationError, model: type[Table] | None = None) -> list[str]:
    """All problems, each with its key, without values. `model` is the validated table; by default, the whole file."""
    details = error.errors(include_input=False, include_url=False)
    return [_describe(detail, model or Settings) for detail in details if not _follows(detail, details)]


def _describe(detail: ErrorDetails, model: type[Table]) -> str:
    """One problem with its key, without a value from the file."""
    location = detail["loc"]
    message = WORDS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    if detail["type"] == "extra_forbidden":
        known = _known_keys(location[:-1], model)
        near = get_close_matches(str(location[-1]), known, n=1)
        message = f"unknown key; {f'did you mean {near[0]}?' if near else 'known keys: ' + ', '.join(known)}"
    return f"{name_key(location)}: {message}"


def _follows(detail: ErrorDetails, details: Iterable[ErrorDetails]) -> bool:
    """Whether a list only counts as too short because its items are not valid, which is reported separately."""
    place = detail["loc"]
    inside = any(len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in details)
    return detail["type"] == "too_short" and inside


def _known_keys(location: tuple[int | str, ...], model: type[Table]) -> list[str]:
    """The keys of the table at a location in another one."""
    for part in location:
        field = model.model_fields.get(str(part))
        found = _find_table(field.annotation) if field else None
        model = found or model
    return [field.alias or key for key, field in model.model_fields.items()]


def _find_table(annotation: Any) -> type[Table] | None:
    """The table in a field's type, which may be a dict or a tuple of them."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _find_table(inner))), None)
