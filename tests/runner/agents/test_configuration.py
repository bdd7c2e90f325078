"""Which files of a checkout configure coding agents."""

from __future__ import annotations

import pytest

from runner.agents.configuration import configures_agents


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
