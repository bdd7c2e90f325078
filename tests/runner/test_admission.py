"""Who may enter a job by SSH: lines in `authorized_keys`, and what OpenSSH's sshd makes of them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bot.demo.loopback import ADDRESS
from runner.jobd.access.admission import read_key
from runner.jobd.files import Failure
from tests.support.jobd import Jobd, Repository
from tests.support.machines import find_or_skip_sshd
from tests.support.made_base import MadeBase
from tests.support.sshd import OpenSshServer
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

KEYS = {
    "ed25519": "AAAAC3NzaC1lZDI1NTE5AAAAIDJ0PUABuj6t3Mn2bKImLBfLzt131jvOJ3Um3hWPUbEK",
    "other": "AAAAC3NzaC1lZDI1NTE5AAAAIH1/WL2oHMoj4DycNlWH8SKlua+2oHeGQULteYRNrA8H",
}
KEY, OTHER = (f"ssh-ed25519 {blob}" for blob in KEYS.values())

BAD_KEYS = [
    "",
    "ssh-ed25519",
    KEYS["ed25519"],
    f"{KEY}\n{OTHER}",
    f"{KEY}\n# more",
    f'command="/bin/sh" {KEY}',
    f"no-pty {KEY}",
    f"ssh-rsa {KEYS['ed25519']}",
    f"ssh-dss {KEYS['ed25519']}",
    f"ssh-ed25519-cert-v01@openssh.com {KEYS['ed25519']}",
    "ssh-ed25519 AAAA",
    "ssh-ed25519 no base64!",
    f"ssh-ed25519 {KEYS['ed25519'][:20]}",
    f"ssh-ed25519 {'A' * 8_000}",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The account's home."""
    home = tmp_path / "account"
    home.mkdir()
    return home


@pytest.fixture
def jobd(tmp_path: Path, repository: Repository, home: Path) -> Jobd:
    """A job of which only the files are there that say that it was prepared."""
    jobd = Jobd(tmp_path, repository, {"HOME": str(home)})
    pretend_to_prepare(jobd)
    return jobd


def pretend_to_prepare(jobd: Jobd) -> None:
    jobd.job.make_folders()
    for name in ("prepare.request", "prepare.json"):
        (jobd.control / name).write_text('{"state": "done"}')


def admit(jobd: Jobd, key: str = KEY, lasts_s: int = 3600) -> dict[str, Any]:
    return jobd.ask("admit", public_key=key, lasts_s=lasts_s, context="")


def read_lines(home: Path) -> list[str]:
    return (home / ".ssh" / "authorized_keys").read_text().splitlines()


