"""Git's own server on loopback: where a repository's submodules come from, as they do in the wild."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bot.demo.loopback import find_free_port

PATIENCE_S = 60.0


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve all repositories below a folder. Yields the address of that folder."""
    programs = subprocess.run(["git", "--exec-path"], check=True, capture_output=True, text=True).stdout.strip()
    port = find_free_port()
    where = ["--listen=127.0.0.1", f"--port={port}", "--reuseaddr", f"--base-path={folder}", "--export-all"]
    # Not by `git daemon`, which would be killed in place of the daemon.
    with subprocess.Popen([f"{programs}/git-daemon", "--log-destination=none", *where, str(folder)]) as daemon:
        try:
            wait_for(daemon, port)
            yield f"git://127.0.0.1:{port}"
        finally:
            daemon.kill()


def wait_for(daemon: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert daemon.poll() is None, "git's daemon has ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "git's daemon does not answer"
            time.sleep(0.02)
        else:
            return
