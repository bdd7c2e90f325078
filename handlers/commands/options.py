"""The options of a command: agent, model, machine, preset, `--anyway` and `--fresh`. Pure.

They come before the advice: `--agent codex --model gpt-5.5 look at the loop`. Typed text is never repeated unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from handlers.rules import RepositoryRules
from runner.agents import AgentSpec

GENERAL_NAMES = ("agent", "model", "machine")
"""The options with a name that every command takes which starts a job."""

NAMES = (*GENERAL_NAMES, "preset")
"""All options with a name. Only a retry has a choice of presets."""

ANYWAY, FRESH = "anyway", "fresh"
"""The options without a name: start even if something speaks against it, and without what earlier attempts found."""

MAX_NAME = 30
"""The most characters of an unknown option that we repeat."""

_OPTION = re.compile(r"(?:--|[–—]+)(?=[^\W\d_])([^\s=]+)(?:=(\S*)|\s+(?!--|[–—])(\S+))?\s*")
"""An option with its value. Phones replace two hyphens with a dash."""


class OptionRefused(Exception):  # noqa: N818
    """The options are not valid. The message is a clause that is safe to post."""

    def __init__(self, why: str, option: str = "agent") -> None:
        """`option` is the one that is not available."""
        super().__init__(why)
        self.option = option


@dataclass(frozen=True, slots=True)
class Options:
    """The typed options, not validated yet. None: not given."""

    agent: str | None = None
    model: str | None = None
    machine: str | None = None
    preset: str | None = None
    anyway: bool = False
    fresh: bool = False
    problem: str | None = None
    """Why they are not valid, as a clause that is safe to post; None if they are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An agent, the requested model, and the requested machine; None leaves the choice open."""

    agent: str
    model: str | None = None
    machine: str | None = None


def read_options(argument: str) -> tuple[Options, str]:
    """The options at the start of a command's argument, and the advice after them. Never raises."""
    given: dict[str, Any] = {}
    rest = argument.strip()
    while option := _OPTION.match(rest):
        name, value = option[1].casefold(), option[2] or option[3]
        if name in (ANYWAY, FRESH) and option[2] is None:
            given[name] = True
            rest = rest[option.end(1) :].lstrip()
            continue
        if name not in NAMES:
            shown = re.sub(r"[^a-z0-9-]", "", name)[:MAX_NAME] or "?"
            return Options(problem=f"unknown option `--{shown}`"), ""
        if not value:
            return Options(problem=f"`--{name}` needs a name"), ""
        given[name] = value
        rest = rest[option.end() :]
    return Options(**given), rest


def list_offers(rules: RepositoryRules, agents: Mapping[str, AgentSpec]) -> dict[str, tuple[str, ...]]:
    """The allowed agents of a repository, the default first, each with its allowed models."""
    names = dict.fromkeys((rules.agent, *rules.agents))
    return {name: tuple(dict.fromkeys(filter(None, (agents[name].model, *agents[name].models)))) for name in names}


def choose(
    options: Options, offers: Mapping[str, tuple[str, ...]], usual: Choice, machines: Collection[str] = ()
) -> Choice:
    """The agent, model and machine: from the options, or else `usual`, or else, if that is no longer available, the
    first offer. `machines` are the allowed machines.

    Raises `OptionRefused` for options that are not valid or not available.
    """
    if options.problem:
        raise OptionRefused(options.problem)
    agent = usual.agent if usual.agent in offers else next(iter(offers))
    if options.agent is not None:
        agent = _find(options.agent, offers) or _refuse("unknown agent", "agent")
    machine = options.machine and (_find(options.machine, machines) or _refuse("unknown machine", "machine"))
    if options.model is not None:
        model = _find(options.model, offers[agent]) or _refuse(f"unknown model for `{agent}`", "model")
        return Choice(agent, model, machine)
    keeps_model = agent == usual.agent and usual.model in offers[agent]
    return Choice(agent, usual.model if keeps_model else None, machine)


def _find(typed: str, names: Collection[str]) -> str | None:
    """The matching name, ignoring case, because phones capitalize words."""
    if typed in names:
        return typed
    return next((name for name in names if name.casefold() == typed.casefold()), None)


def _refuse(why: str, option: str) -> str:
    raise OptionRefused(why, option)
