from __future__ import annotations

import socketserver
import threading
from itertools import islice
from pathlib import Path

import pytest

from tests.bench import needs
from tests.bench.gateway.__main__ import main as bench_gateway
from tests.bench.gateway.stalls import watching
from tests.bench.load import make_requests, run_round
from tests.bench.needs import Need, may_run, read_free_memory, render_needs

HERE = Need("a disk", True, "buy one")
MISSING = Need("OpenSSH's sshd", False, "apt-get install openssh-server")
WISHED = Need("2 cores (1 here)", False, "the figures say little", is_must=False)


def test_what_is_missing_is_told_with_how_to_get_it() -> None:
    assert render_needs([HERE, WISHED, MISSING]).splitlines() == [
        "This bench needs:",
        "  here     a disk",
        "  missing  2 cores (1 here): the figures say little",
        "  MISSING  OpenSSH's sshd: apt-get install openssh-server",
        "The bench cannot run without what is MISSING.",
    ]


@pytest.mark.parametrize(("wanted", "runs"), [([HERE, WISHED], True), ([HERE, MISSING], False), ([], True)])
def test_a_bench_runs_without_what_it_only_wishes_for(wanted: list[Need], runs: bool) -> None:
    assert may_run(wanted) is runs


def test_free_memory_is_what_programs_can_have() -> None:
    assert read_free_memory("MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 2048000 kB\n") == 2000
    assert read_free_memory("") == 0


def test_the_bench_of_the_gateway_says_that_it_has_no_sshd(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gateway(sshd=None) == 2
    assert "MISSING  OpenSSH's sshd: apt-get install openssh-server" in capsys.readouterr().err


@pytest.mark.skipif(not needs.may_go_first(), reason="this account has no right to real-time scheduling")
def test_a_failure_is_not_hidden_by_those_who_watch_the_cores() -> None:
    with pytest.raises(LookupError, match="the cause"), watching([0]):
        raise LookupError("the cause")


class _Answers(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while any(line == b"\r\n" for line in iter(self.rfile.readline, b"")):
            self.rfile.read(len(b"{}"))
            self.wfile.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


def test_a_round_ends_when_there_is_nothing_more_to_send() -> None:
    """However fast the server: a second of deliveries may be more than an inbox holds."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        requests = iter(make_requests("/webhook", "secret", [b"{}"]) * 1_000)
        found = run_round(server.server_address[1], islice(requests, 40), seconds=600.0, connections=2)
        server.shutdown()
    assert len(found.latencies) == 40


def test_disk_room_is_looked_for_where_the_bench_works(tmp_path: Path) -> None:
    assert needs.disk(tmp_path, 0).is_there
    missing = needs.disk(tmp_path, 10**9)
    assert not missing.is_there
    assert str(tmp_path) in missing.what
