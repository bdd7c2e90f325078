"""SSH key files that cannot be used, and what to do about each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.doctor.findings import DoctorVerdict
from bot.doctor.key_files import find_key_problem, find_mode_problem
from bot.doctor.machine_checks import check_machine
from runner.model.machines import Machine
from tests.bot.test_cli import configure


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name, words in (("good", ""), ("locked", "hunter22")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", words, "-f", folder / name], check=True)
    pem = ["-t", "ecdsa", "-m", "PEM", "-N", "hunter22", "-f", str(folder / "locked.pem")]
    subprocess.run(["ssh-keygen", "-q", *pem], check=True)
    (folder / "text").write_text("hello")
    return folder


@pytest.mark.parametrize(
    ("name", "words", "fix"),
    [
        ("none", "there is no file {}", "correct the path, or create a key: ssh-keygen -t ed25519 -N '' -f {}"),
        ("locked", "{} has a passphrase, and nobody is there", "remove the passphrase: ssh-keygen -p -N '' -f {}"),
        ("locked.pem", "{} has a passphrase, and nobody is there", "remove the passphrase: ssh-keygen -p -N '' -f {}"),
        ("text", "{} is not an SSH private key", "move the file away and create a key: ssh-keygen"),
        ("good.pub", "{} is a public key", "private key: {}"),
        (".", "{} is a folder", "enter the path of the private key"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_with_its_remedy(keys: Path, name: str, words: str, fix: str) -> None:
    problem = find_key_problem(keys / name, "ptq")
    assert problem
    assert words.format(keys / name) in problem.words
    assert fix.format(str(keys / name).removesuffix(".pub")) in problem.fix


def test_a_key_that_others_can_read_is_named_with_its_mode(keys: Path) -> None:
    key = keys / "good"
    assert find_key_problem(key, "ptq") is None
    key.chmod(0o600)
    assert find_mode_problem(key) is None
    key.chmod(0o644)
    problem = find_mode_problem(key)
    assert problem
    assert (f"{key} has mode 0644" in problem.words, problem.fix) == (True, f"chmod go-rwx {key}")


async def test_the_doctor_names_a_key_and_does_not_connect_with_it(keys: Path, tmp_path: Path) -> None:
    machine = Machine("gpu-1", "/srv/ptq", host="gpu-1.example", user="ptq", client_key_file=keys / "locked")
    (found,) = [one async for one in check_machine(load_settings(configure(tmp_path, 0)), machine)]
    assert (found.check, found.verdict) == ("SSH key", DoctorVerdict.FAILED)
    assert found.fix == f"remove the passphrase: ssh-keygen -p -N '' -f {keys / 'locked'}"
