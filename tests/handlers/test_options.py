from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers, read_options
from handlers.commands.table import parse_commands
from handlers.rules import Offer, RepositoryRules
from handlers.words.replies import render_option_refused
from runner.agents import AgentSpec
from runner.model.caps import Caps

OFFERS = {
    "claude": Offer(("opus", "sonnet"), ("low", "high")),
    "codex": Offer(("gpt-5.5",), ("low", "xhigh")),
    "mine": Offer(is_counted=False),
}
CAPS = Caps(turns=300, cost_usd=10.0)
BOTH = Options("codex", "gpt-5.5")
KEPT = Choice("claude", "opus", None, "high", 20, 5.0)


@pytest.mark.parametrize(
    ("argument", "options", "advice"),
    [
        ("", Options(), ""),
        ("look at the loop", Options(), "look at the loop"),
        ("--agent codex", Options("codex"), ""),
        ("--agent codex --model gpt-5.5 look at the loop", BOTH, "look at the loop"),
        ("--model=gpt-5.5 --agent=codex look", BOTH, "look"),
        ("--preset fix look", Options(preset="fix"), "look"),
        (
            "--thinking high --Max-Turns 20 —max-cost=$2.50 look",
            Options(thinking="high", max_turns="20", max_cost="$2.50"),
            "look",
        ),
        ("--fresh --anyway look", Options(anyway=True, fresh=True), "look"),
        ("--fresh=yes", Options(problem="unknown option `--fresh`"), ""),
        ("  --agent\tcodex   --model  gpt-5.5   look", BOTH, "look"),
        ("—agent codex –model gpt-5.5 look", BOTH, "look"),
        ("––agent codex —model=gpt-5.5", BOTH, ""),
        ("--Agent Codex", Options("Codex"), ""),
        ("--agent one --agent codex", Options("codex"), ""),
        ("look at --agent codex", Options(), "look at --agent codex"),
        ("--agent codex look at --foo", Options("codex"), "look at --foo"),
        ("-- look at the loop", Options(), "-- look at the loop"),
        ("— look at the loop", Options(), "— look at the loop"),
        ("-agent codex", Options(), "-agent codex"),
        ("---agent codex", Options(), "---agent codex"),
    ],
)
def test_options_stand_before_the_advice(argument: str, options: Options, advice: str) -> None:
    assert read_options(argument) == (options, advice)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--foo", "unknown option `--foo`"),
        ("--foo=bar look", "unknown option `--foo`"),
        ("--agent codex –modle x", "unknown option `--modle`"),
        ("--a`@octocat`<b>", "unknown option `--aoctocatb`"),
        ("--é", "unknown option `--?`"),
        ("--" + "x" * 1000, f"unknown option `--{'x' * 30}`"),
        ("--agent", "`--agent` needs a name"),
        ("--agent=", "`--agent` needs a name"),
        ("--agent= codex", "`--agent` needs a name"),
        ("--agent --model gpt-5.5", "`--agent` needs a name"),
        ("--thinking", "`--thinking` needs a level"),
        ("--max-turns --max-cost 1", "`--max-turns` needs a whole number"),
        ("--max-cost", "`--max-cost` needs an amount in dollars"),
        ("—agent —model gpt-5.5", "`--agent` needs a name"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_and_nothing_of_it_is_repeated_raw(argument: str, problem: str) -> None:
    assert read_options(argument)[0] == Options(problem=problem)
    with pytest.raises(OptionRefused, match=f"^{re.escape(problem)}$"):
        choose(Options(problem=problem), OFFERS, Choice("mine"))


@pytest.mark.slow
@given(st.text() | st.lists(st.sampled_from(["--", "—", "agent", "model", "=", " ", "x", "`"])).map("".join))
def test_whatever_is_typed_is_read(argument: str) -> None:
    options, advice = read_options(argument)
    assert argument.strip().endswith(advice)
    assert options.problem is None or re.fullmatch(r"[a-z` ?0-9-]+", options.problem)


@pytest.mark.parametrize(
    ("options", "usual", "choice"),
    [
        (Options(), Choice("mine"), Choice("mine")),
        (Options(), Choice("codex", "gpt-5.5"), Choice("codex", "gpt-5.5")),
        (Options("codex"), Choice("mine"), Choice("codex")),
        (Options("Codex", "GPT-5.5"), Choice("mine"), Choice("codex", "gpt-5.5")),
        (Options(model="sonnet"), Choice("claude"), Choice("claude", "sonnet")),
        (Options(model="sonnet"), Choice("claude", "opus"), Choice("claude", "sonnet")),
        (Options("claude"), Choice("claude", "opus"), Choice("claude", "opus")),
        (Options("codex"), Choice("claude", "opus"), Choice("codex")),
        (Options(), Choice("claude", "withdrawn"), Choice("claude")),
        (Options(thinking="HIGH"), Choice("claude"), Choice("claude", thinking="high")),
        (
            Options(max_turns="300", max_cost="$0.50"),
            Choice("claude"),
            Choice("claude", max_turns=300, max_cost_usd=0.5),
        ),
        # Another attempt keeps what its agent still offers, and what caps do not undercut.
        (Options(), KEPT, KEPT),
        (Options("codex"), KEPT, Choice("codex", max_turns=20, max_cost_usd=5.0)),
        (Options(max_turns="30"), KEPT, replace(KEPT, max_turns=30)),
        (Options(), replace(KEPT, thinking="max", max_turns=301, max_cost_usd=11.0), Choice("claude", "opus")),
        (Options("mine"), KEPT, Choice("mine")),
        (Options(), Choice("withdrawn", "opus"), Choice("claude")),
    ],
)
def test_the_options_choose_among_what_is_offered(options: Options, usual: Choice, choice: Choice) -> None:
    assert choose(options, OFFERS, usual, caps=CAPS) == choice


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options("gemini"), "unknown agent"),
        (Options("@octocat`"), "unknown agent"),
        (Options("codex", "opus"), "unknown model for `codex`"),
        (Options(model="gpt-5.5"), "unknown model for `mine`"),
        (Options(thinking="low"), "the agent `mine` has no `--thinking`; agents that have it: `claude`, `codex`"),
        (Options("claude", thinking="`xhigh"), "unknown level of thinking for `claude`"),
        (Options("claude", max_turns="0"), "`--max-turns` needs a whole number, such as `20`"),
        (Options("claude", max_turns="1.5"), "`--max-turns` needs a whole number, such as `20`"),
        (Options("claude", max_cost="nan"), "`--max-cost` needs an amount in dollars, such as `2.50`"),
        (
            Options("claude", max_turns="301"),
            "`--max-turns` is more than the cap of 300 turns (the operator can raise it: caps.job.turns in ptq.toml)",
        ),
        (
            Options("claude", max_cost="10.01"),
            "`--max-cost` is more than the cap of $10.00 (the operator can raise it: caps.job.cost_usd in ptq.toml)",
        ),
        (
            Options(max_turns="5"),
            "`--max-turns` cannot limit the agent `mine`: nobody counts its turns and its cost, because it does not "
            "use the gateway",
        ),
    ],
)
def test_what_is_not_offered_is_refused_without_repeating_it(options: Options, problem: str) -> None:
    with pytest.raises(OptionRefused, match=f"^{re.escape(problem)}$"):
        choose(options, OFFERS, Choice("mine"), caps=CAPS)


