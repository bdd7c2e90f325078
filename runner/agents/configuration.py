"""Which files of a repository configure coding agents. Pure.

If an attempt changes such a file, its diff shows the change, but later attempts do not use it.
"""

from __future__ import annotations

NAMES = frozenset(
    {
        *(".agents", ".claude", ".codex", ".cursor", ".gemini", ".opencode", ".pi"),
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "system.md"),
        *(".mcp.json", ".cursorrules", ".cursorignore", ".claude.json", "opencode.json"),
    }
)
"""Names of files and folders. Each may be either in a checkout."""


def configures_agents(path: str) -> bool:
    """Whether a backend reads instructions, settings, hooks or servers from this path, at any depth."""
    return not NAMES.isdisjoint(path.casefold().split("/"))
