"""The verbs of the machine-side program: each is where the table says, and the frequent ones cost little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runner.jobd.main import STAGES, VERBS, find
from runner.jobd.requests import REQUESTS
from runner.jobd.stages import states

LIST_MODULES = """
import sys
from runner.jobd.main import VERBS, find
find(VERBS[sys.argv[1]])
print(*sys.modules)
"""


def test_each_verb_and_each_stage_is_where_the_table_says() -> None:
    assert VERBS.keys() == REQUESTS.keys()
    assert tuple(STAGES) == states.STAGES
    assert all(callable(find(place)) for place in (*VERBS.values(), *STAGES.values()))


@pytest.mark.parametrize("verb", ["poll", "result", "stop"])
def test_what_is_asked_all_the_time_imports_little(verb: str) -> None:
    asked = subprocess.run([sys.executable, "-c", LIST_MODULES, verb], stdout=subprocess.PIPE, check=True, text=True)
    assert not {"asyncio", "ctypes", "subprocess", "tempfile", "socket"} & {*asked.stdout.split()}
