"""The client of the machine-side program, with the real program on real machines, and with ones that went wrong."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.agents import Launch, Tail
from runner.model.completed import Completed
from runner.model.environment import Limits, Profile
from runner.model.job import FileChange
from runner.model.jobd_answers import SAYS, JobdError, Poll, StageState, parse_answer, parse_poll
from runner.model.machines import Machine
from runner.transport.host_errors import Unreachable
from runner.transport.hosts import Host, open_host
from runner.transport.jobd_client import JobdClient
from runner.transport.jobd_program import build_program
from tests.support.jobd import Repository
from tests.support.machines import OPENSSH, SshServer

pytestmark = pytest.mark.slow

JOB = secrets.token_hex(5)
"""Another one in each process: tests run side by side, and a job's id is how a machine finds its processes."""

here_and_behind_ssh = pytest.mark.parametrize("any_machine", ["local", OPENSSH], indirect=True)
"""Bytes travel through each server in the same way (`tests/runner/test_hosts.py`)."""


@pytest.fixture
async def host(any_machine: Machine) -> AsyncIterator[Host]:
    host = open_host(any_machine)
    yield host
    await host.close()


@pytest.fixture
def client(any_machine: Machine, host: Host) -> JobdClient:
    return JobdClient(any_machine, host)


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    """The test's own machine, for what does not depend on how bytes travel."""
    return Machine("here", str(tmp_path / "workspace"), kind="local", python=sys.executable)


def installed(machine: Machine) -> Path:
    """Where the program of the present content is on a machine."""
    digest = hashlib.sha256(build_program()).hexdigest()
    return Path(machine.workspace) / "jobd" / digest


def plant(machine: Machine, program: str) -> JobdClient:
    """A client of a machine on which somebody has put another program in the place of ours."""
    path = installed(machine)
    path.parent.mkdir(parents=True)
    path.write_text(program)
    return JobdClient(machine, open_host(machine))


async def refusal(client: JobdClient) -> JobdError:
    with pytest.raises(JobdError) as caught:
        await client.version()
    return caught.value


@here_and_behind_ssh
async def test_many_first_calls_at_once_all_work_and_the_program_puts_itself_there(
    client: JobdClient, any_machine: Machine
) -> None:
    versions = await asyncio.gather(*(client.version() for _ in range(4)))
    assert [version.python[:2] for version in versions] == ["3."] * 4
    for name in ("__main__.py", "jobd/main.py", "jobd/verbs/prepare.py"):
        assert (installed(any_machine) / name).is_file()
    assert [path.name for path in installed(any_machine).parent.iterdir()] == [installed(any_machine).name]

    # It is put there again when somebody removes it. A stop and a notice for an unknown job do nothing.
    shutil.rmtree(installed(any_machine))
    await client.stop(JOB)
    await client.notify(JOB, "Come to an end.")
    assert not (Path(any_machine.workspace) / "jobs").exists()

    # Such a job is absent and easily removed.
    poll = await client.poll(JOB, "prepare")
    assert (poll.state, poll.log, poll.log_size) == (StageState.ABSENT, b"", 0)
    assert poll.boot_id
    assert await client.kill(JOB) == 0
    await client.clean(JOB)

    # A request that the program refuses keeps its name and reason.
    with pytest.raises(JobdError) as caught:
        await client.poll("../../etc", "prepare")
    assert caught.value.code == "bad_request"
    assert str(caught.value) == caught.value.message


@pytest.mark.parametrize("any_machine", ["local"], indirect=True)
async def test_a_stage_that_fails_says_why(client: JobdClient, tmp_path: Path) -> None:
    recipe = PROFILE.recipe(f"file://{tmp_path}/nowhere.git", "main")
    assert await client.prepare(JOB, recipe)
    poll = await wait(client, "prepare")
    assert (poll.state, poll.error) == (StageState.FAILED, "clone_failed")
    assert poll.message
    await client.clean(JOB)


async def wait(client: JobdClient, stage: str) -> Poll:
    """How a stage stands once it has ended."""
    async with asyncio.timeout(60):
        while (poll := await client.poll(JOB, stage)).state is StageState.RUNNING:
            await asyncio.sleep(0.02)
    return poll


PROFILE = Profile("octo/widgets", create_venv=("mkdir",))

