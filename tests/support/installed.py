"""The machine-side program as it is on a machine that has been in use: installed, and compiled."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from runner.transport.jobd_program import build_program


def install_program(workspace: Path) -> None:
    """Put the installed program into a machine's workspace. Else each would unpack and compile it again."""
    made = _make()
    shutil.copytree(made, workspace / "jobd" / made.name, copy_function=_link)


@cache
def _make() -> Path:
    program = build_program()
    folder = Path(tempfile.mkdtemp(prefix="ptq-program-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / hashlib.sha256(program).hexdigest()
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        archive.extractall(made)
    subprocess.run([sys.executable, "-I", "-m", "compileall", "-q", made], check=True)
    return made


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # It lies in another file system.
        shutil.copy2(source, target)
