"""What people install is whole: the steps of the Dockerfile are run, and the result is used from another directory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from runner import versions
from tests.support.dockerfile import Folder, Step, parse_stages

ROOT = Path(__file__).parents[1]
BUILD, FINAL = parse_stages((ROOT / "Dockerfile").read_text())


def only(stage: list[Step], instruction: str) -> Step:
    (step,) = [step for step in stage if step.instruction == instruction]
    return step


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("image"))
    folder.run_stage(BUILD, ROOT)
    return folder


def output_of(installed: Folder, program: str, *arguments: str) -> str:
    elsewhere = installed.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    command = [str(installed.root / "opt/ptq/bin" / program), *arguments]
    done = subprocess.run(command, cwd=elsewhere, env=installed.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_line_works_from_another_directory(installed: Folder) -> None:
    assert "serve" in output_of(installed, only(FINAL, "ENTRYPOINT").words[0], "--help")


@pytest.mark.slow
def test_the_command_that_the_image_runs_exists(installed: Folder) -> None:
    command, option, _ = only(FINAL, "CMD").words
    assert option in output_of(installed, only(FINAL, "ENTRYPOINT").words[0], command, "--help")


@pytest.mark.slow
def test_the_manifest_and_the_templates_travel_along(installed: Folder) -> None:
    script = (
        "import bot.manifest, handlers\n"
        "from pathlib import Path\n"
        "print(bot.manifest.load_manifest().name)\n"
        "print(bot.__path__[0])\n"
        "print(*sorted(path.name for path in (Path(handlers.__file__).parent / '_prompts').iterdir()))"
    )
    name, place, templates = output_of(installed, "python", "-c", script).splitlines()
    assert name == "ptq-bot"
    assert place.startswith(str(installed.root / "opt/ptq"))
    assert set(templates.split()) >= {path.name for path in (ROOT / "prompts").iterdir()}


@pytest.mark.slow
def test_the_migrations_travel_along(installed: Folder) -> None:
    script = "from runner import versions; print(*versions.list_versions())"
    assert tuple(output_of(installed, "python", "-c", script).split()) == versions.list_versions()


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