AGENT = """
echo at work; echo '"tokens"' > "$HOME/s/new.jsonl"; cat .config a.txt "$HOME/skill/x" "$HOME/s/old"
trap 'cat "$PTQ_NOTICE_FILE"; cmp "$HOME/big" "$HOME/big" && exit 9' INT; while :; do sleep 0.1; done
"""
BIG = secrets.token_bytes(2_000_000)
EARLIER: dict[str, Any] = {
    "changes": [FileChange("a.txt", "100644", b"\xff\n", "100644"), FileChange("b.txt", None, None, "100644")],
    "held_back": [FileChange(".config", "100644", b"new\n", "100644")],
}
LAUNCH = Launch(("/bin/sh", "-c", AGENT), files={"s/old": b"old\n", "big": BIG}, tail=Tail("s/*.jsonl", "tokens"))
START: dict[str, Any] = {"prompt": "", "relay": False, "base_skills": {"skill": "skills"}, "skill_folders": {}}
BOUNDS = Limits(stop_grace_s=10, max_disk_bytes=10**9, max_files=10_000, orphan_after_s=60, timeout_s=60)
COLLECT: dict[str, Any] = {
    **{"hidden": [], "lint": []},
    "limits": replace(BOUNDS, collect_timeout_s=60, max_change_bytes=1_000, max_changes=10, max_text_bytes=1_000),
}


@pytest.mark.parametrize("any_machine", ["embedded"], indirect=True)
async def test_a_later_attempt_goes_on_from_what_an_earlier_one_left(
    client: JobdClient, repository: Repository
) -> None:
    base = repository.commit({"skills/x": "skill\n", ".config": "old\n"})
    recipe = PROFILE.recipe(repository.url, "main", base)
    assert await client.prepare(JOB, recipe, **EARLIER) is True
    assert await client.prepare(JOB, recipe, **EARLIER) is False, "a stage is started once"
    assert (await wait(client, "prepare")).result["base_commit"] == base
    assert await client.start(JOB, LAUNCH, replace(BOUNDS, max_log_bytes=10_000), **START, base_commit=base)
    async with asyncio.timeout(20):
        while b"tokens" not in (await client.poll(JOB, "agent")).log:
            await asyncio.sleep(0.02)
    await client.notify(JOB, "Come to an end.")
    await client.stop(JOB)
    await client.stop(JOB)
    ended = await wait(client, "agent")
    assert (ended.result["exit_status"], ended.result["stopped"]) == (9, True)
    said = [b"at work", b"old", b"\xff", b"skill", b"old", b'"tokens"', b"Come to an end."]
    assert sorted(ended.log.splitlines()) == sorted(said)
    assert await client.collect(JOB, **COLLECT, base_commit=base)
    assert (await wait(client, "collect")).state is StageState.DONE
    result = await client.result(JOB)
    contents = {change["path"]: change["content"] for change in result["changes"]}
    assert contents == {"a.txt": "/wo=", "b.txt": None, ".config": "bmV3Cg=="}
    await client.clean(JOB)


async def test_an_answer_as_long_as_the_longest_result_is_read(here: Machine) -> None:
    client = plant(here, "print('{\"ok\": true, \"patch\": \"' + 'x' * 128_000_000 + '\"}')")
    assert len((await client.result(JOB))["patch"]) == 128_000_000


