from __future__ import annotations

import re
from pathlib import Path

import yaml

from bot.config.manifest import load_manifest
from tests.support.openapi import load_openapi


def test_the_app_asks_for_the_least() -> None:
    manifest = load_manifest()
    assert manifest.permissions == {
        "metadata": "read",
        "issues": "write",
        "pull_requests": "write",
        "contents": "write",
    }
    assert manifest.events == ("issues", "issue_comment")


def test_the_app_can_never_touch_workflows() -> None:
    assert "workflows" not in load_manifest().permissions


def test_github_knows_every_permission_and_level_by_this_name() -> None:
    known = load_openapi().describe_component("schemas", "app-permissions")["properties"]
    for permission, level in load_manifest().permissions.items():
        assert level in known[permission]["enum"]


def test_each_permission_and_event_has_its_reason_right_above_it() -> None:
    text = (Path(__file__).parents[2] / "app.yml").read_text()
    asked = yaml.safe_load(text)
    for name in (*asked["default_permissions"], *asked["default_events"]):
        assert re.search(rf"^  # .{{20,}}\n  (- )?{name}\b", text, re.MULTILINE), f"{name} has no reason"
