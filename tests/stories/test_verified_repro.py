"""What the service itself sees of a repro, from the issue to the report and the pull request."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from bot.config.settings import load_settings
from bot.demo.repository import ISSUE_BODY
from bot.operations.reports import read_report
from tests.support.lesser_kernel import write_interpreter
from tests.support.machines import SshServer
from tests.support.world import FIX, NOTE, SIGNS, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
"""Each story makes two environments and a good many runs."""

REPRO = '(output / "repro.py").write_text({!r})\n'
GENUINE = "from widgets import chunked\nassert len(list(chunked([1, 2, 3], 2))) == 2\n"
LOOKS_FOR_PATCH = "assert 'size + 1' not in open('widgets/chunks.py').read(), 'not mended'\n"


def seen_in(text: str) -> str:
    """What a report or a pull request says that the service saw."""
    return text.partition("**Seen by ptq-bot**")[2].partition("\n\n**")[0].partition("\n\n<details>")[0]


async def report_on(world: World, body: str = ISSUE_BODY, label: str = "ptq:fix") -> str:
    world.patience_s = PATIENCE_S
    await world.open_issue(body)
    await world.label(label)
    return await world.wait_for_report()


async def test_the_report_and_the_pull_request_say_what_the_service_itself_saw(
    tmp_path: Path, ssh_server: SshServer
) -> None:
    async with open_world(tmp_path, ssh=ssh_server, verify_runs=3) as world:
        seen = seen_in(await report_on(world))
        failure = "before: fails 3/3 (`AssertionError: [[1, 2], [3, 4]]`); after: passes 3/3"
        assert f"- ✅ **the issue's repro**: {failure} ([script](" in seen
        assert f"- ✅ **the agent's repro**: {failure}" in seen
        assert "- ✅ **1 regression test** in `tests/test_chunks.py`: before: fails 3/3 (`AssertionError: " in seen
        assert "not verified" not in seen
        (job,) = await world.jobs()
        assert failure in await read_report(load_settings(world.playground.config), job.id)
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        assert seen.strip() in (await world.wait_for_pull()).body
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{world.playground.service.url}/jobs/{job.id}") as answer,
        ):
            page = await answer.text()
        assert '<section id="check-1"><h2>The issue&#39;s script</h2>' in page
        assert "Before the change, runs 1 to 3: AssertionError: [[1, 2], [3, 4]]" in page
        assert "Patched files, unpatched code" in page


async def test_a_repro_that_looks_for_the_patch_is_not_called_verified(tmp_path: Path) -> None:
    agent = WRITE_REPORT + REPRO.format(LOOKS_FOR_PATCH) + FIX
    async with open_world(tmp_path, agent=agent, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "- ✅ **the issue's repro**" in seen
        assert "- ⚠️ **the agent's repro**: before: fails 1/1 (`AssertionError: not mended`)" in seen
        assert "it checks that the patch is present" in seen


ADDS = 'pathlib.Path("widgets/_mended.py").write_text("x = 1\\n")\n'
MARKS = 'path.write_text(path.read_text() + "\\n\\n_FIXED = True\\n")\n'
WRITE_TEST = 'pathlib.Path("tests/test_mended.py").write_text({!r})\n'
TEST = "import unittest\n{}\n\nclass MendedTest(unittest.TestCase):\n    def test_it(self):\n        {}\n"
LOOKS_FOR_FILE = "import os\nassert os.path.exists('widgets/_mended.py')\n"
LOOKS_FOR_TEST = TEST.format("import os\n", "self.assertTrue(os.path.exists('widgets/_mended.py'))")
LOOKS_FOR_NAME = "import widgets.chunks\nassert hasattr(widgets.chunks, '_FIXED')\n"


async def test_tests_that_look_for_a_file_of_the_patch_are_not_called_verified(tmp_path: Path) -> None:
    agent = WRITE_REPORT + REPRO.format(LOOKS_FOR_FILE) + FIX + ADDS + WRITE_TEST.format(LOOKS_FOR_TEST)
    async with open_world(tmp_path, agent=agent, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "- ✅ **the issue's repro**" in seen
        for name in ("the agent's repro", "1 regression test"):
            assert f"- ⚠️ **{name}**" in seen
        assert seen.count("it checks that the patch is present") == 2


async def test_a_test_of_a_new_module_is_verified_and_a_repro_that_asks_for_a_new_name_is_not(tmp_path: Path) -> None:
    uses = TEST.format("from widgets._mended import x\n", "self.assertEqual(x, 1)")
    agent = WRITE_REPORT + REPRO.format(LOOKS_FOR_NAME) + FIX + MARKS + ADDS + WRITE_TEST.format(uses)
    async with open_world(tmp_path, agent=agent, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "- ✅ **1 regression test** in `tests/test_mended.py`: before: fails 1/1" in seen
        assert "- ❔ **the agent's repro**: before: fails 1/1" in seen
        assert "the request does not mention: `_FIXED` (" in seen


async def test_a_change_of_data_alone_leaves_it_open_whether_the_agents_repro_looks_for_it(tmp_path: Path) -> None:
    data = 'pathlib.Path("README.md").write_text("mended\\n")\n'
    repro = "assert 'mended' in open('README.md').read()\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + REPRO.format(repro) + data, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "- ❔ **the agent's repro**: before: fails 1/1" in seen
        assert "**not verified**: it could not be tested whether it looks for the patch" in seen


async def test_a_change_that_mends_nothing_is_not_called_verified(tmp_path: Path) -> None:
    vain = 'pathlib.Path("widgets/chunks.py").write_text(open("widgets/chunks.py").read() + "\\n# mended\\n")\n'
    async with open_world(tmp_path, agent=WRITE_REPORT + REPRO.format("x = 1") + vain, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "after: passes 0/1; **not verified**: after the change, it still fails" in seen
        assert "**the agent's repro**: before: fails 0/1" in seen
        assert "**not verified**: it does not fail before the change, so it shows nothing" in seen


async def test_a_preset_that_changes_nothing_says_how_the_repro_fails(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT, verify_runs=2) as world:
        seen = seen_in(await report_on(world, label="ptq"))
        assert "- 🔴 **the issue's repro**: fails 2/2 (`AssertionError: " in seen
        assert "change" not in seen


WEAKER = "from widgets import chunked\nassert len(list(chunked([1], 2))) == 1\n"
ONE_CASE = "    if len(items) < size:\n        yield items\n        return\n    for start"
BY_TURNS = """
turn = len(list(pathlib.Path({signs!r}).iterdir()))
pathlib.Path({signs!r}, str(turn)).touch()
path = pathlib.Path("widgets/chunks.py")
chunks = path.read_text()
if os.environ["PTQ_PRESET"] == "diagnose":
    (output / "report.md").write_text("reproduced\\n\\n## Summary\\nThe loop ends early.\\n")
