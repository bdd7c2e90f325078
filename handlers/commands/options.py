"""The options of a command: agent, model, thinking, machine, limits of the run, preset, `--anyway`, `--fresh`. Pure.

They come before the advice: `--agent codex --model gpt-5.5 look at the loop`. Typed text is never repeated unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from handlers.rules import Offer, RepositoryRules
from runner.agents import AgentSpec, build_agent
from runner.model.caps import Caps, CapUse, Scope, find_tightest, say_who_raises
from runner.model.job import JobRequest
from runner.model.usage import Usage

NAME = "NAME", "a name"

GENERAL: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("agent", "model", "machine"), NAME),
    "thinking": ("LEVEL", "a level"),
    "max-turns": ("N", "a whole number"),
    "max-cost": ("DOLLARS", "an amount in dollars"),
}
"""The options with a value that all commands share that start a job. Option -> placeholder and meaning of its value."""

VALUED = {**GENERAL, "preset": NAME}
"""All options with a value. Only a retry has a choice of presets."""

ANYWAY, FRESH = "anyway", "fresh"
"""The options without a value.

`--anyway` starts a job even if people may be working on the issue. `--fresh` leaves out what earlier attempts found.
"""

NO_CAPS = Caps()

MAX_NAME = 30
"""The most characters of an unknown option that we repeat."""

_OPTION = re.compile(r"(?:--|[–—]+)(?=[^\W\d_])([^\s=]+)(?:=(\S*)|\s+(?!--|[–—])(\S+))?\s*")
"""An option with its value. Phones replace two hyphens with a dash."""

_TURNS = re.compile(r"([0-9]{1,7})")
_DOLLARS = re.compile(r"\$?([0-9]{1,6}(?:\.[0-9]{1,2})?)")


class OptionRefused(Exception):  # noqa: N818
    """The options are not valid. The message is a clause that is safe to post."""

    def __init__(self, why: str, option: str = "agent", choices: Collection[str] | None = None) -> None:
        """`option` is the refused one, named as in forms. `choices` are its valid values. None if they do not help."""
        super().__init__(why)
        self.option, self.choices = option, choices

    def explain(self) -> str:
        """The clause with the choices, as plain text."""
        why = str(self).replace("`", "")
        return why if self.choices is None else f"{why}; available: {', '.join(self.choices) or 'none'}"


@dataclass(frozen=True, slots=True)
class Options:
    """The typed options, not validated yet. None means that an option was not given."""

    agent: str | None = None
    model: str | None = None
    machine: str | None = None
    preset: str | None = None
    anyway: bool = False
    fresh: bool = False
    thinking: str | None = None
    max_turns: str | None = None
    max_cost: str | None = None
    problem: str | None = None
    """Why the options cannot be read, as a clause that is safe to post. None if they can."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An agent, and what was requested for its run. None leaves a choice open."""

    agent: str
    model: str | None = None
    machine: str | None = None
    thinking: str | None = None
    max_turns: int | None = None
    max_cost_usd: float | None = None

    @classmethod
    def of(cls, job: JobRequest) -> Choice:
        """The choice that another attempt takes over from a job. The attempt can run on any machine."""
        return cls(job.agent, **{name: getattr(job, name) for name in _KEPT})

    def wanted(self) -> dict[str, Any]:
        """The fields of a job request, except for the machine."""
        return {name: getattr(self, name) for name in ("agent", *_KEPT)}


_KEPT = ("model", "thinking", "max_turns", "max_cost_usd")


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
        if name not in VALUED:
            shown = re.sub(r"[^a-z0-9-]", "", name)[:MAX_NAME] or "?"
            return Options(problem=f"unknown option `--{shown}`"), ""
        if not value:
            return Options(problem=f"`--{name}` needs {VALUED[name][1]}"), ""
        given[name.replace("-", "_")] = value
        rest = rest[option.end() :]
    return Options(**given), rest


def list_offers(rules: RepositoryRules, agents: Mapping[str, AgentSpec]) -> dict[str, Offer]:
    """What the allowed agents of a repository offer, by name, the default agent first."""
    return {name: describe_offer(agents[name]) for name in dict.fromkeys((rules.agent, *rules.agents))}


def describe_offer(spec: AgentSpec) -> Offer:
    """What an agent offers."""
    levels = build_agent(spec).levels
    return Offer(
        models=tuple(dict.fromkeys(filter(None, (spec.model, *spec.models)))),
        # The operator may know a level that is newer than our list.
        thinking=tuple(dict.fromkeys(filter(None, (*levels, spec.thinking)))),
        is_counted=spec.kind != "command" or spec.behind_gateway,
    )


