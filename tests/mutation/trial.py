"""One fault at a time, in a copy of the tree: plant it, run the tests that can find it, take it out again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.chosen import CHOSEN, REPORTS
from tests.mutation.mutants import Mutant

STUCK_AFTER_S = 200
"""No test takes longer to say something: pytest-timeout ends it before."""


@dataclass(frozen=True)
class Outcome:
    """`verdict`: found, survived, gone, unreached (no test goes there), or undecided (the time was up)."""

    verdict: str
    by: str = ""
    seconds: float = 0
    tests: int = 0
    ran: int = 0


class Copy:
    """A copy of the tree, with a Python of its own that imports the product from there."""

    def __init__(self, tree: Path, root: Path, workers: int, limit_s: float) -> None:
        self.root, self._workers, self._limit_s = root, workers, limit_s
        command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
        for name in (name for name in listed.split("\0") if (tree / name).is_file()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, root / name)
        (root / ".cache").mkdir()
        for folder in ("npm", "clis"):  # What `make setup` fetched.
            if (tree / ".cache" / folder).exists():
                (root / ".cache" / folder).symlink_to(tree / ".cache" / folder)
        self._python = self._make_venv()
        self._chosen, self._reports, self.log = (root / ".cache" / name for name in ("chosen", "reports", "pytest.log"))

    def _make_venv(self) -> Path:
        """Packages come from the present environment; the product, which is first on the path, from the copy."""
        folder = self.root / ".venv"
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/*/site-packages")
        (packages,) = Path(sys.prefix).glob("lib/*/site-packages")
        (site / "copy.pth").write_text(f"{self.root}\nimport site; site.addsitedir({str(packages)!r})\n")
        for script in (path for path in Path(sys.executable).parent.iterdir() if path.is_file()):
            if script.read_bytes().startswith(b"#!") and not (folder / "bin" / script.name).exists():
                body = script.read_text().partition("\n")[2]
                (folder / "bin" / script.name).write_text(f"#!{folder}/bin/python\n{body}")
                (folder / "bin" / script.name).chmod(0o755)
        return folder / "bin" / "python"

    @contextmanager
    def plant(self, path: str, mutant: Mutant) -> Iterator[None]:
        """The file has the fault in it as long as this lasts. Its age says to Python that compiled files are old."""
        file = self.root / path
        original, status = file.read_text(), file.stat()
        file.write_text(mutant.apply(original))
        try:
            yield
        finally:
            file.write_text(original)
            os.utime(file, (status.st_atime, status.st_mtime))

    def check(self, path: str) -> str:
        """What Python says about importing a file of the copy; nothing when all is well."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        lines = f"import bot; assert bot.__file__.startswith({str(self.root)!r}), bot.__file__"
        if path.endswith(".py") and "migrations" not in path:
            lines += f"; import {name}"
        done = subprocess.run([self._python, "-c", lines], cwd=self.root, capture_output=True, text=True, check=False)
        return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""

    def run(self, tests: Sequence[str]) -> Outcome:
        """Run the tests until one fails."""
        if not tests:
            return Outcome("unreached")
        began = time.monotonic()
        self._chosen.write_text("\n".join(tests))
        self._reports.write_text("")
        status = self._run_pytest(sorted({test.partition("::")[0] for test in tests}))
        reports = [line.partition(" ") for line in self._reports.read_text().splitlines()]
        failed = [name for outcome, _, name in reports if outcome == "failed"]
        seconds = time.monotonic() - began
        if failed:
            verdict, by = "found", failed[0]
        elif status is None and time.time() - self._reports.stat().st_mtime > STUCK_AFTER_S:
            verdict, by = "found", "a test that never ended"
        elif status is None:
            verdict, by = "undecided", ""
        else:
            verdict, by = ("found", f"pytest itself, with status {status}") if status else ("survived", "")
        return Outcome(verdict, by, round(seconds, 1), len(tests), len(reports))

    def _run_pytest(self, files: Sequence[str]) -> int | None:
        plugins = ("-p", "tests.mutation.chosen", "-p", "no:cacheprovider")
        xdist = ("-n", str(self._workers), "--maxschedchunk", "1") if self._workers else ()
        command = (self._python, "-m", "pytest", "-x", "-q", *plugins, *xdist, *files)
        with self.log.open("w") as log:
            pytest = subprocess.Popen(
                command, cwd=self.root, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                return pytest.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                pytest.send_signal(signal.SIGINT)  # So that tests still stop what they started.
                try:
                    pytest.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(pytest.pid, signal.SIGKILL)
                    pytest.wait()
                return None

    @property
    def _environment(self) -> Mapping[str, str]:
        path = f"{self._python.parent}:{os.environ['PATH']}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        return {**inherited, "PATH": path, CHOSEN: str(self._chosen), REPORTS: str(self._reports)}


@contextmanager
def open_copy(tree: Path, workers: int, limit_s: float) -> Iterator[Copy]:
    """A copy outside of /tmp, which jobs see as their own; it goes away afterwards."""
    root = Path(tempfile.mkdtemp(prefix="ptq-mutation-", dir="/var/tmp"))
    try:
        yield Copy(tree, root, workers, limit_s)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def judge(copy: Copy, path: str, mutant: Mutant, tests: Sequence[str]) -> Outcome:
    """Whether the tests find a fault. A test that also fails without the fault is not asked again."""
    with copy.plant(path, mutant):
        if complaint := copy.check(path):
            return Outcome("found", f"import: {complaint}", tests=len(tests))
        outcome = copy.run(tests)
    finder = outcome.by if outcome.by in tests else tests[0] if tests else ""
    if outcome.verdict != "found" or copy.run([finder]).verdict == "survived":
        return outcome
    if finder != outcome.by:
        raise RuntimeError(f"pytest does not work in the copy: {copy.log.read_text()[-2000:]}")
    return judge(copy, path, mutant, [test for test in tests if test != finder])