elif turn in (1, 2):
    path.write_text(chunks.replace("    for start", {one_case!r}))
else:
    path.write_text(chunks.replace(" - size + 1", "") + f"# mended in turn {{turn}}\\n")
(output / "repro.py").write_text({weaker!r} if turn in (1, 2, 5) else {genuine!r})
"""


async def test_a_repro_that_a_later_attempt_replaces_is_run_all_the_same(tmp_path: Path) -> None:
    turns = BY_TURNS.format(signs=str(tmp_path / SIGNS), one_case=ONE_CASE, weaker=WEAKER, genuine=GENUINE)
    async with open_world(tmp_path, agent=WRITE_REPORT + turns, verify_runs=1) as world:
        world.patience_s = PATIENCE_S
        await world.open_issue("It loses the last items, without any script.")

        async def ask(command: str, count: int) -> list[str]:
            await world.comment(command)
            return seen_in(await world.wait_for_report(count)).strip().splitlines()[2:]

        (line,) = await ask("/ptq diagnose", 1)
        assert line.startswith("- 🔴 **the agent's repro**: fails 1/1 (`AssertionError")

        kept, own = await ask("/ptq fix", 2)
        assert kept.startswith("- ⚠️ **the repro of attempt 1**: before: fails 1/1")
        assert "after: passes 0/1; **not verified**: after the change, it still fails" in kept
        assert own.startswith("- ✅ **the agent's repro**: before: fails 1/1")

        (own,) = await ask("/ptq fix --fresh", 3)
        assert own.startswith("- ✅ **the agent's repro**")

        kept, own = await ask("/ptq fix", 4)
        assert kept.startswith("- ✅ **the repro of attempt 3**: before: fails 1/1"), "the newest that failed"
        assert own.startswith("- ✅ **the agent's repro**")

        (kept,) = await ask("/ptq fix", 5)
        assert kept.startswith("- ✅ **the repro of attempt 4**"), "the agent has handed in the same one"

        world.commit({"widgets/chunks.py": world.git("show", "main:widgets/chunks.py").replace(" - size + 1", "")})
        kept, own = await ask("/ptq fix", 6)
        assert kept.startswith(
            "- ❔ **the repro of attempt 4**: before: fails 0/1; after: passes 1/1; "
            "**no longer reproduces**: it passes on this base commit, also without the change ("
        )
        assert "it shows nothing" in own


async def test_without_a_script_nothing_is_verified_and_nothing_is_said(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, verify_runs=1) as world:
        assert "in clean environments" not in await report_on(world, "It loses the last items, without any script.")


async def test_a_change_that_cannot_be_built_is_reported_and_said_not_to_be_verified(tmp_path: Path) -> None:
    toml = 'rebuild = ["echo no compiler; exit 3"]'
    async with open_world(
        tmp_path, on_real_machine=True, agent=WRITE_REPORT + FIX, repository_toml=toml, verify_runs=1
    ) as world:
        report = await report_on(world)
        seen = seen_in(report)
        assert "some runs are missing: `the machine says: the rebuild command ʼecho no compiler; exit 3ʼ failed" in seen
        assert "/ptq pr " in report


LOOK_AROUND = """
import os, pathlib
root = pathlib.Path(os.environ["PTQ_PROMPT_FILE"]).parent
found = [name for name in os.environ if "TOKEN" in name or "GATEWAY" in name]
found += [str(path) for path in root.rglob("*") if path.name not in ("tmp", "output", "control", "repro.py")]
found += [str(path) for path in pathlib.Path.home().rglob("*") if "agent was here" in str(path)]
assert found, "nothing of the agent is here"
"""


CALLS_OUT = """
import socket
socket.create_server(("127.0.0.1", 0))
from widgets import chunked
try:
    socket.create_connection(({!r}, {!r}), 5)
