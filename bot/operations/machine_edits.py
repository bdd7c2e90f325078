"""`ptq-bot machines add` and `remove`: edit `ptq.toml` atomically.

The new file replaces the old one only if the service could load it. A running service loads it after SIGHUP.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from bot.config.settings import ConfigError, Settings, load_settings
from bot.config.tables import MachineTable
from bot.operations.context import read_database, write_database
from bot.operations.host_keys import HostKey, NoHostKey, fetch_host_key, is_known, remember
from bot.operations.machine_text import NotEdited, add_table, remove_table
from bot.operations.machines import UnknownMachine, find_machine
from runner.characters import show_for_terminal
from runner.db.errors import NoDatabase
from runner.model.machines import USABLE
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states, resume
from runner.transport.ssh import DEFAULT_PORT, parse_hop

RELOAD = "A running service takes it over by SIGHUP: `systemctl reload ptq-bot`, or `kill -HUP` with its process id.\n"


class NotChanged(Exception):  # noqa: N818
    """The configuration is not changed; the message says why."""


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine to add. Missing paths are copied from the last SSH machine in the file."""

    target: str
    """`user@host` or `user@host:port`."""
    name: str
    slots: int = 1
    labels: tuple[str, ...] = ()
    workspace: str | None = None
    key_file: Path | None = None
    known_hosts_file: Path | None = None


Confirm = Callable[[HostKey], bool]


async def add_machine(config: Path, settings: Settings, new: NewMachine, confirm: Confirm) -> str:
    """Fetch the host's key, ask `confirm` about it, and add the machine to the file. Returns the text for the terminal.

    A key that is already in the known_hosts file needs no confirmation. Raises `NotChanged`, and `UnknownMachine` if
    `new.target` is invalid.
    """
    path, (user, host, port) = config.resolve(), _read_target(new.target)
    values, known_hosts = _fill_in(path.parent, settings, new, user, host, port)
    if new.name in {machine.name for machine in settings.machines}:
        raise NotChanged(f"there is a machine {new.name} already")
    try:
        before = _read(path)
        edited = add_table(before, values, f"Added on {date.today().isoformat()} by ptq-bot machines add.")
        key = await fetch_host_key(host, port)
        if not is_known(known_hosts, key) and not confirm(key):
            raise NotChanged("nobody has confirmed the host's key")
        with _restoring(known_hosts):
            remember(known_hosts, key)
            _replace(path, before, edited)
    except (NotEdited, NoHostKey) as error:
        raise NotChanged(f"{show_for_terminal(new.target)}: {error}") from None
    with suppress(NoDatabase):
        # A machine that was removed may have had this name. Forget its drain and its failures.
        async with write_database(settings) as connection:
            await resume(connection, new.name)
    look = f"Look whether jobs can run there: ptq-bot machines check --config {config}\n"
    return f"{new.name} is in {config}, with the key {key.fingerprint}.\n{RELOAD}{look}"


async def remove_machine(config: Path, settings: Settings, name: str) -> str:
    """Remove a machine from the file. Returns the text for the terminal.

    Raises `UnknownMachine`, and `NotChanged` if the machine has jobs and is not drained.
    """
    machine = find_machine(settings, name)
    leased: list[str] = []
    state = USABLE
    with suppress(NoDatabase):
        async with read_database(settings) as connection:
            state = (await fetch_machine_states(connection)).get(name, USABLE)
            leased = [
                lease.job_id for lease in await job_rows.fetch_leases(connection) if lease.machine == machine.name
            ]
    if leased and not state.drained_at:
        drain = f"ptq-bot machines drain {name} --config {config}"
        raise NotChanged(
            f"jobs are on {name} ({', '.join(leased)}): drain it first ({drain}), best until they are gone"
        )
    try:
        before = _read(config.resolve())
        _replace(config.resolve(), before, remove_table(before, name))
    except NotEdited as error:
        raise NotChanged(str(error)) from None
    still = f"Do not restart it before {', '.join(leased)} has ended: it would forget the machine.\n" if leased else ""
    return f"{name} is no longer in {config}.\n{RELOAD}{still}"


def _read_target(target: str) -> tuple[str, str, int]:
    try:
        hop = parse_hop(target)
    except ValueError:
        raise UnknownMachine("a machine is named user@host, or user@host:port") from None
    if not hop.user:
        raise UnknownMachine("add the account: user@host")
    return hop.user, hop.host, hop.port or DEFAULT_PORT


def _fill_in(
    folder: Path, settings: Settings, new: NewMachine, user: str, host: str, port: int
) -> tuple[dict[str, str | int | list[str]], Path]:
    """The values of the new table, and the path of the known_hosts file. Raises `NotChanged`."""
    like: MachineTable | None = next((table for table in reversed(settings.machines) if table.kind == "ssh"), None)
    key_file = new.key_file.absolute() if new.key_file else like and like.client_key_file
    known_hosts = new.known_hosts_file.absolute() if new.known_hosts_file else like and like.known_hosts_file
    workspace = new.workspace or (like and like.workspace)
    if not key_file or not workspace:
        raise NotChanged("no machine of the file tells what to assume, so say also: --key and --workspace")
    known_hosts = known_hosts or folder / "known_hosts"
    values: dict[str, str | int | list[str]] = {"name": new.name, "host": host}
    values |= {"port": port} if port != DEFAULT_PORT else {}
    values |= {"user": user, "client_key_file": _shorten(key_file, folder)}
    values |= {"known_hosts_file": _shorten(known_hosts, folder), "workspace": workspace, "slots": new.slots}
    return {**values, "labels": list(new.labels)} if new.labels else values, known_hosts


def _shorten(path: Path, folder: Path) -> str:
    """The text for a path in the configuration: relative if the path is inside the configuration's folder."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _read(path: Path) -> str:
    return path.read_bytes().decode()


@contextmanager
def _restoring(path: Path) -> Iterator[None]:
    """Remove what the block appends to a file if it fails. At no moment is the file away: a service may read it."""
    before = path.stat().st_size if path.exists() else None
    try:
        yield
    except BaseException:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            os.truncate(path, before)
        raise


def _replace(path: Path, before: str, text: str) -> None:
    """Replace the content of a configuration file with `text`.

    Raises `NotChanged` if `text` is invalid, if the file no longer contains `before`, or if its folder is not writable.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise NotChanged(f"{path.parent} cannot be written: {error.strerror}") from None
    draft = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        load_settings(draft)
        if _read(path) != before:
            raise NotChanged(f"somebody else has changed {path} meanwhile: try again")
        shutil.copymode(path, draft)
        about = path.stat()
        with suppress(PermissionError):
            os.chown(draft, about.st_uid, about.st_gid)
        draft.replace(path)
    except ConfigError as error:
        problems = "; ".join(error.problems)
        raise NotChanged(f"{path} would have problems, so it stays as it is: {problems}") from None
    finally:
        draft.unlink(missing_ok=True)
