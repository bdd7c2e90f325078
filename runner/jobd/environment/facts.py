"""Reads what a job's environment consists of: the operating system, the processor, Python, packages and compilers.

These facts are read before the job's agent begins. They are as `torch.utils.collect_env` reports them, but torch is not
imported, because that takes seconds.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..bounded_run import run_bounded
from ..files import Failure
from ..stages.stage import Stage

PACKAGES = ("torch", "triton", "torchvision", "torchaudio", "torchtitan", "numpy", "jax", "transformers")
"""The packages whose versions are read."""

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "compiler": ("c++", "--version"),
    "nvcc": ("nvcc", "--version"),
    "hipcc": ("hipcc", "--version"),
}
"""The compilers that projects build their extensions with, by the names of the facts."""

COMPILERS = "/usr/local/cuda/bin:/opt/rocm/bin"
"""The folders in which NVIDIA installs nvcc, and AMD hipcc. Often these folders are not on PATH."""

LIMIT_S = 10.0
"""How long all programs together may take."""

READ_PYTHON = r"""
import os, sys
print("python", "%d.%d.%d" % sys.version_info[:3])
wanted = set(sys.argv[1:])
for folder in sys.path:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        stem, end = os.path.splitext(name)
        package, _, version = stem.partition("-")
        if end not in (".dist-info", ".egg-info") or package not in wanted:
            continue
        try:
            if not version:
                with open(os.path.join(folder, name, "PKG-INFO")) as file:
                    version = next(line.split()[1] for line in file if line.startswith("Version:"))
        except (OSError, ValueError, IndexError, StopIteration):
            continue
        wanted.discard(package)
        print(package, version.partition("-")[0])
if "torch" in sys.argv and "torch" not in wanted:
    import re
    from importlib.util import find_spec
    with open(os.path.join(os.path.dirname(find_spec("torch").origin), "version.py")) as file:
        found = re.findall(r"^(__version__|cuda|hip|xpu)\b[^=\n]*= *['\"]([^'\"\s]+)", file.read(), re.MULTILINE)
        for name, version in found:
            # The metadata does not say what it was built for, as in 2.11.0+cu130.
            print("torch" if name == "__version__" else "torch_" + name, version)
"""
"""Reads the versions in the job's Python, and prints a name and a version on each line.

Packages are found by the names of their metadata folders, and torch's `version.py` says what torch was built for:
`importlib.metadata` takes 80 ms, and an import of torch seconds.
"""


def read_facts(stage: Stage) -> dict[str, str]:
    """The facts by name, as far as they can be read. A fact that is missing never makes a job fail."""
    env, folder, deadline = stage.job.environment(), stage.job.worktree, time.monotonic() + LIMIT_S
    found: dict[str, str] = {}
    with suppress(Failure, OSError):
        # The machine's own facts come last, because a program of the environment can print a fact with any name.
        found = stage.do_inside(lambda: {**read_programs(env, folder, deadline), **read_machine()})
    return found


def read_machine() -> dict[str, str]:
    """The facts about the machine itself. A fact that cannot be read is empty."""
    found = {"kernel": f"{platform.system()} {platform.release()}", "os": read_os_name(), "cpu": ""}
    with suppress(OSError):
        model = re.search(r"^model name\s*: *(.*)$", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        count = len(os.sched_getaffinity(0))
        found["cpu"] = f"{count} × {model[1] if model else 'CPU'}, {platform.machine()}"
    return found


def read_os_name() -> str:
    """The name of the distribution (`os-release(5)`). Empty if it has none."""
    for path in (Path("/etc/os-release"), Path("/usr/lib/os-release")):
        with suppress(OSError):
            name = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]*)", path.read_text(errors="replace"), re.MULTILINE)
            return name[1] if name else ""
    return ""


def read_programs(env: Mapping[str, str], folder: Path, deadline: float) -> dict[str, str]:
    """The facts that programs of the environment print."""
    env = {**env, "PATH": f"{env['PATH']}:{COMPILERS}"}
    found: dict[str, str] = {}
    # `-I`: neither a file in the worktree nor a variable takes the place of a module. `-B`: nothing is written.
    said = ask(["python", "-I", "-B", "-c", READ_PYTHON, *PACKAGES], env, folder, deadline)
    found.update(line.partition(" ")[::2] for line in said.splitlines())
    for name, argv in PROGRAMS.items():
        if version := find_version(ask(argv, env, folder, deadline)):
            found[name] = version
    return found


def ask(argv: Sequence[str], env: Mapping[str, str], folder: Path, deadline: float) -> str:
    """What a program prints, without blanks around it. Empty if the program is missing or takes too long."""
    with suppress(OSError, subprocess.TimeoutExpired):
        _, out, _ = run_bounded(argv, max(deadline - time.monotonic(), 0.0), env, folder)
        return out.decode(errors="replace").strip()
    return ""


def find_version(said: str) -> str:
    """A compiler's version, after `g++` or `clang` if it is one of these. Empty if there is no version.

    Compilers say, for example: `g++ (Ubuntu 13.2.0-23) 13.2.0`, `clang version 17.0.6`, `Cuda compilation tools,
    release 13.0, V13.0.88`, `HIP version: 6.4.43482`.
    """
    lines = said.splitlines()
    if release := re.search(r"release \S+, V([0-9.]+)|HIP version: ([0-9.]+)", said):
        return release[1] or release[2]
    if not lines or not (version := re.search(r"(?<![0-9.])[0-9]{1,9}(?:\.[0-9]{1,9}){1,3}", lines[0])):
        return ""
    name = "clang" if "clang" in lines[0] else "g++" if re.match(r"(g|c)\+\+", lines[0]) else ""
    return f"{name} {version[0]}".strip()
