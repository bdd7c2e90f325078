"""Checks that caps limit what agents spend, also agents whose cost is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bot.config.contradictions import list_unknown_costs
from bot.config.settings import Settings
from bot.doctor.findings import Cause, Finding, Part
from handlers.rules import RepositoryRules
from runner.model.caps import Caps, Scope

PER: Mapping[Scope, str] = {
    Scope.JOB: "per job",
    Scope.ISSUE: "per issue",
    Scope.USER_DAY: "per person per day",
    Scope.REPOSITORY_DAY: "per repository per day",
    Scope.REPOSITORY_MONTH: "per repository per month",
}


def check_caps(part: Part, settings: Settings, rules: RepositoryRules) -> Iterator[Finding]:
    """Check the caps of a repository, and those for its agents whose cost is unknown."""
    yield judge_caps(part, rules.caps)
    prices = settings.price_list()
    for spec in settings.agent_specs():
        models = (spec.model, *spec.models)
        reasons = [*list_unknown_costs(spec.kind, models, prices, behind_gateway=spec.behind_gateway)]
        if reasons and spec.name in rules.agents:
            yield judge_unknown_cost(part, spec.name, ", ".join(reasons), rules.caps)


def judge_caps(part: Part, caps: Mapping[Scope, Caps]) -> Finding:
    """Judge the caps of a repository."""
    money = [f"${of_scope.cost_usd:,.2f} {PER[scope]}" for scope, of_scope in caps.items() if of_scope.cost_usd]
    if money:
        return part.ok("caps", ", ".join(money))
    if any(of_scope.jobs or of_scope.turns or of_scope.tokens or of_scope.run_s for of_scope in caps.values()):
        return part.ok("caps", "none on money, but others")
    fix = 'remove cost_usd = "unlimited", so that the default caps hold (docs/costs.md)'
    return part.warn("caps", "nothing limits what agents spend", fix)


def judge_unknown_cost(part: Part, agent: str, why: str, caps: Mapping[Scope, Caps]) -> Finding:
    """Judge the caps for an agent whose cost is unknown for this reason."""
    check = f"cost of {agent}"
    if any(of_scope.needs_prices for of_scope in caps.values()):  # Only the gateway refuses: see `contradictions`.
        fix = "add the model's price to [prices] (docs/configuration.md)"
        return part.warn(check, f"{why}, and money is capped: the gateway refuses the model", fix)
    if any(of_scope.unpriced_turns or of_scope.unpriced_run_s for of_scope in caps.values()):
        return part.ok(check, f"{why}: turns and time are capped instead")
    if any(of_scope.turns or of_scope.run_s for of_scope in caps.values()):
        return part.ok(check, f"{why}: caps on turns or time hold")
    fix = "set run_s in [caps.repository_month] (docs/costs.md)"
    return part.warn(
        check, f"{why}, and neither turns nor time are capped", fix, Cause(part.about, "caps", may_be_warning=True)
    )
