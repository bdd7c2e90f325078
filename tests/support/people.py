"""A person with a key, at a terminal: enters an environment by the command that was printed, and works there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.terminal import Terminal
from tests.support.world import World


def make_key(folder: Path) -> Path:
    """A person's public key, beside its other half."""
    folder.mkdir(exist_ok=True)
    file = folder / "me"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    return file.with_suffix(".pub")


def find_way_in(said: str) -> str:
    """The command by which the person enters, out of what was printed."""
    assert "and you can log in.\nLog in with:" in said, said
    return next(line.strip() for line in said.splitlines() if line.startswith("    ssh "))


def come(world: World, command: str) -> Terminal:
    """The person's terminal, in which the command runs."""
    known = ["-F", "/dev/null", "-o", f"UserKnownHostsFile={world.playground.ssh.known_hosts_file}"]
    name, *words = command.split()
    return Terminal([name, *known, *words], {"PATH": os.environ["PATH"], "TERM": "dumb"})


def work(world: World, command: str, script: str = "echo by hand > HAND.md; echo '# more' >> widgets/chunks.py") -> str:
    """What a person reads of the environment who enters it, does something by hand, and leaves."""
    person = come(world, command)
    person.wait_for("] worktree")
    person.be_quiet()
    person.ask(script)
    seen = person.ask("cat $PTQ_CONTEXT_FILE")
    person.type("exit")
    assert person.end() == 0
    return seen
