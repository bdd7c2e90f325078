"""What the doctor looks at in the files that hold secrets: who else on this host may read or change them."""

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
    """The configuration, the files with keys, and the database with what belongs to it."""
    database = settings.server.database_file()
    beside = [Path(f"{database}{name}") for name in COMPANIONS if name] if database else []
    for path in (*settings.secret_files(), *beside):
        try:
            about = path.stat()
        except FileNotFoundError:
            continue  # The service makes it, or it belongs to a moment of SQLite's.
        except OSError as error:
            fix = "run this as the account that the service runs as"
            yield FILES.warn(path.name, f"we cannot look at {path}: {error.strerror}", fix)
        else:
            yield judge_file(path, about.st_mode, about.st_uid)


def judge_file(path: Path, mode: int, owner: int) -> Finding:
    """A file with secrets, by its mode and its owner's number. Pure.

    `root:ptq 0640` is how packages install a configuration: the service's account may read it, and not change it.
    """
    shown = f"{path} has the mode {stat.S_IMODE(mode):04o}"
    fix = f"chmod go-rwx {shlex.quote(str(path))}"
    if mode & stat.S_IRWXO:
        return FILES.fail(path.name, f"{shown}: every account on this host has access to it", fix)
    if mode & stat.S_IWGRP:
        return FILES.fail(path.name, f"{shown}: its whole group may change it", fix)
    if mode & stat.S_IRWXG and owner != 0:
        return FILES.warn(path.name, f"{shown}: its whole group may read it", fix)
    return FILES.ok(
        path.name, "nobody else has access to it" if not mode & stat.S_IRWXG else "only its group may read it"
    )