async def test_a_connection_lost_in_mid_call_is_not_taken_for_an_answer(
    ssh_server: SshServer, ssh_machine: Machine, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    client = plant(ssh_machine, f"import time; open({str(began)!r}, 'w').close(); time.sleep(5)")
    calling = asyncio.create_task(client.version())
    async with asyncio.timeout(10):
        while not began.exists():
            await asyncio.sleep(0.01)
    await ssh_server.cut_connections()
    with pytest.raises(Unreachable):
        await calling


@here_and_behind_ssh
async def test_a_workspace_that_cannot_be_written_is_told_as_such(any_machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = replace(any_machine, workspace=str(tmp_path / "file" / "workspace"))
    host = open_host(machine)
    error = await refusal(JobdClient(machine, host))
    await host.close()
    assert (error.code, error.message) == (
        "workspace_unusable",
        "the machine says: the workspace cannot be written: Not a directory",
    )


async def test_a_full_disk_is_told_as_such(here: Machine, tmp_path: Path) -> None:
    full = f"mount -t tmpfs -o size=4k none '{tmp_path}' && head -c 4k /dev/zero > '{tmp_path}/filler'"
    if subprocess.run(["unshare", "-rm", "sh", "-c", full], check=False, capture_output=True).returncode:
        pytest.skip("a small file system of one's own is not allowed here")
    python = tmp_path.parent / f"{tmp_path.name}-python"
    python.write_text(f'#!/bin/sh\nexec unshare -rm sh -c "{full}; exec {sys.executable} \\"\\$@\\"" sh "$@"\n')
    python.chmod(0o755)
    machine = replace(here, python=str(python))
    error = await refusal(JobdClient(machine, open_host(machine)))
    assert (error.code, error.message) == (
        "disk_full",
        "the machine says: the workspace cannot be written: No space left on device",
    )


@here_and_behind_ssh
async def test_a_machine_without_python_is_told_as_such(any_machine: Machine) -> None:
    machine = replace(any_machine, python="no-such-python")
    host = open_host(machine)
    assert (await refusal(JobdClient(machine, host))).code == "no_python"
    await host.close()


async def test_an_upload_that_is_cut_short_installs_nothing(here: Machine) -> None:
    class CutShort:
        """A host that loses the second half of what it sends."""

        def __init__(self) -> None:
            self.inner = open_host(here)

        async def run(self, argv: list[str], *, stdin: bytes = b"", **limits: Any) -> Completed:
            return await self.inner.run(argv, stdin=stdin[: len(stdin) // 2], **limits)

        async def close(self) -> None: ...

    error = await refusal(JobdClient(here, CutShort()))  # type: ignore[arg-type]
    assert "cut short" in error.message
    assert not installed(here).exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit('it broke\\nfor a reason')", "for a reason"),
        ("1 / 0", "division by zero"),
        ("raise SystemExit(3)", "exit status 3"),
        ("", "exit status 0"),
        ("print('no json')", "exit status 0"),
        ("print('[1, 2]')", "exit status 0"),
        ("print('[' * 100_000)", "exit status 0"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe{}')", "exit status 0"),
        ("import sys; sys.stderr.buffer.write(b'\\xff' * 10_000); sys.exit(1)", "\N{REPLACEMENT CHARACTER}"),
        ("print('{\"ok\": true}'); raise SystemExit('after all not')", "after all not"),
    ],
)
async def test_a_program_that_crashes_or_babbles_is_an_internal_error(here: Machine, program: str, reason: str) -> None:
    error = await refusal(plant(here, program))
    assert error.code == "internal"
    assert reason in error.message
    assert len(error.message) < 400


async def test_lines_of_a_login_shell_do_not_hide_the_answer(here: Machine) -> None:
    client = plant(here, 'print(\'Welcome to gpu-1!\'); print(\'{"ok": true, "python": "3.9.2", "git": null}\')')
    version = await client.version()
    assert (version.python, version.git) == ("3.9.2", None)


async def test_secrets_travel_on_standard_input_only(here: Machine) -> None:
    client = plant(
        here, "import json, sys; print(json.dumps({'ok': True, 'argv': sys.argv, 'got': json.load(sys.stdin)}))"
    )
    echo = await client.call("start", job_id=JOB, env={"TOKEN": "hunter2"})
    assert "hunter2" not in str(echo["argv"])
    assert echo["got"] == {"workspace": here.workspace, "job_id": JOB, "env": {"TOKEN": "hunter2"}}


def test_a_refusal_of_any_length_and_shape_is_kept_small() -> None:
    answer = json.dumps({"ok": False, "error": ["odd"], "message": "x" * 1_000_000})
    with pytest.raises(JobdError) as caught:
        parse_answer(Completed(0, answer.encode(), b""))
    assert caught.value.code == "internal"
    assert len(caught.value.message.removeprefix(SAYS)) == 8000


ANSWER: dict[str, Any] = {
    "ok": True,
    "state": "done",
    "error": None,
    "message": None,
    "result": {"exit_status": 0},
    "log": base64.b64encode(b"\xffline\n").decode(),
    "log_size": 6,
    "phase": "",
    "boot_id": "b",
}


def test_an_answer_about_a_stage_becomes_a_value() -> None:
    assert parse_poll(ANSWER) == Poll(StageState.DONE, None, None, {"exit_status": 0}, b"\xffline\n", 6, "", "b")


@pytest.mark.parametrize(
    "oddity",
    [
        {"state": "sleeping"},
        {"state": []},
        {"log": "not base64!"},
        {"log": 7},
        {"log": "ünïcödé"},
        {"log_size": "many"},
        {"log_size": float("inf")},
        {"log_size": None},
        {"result": 7},
        {"result": "text"},
    ],
)
def test_an_answer_about_a_stage_that_makes_no_sense_is_an_internal_error(oddity: dict[str, Any]) -> None:
    with pytest.raises(JobdError, match="unexpected answer"):
        parse_poll(ANSWER | oddity)


@pytest.mark.parametrize("field", ["state", "log", "log_size", "boot_id"])
def test_an_answer_about_a_stage_that_lacks_a_field_is_an_internal_error(field: str) -> None:
    with pytest.raises(JobdError, match="unexpected answer"):
        parse_poll({name: value for name, value in ANSWER.items() if name != field})
