"""The usage of a run as text, for comments, pages and the command line. Pure."""

from __future__ import annotations

from runner.model.job import KINDS, JobRequest
from runner.model.meter import Meter


def describe_cost(meter: Meter) -> str:
    """The cost: `$0.42`, or `about $0.42` if it is estimated from tokens, or `cost unknown`.

    If only the agent has counted the cost, it is `the agent says $0.42`.
    """
    return _attribute(meter, _describe_money(meter)) if meter.usage.cost_usd is not None else _describe_money(meter)


def _attribute(meter: Meter, words: str) -> str:
    return f"the agent says {words}" if meter.is_self_reported else words


def _describe_money(meter: Meter) -> str:
    cost_usd = meter.usage.cost_usd
    if cost_usd is None:
        return "cost unknown"
    if 0 < cost_usd < 0.01:
        return "less than $0.01"
    return f"{'about ' * meter.cost_is_estimate}${cost_usd:,.2f}"


def describe_limits(request: JobRequest) -> str:
    """The limits that were requested for a run: `at most 20 turns and $2.00`. Empty without limits or agent."""
    turns, cost_usd = request.max_turns, request.max_cost_usd
    limits = [
        *([f"{turns:,} turn{'s' * (turns != 1)}"] if turns else []),
        *([f"${cost_usd:,.2f}"] if cost_usd else []),
    ]
    return f"at most {' and '.join(limits)}" if limits and KINDS[request.kind].has_agent else ""


def describe_tokens(count: int) -> str:
    """A number of tokens: `950 tokens`, `12k tokens`, `1.2M tokens`."""
    if count < 1_000:
        return f"{count} token{'s' * (count != 1)}"
    if count < 999_500:
        return f"{_shorten(count / 1_000)}k tokens"
    return f"{_shorten(count / 1_000_000)}M tokens"


def _shorten(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:.0f}"


def describe_meter(meter: Meter) -> str:
    """The usage on one line: `12 turns, 34 tool calls, 120k tokens, $0.42`. Parts may be unknown."""
    usage = meter.usage
    if not usage.tokens and not usage.turns:
        return "tokens and cost unknown"
    counts = [
        f"{count} {what}{'s' * (count != 1)}"
        for count, what in ((usage.turns, "turn"), (meter.tool_calls, "tool call"))
        if count
    ]
    tokens = describe_tokens(usage.tokens) if usage.tokens else "tokens unknown"
    return _attribute(meter, ", ".join([*counts, tokens, _describe_money(meter)]))
