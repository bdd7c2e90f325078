"""Which files of a repository configure coding agents, and so command them. Pure.

What an earlier attempt wrote into one is shown in its diff, and is live for no later attempt.
"""

from __future__ import annotations

NAMES = frozenset(
    {
        *(".agents", ".claude", ".codex", ".cursor", ".gemini", ".opencode", ".pi"),
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "system.md"),
        *(".mcp.json", ".cursorrules", ".cursorignore", ".claude.json", "opencode.json"),
    }
)
"""Of folders and files, whichever of the two each is in a checkout: what hides them from an agent does not ask."""


def configures_agents(path: str) -> bool:
    """Whether some backend reads instructions, settings, hooks or servers from this path, at whatever depth it lies."""
    return not NAMES.isdisjoint(path.casefold().split("/"))
