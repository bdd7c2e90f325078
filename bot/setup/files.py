"""Set-up's files: answers until they are used, keys, and the configuration. Only their owner can read them.

Every file is written completely or not at all.
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


class UnusableFile(Exception):  # noqa: N818 - what is the case
    """A file on the disk cannot be used. The message is a sentence for people."""


class SetupFiles:
    """The files of one set-up, next to the configuration that it will write."""

    def __init__(self, config: Path) -> None:
        self.config = config.absolute()
        self.folder = self.config.parent
        self.path = self.folder / f".{config.name}.setup.json"

    def load(self) -> Answers:
        """The saved answers. Raises `UnusableFile`."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Answers)
        except FileNotFoundError:
            return Answers()
        except (OSError, msgspec.DecodeError) as error:
            raise UnusableFile(f"{self.path} cannot be read: fix it, or remove it to start again") from error

    def save(self, answers: Answers) -> None:
        """Write the answers, and the files that follow from them: the App's key and the host keys."""
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
        """Remove the answers, which the configuration now has."""
        self.path.unlink(missing_ok=True)

    def find_client_key(self) -> str:
        """The public half of the SSH key for machines, which the first call generates. Raises `UnusableFile`."""
        path = self.folder / CLIENT_KEY
        if not path.exists():
            write_private(path, asyncssh.generate_private_key("ssh-ed25519").export_private_key())
        try:
            return asyncssh.read_private_key(str(path)).export_public_key().decode().strip()
        except (OSError, ValueError) as error:
            raise UnusableFile(f"{path} exists, but is not a private key: move it away") from error

    def write_config(self, answers: Answers, *, replace: bool) -> None:
        """Write the configuration, if it is valid. Raises `ConfigError`, and `FileExistsError` if there is one already.

        Environment variables count, as for the service.
        """
        self.save(answers)
        draft = self.folder / f".{self.config.name}.{secrets.token_hex(4)}"
        try:
            write_private(draft, render_config(answers).encode())
            load_settings(draft)
            if replace:
                draft.replace(self.config)
            else:
                os.link(draft, self.config)  # Fails if the file exists, even if it was created just now.
        finally:
            draft.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file atomically. Only its owner can read it."""
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
