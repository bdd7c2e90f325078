"""Whether an agent's key is where it runs: people are told, and of nothing else."""

from __future__ import annotations

import pytest

from runner.agents import AgentSpec


@pytest.mark.parametrize(
    ("kind", "env", "behind_gateway", "expected"),
    [
        ("claude", {"ANTHROPIC_API_KEY": "x"}, False, True),
        ("claude", {"CLAUDE_CODE_OAUTH_TOKEN": "x"}, False, True),
        ("command", {"aws_secret_access_key": "x"}, False, True),
        ("command", {"OMP_NUM_THREADS": "4"}, False, False),
        ("command", {}, False, False),
        ("cursor", {}, False, True),
        ("codex", {"MORE_KEYS": "x"}, True, False),
    ],
)
def test_a_key_is_known_by_the_name_of_its_variable(
    kind: str, env: dict[str, str], behind_gateway: bool, expected: bool
) -> None:
    assert AgentSpec("mine", kind, env=env, behind_gateway=behind_gateway).key_on_machines is expected
