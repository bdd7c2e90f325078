"""Finds failures that the environment causes, and not the project's code: such a run says nothing about a bug. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from runner.checks.signature import name_failure


class FaultKind(StrEnum):
    """What is wrong with an environment, or with a script."""

    MISSING_MODULE = "missing module"
    """The project or a dependency is not installed."""
    BROKEN_LIBRARY = "broken library"
    """A compiled library is missing, or does not fit the others."""
    SYNTAX = "syntax"
    """The script is not valid."""
    MISSING_DEVICE = "missing device"


@dataclass(frozen=True, slots=True)
class EnvironmentFault:
    """A failure that the environment causes."""

    kind: FaultKind
    name: str = ""
    """The module or library that is missing, in a machine's words."""


_MODULE = re.compile(r"(?:\bModuleNotFoundError: |^\S*python[\d.]*: |^)No module named '?(\w+)'?(?![.\w])")
"""Only a top-level module: a missing part of a package, such as `widgets.new`, can be the bug itself."""

_LIBRARY = re.compile(r"\b(?:ImportError|OSError): (\S+): (?:cannot open shared object file|undefined symbol)")
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")
_DEVICE = re.compile(
    r"No (?:CUDA|HIP|XPU) GPUs are available|not compiled with (?:CUDA|ROCm|XPU) enabled|"
    r"no (?:CUDA|ROCm)-capable device|Found no NVIDIA driver|CUDA driver version is insufficient|cudaErrorNoDevice"
    r"|MPS backend is not available|libcuda\.so\S*: cannot open shared object file",
    re.IGNORECASE,
)


def find_fault(words: str, status: int, *, timed_out: bool, is_script: bool) -> EnvironmentFault | None:
    """The fault that ended a failed run, from the end of its output; None if the project's code may have failed."""
    if timed_out:
        return None
    line = name_failure(words, status, timed_out=False)
    if _DEVICE.search(line):
        return EnvironmentFault(FaultKind.MISSING_DEVICE)
    if found := _MODULE.search(line):
        return EnvironmentFault(FaultKind.MISSING_MODULE, found[1])
    if found := _LIBRARY.search(line):
        return EnvironmentFault(FaultKind.BROKEN_LIBRARY, found[1].rpartition("/")[2])
    # Python prints no traceback only if it could not read the script itself.
    if is_script and _SYNTAX.match(line) and "Traceback (most recent call last)" not in words:
        return EnvironmentFault(FaultKind.SYNTAX)
    return None
