"""What set-up keeps on the disk, all of it for its owner's eyes alone: answers until they are used, keys, the result.

Every file appears as a whole or not at all.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import asyncssh
import msgspec

from bot.config.settings import load_settings
from bot.setup.answers import Answers
from bot.setup.config_text import CLIENT_FILE, CLIENT_KEY, KNOWN_HOSTS, PROXY_FILE, render_config


class Unusable(Exception):  # noqa: N818 - what is the case
    """Something on the disk is not as it has to be. The message is a sentence for people."""


class SetupFiles:
    """The files of one set-up, beside the configuration that is to be."""

    def __init__(self, config: Path) -> None:
        self.config = config.absolute()
        self.folder = self.config.parent
        self.path = self.folder / f".{config.name}.setup.json"

    def load(self) -> Answers:
        """What was said before. Raises `Unusable`."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Answers)
        except FileNotFoundError:
            return Answers()
        except (OSError, msgspec.DecodeError) as error:
            raise Unusable(f"{self.path} cannot be read: mend it, or remove it to begin anew") from error

    def save(self, answers: Answers) -> None:
        """Keep what was said, and what follows from it: the App's key and the host keys."""
        write_private(self.path, msgspec.json.encode(answers))
        if credentials := answers.place.proxy_credentials:
            write_private(self.folder / PROXY_FILE, credentials.encode())
        if app := answers.app:
            write_private(self.folder / app.key_file, app.private_key.encode())
            if app.client_secret:
                write_private(self.folder / CLIENT_FILE, app.client_secret.encode())
        if lines := [machine.known_hosts_line for machine in answers.machines if machine.host_key]:
            write_private(self.folder / KNOWN_HOSTS, "".join(lines).encode())

    def forget(self) -> None:
        """Remove the answers: the configuration has them."""
        self.path.unlink(missing_ok=True)

    def find_client_key(self) -> str:
        """The public half of our own key for machines, which is made when it is asked for first. Raises `Unusable`."""
        path = self.folder / CLIENT_KEY
        if not path.exists():
            write_private(path, asyncssh.generate_private_key("ssh-ed25519").export_private_key())
        try:
            return asyncssh.read_private_key(str(path)).export_public_key().decode().strip()
        except (OSError, ValueError) as error:
            raise Unusable(f"{path} is there, and is no private key: move it away") from error

    def write_config(self, answers: Answers, *, replace: bool) -> None:
        """Write the configuration, once it can be read. Raises `ConfigError`, and `FileExistsError` for one in its way.

        The environment counts, as it will for the service.
        """
        self.save(answers)
        draft = self.folder / f".{self.config.name}.{secrets.token_hex(4)}"
        try:
            write_private(draft, render_config(answers).encode())
            load_settings(draft)
            if replace:
                draft.replace(self.config)
            else:
                os.link(draft, self.config)  # Fails where a file is, however late it came.
        finally:
            draft.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Put a file there at once, for its owner alone, over whatever it was."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