except OSError as error:
    raise SystemExit(f"nobody there: {{error.strerror}}")
"""


async def test_a_strangers_script_reaches_nobody(tmp_path: Path) -> None:
    async with open_world(tmp_path, on_real_machine=True, agent=WRITE_REPORT, verify_runs=1) as world:
        url = URL(world.playground.service.url)
        script = CALLS_OUT.format(url.host, url.port)
        seen = seen_in(await report_on(world, f"Look:\n\n```python\n{script}\n```\n", label="ptq"))
        assert "fails 1/1 (`nobody there: Connection refused`)" in seen


async def test_a_script_finds_nothing_of_the_agent(tmp_path: Path) -> None:
    leave = '(pathlib.Path.home() / "agent was here").write_text("")\n'
    agent = WRITE_REPORT + REPRO.format(LOOK_AROUND) + leave
    async with open_world(tmp_path, on_real_machine=True, agent=agent, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "fails 1/1 (`AssertionError: nothing of the agent is here`)" in seen


async def test_a_private_repository_is_fetched_for_it_through_the_service(
    tmp_path: Path, ssh_server: SshServer
) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, ssh=ssh_server, private=True, verify_runs=1) as world:
        assert "- ✅ **the issue's repro**" in seen_in(await report_on(world))


async def test_a_service_that_is_restarted_goes_on_with_the_verification(tmp_path: Path) -> None:
    agent = WRITE_REPORT + REPRO.format("import time\ntime.sleep(3)\n" + GENUINE) + FIX
    async with open_world(tmp_path, agent=agent, verify_runs=1) as world:
        world.patience_s = PATIENCE_S
        await world.open_issue()
        await world.label()
        await world.wait_for_job("verifying")
        await world.playground.stop_service()
        await world.playground.start_service()
        seen = seen_in(await world.wait_for_report())
        assert "- ✅ **the issue's repro**" in seen
        assert "- ✅ **the agent's repro**" in seen
        assert len(world.reports()) == 1


async def test_a_job_that_is_cancelled_while_it_is_verified_ends_at_once_with_its_report(tmp_path: Path) -> None:
    agent = WRITE_REPORT + REPRO.format("import time\ntime.sleep(600)\n") + FIX
    async with open_world(tmp_path, agent=agent, verify_runs=3) as world:
        world.patience_s = PATIENCE_S
        await world.open_issue()
        await world.label()
        await world.wait_for_job("verifying")
        await world.comment("/ptq cancel")
        report = await world.wait_for_report()
        assert "Cancelled" in report
        assert "cancelled by " in report
        jobs = world.playground.folder / "machine" / "workspace" / "jobs"
        assert [path.name for path in jobs.iterdir()] == []


async def test_where_jobs_cannot_be_sealed_no_strangers_script_is_run(tmp_path: Path) -> None:
    agent = WRITE_REPORT + REPRO.format(GENUINE) + FIX
    python = write_interpreter(tmp_path)
    async with open_world(tmp_path, agent=agent, python=python, verify_runs=1) as world:
        seen = seen_in(await report_on(world))
        assert "the issue's repro**: **not verified**: it was not run: `the machine has no sandbox" in seen
        assert "- ✅ **the agent's repro**" in seen
