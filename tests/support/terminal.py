"""A person at a terminal: types lines, and reads what is shown."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence

PATIENCE_S = 15.0


class Terminal:
    """A program that was started in a terminal, as sshd or a terminal's window does it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], before: Callable[[], None] = lambda: None) -> None:
        self.shown = ""
        self._asked = 0
        self.pid, self._keys = pty.fork()
        if not self.pid:
            try:
                before()
                os.execvpe(argv[0], [*argv], {**env})
            finally:
                os._exit(127)

    def type(self, line: str) -> None:
        """Type a line; a control character needs no line end."""
        data = line.encode() if len(line) == 1 else f"{line}\n".encode()
        while data:
            readable, writable, _ = select.select([self._keys], [self._keys], [], PATIENCE_S)
            if readable:
                self._read()
            if writable:
                data = data[os.write(self._keys, data[:1000]) :]

    def wait_for(self, words: str) -> str:
        """What is shown from the last call on, once these words are among it."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.shown[self._asked :]:
            assert time.monotonic() < deadline, f"{words!r} is not in {self.shown!r}"
            assert self._read(), f"ended without {words!r}: {self.shown!r}"
        position = self.shown.index(words, self._asked) + len(words)
        found, self._asked = self.shown[self._asked : position], position
        return found

    def be_quiet(self) -> None:
        """Have a shell show what its commands print, and nothing else."""
        self.type("set +o emacs; stty -echo; PS1=; echo qui''et")
        self.wait_for("quiet\r\n")

    def ask(self, command: str) -> str:
        """What a quiet shell shows when it runs a command."""
        self.type(command)
        self.type("echo -en''d-")
        return self.wait_for("-end-\r\n").removesuffix("-end-\r\n").replace("\r\n", "\n")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        """How it ends, once it has shown all."""
        while self._read():
            pass
        os.close(self._keys)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._keys)
        os.waitpid(self.pid, 0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._keys], [], [], PATIENCE_S)
        assert ready, f"nothing comes after {self.shown!r}"
        try:
            data = os.read(self._keys, 65_536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)
