"""How many examples the tests with models try.

`make test` tries a few, the same ones each time. `make properties` draws many new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

TRIES_MANY = os.environ.get("PTQ_PROPERTIES") == "many"
TIMES = 25
"""The number of examples in `make properties` for each one in `make test`."""
TIMEOUT_S = 7200 if TRIES_MANY else 600
"""A failure is made small before it is shown."""


def choose_examples(few: int, steps: int) -> settings:
    """The settings of a test that tries `few` examples in `make test`, each with at most so many `steps`."""
    examples = TIMES * few if TRIES_MANY else few
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=not TRIES_MANY)
