"""What the process imports from which the others are forked: what they would import themselves, each again.

They need not look through it for garbage, either: that would copy all its memory.
"""

from __future__ import annotations

import gc
from importlib import import_module

MODULES = [
    *("bot.app", "bot.doctor.examination", "bot.cli.main", "bot.cli.failures", "bot.demo.story"),
    *("bot.operations.launch", "bot.operations.sweep", "bot.operations.worktrees", "runner.db.upgrades"),
    *("tests.chaos.replica", "tests.crash.stoppable", "tests.support.forked_program"),
]

gc.disable()
for name in MODULES:
    import_module(name)
gc.collect()
gc.freeze()
gc.enable()
