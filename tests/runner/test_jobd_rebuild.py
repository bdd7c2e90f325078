"""A C++ file that is edited in a job is compiled, and nothing else; the base that all jobs share stays as it was."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.support.jobd import Jobd, make_repository

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

MODULE = 'extern "C" int part();\nextern "C" int answer() { return part(); }\n'
PART = 'extern "C" int part() { return 41; }\n'
MAKEFILE = """\
quick.so: module.o part.o
\tg++ -shared -o $@ $^
%.o: %.cpp
\tg++ -fPIC -c -o $@ $<
"""
IMPORT = """python3 -c 'import ctypes; print(ctypes.CDLL("./quick.so").answer())'"""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")


def hash_tree(folder: Path) -> str:
    """All that a tree holds, with modes and times."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(f"{path} {about.st_mode} {about.st_mtime_ns} {about.st_ino}\0".encode() + content)
    return digest.hexdigest()


@pytest.mark.parametrize("way", ["overlay", "slot"])  # At the base's own path, and copied.
@needs_compiler
def test_one_file_that_is_edited_is_compiled_and_the_base_is_as_before(tmp_path: Path, way: str) -> None:
    files: dict[str, str | bytes] = {
        "module.cpp": MODULE,
        "part.cpp": PART,
        "Makefile": MAKEFILE,
        ".gitignore": "*.o\n*.so\n",
    }
    repository = make_repository(tmp_path / "origin", files)
    jobd = Jobd(tmp_path, repository)
    recipe = {"setup": ["make", IMPORT], "ways": [way]}
    first = jobd.prepare(**recipe)
    if first["error"] == "no_environment":
        pytest.skip(first["message"])
    assert first["state"] == "done", first["message"]
    (base,) = (jobd.workspace / "bases").glob("*/1")
    before = hash_tree(base)
    log = jobd.agent(f"make; {IMPORT}; sed -i s/41/42/ part.cpp; make; {IMPORT}")["log"].decode().splitlines()
    assert log[0].endswith("is up to date.")
    assert log[1] == "41"
    assert [line.split()[-1] for line in log if line.startswith("g++")] == ["part.cpp", "part.o"]
    assert log[-1] == "42"
    jobd.call("clean")
    assert hash_tree(base) == before
