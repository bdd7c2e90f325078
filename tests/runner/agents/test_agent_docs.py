"""The page about agents says what is so."""

from __future__ import annotations

import re
import tomllib

from bot.config.tables import AgentTable
from runner.agents import BACKENDS
from tests.support.agent_docs import COMMAND, PAGE, TABLES, render


def test_the_tables_of_the_page_are_up_to_date() -> None:
    page = PAGE.read_text()
    assert render(page) == page, f"docs/agents.md is out of date: run `{COMMAND}`"


def test_the_page_has_every_table() -> None:
    assert re.findall(r"<!-- generated: (\w+) -->", PAGE.read_text()) == [*TABLES]


def test_every_kind_is_configured_on_the_page_as_it_really_is() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    agents = tomllib.loads(block)["agents"]
    specs = [AgentTable.model_validate(table).as_spec(name) for name, table in agents.items()]
    assert sorted(spec.kind for spec in specs) == sorted(BACKENDS)
    for spec in specs:
        assert BACKENDS[spec.kind](spec)
