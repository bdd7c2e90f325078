from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.commands.options import Choice, OptionRefused, Options, choose, list_offers, read_options
from handlers.commands.table import parse_commands
from handlers.rules import RepositoryRules
from handlers.words.replies import render_option_refused
from runner.agents import AgentSpec

OFFERS = {"claude": ("opus", "sonnet"), "codex": ("gpt-5.5",), "mine": ()}
BOTH = Options("codex", "gpt-5.5")


@pytest.mark.parametrize(
    ("argument", "options", "advice"),
    [
        ("", Options(), ""),
        ("look at the loop", Options(), "look at the loop"),
        ("--agent codex", Options("codex"), ""),
        ("--agent codex --model gpt-5.5 look at the loop", BOTH, "look at the loop"),
        ("--model=gpt-5.5 --agent=codex look", BOTH, "look"),
        ("--preset fix look", Options(preset="fix"), "look"),
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
        ("—agent —model gpt-5.5", "`--agent` needs a name"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_and_nothing_of_it_is_repeated_raw(argument: str, problem: str) -> None:
    assert read_options(argument)[0] == Options(problem=problem)
    with pytest.raises(OptionRefused, match=f"^{re.escape(problem)}$"):
        choose(Options(problem=problem), OFFERS, Choice("mine"))


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
        (Options(), Choice("withdrawn", "opus"), Choice("claude")),
    ],
)
def test_the_options_choose_among_what_is_offered(options: Options, usual: Choice, choice: Choice) -> None:
    assert choose(options, OFFERS, usual) == choice


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options("gemini"), "unknown agent"),
        (Options("@octocat`"), "unknown agent"),
        (Options("codex", "opus"), "unknown model for `codex`"),
        (Options(model="gpt-5.5"), "unknown model for `mine`"),
    ],
)
def test_what_is_not_offered_is_refused_without_repeating_it(options: Options, problem: str) -> None:
    with pytest.raises(OptionRefused, match=f"^{re.escape(problem)}$"):
        choose(options, OFFERS, Choice("mine"))


def test_a_repository_offers_its_own_agent_first_and_of_each_the_configured_model_first() -> None:
    agents = {
        "mine": AgentSpec("mine", "command"),
        "codex": AgentSpec("codex", "codex", model="gpt-5.5", models=("gpt-5", "gpt-5.5")),
        "other": AgentSpec("other", "command"),
    }
    rules = RepositoryRules("octo/widgets", agent="mine", agents=("codex", "mine"))
    offers = list_offers(rules, agents)
    assert list(offers.items()) == [("mine", ()), ("codex", ("gpt-5.5", "gpt-5"))]
    assert list_offers(RepositoryRules("octo/widgets", agent="mine"), agents) == {"mine": ()}


def test_a_refusal_says_what_may_be_given() -> None:
    assert render_option_refused("unknown option `--foo`", OFFERS, ["gpu-1"]) == (
        "Not started: unknown option `--foo`. Available options:\n\n"
        "- `--agent claude`, with `--model opus` or `--model sonnet`\n"
        "- `--agent codex`, with `--model gpt-5.5`\n"
        "- `--agent mine`\n"
        "- `--machine gpu-1`"
    )


def test_a_command_keeps_its_options_in_its_argument() -> None:
    (command,) = parse_commands("/ptq fix —agent codex with care")
    assert getattr(command, "argument", None) == "—agent codex with care"
