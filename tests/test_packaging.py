"""What people install is whole: the steps of the Dockerfile are run, and the result is used from another directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from sqlalchemy import make_url

from bot.config.settings import load_settings
from bot.demo.loopback import find_free_port
from runner.db import versions
from tests.bot.test_cli import configure
from tests.support import program
from tests.support.dockerfile import Folder, Step, parse_stages
from tests.support.program import PROGRAM

ROOT = Path(__file__).parents[1]
BUILD, FINAL = parse_stages((ROOT / "Dockerfile").read_text())


def only(stage: list[Step], instruction: str) -> Step:
    (step,) = [step for step in stage if step.instruction == instruction]
    return step


def output_of(installed: Folder, executable: str, *arguments: str, **environ: str) -> str:
    elsewhere = installed.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    command = [str(installed.root / "opt/ptq/bin" / executable), *arguments]
    environment = {**installed.environment, **environ}
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_what_the_image_copies_is_sent_to_docker() -> None:
    copied = {source for step in BUILD if step.instruction == "COPY" for source in step.text.split()[:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent


NOBODY = 65_534


def find_nobody(executable: Path) -> int | None:
    """The id of a user without privileges, if we may become one and that one may run the program; else None: ours."""
    try:
        if (
            os.geteuid() == 0
            and subprocess.run([executable, "--help"], user=NOBODY, capture_output=True).returncode == 0
        ):
            return NOBODY
    except PermissionError:
        pass  # An interpreter in somebody's home, or the tests' own folder, is not for everybody.
    return None


CONTENTS = """
from pathlib import Path
import bot.config.manifest, handlers
from bot.setup.documents import find_document
from runner.db import versions
print(bot.config.manifest.load_manifest().name)
print(bot.__path__[0])
print(*sorted(path.name for path in (Path(handlers.__file__).parent / "_prompts").iterdir()))
print(find_document("machines.md"))
print(*versions.list_versions())
"""


@pytest.mark.slow(20)
@pytest.mark.timeout(500)
def test_what_is_installed_is_whole_and_works_from_another_directory(tmp_path: Path) -> None:
    installed = Folder(tmp_path / "image")
    installed.run_stage(BUILD, ROOT)
    name, place, templates, document, migrations = output_of(installed, "python", "-c", CONTENTS).splitlines()
    assert name == "ptq-bot", "the manifest"
    assert place.startswith(str(installed.root / "opt/ptq"))
    assert set(templates.split()) >= {path.name for path in (ROOT / "prompts").iterdir()}
    assert document.startswith(str(installed.root / "opt/ptq")), "what set-up pages show"
    assert tuple(migrations.split()) == versions.list_versions()
    serve(installed, tmp_path)
    tell_the_demo(installed, tmp_path / "temporary")


ACTS = (
    "A stranger files an issue",
    "chunked() drops the last chunk when it is shorter",
    "A maintainer labels it",
    "signed: the service answered 202",
    "A machine takes the job",
    ": queued by @maintainer",
    ": preparing",
    ": running",
    ": collecting",
    "environment",
    "$ git --git-dir=",
    "checkout",
    " -m venv ",
    "agent log",
    "Ran the issue's script: exit status 1",
    "Ran all tests: exit status 0",
    "The issue gets its report",
    "Root cause",
    "The maintainer is in a hurry",
    "in your own words",
    "The maintainer writes a human note",
    "Draft pull request #2: Keep the last, shorter chunk in chunked()",
    "The range stopped at the last start of a full chunk",
    "Fixes #1",
    "+    for start in range(0, len(items), size):",
    "That was the whole story",
)
"""What the demo tells, in this order."""


def tell_the_demo(installed: Folder, temporary: Path) -> None:
    """The demo tells its whole story without a checkout, and leaves nothing behind."""
    temporary.mkdir()
    said = output_of(installed, "ptq-bot", "demo", TMPDIR=str(temporary), COLUMNS="160")
    at = 0
    for act in ACTS:
        found = said.find(act, at)
        assert found >= 0, f"{act!r} is not told, or too early:\n{said}"
        at = found + len(act)
    assert len(re.findall(r"/ptq pr [0-9a-f]{12}", said)) >= 3
    assert str(temporary) not in said.partition("agent log")[0], "the place of the demo is no part of the story"
    program.wait_until_no_process(str(temporary))
    assert list(temporary.iterdir()) == []


def serve(installed: Folder, tmp_path: Path) -> None:
    """Run what the image runs as a user without privileges: its health check succeeds once it answers."""
    (name,), (*words, _) = only(FINAL, "ENTRYPOINT").words, only(FINAL, "CMD").words
    port, executable = find_free_port(), installed.root / "opt/ptq/bin" / name
    config, user = configure(tmp_path, port), find_nobody(executable)
    if user is not None:
        for path in (tmp_path, config, tmp_path / "app.pem"):
            os.chown(path, user, user)
    command, written = [str(executable), *words, str(config)], tmp_path / "serve.log"
    with written.open("wb") as log:
        serving = subprocess.Popen(
            command, cwd=tmp_path, env=installed.environment, user=user, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        program.Running(serving, written).wait_for_http(f"http://127.0.0.1:{port}/healthz")
        assert health_check(port) == 0
    finally:
        serving.terminate()
        serving.wait(30)


def test_the_composed_service_and_its_database_fit_the_image_and_each_other(tmp_path: Path) -> None:
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    service, database = services["ptq"], services["database"]
    (config,) = [word for word in only(FINAL, "CMD").words if word.endswith(".toml")]
    mounts = [mount.split(":")[1] for mount in service["volumes"]]
    assert str(Path(config).parent) in mounts
    assert only(FINAL, "WORKDIR").text in mounts
    assert service["ports"][0].endswith(f":{only(FINAL, 'EXPOSE').text}")
    values = {
        name: re.sub(r"\$\{[^}]*\}", "pass-word_1", text)
        for part in (service, database)
        for name, text in part["environment"].items()
    }
    found = load_settings(configure(tmp_path, 0), {"PTQ_SERVER__DATABASE_URL": values["PTQ_SERVER__DATABASE_URL"]})
    url = make_url(found.server.database_url)
    assert url.host in services
    assert (url.username, url.database) == (values["POSTGRES_USER"], values["POSTGRES_DB"])
    assert url.password == values["POSTGRES_PASSWORD"]
    assert database["healthcheck"]["test"][0] == "CMD"
    assert service["depends_on"]["database"]["condition"] == "service_healthy"


UNIT = (ROOT / "packaging" / "ptq-bot.service").read_text()


def test_the_unit_runs_what_the_image_runs_and_knows_the_signals() -> None:
    found = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))
    words = found["ExecStart"].split()
    assert [Path(words[0]).name, *words[1:]] == [*only(FINAL, "ENTRYPOINT").words, *only(FINAL, "CMD").words]
    assert found["ExecReload"].startswith("/bin/kill -HUP")
    assert found["User"] == only(FINAL, "USER").text
    assert "Environment" not in found, "commands beside the service would not know"


def test_the_unit_lets_the_service_write_where_the_documented_configuration_has_it_write(tmp_path: Path) -> None:
    """Without the documented lines both places are beside the file, where the unit lets nobody write."""
    found = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))
    assert (found["ProtectSystem"], found["WorkingDirectory"]) == ("strict", f"/var/lib/{found['StateDirectory']}")
    section = (ROOT / "docs" / "operators.md").read_text().split("## As a unit of systemd")[1].split("\n## ")[0]
    (lines,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    server = load_settings(configure(tmp_path, 0, ("[server]\n", f"[server]\n{lines}")), {}).server
    for place in (Path(make_url(server.database_url).database or ""), server.data_dir):
        assert place.is_relative_to(found["WorkingDirectory"]), place


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "ptq-bot.service"
    unit.write_text(UNIT.replace("/opt/ptq/bin/ptq-bot", str(PROGRAM)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "ptq-bot.service" in line]
    assert not complaints, complaints


def test_the_image_runs_as_nobody_special() -> None:
    names = [step.instruction for step in FINAL]
    assert only(FINAL, "USER").text == "ptq"
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_image_installs_only_what_the_constraints_name() -> None:
    installs = [step.text for step in BUILD if "pip install" in step.text]
    assert installs
    assert all("--constraint constraints.txt" in text for text in installs)


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@pytest.fixture
def health_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def health_check(port: int) -> int:
    words = [word.replace(":8080", f":{port}") for word in only(FINAL, "HEALTHCHECK").words]
    return subprocess.run(words, env=Folder(ROOT).environment, stderr=subprocess.DEVNULL).returncode


def test_the_health_check_asks_the_service(health_port: int) -> None:
    assert health_check(health_port) == 0


def test_the_health_check_fails_when_nobody_answers(unused_tcp_port: int) -> None:
    assert health_check(unused_tcp_port) != 0