def choose(
    options: Options,
    offers: Mapping[str, Offer],
    usual: Choice,
    machines: Collection[str] = (),
    caps: Caps = NO_CAPS,
) -> Choice:
    """The choice that the options make. An option that was not given leaves the `usual` choice.

    If the usual agent is no longer available, the first offer replaces it. A usual model or level of thinking counts
    only for the usual agent, and only if it is still available. `machines` are the allowed machines, and `caps` the
    caps of one run. Raises `OptionRefused` for options that are not valid or not available.
    """
    if options.problem:
        raise OptionRefused(options.problem, choices=offers)
    agent = usual.agent if usual.agent in offers else next(iter(offers))
    if options.agent is not None:
        agent = _find(options.agent, offers) or _refuse("unknown agent", "agent", offers)
    machine = options.machine and (_find(options.machine, machines) or _refuse("unknown machine", "machine", machines))
    offer, keeps = offers[agent], agent == usual.agent
    model = usual.model if keeps and usual.model in offer.models else None
    if options.model is not None:
        model = _find(options.model, offer.models) or _refuse(f"unknown model for `{agent}`", "model", offer.models)
    thinking = usual.thinking if keeps and usual.thinking in offer.thinking else None
    if options.thinking is not None:
        thinking = _find(options.thinking, offer.thinking) or _refuse_thinking(agent, offers)
    turns, cost_usd = _choose_limits(options, agent, offer, usual, caps)
    return Choice(agent, model, machine, thinking, turns, cost_usd)


def _refuse_thinking(agent: str, offers: Mapping[str, Offer]) -> str:
    if levels := offers[agent].thinking:
        return _refuse(f"unknown level of thinking for `{agent}`", "thinking", levels)
    others = ", ".join(f"`{name}`" for name, offer in offers.items() if offer.thinking)
    which = f"agents that have it: {others}" if others else "no agent here has it"
    raise OptionRefused(f"the agent `{agent}` has no `--thinking`; {which}", "thinking")


def _choose_limits(
    options: Options, agent: str, offer: Offer, usual: Choice, caps: Caps
) -> tuple[int | None, float | None]:
    """The limits of a run in turns and money. A usual limit above a cap is dropped: the cap applies."""
    turns = usual.max_turns if _find_exceeded(caps, turns=usual.max_turns) is None else None
    cost_usd = usual.max_cost_usd if _find_exceeded(caps, cost_usd=usual.max_cost_usd) is None else None
    if options.max_turns is not None:
        turns = int(_read_number(_TURNS, options.max_turns, "max-turns", "20"))
        _check_limit("max-turns", agent, offer, _find_exceeded(caps, turns=turns))
    if options.max_cost is not None:
        cost_usd = float(_read_number(_DOLLARS, options.max_cost, "max-cost", "2.50"))
        _check_limit("max-cost", agent, offer, _find_exceeded(caps, cost_usd=cost_usd))
    return (turns, cost_usd) if offer.is_counted else (None, None)


def _read_number(form: re.Pattern[str], typed: str, name: str, example: str) -> str:
    found = form.fullmatch(typed)
    if found is None or not float(found[1]):
        raise _make_refusal(name, f"needs {VALUED[name][1]}, such as `{example}`")
    return found[1]


def _find_exceeded(caps: Caps, *, turns: int | None = None, cost_usd: float | None = None) -> CapUse | None:
    """The cap of a run that is lower than a limit. None if no cap is."""
    wanted = Usage(turns=turns or 0, known_usd=cost_usd or 0.0)
    use = find_tightest({Scope.JOB: caps}, {Scope.JOB: wanted})
    return use if use and use.share > 1 else None


def _check_limit(name: str, agent: str, offer: Offer, exceeded: CapUse | None) -> None:
    """Raise `OptionRefused` for a limit that nobody could enforce, or that is above a cap."""
    if not offer.is_counted:
        why = "nobody counts its turns and its cost, because it does not use the gateway"
        raise _make_refusal(name, f"cannot limit the agent `{agent}`: {why}")
    if exceeded:
        cap = exceeded.describe("", whose="the")
        raise _make_refusal(name, f"is more than {cap} ({say_who_raises(exceeded.key)})")


def _make_refusal(name: str, why: str) -> OptionRefused:
    return OptionRefused(f"`--{name}` {why}", name.replace("-", "_"))


def _find(typed: str, names: Collection[str]) -> str | None:
    """The matching name, ignoring case, because phones capitalize words."""
    if typed in names:
        return typed
    return next((name for name in names if name.casefold() == typed.casefold()), None)


def _refuse(why: str, option: str, choices: Collection[str]) -> str:
    raise OptionRefused(why, option, choices)
