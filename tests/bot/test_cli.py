from __future__ import annotations

import hashlib
import hmac
import json
import signal
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import typer

from bot.cli.main import app
from bot.cli.options import find_config
from bot.demo.loopback import find_free_port
from tests.support import program
from tests.support.scripted_github import app_key_pem

SECRET = "the secret of the webhook"
AGENT_VALUE = "the key of the model"
KEY = app_key_pem()

CONFIG = """\
[github]
app_id = "1"
private_key_file = "app.pem"
webhook_secrets = ["{secret}"]

[server]
port = {port}
public_url = "http://127.0.0.1:{port}"

[agents.mine]
kind = "command"
command = ["true"]
env = {{ API_KEY = "{agent_value}" }}

[[machines]]
name = "here"
kind = "local"
workspace = "{folder}/workspace"

[repos."octo/widgets"]
agent = "mine"
"""


def configure(folder: Path, port: int, *changes: tuple[str, str]) -> Path:
    """A configuration that works, with parts of its text replaced."""
    (folder / "app.pem").write_text(KEY)
    text = CONFIG.format(folder=folder, port=port, secret=SECRET, agent_value=AGENT_VALUE)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "ptq.toml"
    path.write_text(text)
    return path


def assert_no_secret(text: str) -> None:
    for secret in (SECRET, AGENT_VALUE, *KEY.splitlines()[1:-2]):
        assert secret not in text


def post_ping(url: str) -> dict[str, str]:
    body = json.dumps({"zen": "Keep it logically awesome."}).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": "ping",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
    }
    with urlopen(Request(url, body, headers), timeout=60) as answer:
        parsed: dict[str, str] = json.load(answer)
        return parsed


def test_a_broken_configuration_is_answered_with_every_problem_by_key(tmp_path: Path) -> None:
    config = configure(
        tmp_path,
        0,
        (f'webhook_secrets = ["{SECRET}"]', f'webhook_secret = ["{SECRET}"]'),
        ("port = 0", 'port = "http"'),
        ('kind = "command"', 'kind = "oracle"'),
        ('name = "here"', 'name = "here"\nslots = 0'),
        ('agent = "mine"', 'agent = "yours"'),
        (f'API_KEY = "{AGENT_VALUE}"', f'API_KEY = ["{AGENT_VALUE}"]'),
    )
    done = program.run("serve", "--config", config)
    assert done.returncode == 2
    for key in (
        "github.webhook_secrets: is missing",
        "github.webhook_secret: unknown key; did you mean webhook_secrets?",
        "server.port: must be a whole number",
        "agents.mine.kind: must be one of",
        "agents.mine.env.API_KEY: must be text",
        "machines[0].slots: ",
        'repos."octo/widgets".agent: there is no [agents.yours]',
    ):
        assert key in done.stderr
    assert done.stderr.startswith(f"{config} has 7 problems:\n")
    assert len(done.stderr.splitlines()) == 8, "a line for each problem, and no traceback"
    assert_no_secret(done.stderr + done.stdout)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b'webhook_secrets = ["' + SECRET.encode(), "invalid TOML at end of document"),
        (b"\xff" + SECRET.encode(), "invalid UTF-8"),
        (b"", "github: is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    config = tmp_path / "ptq.toml"
    if content is not None:
        config.write_bytes(content)
    done = program.run("serve", "--config", config)
    assert done.returncode == 2
    assert problem in done.stderr
    assert_no_secret(done.stderr)


def test_a_private_key_that_is_none_is_not_printed(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    half = "\n".join(KEY.splitlines()[:10])
    (tmp_path / "app.pem").write_text(half)
    done = program.run("serve", "--config", config)
    assert done.returncode == 2
    assert "github.private_key_file: the private key is not an unencrypted RSA key" in done.stderr
    assert_no_secret(done.stderr)


def refuse_to_start(config: Path, **environ: str) -> str:
    """The one sentence with which the program gives up."""
    done = program.run("serve", "--config", config, **environ)
    assert done.returncode == 1
    assert_no_secret(done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith("ptq-bot cannot start: ")
    return line


@pytest.mark.slow
def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = refuse_to_start(configure(tmp_path, taken.getsockname()[1]))
        assert str(taken.getsockname()[1]) in line
        assert line.endswith("address already in use")


@pytest.mark.slow
def test_a_database_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    config = configure(tmp_path, 0)
    nowhere = f"sqlite+aiosqlite:///{tmp_path}/nowhere/ptq.db"
    line = refuse_to_start(config, PTQ_SERVER__DATABASE_URL=nowhere)
    assert f"{nowhere}: unable to open database file; make {tmp_path}/nowhere a folder that this account" in line
    assert "server.database_url" in line
    (tmp_path / "ptq.db").write_text("These are not the bytes of a database." * 100)
    assert refuse_to_start(config).endswith("file is not a database")


@pytest.mark.slow
def test_a_data_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "var").touch()
    line = refuse_to_start(configure(tmp_path, 0))
    assert f"cannot store logs in {tmp_path}/var (not a directory)" in line
    assert line.endswith("see server.data_dir")


@pytest.mark.slow
def test_the_service_answers_and_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    port = find_free_port()
    with program.start_installed(tmp_path, "serve", "--config", configure(tmp_path, port)) as service:
        url = f"http://127.0.0.1:{port}"
        service.wait_for_http(f"{url}/healthz")
        with urlopen(f"{url}/readyz", timeout=60) as answer:
            assert json.load(answer) == {"status": "ok"}
        assert post_ping(f"{url}/webhook") == {"message": "pong"}
        with socket.create_connection(("127.0.0.1", port)):  # An idle client must not hold it up.
            status, seconds = service.stop(signal.SIGINT)
    assert status == 0
    assert seconds < 30
    events = [json.loads(line)["event"] for line in service.text().splitlines()]
    # It may say besides that there is no GitHub.
    ours = [event for event in events if event.startswith("service.")]
    assert ours == ["service.started", "service.stopping", "service.stopped"]
    assert_no_secret(service.text())


@pytest.mark.slow
def test_without_arguments_the_program_says_what_it_can_do() -> None:
    done = program.run_installed("--help", COLUMNS="200")
    assert done.returncode == 0
    for command in ("serve", "report", "costs", "deliveries", "replay", "machines", "db", "demo"):
        assert command in done.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"ptq-bot {metadata.version('ptq-bot')}\n")


def test_a_command_finds_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PTQ_CONFIG", raising=False)
    with pytest.raises(typer.Exit):
        find_config()
    assert "there is no ./ptq.toml or /etc/ptq/ptq.toml" in capsys.readouterr().err
    (tmp_path / "ptq.toml").touch()
    assert find_config() == Path("ptq.toml")
    monkeypatch.setenv("PTQ_CONFIG", "/elsewhere/ptq.toml")
    assert find_config() == Path("/elsewhere/ptq.toml")


def test_help_loads_none_of_the_large_libraries() -> None:
    """They take seconds on a slow machine, and `--help` needs none of them."""
    words = "import sys, bot.cli.main; print(*{'aiohttp', 'asyncssh', 'pydantic', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
