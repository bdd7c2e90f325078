"""`ptq-bot agents list` and `ptq-bot presets`: what people can ask for."""

from __future__ import annotations

import json
from pathlib import Path

from bot.config.settings import load_settings
from bot.operations.launch import list_agents, list_presets
from tests.bot.test_cli import AGENT_VALUE, configure

SECOND = '[agents.thinker]\nkind = "claude"\nmodel = "opus"\nmodels = ["sonnet"]\nthinking = "high"\n\n[agents.mine]'
PRESETS = '[presets.fix]\nfile = "steps.md"\n\n[presets.slow]\nfile = "steps.md"\ngoal = "find out what is slow"\n\n'


def test_agents_are_listed_with_what_people_can_request_of_them_and_where(tmp_path: Path) -> None:
    offers = ('agent = "mine"', 'agent = "mine"\nagents = ["thinker"]')
    settings = load_settings(configure(tmp_path, 0, ("[agents.mine]", SECOND), offers))
    listed = list_agents(settings)
    head, thinker, mine = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in listed.splitlines())
    assert head == ["agent", "kind", "models", "thinking", "repositories"]
    levels = "low, medium, high (default), xhigh, max"
    assert thinker == ["thinker", "claude", "opus (default), sonnet", levels, "octo/widgets"]
    assert mine == ["mine", "command", "the program's own", "no option", "octo/widgets (default)"]
    assert AGENT_VALUE not in listed
    described = json.loads(list_agents(settings, as_json=True))
    assert described[0] == {
        "name": "thinker",
        "kind": "claude",
        "model": "opus",
        "models": ["opus", "sonnet"],
        "thinking": "high",
        "thinking_levels": ["low", "medium", "high", "xhigh", "max"],
        "gateway": False,
        "repositories": [{"name": "octo/widgets", "default": False}],
    }
    assert described[1]["thinking_levels"] == []


def test_presets_say_whose_instructions_they_have(tmp_path: Path) -> None:
    (tmp_path / "steps.md").write_text("1. Profile it.\n")
    settings = load_settings(configure(tmp_path, 0, ("[agents.mine]", f"{PRESETS}[agents.mine]")))
    rows = {line.split()[0]: line for line in list_presets(settings).splitlines()}
    assert "replaced by steps.md" in rows["fix"]
    assert rows["slow"].split()[:3] == ["slow", "no", "steps.md"]
    assert "built-in" in rows["diagnose"]
