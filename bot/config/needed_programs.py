"""The programs that a repository needs on a machine, which of them it lacks, and how to install them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bot.config.policy_tables import RepositoryTable

DEBIAN = "on Debian and Ubuntu: `sudo apt-get install {}`"
CUDA = "install NVIDIA's CUDA toolkit (https://developer.nvidia.com/cuda-downloads)"
ROCM = "install AMD's ROCm with its developer tools (https://rocm.docs.amd.com)"

HOW_TO_INSTALL: Mapping[str, str] = {
    "bash": DEBIAN.format("bash"),
    "c++": DEBIAN.format("g++"),
    "ccache": DEBIAN.format("ccache"),
    "cmake": DEBIAN.format("cmake"),
    "compute-sanitizer": f"{CUDA}, and put /usr/local/cuda/bin on the PATH of a login without a terminal",
    "gdb": DEBIAN.format("gdb"),
    "hipcc": ROCM,
    "make": DEBIAN.format("make"),
    "ninja": DEBIAN.format("ninja-build"),
    "nvcc": CUDA,
    "py-spy": "`python -m pip install py-spy`, as a line of `setup`",
    "uv": "`curl -LsSf https://astral.sh/uv/install.sh | sh` as the machine's account, and put ~/.local/bin on the "
    "PATH of a login without a terminal",
}

FOR_GPUS = {"compute-sanitizer": "nvidia", "hipcc": "amd", "nvcc": "nvidia"}
"""Only a machine with GPUs of this vendor needs these."""

ALSO_AT = {"hipcc": "/opt/rocm/bin/hipcc", "nvcc": "/usr/local/cuda/bin/nvcc"}
"""CMake finds these there, without the PATH (CMake's manual, "FindCUDAToolkit" and "CMAKE_HIP_COMPILER")."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A program that a machine lacks."""

    name: str
    needed: bool
    """Whether the base cannot be built without it. Otherwise agents are told about a tool that is not there."""

    @property
    def words(self) -> str:
        """What is missing, as a clause."""
        return f"{self.name} is not installed" + ("" if self.needed else ", and agents are told about it")

    @property
    def fix(self) -> str:
        """How to install it."""
        return explain_install(self.name)


def explain_install(name: str) -> str:
    """How to install a program on a machine."""
    fallback = f"install {name} there, on the PATH of a login without a terminal (~/.profile may not be read)"
    return HOW_TO_INSTALL.get(name, fallback)


def list_names(tables: Iterable[RepositoryTable], vendors: Collection[str]) -> list[str]:
    """What a machine with GPUs of these vendors has to be asked about, for all these repositories."""
    wanted = dict.fromkeys(name for table in tables for name, _ in _list_wanted(table, vendors))
    return [*wanted, *(ALSO_AT[name] for name in wanted if name in ALSO_AT)]


def find_missing(
    table: RepositoryTable, found: Mapping[str, str | None], vendors: Collection[str]
) -> Iterator[Missing]:
    """The programs of a repository that a machine lacks, by what it answered about them."""
    for name, needed in _list_wanted(table, vendors):
        if found.get(name) is None and found.get(ALSO_AT.get(name, name)) is None:
            yield Missing(name, needed)


def _list_wanted(table: RepositoryTable, vendors: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Each program, and whether it is needed. A tool that `setup` names comes with the environment."""
    commands = " ".join(table.setup)
    tools = [name for name in table.tools if name not in table.programs and name not in commands]
    for name in (*table.programs, *tools):
        if name not in FOR_GPUS or FOR_GPUS[name] in vendors:
            yield name, name in table.programs
