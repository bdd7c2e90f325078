"""`docs/configuration.md`, whose tables are made from the models and the example."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.config_manual import find_unnamed, read_words, render_manual
from tests.support.manuals import check_manual

EXAMPLE = (Path(__file__).parents[2] / "ptq.example.toml").read_text()


def test_the_reference_says_what_the_models_say() -> None:
    check_manual("configuration.md", "the models and ptq.example.toml", render_manual(EXAMPLE))


def test_every_table_scope_and_key_has_its_words() -> None:
    assert re.findall(r"^\|.*\| *\|.*$", render_manual(EXAMPLE), re.MULTILINE) == []


def test_every_value_that_a_key_may_have_is_named() -> None:
    assert find_unnamed(EXAMPLE) == []
    assert find_unnamed(EXAMPLE.replace('or "slack"', "or another")) == ["notify.format: slack"]
    assert find_unnamed(EXAMPLE.replace('# "claude", ', "# ")) == ["agents.kind: claude"]


def test_documents_are_links_and_scopes_are_listed() -> None:
    manual = render_manual(EXAMPLE)
    assert "docs/" not in manual
    assert "[gateway](gateway.md)" in manual
    assert "| `repository_month` | all runs of a repository in this month (UTC) |" in manual


def test_words_are_found_by_table_and_key() -> None:
    words = read_words(EXAMPLE)
    assert words["machines", "gpus_per_slot"].startswith("default: its GPUs are divided")
    assert words["agents.gateway", "url"].startswith("required: the URL of its models")
    assert words["presets", "goal"].startswith("completes the sentence")
    assert words["github", "private_key"].startswith("instead of the file")
    assert words["agents", "gateway"].startswith("without this table")
    assert words["caps", "issue"] == "all runs on one issue"
    assert words["notify", "format"] == 'or "slack": only the text'
