"""Checks who else on this host can read or change the files with secrets."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from bot.config.settings import Settings
from bot.doctor.findings import Finding, Part
from runner.db.sqlite import COMPANIONS

FILES = Part("files")


def check_files(settings: Settings) -> Iterator[Finding]:
    """Check the configuration, the files with keys, and the database."""
    database = settings.server.database_file()
    beside = [Path(f"{database}{name}") for name in COMPANIONS if name] if database else []
    for path in (*settings.secret_files(), *beside):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue  # The service will create it, or SQLite uses it only at times.
        except OSError as error:
            fix = "run the doctor as the service's account"
            yield FILES.warn(path.name, f"cannot check {path}: {error.strerror}", fix)
        else:
            yield judge_file(path, about.st_mode, about.st_uid)


def judge_file(path: Path, mode: int, owner: int) -> Finding:
    """Judge a file with secrets by its mode and its owner's uid. Pure.

    Packages install a configuration as `root:ptq 0640`: the service's account can read it, but not change it.
    """
    shown = f"{path} has mode {stat.S_IMODE(mode):04o}"
    fix = f"chmod go-rwx {shlex.quote(str(path))}"
    if mode & stat.S_IRWXO:
        return FILES.fail(path.name, f"{shown}: every account on this host has access", fix)
    if mode & stat.S_IWGRP:
        return FILES.fail(path.name, f"{shown}: its group can change it", fix)
    if mode & stat.S_IRWXG and owner != 0:
        return FILES.warn(path.name, f"{shown}: its group can read it", fix)
    return FILES.ok(path.name, "private" if not mode & stat.S_IRWXG else "readable only by its group")
