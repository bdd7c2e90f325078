"""Whether an agent's key is where it runs: people are told, and of nothing else."""

from __future__ import annotations

import pytest

from runner.agents import BACKENDS, AgentSpec, Run, build_agent
from runner.agents.protocol import is_secret


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


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OPENAI_API_KEY", "x", True),
        ("hf_token", "x", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/srv/google.json", True),
        ("PGPASSFILE", "/srv/pgpass", True),
        ("BILLING", "Zx9kQ2mW7pL4tR8vN1cB", True),
        ("BILLING", "prefix-0123456789abcdef0123456789abcdef-suffix", True),
        ("HTTPS_PROXY", "http://somebody:hunter2@proxy:3128", True),
        ("CERTIFICATE", "-----BEGIN RSA", True),
        ("PATH", "/opt/node-v20.11.1-linux-x64/bin:/nix/store/0123456789abcdef0123456789abcdef-git/bin", False),
        ("HOME", "{home}/another0123456789abcdef0123456789", False),
        ("LANG", "en_US.UTF-8", False),
        ("OMP_NUM_THREADS", "4", False),
        ("LD_LIBRARY_PATH", "/usr/local/cuda-12.4/lib64:/opt/extras/lib", False),
        ("CUDA_VISIBLE_DEVICES", "GPU-8f3a1b2c-7d6e-4f50-9a8b-0c1d2e3f4a5b", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128", False),
        ("HF_ENDPOINT", "https://mirror.example.org", False),
    ],
)
def test_a_secret_is_known_by_its_name_or_else_by_its_value(name: str, value: str, expected: bool) -> None:
    assert is_secret(name, value) is expected


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_an_operators_path_reaches_an_agent_and_its_commands(kind: str) -> None:
    env = {"PATH": "/opt/node/bin:/usr/bin", "LANG": "C.UTF-8", "THE_KEY": "x", "BILLING": "Zx9kQ2mW7pL4tR8vN1cB"}
    launched = build_agent(AgentSpec("mine", kind, ("/opt/agent",), env=env)).launch(Run("session", token="ptq-x"))
    assert launched.env.items() >= env.items()
    policy = [word for word in launched.argv if word.startswith("shell_environment_policy.")]
    if kind == "codex":
        withheld = '["BILLING", "PTQ_GATEWAY_TOKEN", "THE_KEY"]'
        assert policy == ['shell_environment_policy.inherit="all"', f"shell_environment_policy.exclude={withheld}"]
    else:
        assert not policy
