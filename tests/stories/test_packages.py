"""An agent without a network: it fetches packages from the operator's hosts by the gateway, and reaches nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from bot.listener import HttpListener
from runner.rows import job_rows
from tests.support.machines import find_or_skip_sshd
from tests.support.sandboxes import SEALED
from tests.support.sshd import OpenSshServer
from tests.support.world import WRITE_REPORT, open_world

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sshd,
    pytest.mark.skipif(not SEALED, reason="this machine seals no jobs"),
]

FETCH = """
import base64, http.client, urllib.parse
def fetch(host, port, by_proxy=True):
    proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
    credentials = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    connection = http.client.HTTPConnection(*(proxy.hostname, proxy.port) if by_proxy else (host, port), timeout=20)
    if by_proxy:
        connection.set_tunnel(host, port, {"Proxy-Authorization": f"Basic {credentials}"})
    try:
        connection.request("GET", "/simple/")
        return connection.getresponse().read().decode()
    except OSError as error:
        return str(error)
"""


async def test_a_sealed_agent_fetches_packages_and_reaches_nobody_else(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="a wheel")

    application = web.Application()
    application.router.add_get("/simple/", answer)
    listener = HttpListener(application, 5.0)
    port = (await listener.open("127.0.0.1", 0)).rpartition(":")[2]
    direct = f'print("DIRECT", fetch("127.0.0.1", {port}, by_proxy=False), flush=True)\n'
    allowed = f'print("ALLOWED", fetch("localhost", {port}), flush=True)\n'
    other = f'print("OTHER", fetch("127.0.0.1", {port}), flush=True)\n'
    toml = f'network = "none"\npackage_hosts = ["localhost:{port}"]'
    agent = WRITE_REPORT + FETCH + direct + allowed + other
    ssh = OpenSshServer(tmp_path / "sshd", find_or_skip_sshd())
    await ssh.start()
    async with open_world(tmp_path, agent=agent, ssh=ssh, repository_toml=toml) as world:
        await world.open_issue()
        await world.label("ptq")
        await world.wait_for_report()
        (job,) = await world.jobs()
        async with world.playground.service.context.db.read() as connection:
            log = (await job_rows.fetch_log(connection, job.id, "agent") or b"").decode()
        assert "ALLOWED a wheel" in log
        assert "OTHER Tunnel connection failed: 403" in log
        assert "DIRECT [Errno" in log
    await ssh.stop()
    await listener.close()