def test_a_key_gets_one_line_that_forbids_all_but_one_command(jobd: Jobd, home: Path) -> None:
    before = time.time()
    assert admit(jobd, f"  {KEY} me@home, and\tmore \n") == {"ok": True}
    (line,) = read_lines(home)
    command = f"{sys.executable} -I -S {jobd.program.resolve()} enter {jobd.workspace} {jobd.job_id}"
    options, expiry = line.split(f" {KEY} ptq-hold:{jobd.job_id}")[0].split(',expiry-time="')
    assert options == f'restrict,pty,command="{command}"'
    assert time.mktime(time.strptime(expiry, '%Y%m%d%H%M%S"')) - before == pytest.approx(3600, abs=5)
    assert (home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (home / ".ssh" / "authorized_keys").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("key", BAD_KEYS)
def test_what_is_no_plain_key_is_refused(key: str) -> None:
    with pytest.raises(Failure) as caught:
        read_key(key)
    assert caught.value.name == "bad_key"


def test_a_refused_key_changes_nothing(jobd: Jobd, home: Path) -> None:
    assert admit(jobd, BAD_KEYS[-1])["error"] == "bad_key"
    assert not (home / ".ssh").exists()


def test_the_lines_of_others_stay_as_they_are(jobd: Jobd, home: Path) -> None:
    others = f"# \udcff a comment\n\n  ssh-rsa AAAA somebody\nssh-ed25519 BBBB ptq-hold:{'0' * 10}\nlast ptq-hold:"
    file = home / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_text(others, errors="surrogateescape")
    file.chmod(0o640)
    admit(jobd)
    assert file.read_text(errors="surrogateescape").startswith(f"{others}\nrestrict,")
    admit(jobd, OTHER)
    assert len(file.read_bytes().splitlines()) == 6, "one line a job"
    jobd.call("dismiss")
    jobd.call("dismiss")
    assert file.read_text(errors="surrogateescape") == f"{others}\n"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_place_of_the_file_stays_one(jobd: Jobd, home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / "dotfiles").write_text("")
    (home / ".ssh" / "authorized_keys").symlink_to("../dotfiles")
    admit(jobd)
    assert (home / ".ssh" / "authorized_keys").is_symlink()
    assert jobd.job_id in (home / "dotfiles").read_text()


def test_a_key_that_opens_something_else_already_is_refused(jobd: Jobd, home: Path) -> None:
    (home / ".ssh").mkdir()
    for line in (f"{KEY} me", f'from="*" {KEY}', f"restrict {KEY} ptq-hold:{'0' * 10}"):
        (home / ".ssh" / "authorized_keys").write_text(f"{line}\n")
        assert admit(jobd)["error"] == "key_in_use"
        assert read_lines(home) == [line]


def test_several_keys_are_let_in_together_but_for_those_that_open_something_else(jobd: Jobd, home: Path) -> None:
    both = f"{KEY} me\n{OTHER}\n{KEY} once more\n"
    assert admit(jobd, both) == {"ok": True}
    assert [line.split()[-2] for line in read_lines(home)] == [KEYS["ed25519"], KEYS["other"]]
    (home / ".ssh" / "authorized_keys").write_text(f"{KEY} me\n")
    assert admit(jobd, both) == {"ok": True}
    assert [KEYS["ed25519"] in line for line in read_lines(home)] == [True, False]
    jobd.call("dismiss")
    assert read_lines(home) == [f"{KEY} me"]


@pytest.mark.parametrize("keys", [f"{KEY}\n# more", f"{KEY}\n\n{OTHER}", f"{OTHER}\n{BAD_KEYS[-1]}"])
def test_one_bad_key_among_several_lets_nobody_in(jobd: Jobd, home: Path, keys: str) -> None:
    assert admit(jobd, keys)["error"] == "bad_key"
    assert not (home / ".ssh").exists()


def test_nobody_is_let_in_by_more_keys_than_a_person_has(jobd: Jobd, home: Path) -> None:
    many = [f"ssh-ed25519 {KEYS['ed25519'][:-2]}{letter}K" for letter in "AQgw"] + [KEY, OTHER]
    assert admit(jobd, "\n".join(many))["error"] == "bad_key"
    assert not (home / ".ssh").exists()


def test_a_cleaned_job_leaves_no_key_behind_and_gets_none(jobd: Jobd, home: Path) -> None:
    admit(jobd)
    jobd.call("clean")
    assert read_lines(home) == []
    assert admit(jobd)["error"] == "ended"


def test_a_job_is_cleaned_also_where_no_keys_can_be_read(jobd: Jobd, home: Path) -> None:
    (home / ".ssh").mkdir(mode=0o000)
    assert jobd.call("clean") == {"ok": True}
    (home / ".ssh").chmod(0o700)


def test_a_folder_in_place_of_the_persons_file_lets_them_in_all_the_same(jobd: Jobd, home: Path) -> None:
    (jobd.root / "CONTEXT.md" / "x").mkdir(parents=True)
    assert admit(jobd) == {"ok": True}
    assert (jobd.root / "CONTEXT.md").is_file()


def test_a_job_without_an_environment_gets_no_key(jobd: Jobd, home: Path) -> None:
    other = jobd.beside()
    assert admit(other)["error"] == "not_prepared"
    assert not (home / ".ssh").exists()


def test_many_keys_at_once_are_all_there(jobd: Jobd, home: Path) -> None:
    def take(number: int) -> None:
        blob = KEYS["ed25519"][:-1] + "ABCDEFGHIJKLMNOP"[number]
        other = jobd.beside()
        pretend_to_prepare(other)
        assert admit(other, f"ssh-ed25519 {blob}") == {"ok": True}

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(take, range(0, 16, 4)))
    assert len(read_lines(home)) == 4


def test_a_path_that_sshd_could_not_be_told_is_refused(tmp_path: Path, repository: Repository, home: Path) -> None:
    (tmp_path / 'a "b').mkdir()
    jobd = Jobd(tmp_path / 'a "b', repository, {"HOME": str(home)})
    pretend_to_prepare(jobd)
    assert admit(jobd)["error"] == "bad_path"


# By OpenSSH's own server


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory, template: Repository, made_base: MadeBase) -> Iterator[Jobd]:
    """A job that was prepared. People come and go, one test after the other."""
    folder = tmp_path_factory.mktemp("entered")
    (folder / "account").mkdir()
    origin = Repository(shutil.copytree(template.folder, folder / "origin"))
    jobd = Jobd(folder, origin, {"HOME": str(folder / "account")})
    made_base.lay_out(jobd)
    assert jobd.prepare()["state"] == "done"
    yield jobd
    jobd.call("kill")


@pytest.fixture
async def sshd(tmp_path: Path, entered: Jobd) -> AsyncIterator[OpenSshServer]:
    server = OpenSshServer(tmp_path / "ssh", find_or_skip_sshd(), Path(entered.env["HOME"]))
    await server.start()
    yield server
    await server.stop()


