"""Which programs a profile's commands call, and which ones its own lines bring. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

EVERYWHERE = frozenset({":", "[", "cd", "cp", "git", "mv", "pip", "pwd", "python", "rm", "tar", "trap"})
"""The shell's own, what every machine of ours has, and what a virtual environment begins with."""

KEYWORDS = ("if", "then", "else", "fi", "!")
SEPARATORS = re.compile(r"&&|\|\||[;|\n(){}]")
SETTING = re.compile(r"[A-Za-z_]\w*=.*")
MODULE = re.compile(r"python -m ([A-Za-z_][\w.]*)")
REQUIREMENT = re.compile(r"[A-Za-z][\w.-]*")
BUILT_IN = frozenset({"pip"})


@dataclass(frozen=True)
class Fact:
    """What a line means because of a file of the project itself, as it was on a day."""

    source: str
    """Repository, file, and the commit at which it was read."""
    read_on: str
    brings: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()


FACTS: Mapping[str, Fact] = {
    "--group dev": Fact(
        "pytorch/pytorch pyproject.toml 0034f545",
        "2026-11-27",
        brings=frozenset({"cmake", "expecttest", "hypothesis", "lintrunner", "ninja"}),
    ),
    "spin quick": Fact(
        "pytorch/pytorch .spin/cmds.py 0ac23148 (uvx starts lintrunner, and uv its linters)",
        "2026-11-27",
        calls=frozenset({"uv", "uvx"}),
    ),
    "make triton": Fact(
        "pytorch/pytorch Makefile fe255cea, scripts/install_triton_wheel.sh 07975b2b",
        "2026-11-27",
        brings=frozenset({"triton"}),
        calls=frozenset({"bash", "pip"}),
    ),
    "--no-build-isolation": Fact(
        "pytorch/pytorch pyproject.toml 0034f545 (the build's requirements, which pip then does not fetch)",
        "2026-11-27",
        calls=frozenset({"cmake", "ninja"}),
    ),
    "'.[dev]'": Fact(
        "pytorch/torchtitan pyproject.toml b5bcd76c",
        "2026-08-21",
        brings=frozenset({"expecttest", "pre-commit", "pyrefly", "pytest"}),
    ),
    "pre-commit run": Fact(
        "pytorch/torchtitan .pre-commit-config.yaml b5bcd76c (one hook calls what the environment has)",
        "2026-08-21",
        calls=frozenset({"pyrefly"}),
    ),
}


def find_calls(command: str) -> Iterator[str]:
    """The programs that a shell command calls: its own words, the modules after `python -m`, and by the facts."""
    yield from re.findall(r"_LAUNCHER=(\S+)", command)
    yield from (module for module in MODULE.findall(command) if module not in BUILT_IN)
    for line, fact in FACTS.items():
        if line in command:
            yield from fact.calls
    quoted = re.sub(r"'[^']*'", "''", command).replace("\\\n", " ").replace("$(", "(").replace('"', "")
    for part in SEPARATORS.split(quoted):
        words = [word for word in part.split() if word not in KEYWORDS]
        while words and SETTING.fullmatch(words[0]):
            words = words[1:]
        if words:
            yield words[0]


def find_brought(command: str) -> Iterator[str]:
    """The programs that a line of `setup` installs."""
    for line, fact in FACTS.items():
        if line in command:
            yield from fact.brings
    if command.startswith("python -m pip install") and "--requirement" not in command:
        options = ("--index-url", "--group", "--editable")
        words = shlex.split(command)[4:]
        for before, word in zip(["", *words], words, strict=False):
            if before not in options and REQUIREMENT.fullmatch(word):
                yield word


def find_missing(profile: Mapping[str, Any], on_machine: Iterable[str]) -> list[str]:
    """What a profile calls and neither installs nor asks of its machine; `setup` in the order of its lines."""
    there = {*EVERYWHERE, *on_machine}
    missing = [name for name in [profile["create_venv"][0]] if name not in there]
    for command in profile["setup"]:
        missing += [name for name in find_calls(command) if name not in there]
        there |= {*find_brought(command)}
    later = [*profile.get("update", []), *profile.get("rebuild", []), *profile["lint"], *profile["smoke_test"]]
    verify = profile.get("verify", {}).get("tests", "python -m pytest")
    for command in [*later, profile["test_command"], verify]:
        missing += [name for name in find_calls(command) if name not in there]
    missing += [name for name in profile["tools"] if name not in there]
    return list(dict.fromkeys(missing))
