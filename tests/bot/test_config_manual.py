"""`docs/configuration.md`, whose tables are made from the models and the example."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.config_manual import read_words, render_manual

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "configuration.md"
EXAMPLE = (ROOT / "ptq.example.toml").read_text()


def test_the_reference_says_what_the_models_say() -> None:
    head, mark, _ = MANUAL.read_text().partition("<!-- The rest is made from the models and ptq.example.toml. -->\n")
    whole = f"{head}{mark}\n{render_manual(EXAMPLE)}"
    if os.environ.get("PTQ_REWRITE_DOCS"):
        MANUAL.write_text(whole)
    assert MANUAL.read_text() == whole, "rewrite it: PTQ_REWRITE_DOCS=1 pytest tests/bot/test_config_manual.py"
    assert mark


def test_words_are_found_by_table_and_key() -> None:
    words = read_words(EXAMPLE)
    assert words["machines", "gpus_per_slot"].startswith("default: its GPUs are shared out")
    assert words["agents.gateway", "url"].startswith("required: where its models are")
    assert words["presets", "goal"].startswith("as the end of the sentence")
    assert words["github", "private_key"].startswith("... or its text")
    assert words["notify", "format"] == 'or "slack": the text alone'
