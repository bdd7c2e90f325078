"""The options of a command: which agent, which of its models, on which machine, and whether against our advice. Pure.

They stand before the advice: `--agent codex --model gpt-5.5 look at the loop`. Nothing that somebody typed is repeated
as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from handlers.rules import RepositoryRules
from runner.agents import AgentSpec

NAMES = ("agent", "model", "machine")
"""Every option that takes a name."""

ANYWAY = "anyway"
"""The one that takes none: start also where something speaks against it."""

MAX_NAME = 30
"""Characters of an unknown option that we repeat."""

_OPTION = re.compile(r"(?:--|[–—]+)(?=[^\W\d_])([^\s=]+)(?:=(\S*)|\s+(?!--|[–—])(\S+))?\s*")
"""An option with its value. Phones write a long dash where somebody typed two short ones."""


class OptionRefused(Exception):  # noqa: N818
    """Nothing may be started with these options; the message says why, as a clause that is safe to post."""


@dataclass(frozen=True, slots=True)
class Options:
    """What somebody typed, not yet held against what is allowed. None: not given."""

    agent: str | None = None
    model: str | None = None
    machine: str | None = None
    anyway: bool = False
    problem: str | None = None
    """Why it makes no sense, as a clause that is safe to post; None when it does."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An agent, the model that it is asked to take, and its machine; None leaves that to it, and to us."""

    agent: str
    model: str | None = None
    machine: str | None = None


def read_options(argument: str) -> tuple[Options, str]:
    """The options at the start of a command's argument, and the advice behind them. Never raises."""
    given: dict[str, Any] = {}
    rest = argument.strip()
    while option := _OPTION.match(rest):
        name, value = option[1].casefold(), option[2] or option[3]
        if name == ANYWAY and option[2] is None:
            given[name] = True
            rest = rest[option.end(1) :].lstrip()
            continue
        if name not in NAMES:
            shown = re.sub(r"[^a-z0-9-]", "", name)[:MAX_NAME] or "?"
            return Options(problem=f"there is no option `--{shown}`"), ""
        if not value:
            return Options(problem=f"`--{name}` lacks a name"), ""
        given[name] = value
        rest = rest[option.end() :]
    return Options(**given), rest


def list_offers(rules: RepositoryRules, agents: Mapping[str, AgentSpec]) -> dict[str, tuple[str, ...]]:
    """The agents that may work on a repository, its own first, each with the models that may be asked for."""
    names = dict.fromkeys((rules.agent, *rules.agents))
    return {name: tuple(dict.fromkeys(filter(None, (agents[name].model, *agents[name].models)))) for name in names}


def choose(
    options: Options, offers: Mapping[str, tuple[str, ...]], usual: Choice, machines: Collection[str] = ()
) -> Choice:
    """Who is to work, and where: as the options say, else as usual, else, where that is no longer offered, the first
    offer. `machines` are the names of those that may be asked for.

    Raises `OptionRefused` for options that make no sense or name what is not offered.
    """
    if options.problem:
        raise OptionRefused(options.problem)
    agent = usual.agent if usual.agent in offers else next(iter(offers))
    if options.agent is not None:
        agent = _find(options.agent, offers) or _refuse("`--agent` names none that may work here")
    machine = options.machine and (_find(options.machine, machines) or _refuse("`--machine` names none for this"))
    if options.model is not None:
        model = _find(options.model, offers[agent]) or _refuse(f"`--model` names none of `{agent}`'s")
        return Choice(agent, model, machine)
    keeps_model = agent == usual.agent and usual.model in offers[agent]
    return Choice(agent, usual.model if keeps_model else None, machine)


def _find(typed: str, names: Collection[str]) -> str | None:
    """The name that was meant: phones begin words with a capital."""
    if typed in names:
        return typed
    return next((name for name in names if name.casefold() == typed.casefold()), None)


def _refuse(why: str) -> str:
    raise OptionRefused(why)
