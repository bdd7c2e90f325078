"""Gives a person access to one job with their own SSH key, by a line in the account's `authorized_keys`.

The key can only enter that job. All other lines stay as they are. sshd(8) describes the lines under "AUTHORIZED_KEYS
FILE FORMAT".
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..environment.trees import discard
from ..files import Failure, JobPaths, open_plain, read_json, write_file
from ..sandbox.processes import kill_processes
from ..stages.states import read_state
from ..stages.tombstone import not_ended

KEY_KINDS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"),
    *("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
)

MAX_KEY_BYTES = 4_096
MAX_KEYS = 5
"""The most keys that can enter one job."""
MARK = "ptq-hold:"
"""The comment of each of our lines begins with this. The job's id follows."""

UNQUOTABLE = '"\\\n\r'
"""Characters that sshd's quotes cannot protect in a command."""


def admit(request: Mapping[str, Any]) -> dict[str, Any]:
    """Give a person's keys access to a job, and remove all keys that had access to it before.

    Skips a key that is already in the account's file for another purpose. Raises `Failure`, also if all are skipped.
    """
    job, keys, lasts_s = JobPaths(request), read_keys(request["public_key"]), request["lasts_s"]
    with not_ended(job):
        if read_state(job, "prepare")["state"] != "done":
            raise Failure("not_prepared", "the job has no environment")
        until = time.time() + lasts_s
        with changing_keys() as lines:
            others = [line for line in lines if not is_ours(line, job)]
            known = {word for line in others for word in line.split()}
            # sshd uses the first of two lines with the same key.
            own = [key for key in keys if key.split()[1] not in known]
            if not own:
                raise Failure(
                    "key_in_use", "this SSH key already gives access to the machine's account; use another key"
                )
            lines[:] = [*others, *(describe_line(job, key, until) for key in own)]
        discard(job.context, job.trash)  # The agent may have made a folder there.
        write_file(job.context, request["context"])
        write_file(job.hold, json.dumps({"until": until}))
    return {}


def dismiss(request: Mapping[str, Any]) -> dict[str, Any]:
    """Remove everybody's access to the job, and kill its processes. Raises `Failure`, and `OSError`."""
    job = JobPaths(request)
    forget_keys(job)
    job.hold.unlink(missing_ok=True)
    if kill_processes(job.id)[1]:
        raise Failure("still_alive", "a process of the job cannot be killed")
    return {}


def forget_keys(job: JobPaths) -> None:
    """Remove the job's lines. Raises `OSError`."""
    if f"{MARK}{job.id}".encode() in read_file():
        with changing_keys() as lines:
            lines[:] = [line for line in lines if not is_ours(line, job)]


def read_file() -> bytes:
    """The contents of `authorized_keys`. Empty if we cannot read it: we have not written it then, either."""
    with suppress(OSError, RuntimeError):  # RuntimeError: an account without a name has no home.
        return find_keys_file().read_bytes()
    return b""


def find_limit_s(job: JobPaths) -> float:
    """How many seconds of access remain. 0 or less if nobody has access."""
    until = read_json(job.hold).get("until")
    return until - time.time() if isinstance(until, float) else 0.0


def read_keys(text: str) -> list[str]:
    """The public keys in a text, one per line, without duplicates. Raises `Failure` for any other text."""
    keys = list(dict.fromkeys(read_key(line) for line in text.strip().splitlines()))
    if not 0 < len(keys) <= MAX_KEYS:
        raise Failure("bad_key", f"a job needs 1 to {MAX_KEYS} keys")
    return keys


def read_key(text: str) -> str:
    """The kind and the Base64 of a public key, without its comment. Raises `Failure` if the text is not a key."""
    words = text.split()
    kind = words[0] if words else ""
    if len(text.strip().splitlines()) != 1 or len(words) < 2 or kind not in KEY_KINDS:
        raise Failure("bad_key", f"the key is not a line of kind, Base64 and comment; kinds: {', '.join(KEY_KINDS)}")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except ValueError:
        blob = b""
    # RFC 4253, section 6.6: the key repeats its kind, after the length of the kind.
    if not len(kind) + 4 < len(blob) <= MAX_KEY_BYTES or blob[: len(kind) + 4] != name(kind):
        raise Failure("bad_key", "the key is incomplete, or not of the kind that it names")
    return f"{kind} {base64.b64encode(blob).decode()}"


def name(kind: str) -> bytes:
    """A string as keys encode it (RFC 4251, section 5)."""
    return len(kind).to_bytes(4, "big") + kind.encode()


def describe_line(job: JobPaths, key: str, until: float) -> str:
    """The line that lets a key enter a job. Raises `Failure`.

    `restrict` disables all forwarding and `~/.ssh/rc`, and includes the restrictions that later versions of sshd add.
    `expiry-time` is local time without `Z`, because OpenSSH before 9.1 supports only that.
    """
    words = [sys.executable, "-I", "-S", os.path.realpath(sys.argv[0]), "enter", str(job.workspace), job.id]
    command = shlex.join(words)
    if any(character in command for character in UNQUOTABLE):
        raise Failure("bad_path", "sshd cannot run a path with quotes, backslashes or line breaks")
    expiry = time.strftime("%Y%m%d%H%M%S", time.localtime(until))
    return f'restrict,pty,command="{command}",expiry-time="{expiry}" {key} {MARK}{job.id}'


def is_ours(line: str, job: JobPaths) -> bool:
    """Whether a line gives access to the job."""
    return line.endswith(f" {MARK}{job.id}")


def find_keys_file() -> Path:
    """The path of `authorized_keys`. If that is a link, the path of the file that the link leads to."""
    return Path("~/.ssh/authorized_keys").expanduser().resolve()


@contextmanager
def changing_keys() -> Iterator[list[str]]:
    """Yield the lines of `authorized_keys`. If the caller changes them, write the file, whole or not at all.

    A lock allows one jobd process at a time. Raises `OSError`.
    """
    path = find_keys_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path.with_name("authorized_keys.ptq-lock"), "a", opener=open_plain) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = path.read_bytes() if path.exists() else b""
        lines = before.decode(errors="surrogateescape").split("\n")
        if lines[-1] == "":
            lines.pop()
        kept = list(lines)
        yield lines
        if lines != kept:
            replace_keys(path, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))


def replace_keys(path: Path, content: bytes) -> None:
    """Replace the file and keep its mode. Raises `OSError`."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
