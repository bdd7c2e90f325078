"""Problems between the tables of `ptq.toml`, found in raw values so that they are reported with all others."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from bot.config.policy_tables import REPOSITORY, UNLIMITED, Profiles, list_shipped_skills
from handlers.cases.case import LABELS
from handlers.rules import PRESETS
from runner.agents.prices import Price, find_price
from runner.agents.skills import is_skill_folder

SAY_THEIR_COST = ("claude", "pi")
"""Kinds of agents that report their cost."""


def name_key(location: tuple[int | str, ...]) -> str:
    """A key as in the file: `machines[0].slots`, `repos."octo/widgets".agent`."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            quoted = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part)
            name += f".{quoted}" if name else quoted
    return name or "the file"


def find_contradictions(values: Mapping[str, Any], profiles: Profiles) -> Iterator[str]:
    """Find problems between tables. Pure."""
    machines = [table for table in _list(values.get("machines")) if isinstance(table, dict)]
    names = [str(table.get("name")) for table in machines]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"machines: two machines are named {name}"
    agents, presets = _table(values.get("agents")), _table(values.get("presets"))
    for name, table in _tables(presets).items():
        yield from _find_preset_problems(name, table)
    seen: dict[str, str] = {}
    for name, given in _table(values.get("repos")).items():
        key, table = name_key(("repos", name)), _table(given)
        if not REPOSITORY.fullmatch(name):
            yield f"{key}: a repository is named owner/name"
        if twin := seen.get(name.lower()):
            yield f"{key}: on GitHub this is the same as {twin}"
        seen[name.lower()] = name
        yield from _find_odd_companions(name, table)
        yield from _find_missing(key, table, machines, agents)
        yield from _find_mute(key, table, agents, profiles)
        yield from _find_unknown_presets(name, table, [*PRESETS, *presets])
        yield from _find_taken_labels(name, table)
    yield from _find_unpriced(values)
    yield from _find_skill_problems(values, profiles)


def _find_skill_problems(values: Mapping[str, Any], profiles: Profiles) -> Iterator[str]:
    """Skills that are nowhere, that repositories name but nobody has, or that no job would get."""
    own = _table(values.get("skills"))
    known, named = dict.fromkeys((*own, *list_shipped_skills())), set[Any]()
    for name, table in _tables(values.get("repos")).items():
        profile = profiles.get(str(table.get("profile")), {})
        skills = [skill for skill in _list(table.get("skills", profile.get("skills"))) if isinstance(skill, str)]
        named.update(skills)
        for skill in skills:
            if not is_skill_folder(skill) and skill not in known:
                yield (
                    f"{name_key(('repos', name))}.skills: there is no [skills.{skill}]; available: {', '.join(known)}; "
                    f'a folder of the repository has a slash: "{skill}/"'
                )
    for name, table in _tables(own).items():
        if name not in list_shipped_skills() and not table.get("folder") and not table.get("in_repository"):
            yield f"{name_key(('skills', name))}: there is no built-in skill of this name: set folder or in_repository"
        if not table.get("labels") and name not in named:
            yield f"{name_key(('skills', name))}: no job gets it: set labels, or name it in `skills` of a repository"


