"""Finds what a machine exposes to jobs, with or without a sandbox, so that its operator can close it."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

POWERFUL_GROUPS = ("docker", "podman", "lxd", "incus", "disk", "sudo", "wheel", "adm", "kvm", "libvirt")
"""Groups whose members can become root or read other accounts' files. An account keeps them in a user namespace."""

METADATA = ("169.254.169.254", 80)
"""The address at which clouds give a machine its own credentials (EC2, GCE and Azure)."""

METADATA_TIMEOUT_S = 0.5
LINGER = Path("/var/lib/systemd/linger")
"""The folder that names the accounts whose services run while they are logged out (loginctl(1), enable-linger)."""


def find_exposures() -> list[str]:
    """The exposures, as clauses for people."""
    return [*_find_groups(), *_find_schedulers(), *_find_network()]


def _find_groups() -> Iterator[str]:
    names = []
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            names.append(grp.getgrgid(number).gr_name)
    powerful = sorted({*names}.intersection(POWERFUL_GROUPS))
    if powerful and os.getuid():
        yield f"the account is in the groups {', '.join(powerful)}, which give it access beyond its own files"
    if not os.getuid():
        yield "the account is root: give jobs an account of their own"


def _find_schedulers() -> Iterator[str]:
    with suppress(KeyError):
        if (LINGER / pwd.getpwuid(os.getuid()).pw_name).exists():
            yield "systemd runs services of the account while it is logged out (loginctl disable-linger)"
    for program in ("crontab", "at"):
        if shutil.which(program) and _may_schedule(program):
            yield f"the account can use {program} to schedule commands for later (/etc/{_denied(program)})"


def _may_schedule(program: str) -> bool:
    words = [program, "-l"]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    return b"not allowed" not in done.stderr and b"do not have permission" not in done.stderr


def _denied(program: str) -> str:
    return "cron.deny" if program == "crontab" else "at.deny"


def _find_network() -> Iterator[str]:
    with suppress(OSError), socket.create_connection(METADATA, METADATA_TIMEOUT_S):
        yield f"the cloud's metadata service at {METADATA[0]} answers; it may hold credentials of the machine"