class Person:
    """Somebody with a key of their own, and OpenSSH's client."""

    def __init__(self, folder: Path, server: OpenSshServer) -> None:
        folder.mkdir()
        self.key = folder / "key"
        self._server = server
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text()

    def words(self, *options: str) -> list[str]:
        known = ["-o", f"UserKnownHostsFile={self._server.known_hosts_file}", "-o", "IdentitiesOnly=yes"]
        return ["ssh", "-F", "/dev/null", "-i", str(self.key), "-p", str(self._server.port), *known, *options]

    @property
    def target(self) -> str:
        return f"{self._server.user}@{ADDRESS}"

    def come(self, *options: str) -> Terminal:
        """Take the command line that `ptq-bot takeover` prints."""
        return Terminal([*self.words("-o", "ServerAliveInterval=1", *options), self.target], self._env())

    def run(self, *command: str, words: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
        """Run a command there by ssh, or these words here."""
        words = words or [*self.words("-o", "BatchMode=yes"), self.target, *command]
        return subprocess.run(words, capture_output=True, check=False, env=self._env(), timeout=30)

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": "/nonexistent"}


@pytest.fixture
def person(tmp_path: Path, sshd: OpenSshServer) -> Person:
    return Person(tmp_path / "person", sshd)


@pytest.mark.sshd
def test_a_key_opens_a_shell_in_its_job_and_nowhere_else(entered: Jobd, person: Person) -> None:
    (entered.workspace / "jobs" / "of-another").mkdir()
    assert person.run("true").returncode == 255, "a key that nobody admitted"
    admit(entered, person.public_key)
    terminal = person.come()
    terminal.wait_for(f"[ptq {entered.job_id}]")
    terminal.be_quiet()
    assert terminal.ask("pwd; env | grep -c ^SSH_").splitlines() == [str(entered.worktree), "0"]
    if entered.can_seal:
        assert terminal.ask(f"ls {entered.workspace}/jobs").split() == [entered.job_id]
    terminal.type("exit")
    assert terminal.end() == 0


@pytest.mark.sshd
def test_a_key_runs_nothing_else_and_copies_nothing(entered: Jobd, person: Person, tmp_path: Path) -> None:
    admit(entered, person.public_key)
    ran = tmp_path / "ran"
    done = person.run("touch", str(ran))
    assert (done.returncode, ran.exists()) == (1, False)
    assert b"it cannot run commands" in done.stderr
    stolen = tmp_path / "stolen"
    options = [word.replace("-p", "-P") if word == "-p" else word for word in person.words("-o", "BatchMode=yes")[1:]]
    source = f"{person.target}:{entered.program}"
    for words in (["scp", *options, source, str(stolen)], ["scp", *options, "-O", source, str(stolen)]):
        assert (person.run(words=words).returncode != 0, stolen.exists()) == (True, False)
    assert person.run(words=["sftp", *options, "-b", "/dev/null", person.target]).returncode != 0


@pytest.mark.sshd
def test_nothing_is_forwarded(entered: Jobd, person: Person, tmp_path: Path) -> None:
    admit(entered, person.public_key)
    with socket.socket() as server:
        server.bind((ADDRESS, 0))
        server.listen()
        port = server.getsockname()[1]
        with subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL) as agent:
            try:
                done = person.run(words=[*person.words("-W", f"{ADDRESS}:{port}"), person.target])
                assert b"administratively prohibited" in done.stderr
                back = ("-N", "-R", f"0:{ADDRESS}:{port}", "-o", "ExitOnForwardFailure=yes")
                done = person.run(words=[*person.words(*back), person.target])
                assert b"remote port forwarding failed" in done.stderr
                terminal = person.come("-A", "-o", f"IdentityAgent={tmp_path}/agent", "-X")
                terminal.wait_for(f"[ptq {entered.job_id}]")
                terminal.be_quiet()
                assert terminal.ask("env | grep -c -e SSH_AUTH -e DISPLAY") == "0\n"
                terminal.type("exit")
                terminal.end()
            finally:
                agent.terminate()


@pytest.mark.sshd
def test_the_key_is_worth_nothing_once_its_time_is_over(entered: Jobd, person: Person) -> None:
    admit(entered, person.public_key, lasts_s=3)
    terminal = person.come()
    terminal.wait_for(f"[ptq {entered.job_id}]")
    terminal.end()
    assert "your time in this job is over" in terminal.shown
    deadline = time.monotonic() + 10  # sshd's time has seconds, and may be one behind.
    while (done := person.run("true")).returncode != 255:
        assert done.returncode == 1
        assert time.monotonic() < deadline
    assert b"Permission denied" in done.stderr


@pytest.mark.sshd
def test_a_dismissed_person_is_out_at_once_and_stays_out(entered: Jobd, person: Person) -> None:
    admit(entered, person.public_key)
    terminal = person.come()
    terminal.wait_for(f"[ptq {entered.job_id}]")
    entered.call("dismiss")
    terminal.end()
    assert b"Permission denied" in person.run("true").stderr


@pytest.mark.sshd
def test_a_session_whose_connection_is_cut_leaves_the_job_free(entered: Jobd, person: Person) -> None:
    admit(entered, person.public_key)
    first = person.come()
    first.wait_for(f"[ptq {entered.job_id}]")
    first.kill()
    second = person.come()
    second.wait_for(f"[ptq {entered.job_id}]")
    second.type("exit")
    assert second.end() == 0
