"""Packs the program for machines, `runner/jobd`, as one archive. A machine unpacks it into a folder that Python runs.

In a folder, Python compiles the modules once, and not for every call.
"""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "jobd"
ENTRY = "from jobd.main import main\n\nmain()\n"

INSTALL = """
import errno, hashlib, io, json, os, shutil, sys, zipfile

def install(path, digest):
    source = sys.stdin.buffer.read()
    if hashlib.sha256(source).hexdigest() != digest:
        return {"ok": False, "error": "internal", "message": "the upload of the machine-side program was cut short"}
    part = "%s.%d" % (path, os.getpid())
    os.makedirs(part, mode=0o700, exist_ok=True)
    try:
        with zipfile.ZipFile(io.BytesIO(source)) as program:
            for name in program.namelist():
                with open(program.extract(name, part), "rb") as file:
                    os.fsync(file.fileno())
        os.rename(part, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # Another installation was faster.
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"ok": True}

try:
    answer = install(*sys.argv[1:])
except OSError as error:
    name = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "workspace_unusable"
    answer = {"ok": False, "error": name, "message": "the workspace cannot be written: %s" % error.strerror}
print(json.dumps(answer))
"""
"""The program that unpacks its standard input at a path, completely or not at all. It answers in the form of jobd."""


@functools.cache
def build_program() -> bytes:
    """The program as an archive that Python can run (PEP 441). The same source always gives the same bytes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as program:
        program.writestr(zipfile.ZipInfo("__main__.py"), ENTRY)
        for module in sorted(SOURCE.rglob("*.py")):
            name = f"jobd/{module.relative_to(SOURCE).as_posix()}"
            program.writestr(zipfile.ZipInfo(name), module.read_bytes())
    return archive.getvalue()