def _find_odd_companions(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Companions that are named twice, or that are the repository itself."""
    companions = [other.lower() for other in _list(table.get("with")) if isinstance(other, str)]
    if name.lower() in companions:
        yield f"{name_key(('repos', name, 'with'))}: this is the repository itself"
    if len({*companions}) < len(companions):
        yield f"{name_key(('repos', name, 'with'))}: names a repository twice"


def _find_preset_problems(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an own preset, or with the replacement of a built-in one."""
    key, builtin = name_key(("presets", name)), PRESETS.get(name)
    if builtin is None:
        if "goal" not in table:
            yield f"{key}.goal: is missing"
    elif not builtin.is_replaceable:
        others = ", ".join(preset.name for preset in PRESETS.values() if preset.is_replaceable)
        yield f"{key}: this built-in preset cannot be replaced; these can: {others}"
    else:
        for other in sorted(table.keys() - {"file"}):
            yield f"{key}.{other}: only the instructions of a built-in preset can be replaced: remove this key"


def _find_unknown_presets(name: str, table: Mapping[str, Any], presets: Collection[str]) -> Iterator[str]:
    """Presets of labels that do not exist, or that need instructions."""
    for label, preset in _table(table.get("labels")).items():
        key = name_key(("repos", name, "labels", label))
        if isinstance(preset, str) and preset not in presets:
            yield f"{key}: unknown preset; available: {', '.join(dict.fromkeys(presets))}"
        elif isinstance(preset, str) and preset in PRESETS and PRESETS[preset].needs_advice:
            yield f"{key}: {preset} needs instructions, which a label does not have"


def _find_taken_labels(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Trigger labels that ptq-bot itself adds and removes."""
    ours = {label.casefold() for label in LABELS.values()}
    named = [(("labels", label), label) for label in _table(table.get("labels"))]
    for place, label in [*named, (("pause_label",), table.get("pause_label"))]:
        if isinstance(label, str) and label.casefold() in ours:
            yield f"{name_key(('repos', name, *place))}: with case_labels, ptq-bot adds this label: choose another"


def _find_missing(
    key: str, table: Mapping[str, Any], machines: Iterable[Mapping[str, Any]], agents: Mapping[str, Any]
) -> Iterator[str]:
    """Agents and labels that a repository needs but that do not exist."""
    named = [("agent", table.get("agent")), *(("agents", name) for name in _list(table.get("agents")))]
    for place, agent in named:
        if isinstance(agent, str) and agent not in agents:
            yield f"{key}.{place}: there is no [agents.{agent}]; available: {', '.join(agents) or 'none'}"
    yield from _find_unroutable(key, table, machines)


def _find_unroutable(key: str, table: Mapping[str, Any], machines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Labels of machines that no machine has together."""
    owned = [set(map(str, has)) for machine in machines if isinstance(has := machine.get("labels", []), list)]
    wanted = {"requires": set(map(str, _list(table.get("requires"))))}
    if any(wanted["requires"] <= has for has in owned):
        for label, given in _table(table.get("routes")).items():
            if isinstance(given, list):
                wanted[f'routes."{label}"'] = wanted["requires"] | set(map(str, given))
    for place, labels in wanted.items():
        if labels and not any(labels <= has for has in owned):
            yield f"{key}.{place}: no machine has all of these labels: {', '.join(sorted(labels))}"


def _find_mute(key: str, table: Mapping[str, Any], agents: Mapping[str, Any], profiles: Profiles) -> Iterator[str]:
    """Agents without a network that cannot reach their models."""
    profile = profiles.get(str(table.get("profile")), {})
    if table.get("network", profile.get("network")) != "none":
        return
    for name in (table.get("agent"), *_list(table.get("agents"))):
        agent = agents.get(name) if isinstance(name, str) else None
        if isinstance(agent, dict) and agent.get("kind") != "command" and not agent.get("gateway"):
            yield (
                f"{key}.network: with none, the agent {name} needs [agents.{name}.gateway] to reach its model "
                '(docs/gateway.md); or set network = "host"'
            )


def _find_unpriced(values: Mapping[str, Any]) -> Iterator[str]:
    """Agents with unknown costs, in repositories where the operator has capped costs. The default caps allow them."""
    priced = dict.fromkeys(_table(values.get("prices")), Price(0, 0, 0))
    at_work = {
        str(name)
        for repository in _tables(values.get("repos")).values()
        if _caps_money(values, repository)
        for name in (repository.get("agent"), *_list(repository.get("agents")))
    }
    for name, table in _tables(values.get("agents")).items():
        if name not in at_work or table.get("kind") in SAY_THEIR_COST:
            continue
        if table.get("kind") == "command" and table.get("gateway"):
            continue  # The gateway refuses models without a known price.
        models = [model for model in (table.get("model"), *_list(table.get("models"))) if isinstance(model, str | None)]
        advice = ": see [prices]"
        if table.get("kind") == "command":
            advice = ": remove cost_usd, so that the default caps limit turns and time there"
        behind_gateway = bool(table.get("gateway"))
        for what in list_unknown_costs(str(table.get("kind")), models, priced, behind_gateway=behind_gateway):
            yield f"{name_key(('agents', name))}: {what}, so caps on cost_usd don't work{advice}"


def list_unknown_costs(
    kind: str, models: Iterable[str | None], own: Mapping[str, Price], *, behind_gateway: bool
) -> Iterator[str]:
    """Why the cost of an agent's runs is unknown, as clauses. A model that is None is the agent's default."""
    if not behind_gateway and kind == "command":
        yield "the cost of a command is unknown"
    elif behind_gateway or kind not in SAY_THEIR_COST:
        for model in models:
            if model is None and kind not in (*SAY_THEIR_COST, "command"):
                yield "without a model the price is unknown"
            elif model and not find_price(model, own):
                yield f"the price of model {model} is unknown"


def _caps_money(*tables: Mapping[str, Any]) -> bool:
    """Whether these tables cap money, with each one's caps over those of the table before."""
    capped = {
        scope: caps["cost_usd"]
        for table in tables
        for scope, caps in _tables(table.get("caps")).items()
        if "cost_usd" in caps
    }
    return any(amount != UNLIMITED for amount in capped.values())


# A value of another type than expected is reported by `bot.config.settings`. Here it counts as empty.


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: Any) -> Mapping[str, Mapping[str, Any]]:
    return {name: table for name, table in _table(value).items() if isinstance(table, dict)}
