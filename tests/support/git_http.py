"""Git's own program for smart HTTP, behind the socket to which a job's relay leads: the service's half of a fetch."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

from bot.gateway.fetches import build_git_environment, list_addresses
from tests.support.jobd import Jobd

WEB = "https://github.invalid"
TOKEN = "the-token-of-this-job"

Change = Callable[[str, bytes], bytes | None]
"""What becomes of an answer, by the request's path; None for none at all."""


def keep(path: str, answer: bytes) -> bytes | None:
    return answer


class GitService:
    """Stands for ours: serves the repositories below a folder to whoever has the token."""

    def __init__(self, jobd: Jobd, folder: Path, change: Change = keep) -> None:
        self.asked: list[str] = []
        self.refused: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self, folder, change)

            def do_POST(self) -> None:
                service.answer(self, folder, change)

            def address_string(self) -> str:
                return "relay"

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingUnixStreamServer(jobd.call("relay")["path"], Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, folder: Path, change: Change) -> None:
        self.asked.append(handler.path)
        if handler.headers["Authorization"] != f"Bearer {TOKEN}":
            self.refused.append(handler.path)
            handler.send_error(403)
            return
        found = change(handler.path, ask_git(handler, folder))
        if found is not None:
            handler.wfile.write(found)
        handler.close_connection = True

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def ask_git(handler: BaseHTTPRequestHandler, folder: Path) -> bytes:
    """What git answers to a request, as HTTP (git-http-backend(1))."""
    path, _, query = handler.path.removeprefix("/git").partition("?")
    body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    env = {
        **{"GIT_PROJECT_ROOT": str(folder), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query},
        **{"REQUEST_METHOD": handler.command, "CONTENT_TYPE": handler.headers.get("Content-Type", "")},
        **{"CONTENT_LENGTH": str(len(body)), "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", "")},
        **{"GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""), "PATH": os.environ["PATH"]},
        **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
    }
    said = subprocess.run(["git", "http-backend"], env=env, input=body, stdout=subprocess.PIPE, check=True).stdout
    head, _, rest = said.partition(b"\r\n\r\n")
    status = next((line[8:] for line in head.split(b"\r\n") if line.startswith(b"Status: ")), b"200 OK")
    return b"HTTP/1.0 %s\r\n%s\r\nContent-Length: %d\r\n\r\n" % (status, head, len(rest)) + rest


def lead(*names: str) -> dict[str, object]:
    """The fields of a request by which git is led to the service, for these repositories."""
    clone_url = f"{WEB}/{names[0]}.git"
    git = build_git_environment("{gateway}", TOKEN, list_addresses(names, WEB, clone_url), by_relay=True)
    return {"clone_url": clone_url, "git": git, "relay": True}
