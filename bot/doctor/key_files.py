"""Checks the file with an SSH private key before a connection needs it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from bot.doctor.file_checks import judge_file
from bot.doctor.findings import DoctorVerdict

MAX_KEY = 100_000
"""Bytes that are read of a key's file."""


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """Why a key cannot be used, as a clause, and the fix."""

    words: str
    fix: str


def find_key_problem(path: Path, account: str) -> KeyProblem | None:
    """Why the service's account cannot log in with this file; None if it can. It may still be the wrong key."""
    shown = shlex.quote(str(path))
    new = f"ssh-keygen -t ed25519 -N '' -f {shown}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY)
    except FileNotFoundError:
        return KeyProblem(f"there is no file {path}", f"correct the path, or create a key: {new}")
    except IsADirectoryError:
        return KeyProblem(f"{path} is a folder", "enter the path of the private key, such as .../id_ed25519")
    except PermissionError:
        fix = f"give it to that account, which also needs access to the folder: sudo chown {account} {shown}"
        return KeyProblem(f"the account {account} cannot read {path}", fix)
    except OSError as error:
        return KeyProblem(f"{path} cannot be read: {error.strerror}", "correct the path")
    try:
        asyncssh.import_private_key(content)
    except (asyncssh.KeyImportError, ValueError) as error:
        return _explain(path, content, new, error)
    return None


def find_mode_problem(path: Path) -> KeyProblem | None:
    """Whether others can read or change an existing file with a key. The doctor checks all such files at once."""
    about = path.stat()
    finding = judge_file(path, about.st_mode, about.st_uid)
    return KeyProblem(finding.words, finding.fix) if finding.verdict is not DoctorVerdict.OK else None


def _explain(path: Path, content: bytes, new: str, error: Exception) -> KeyProblem:
    shown = shlex.quote(str(path))
    if "ncrypt" in str(error) or "assphrase" in str(error):
        words = f"{path} has a passphrase, and nobody is there to enter it"
        return KeyProblem(words, f"remove the passphrase: ssh-keygen -p -N '' -f {shown}")
    try:
        asyncssh.import_public_key(content)
    except (asyncssh.KeyImportError, ValueError):
        return KeyProblem(
            f"{path} is not an SSH private key", f"correct the path, or move the file away and create a key: {new}"
        )
    private = path.with_suffix("") if path.suffix == ".pub" else "the private key"
    return KeyProblem(f"{path} is a public key", f"enter the path of its private key: {private}")
