"""Reads a Dockerfile and runs the steps of a stage in a folder instead of an image.

No container engine is needed, and none is imitated: only COPY, WORKDIR and RUN of one stage, without a network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One instruction and what follows it, such as `RUN` and its command."""

    instruction: str
    text: str

    @property
    def words(self) -> list[str]:
        """The exec form: a JSON list, whatever options stand before it."""
        words: list[str] = json.loads(self.text[self.text.index("[") :])
        return words


def parse_stages(text: str) -> list[list[Step]]:
    """The steps of each stage, `FROM` first."""
    stages: list[list[Step]] = []
    for step in _parse_steps(text):
        if step.instruction == "FROM":
            stages.append([])
        stages[-1].append(step)
    return stages


def _parse_steps(text: str) -> Iterator[Step]:
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        yield Step(instruction, rest.strip())


@dataclass(frozen=True)
class Folder:
    """Stands for an image's file system: absolute paths of the Dockerfile lie below `root`."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """No network: what pip would download is found among the packages that the tests run with."""
        packages = sysconfig.get_path("purelib")
        return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": packages, "PIP_NO_INDEX": "1"}

    def locate(self, path: str, start: Path) -> Path:
        return self.root / path.lstrip("/") if path.startswith("/") else start / path

    def run_stage(self, steps: list[Step], context: Path) -> None:
        """Do what the steps say; `subprocess.CalledProcessError` when one of them fails."""
        here = self.root
        for step in steps:
            if step.instruction == "WORKDIR":
                here = self.locate(step.text, here)
                here.mkdir(parents=True, exist_ok=True)
            elif step.instruction == "COPY":
                self._copy(step.text.split(), context, here)
            elif step.instruction == "RUN":
                command = step.text.replace("/opt/", f"{self.root}/opt/")
                subprocess.run(command, shell=True, cwd=here, env=self.environment, check=True)

    def _copy(self, words: list[str], context: Path, here: Path) -> None:
        *sources, target = words
        for source in sources:
            if (context / source).is_dir():
                shutil.copytree(context / source, self.locate(target, here), dirs_exist_ok=True)
            else:
                shutil.copy(context / source, self.locate(target, here))
