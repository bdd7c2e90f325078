"""Our machine-side program, `runner/jobd`, as one file, and how it is put on a machine."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

SOURCE = Path(__file__).with_name("jobd")
ENTRY = "from jobd.main import main\n\nmain()\n"

INSTALL = """
import errno, hashlib, json, os, sys

def install(path, digest):
    source = sys.stdin.buffer.read()
    if hashlib.sha256(source).hexdigest() != digest:
        return {"ok": False, "error": "internal", "message": "the upload of the machine-side program was cut short"}
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    part = "%s.%d" % (path, os.getpid())
    try:
        with open(part, "wb") as file:
            file.write(source)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return {"ok": True}

try:
    answer = install(*sys.argv[1:])
except OSError as error:
    name = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "workspace_unusable"
    answer = {"ok": False, "error": name, "message": "the workspace cannot be written: %s" % error.strerror}
print(json.dumps(answer))
"""
"""Writes standard input to a path, whole or not at all, and answers like the program that it installs."""


def build_program() -> bytes:
    """The machine-side program as one file that Python runs (PEP 441); the same bytes for the same source."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as program:
        program.writestr(zipfile.ZipInfo("__main__.py"), ENTRY)
        for module in sorted(SOURCE.glob("*.py")):
            program.writestr(zipfile.ZipInfo(f"jobd/{module.name}"), module.read_bytes())
    return archive.getvalue()
