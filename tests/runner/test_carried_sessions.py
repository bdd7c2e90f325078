"""What a machine says is the agent's own memory of a run: read with distrust, for a later attempt hands it back."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from runner.agents import Session
from runner.agents.configuration import configures_agents
from runner.artifacts import read_session

ID = "01a1fdd4-edd8-7a10-bb05-a91a739a8559"
GLOB = ".codex/sessions/**/rollout-*.jsonl"
PATH = f".codex/sessions/2026/11/21/rollout-{ID}.jsonl"


CONTENT = base64.b64encode(b"{}\n").decode()


def answer(path: Any = PATH, content: Any = CONTENT) -> dict[str, Any]:
    return {"session": {"path": path, "content": content}}


def test_a_session_is_kept_with_its_id() -> None:
    assert read_session(answer(), ID, GLOB, 100) == Session(ID, PATH, b"{}\n")


@pytest.mark.parametrize(
    "path", [None, "", ".bashrc", f"/{PATH}", f"../{PATH}", ".codex/sessions/../config.toml", ".codex/config.toml"]
)
def test_a_path_that_the_backend_does_not_use_is_not_taken(path: Any) -> None:
    assert read_session(answer(path), ID, GLOB, 100) is None


@pytest.mark.parametrize("session_id", [None, "", "--yolo", "a b c d e f", "short", "x" * 101, f"{ID}\n"])
def test_an_id_that_could_be_anything_but_an_id_is_not_taken(session_id: str | None) -> None:
    assert read_session(answer(), session_id, GLOB, 100) is None


@pytest.mark.parametrize("content", [None, "", 5, "no base64", base64.b64encode(b"x" * 101).decode()])
def test_content_that_is_none_or_too_much_is_not_taken(content: Any) -> None:
    assert read_session(answer(content=content), ID, GLOB, 100) is None


@pytest.mark.parametrize("found", [{}, {"session": None}, {"session": []}, {"session": {}}])
def test_without_a_session_there_is_none(found: dict[str, Any]) -> None:
    assert read_session(found, ID, GLOB, 100) is None


@pytest.mark.parametrize(
    "path",
    [
        *(".claude/settings.json", "sub/.claude/hooks/x.sh", ".mcp.json", "a/b/.mcp.json", ".pi/extensions/x.ts"),
        *(
            ".codex/config.toml",
            ".cursor/hooks.json",
            ".cursorrules",
            "AGENTS.md",
            "docs/CLAUDE.md",
            ".CLAUDE/x",
            ".pi",
        ),
    ],
)
def test_what_agents_read_as_configuration_is_known_at_any_depth(path: str) -> None:
    assert configures_agents(path)


@pytest.mark.parametrize("path", ["src/agents.py", "claude/x.py", "README.md", "docs/mcp.json", ".github/CODEOWNERS"])
def test_other_files_configure_no_agent(path: str) -> None:
    assert not configures_agents(path)