def test_a_repository_offers_its_own_agent_first_and_of_each_the_configured_model_first() -> None:
    agents = {
        "mine": AgentSpec("mine", "command"),
        "codex": AgentSpec("codex", "codex", model="gpt-5.5", models=("gpt-5", "gpt-5.5"), thinking="newest"),
        "other": AgentSpec("other", "command"),
    }
    rules = RepositoryRules("octo/widgets", agent="mine", agents=("codex", "mine"))
    offers = list_offers(rules, agents)
    assert list(offers) == ["mine", "codex"]
    assert offers["mine"] == Offer(is_counted=False)
    assert offers["codex"].models == ("gpt-5.5", "gpt-5")
    assert offers["codex"].thinking[-1] == "newest", "also a level that only the operator knows"
    assert offers["codex"].is_counted
    assert list(list_offers(RepositoryRules("octo/widgets", agent="mine"), agents)) == ["mine"]


def test_a_refusal_says_what_may_be_given() -> None:
    assert render_option_refused("unknown option `--foo`", OFFERS, ["gpu-1"]) == (
        "Not started: unknown option `--foo`. Available options:\n\n"
        "- `--agent claude`, with `--model opus` or `--model sonnet`; `--thinking` takes `low`, `high`\n"
        "- `--agent codex`, with `--model gpt-5.5`; `--thinking` takes `low`, `xhigh`\n"
        "- `--agent mine`\n"
        "- `--machine gpu-1`"
    )


def test_a_command_keeps_its_options_in_its_argument() -> None:
    (command,) = parse_commands("/ptq fix —agent codex with care")
    assert getattr(command, "argument", None) == "—agent codex with care"
