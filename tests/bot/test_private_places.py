"""What belongs to the service on its own host: private whatever the umask is, and out of the sight of sealed jobs."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bot.config.settings import is_shared, load_settings
from bot.operations.host_keys import HostKey, remember
from runner.db.database import Database
from runner.own_files import close_to_others, make_private_folder
from runner.steps.spool import Spool
from tests.bot.test_cli import configure
from tests.support.jobd import Jobd, Repository, make_repository
from tests.support.sandboxes import SEALED


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def modes_in(folder: Path) -> dict[str, str]:
    """The modes of all that is below a folder, by its path there."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_what_the_service_writes_is_private_whatever_the_umask_is(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        database = Database(f"sqlite+aiosqlite:///{tmp_path}/ptq.db")
        await database.open()
        spool = Spool(tmp_path / "var" / "spool")
        spool.append("0123456789", "agent", b"said")
        remember(tmp_path / "ssh" / "known_hosts", HostKey("gpu-1", 22, "ssh-ed25519 AAAA", "SHA256:x"))
        with database.hold():
            modes = modes_in(tmp_path)
        await database.back_up(tmp_path / "copy.db")
        modes |= modes_in(tmp_path)
        await database.close()
    files = {"ptq.db", "ptq.db-wal", "ptq.db-shm", "ptq.db.lock", "copy.db", "var/spool/0123456789.agent.log"}
    files |= {"ssh/known_hosts"}
    assert modes == dict.fromkeys(files, "0o600") | dict.fromkeys(("var", "var/spool", "ssh"), "0o700")


async def test_what_an_earlier_version_left_open_is_closed_when_the_service_starts(tmp_path: Path) -> None:
    url, log = f"sqlite+aiosqlite:///{tmp_path}/ptq.db", tmp_path / "var" / "spool" / "0123456789.agent.log"
    with umask(0o022):
        log.parent.mkdir(parents=True)
        log.touch()
        with closing(sqlite3.connect(tmp_path / "ptq.db")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        (tmp_path / "ptq.db.lock").touch()
        database = Database(url)
        await database.open()
        with database.hold():
            Spool(log.parent)
            modes = modes_in(tmp_path)
        await database.close()
    assert modes.pop("var") == "0o755", "a folder that was there may be meant for more than our files"
    assert modes.pop("var/spool") == "0o700"
    assert {*modes} >= {"ptq.db", "ptq.db-wal", "ptq.db.lock"}
    assert set(modes.values()) == {"0o600"}


def test_what_is_not_there_or_private_already_is_left_alone(tmp_path: Path) -> None:
    close_to_others(tmp_path / "nothing")
    file = tmp_path / "file"
    file.touch(mode=0o400)
    before = file.stat().st_ctime_ns
    close_to_others(file)
    assert file.stat().st_ctime_ns == before
    with pytest.raises(FileExistsError):
        make_private_folder(file)


def test_folders_of_the_system_are_not_taken_for_ours() -> None:
    for folder in ("/", "/etc", "/srv", "/usr/local", "/var/lib"):
        assert is_shared(Path(folder))
    for folder in ("/etc/ptq", "/var/lib/ptq", "/home/somebody", "/usr/local/etc/ptq"):
        assert not is_shared(Path(folder))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder that a cell leaves open, unlike /tmp, /var/tmp and the home (`tests/conftest.py`)."""
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


def install(host: Path) -> tuple[str, ...]:
    """A whole installation, with a key in a folder of others': what no job sees, as a local machine is told it."""
    for name in ("etc", "state", "keys"):
        (host / name).mkdir()
    changes = [
        ('"app.pem"', f'"{host}/keys/app.pem"'),
        ("[server]", f'[server]\ndata_dir = "{host}/data"\ndatabase_url = "sqlite+aiosqlite:///{host}/state/ptq.db"'),
    ]
    config = configure(host / "etc", 0, *changes[1:])
    (host / "etc" / "app.pem").rename(host / "keys" / "app.pem")
    config.write_text(config.read_text().replace(*changes[0]))
    for path in ("state/ptq.db", "state/ptq.db-wal", "data/spool/0123456789.agent.log", "keys/other.txt"):
        (host / path).parent.mkdir(parents=True, exist_ok=True)
        (host / path).write_text("the webhook's and all else\n")
    settings = load_settings(config)
    assert {*settings.secret_files()} == {config, host / "keys" / "app.pem", host / "state" / "ptq.db"}
    (machine,) = settings.machine_list()
    return machine.private


@pytest.mark.on_disk
@pytest.mark.slow
@pytest.mark.skipif(not SEALED, reason="this machine seals no jobs")
def test_a_sealed_job_sees_nothing_of_the_service_on_its_own_host(tmp_path: Path, host: Path) -> None:
    private = install(host)
    made = make_repository(tmp_path / "origin")
    secret = ["etc/ptq.toml", "state/ptq.db", "state/ptq.db-wal", "state/later", "data/spool/0123456789.agent.log"]
    secret += ["keys/app.pem"]
    # In pieces, for whatever an operator's command names is left where it is.
    named = f'"{str(host)[:6]}""{str(host)[6:]}"'
    script = f"cd {named} && for f in {' '.join(secret)}; do cat $f 2> /dev/null || :; done"
    script += "; cat keys/other.txt"
    (host / "state" / "later").write_text("made later\n")
    open_to_all, sealed = (try_out(tmp_path / name, made, script, seen) for name, seen in (("a", ()), ("b", private)))
    assert open_to_all.count("the webhook's and all else") == 4, "without that, a job reads all of them"
    assert "BEGIN" in open_to_all
    assert sealed == "the webhook's and all else\n", "what is nobody's secret stays"


def try_out(folder: Path, repository: Repository, script: str, private: tuple[str, ...]) -> str:
    """What an agent prints that sees everything but this."""
    folder.mkdir()
    jobd = Jobd(folder, repository)
    assert jobd.prepare(private=[*private])["state"] == "done"
    poll = jobd.agent(script)
    assert poll["state"] == "done", poll
    return bytes(poll["log"]).decode()
