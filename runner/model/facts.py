"""Facts about a job's environment: what the job ran on, as the service has read it. Pure.

A machine reports the facts before the job's agent begins. Each fact must have the form of its kind. Facts from programs
in the environment must be versions, so the repository's code cannot put a sentence into them. The other facts come from
the machine itself: the names of its operating system, kernel, processor and GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.model.history import COMMIT
from runner.model.inventory import describe_gpus
from runner.model.machines import Gpu

Facts = tuple[tuple[str, str], ...]
"""Pairs of a name (for people) and a value, in the order in which they are shown."""

VERSION = re.compile(r"[0-9][\w.+!-]{0,63}", re.ASCII)
COMPILER = re.compile(r"([a-z+]{1,10} )?[0-9][0-9.]{0,30}", re.ASCII)
MODEL = re.compile(r"[\w.,:/()@+× -]{1,100}")
"""The name of an operating system, a kernel or a processor."""
BRACKETS = str.maketrans("[]", "()")
"""Replaces brackets, because Markdown could read them as a link. Intel and AMD use them: `Graphics [0xe211]`."""
MODELS = re.compile(r"[\w.,:;/()@+× -]{1,300}")
UNREADABLE = "without a readable name"

KINDS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "python": ("Python", VERSION),
    "torch": ("torch", VERSION),
    "torch_cuda": ("CUDA of torch", VERSION),
    "torch_hip": ("ROCm of torch", VERSION),
    "torch_xpu": ("XPU of torch", VERSION),
    **{name: (name, VERSION) for name in ("triton", "torchvision", "torchaudio", "torchtitan")},
    **{name: (name, VERSION) for name in ("numpy", "jax", "transformers")},
    "compiler": ("C++ compiler", COMPILER),
    "nvcc": ("nvcc", VERSION),
    "hipcc": ("hipcc", VERSION),
    "os": ("OS", MODEL),
    "kernel": ("kernel", MODEL),
    "cpu": ("CPU", MODEL),
}
"""The facts that a machine reports: name in the protocol -> name for people, and form of the value."""

GPU = "GPU"
NO_GPU = "none"

SHORT = (GPU, "Python", "torch", "CUDA of torch", "ROCm of torch", "XPU of torch", "triton", "C++ compiler", "OS")
"""The facts that a comment shows, besides the commits of companions. The job's page shows all."""


def read_facts(told: Any, gpus: Sequence[Gpu] | None) -> Facts:
    """The facts of a job's environment, from the machine's answer and from the GPUs that the job sees.

    None for `gpus` means that they are unknown.
    """
    answer = told if isinstance(told, Mapping) else {}
    seen = describe_gpus(gpus or ()).translate(BRACKETS)
    found = [(GPU, (seen or NO_GPU) if MODELS.fullmatch(seen or NO_GPU) else UNREADABLE)] if gpus is not None else []
    return (*found, *((label, answer[name]) for name, (label, form) in KINDS.items() if _fits(answer.get(name), form)))


def read_companions(told: Any, names: Iterable[str]) -> Facts:
    """The commits of a job's companions, from the machine's answer: the companion's name, and its commit."""
    answer = told if isinstance(told, Mapping) else {}
    return tuple((name, answer[name]) for name in names if _fits(answer.get(name), COMMIT))


def is_companion(fact: str) -> bool:
    """Whether the fact of this name is the commit of a companion."""
    return "/" in fact


def _fits(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and bool(form.fullmatch(value))


def tell_facts(prompt: str, facts: Facts, commit: str) -> str:
    """Add the facts and the commit to the end of a brief. They are known only after the environment is prepared."""
    if not facts:
        return prompt
    listed = "\n".join(f"- {name}: {value}" for name, value in (*facts, ("commit", commit)))
    return f"{prompt.rstrip()}\n\n## The environment\n\n{_TOLD}\n\n{listed}\n"


_TOLD = (
    "The service read this in your environment before you began, and shows it next to your report. Compare it with "
    "what the issue says: if a version, a device or a platform differs in a way that could hide the bug, say so."
)
