"""What the service itself sees of a repro, from the issue to the report and the pull request."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from bot.config.settings import load_settings
from bot.demo.repository import ISSUE_BODY
from bot.operations.reports import read_report
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, as_told, open_world

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
"""Each story makes two environments and a good many runs."""

REPRO = '(output / "repro.py").write_text({!r})\n'
GENUINE = "from widgets import chunked\nassert len(list(chunked([1, 2, 3], 2))) == 2\n"
LOOKS_FOR_PATCH = "assert 'size + 1' not in open('widgets/chunks.py').read(), 'not fixed'\n"


def seen_in(text: str) -> str:
    """What a report or a pull request says that the service saw."""
    return text.partition("**Seen by ptq-bot**")[2].partition("\n\n**")[0].partition("\n\n<details>")[0]


async def report_on(world: World, source: str = "", body: str = ISSUE_BODY, label: str = "ptq:fix") -> str:
    """The report on a new issue, whose agent does this if it does what it is told."""
    world.patience_s = PATIENCE_S
    world.tell_agents(source)
    await world.open_issue(body)
    await world.label(label)
    return await world.wait_for_report()


async def test_the_report_and_the_pull_request_say_what_the_service_itself_saw(tmp_path: Path) -> None:
    async with open_world(tmp_path, verify_runs=2) as world:
        seen = seen_in(await report_on(world))
        failure = "before: fails 2/2 (`AssertionError: [[1, 2], [3, 4]]`); after: passes 2/2"
        assert f"- ✅ **the issue's repro**: {failure} ([script](" in seen
        assert f"- ✅ **the agent's repro**: {failure}" in seen
        assert "- ✅ **1 regression test** in `tests/test_chunks.py`: before: fails 2/2 (`AssertionError: " in seen
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
        assert "Before the change, runs 1 to 2: AssertionError: [[1, 2], [3, 4]]" in page
        assert "Patched files, unpatched code" in page


ADDS = 'pathlib.Path("widgets/_fixed.py").write_text("x = 1\\n")\n'
MARKS = 'path.write_text(path.read_text() + "\\n\\n_FIXED = True\\n")\n'
WRITE_TEST = 'pathlib.Path("tests/test_fixed.py").write_text({!r})\n'
TEST = "import unittest\n{}\n\nclass FixedTest(unittest.TestCase):\n    def test_it(self):\n        {}\n"
LOOKS_FOR_TEST = TEST.format("import os\n", "self.assertTrue(os.path.exists('widgets/_fixed.py'))")
LOOKS_FOR_NAME = "import widgets.chunks\nassert hasattr(widgets.chunks, '_FIXED')\n"
USES_MODULE = TEST.format("from widgets._fixed import x\n", "self.assertEqual(x, 1)")
DATA = 'pathlib.Path("README.md").write_text("fixed\\n")\n'
LOOKS_FOR_DATA = "assert 'fixed' in open('README.md').read()\n"
VAIN = 'pathlib.Path("widgets/chunks.py").write_text(open("widgets/chunks.py").read() + "\\n# fixed\\n")\n'


async def test_what_shows_nothing_is_not_called_verified(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + as_told(tmp_path), verify_runs=1) as world:
        # Repro and test look whether the patch is there: in a file that it changes, and in one that it adds.
        looks = REPRO.format(LOOKS_FOR_PATCH) + FIX + ADDS + WRITE_TEST.format(LOOKS_FOR_TEST)
        seen = seen_in(await report_on(world, looks))
        assert "- ✅ **the issue's repro**" in seen
        assert "- ⚠️ **the agent's repro**: before: fails 1/1 (`AssertionError: not fixed`)" in seen
        assert "- ⚠️ **1 regression test**" in seen
        assert seen.count("it checks that the patch is present") == 2

        # A test may use a new module; a repro that asks for a name that only the patch has is doubted.
        names = REPRO.format(LOOKS_FOR_NAME) + FIX + MARKS + ADDS + WRITE_TEST.format(USES_MODULE)
        seen = seen_in(await report_on(world, names))
        assert "- ✅ **1 regression test** in `tests/test_fixed.py`: before: fails 1/1" in seen
        assert "- ❔ **the agent's repro**: before: fails 1/1" in seen
        assert "the request does not mention: `_FIXED` (" in seen

        # With a change of data alone it stays open whether the repro looks for it.
        seen = seen_in(await report_on(world, REPRO.format(LOOKS_FOR_DATA) + DATA))
        assert "- ❔ **the agent's repro**: before: fails 1/1" in seen
        assert "**not verified**: it could not be tested whether it looks for the patch" in seen

        # The change repairs nothing, and the agent's repro never failed.
        seen = seen_in(await report_on(world, REPRO.format("x = 1") + VAIN))
        assert "after: passes 0/1; **not verified**: after the change, it still fails" in seen
        assert "**the agent's repro**: before: fails 0/1" in seen
        assert "**not verified**: it does not fail before the change, so it shows nothing" in seen

        # Without any script nothing is said.
        assert "in clean environments" not in await report_on(world, FIX, SCRIPTLESS)


SCRIPTLESS = "It loses the last items, without any script."
WEAKER = "from widgets import chunked\nassert len(list(chunked([1], 2))) == 1\n"
ONE_CASE = "    if len(items) < size:\n        yield items\n        return\n    for start"
FIRST_DIAGNOSES = f"""
path = pathlib.Path("widgets/chunks.py")
if os.environ["PTQ_PRESET"] == "diagnose":
    (output / "report.md").write_text("reproduced\\n\\n## Summary\\nThe loop ends early.\\n")
    (output / "repro.py").write_text({GENUINE!r})
else:
    (output / "repro.py").write_text({WEAKER!r})
    path.write_text(path.read_text().replace("    for start", {ONE_CASE!r}))
"""


async def test_a_repro_that_a_later_attempt_replaces_is_run_all_the_same(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIRST_DIAGNOSES, verify_runs=1) as world:
        world.patience_s = PATIENCE_S
        await world.open_issue(SCRIPTLESS)

        async def ask(command: str, count: int) -> list[str]:
            await world.comment(command)
            return seen_in(await world.wait_for_report(count)).strip().splitlines()[2:]

        (line,) = await ask("/ptq diagnose", 1)
        assert line.startswith("- 🔴 **the agent's repro**: fails 1/1 (`AssertionError")
        assert "change" not in line

        kept, own = await ask("/ptq fix", 2)
        assert kept.startswith("- ⚠️ **the repro of attempt 1**: before: fails 1/1")
        assert "after: passes 0/1; **not verified**: after the change, it still fails" in kept
        assert own.startswith("- ✅ **the agent's repro**: before: fails 1/1")

        (own,) = await ask("/ptq fix --fresh", 3)
        assert own.startswith("- ✅ **the agent's repro**")

        world.commit({"widgets/chunks.py": world.git("show", "main:widgets/chunks.py").replace(" - size + 1", "")})
        (kept,) = await ask("/ptq fix", 4)
        assert kept.startswith(
            "- ❔ **the repro of attempt 3**: before: fails 0/1; after: passes 1/1; "
            "**no longer reproduces**: it passes on this base commit, also without the change ("
        ), "the newest that failed; the agent has handed in the same one"


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


async def test_a_script_finds_a_private_repository_and_neither_a_network_nor_the_agent(tmp_path: Path) -> None:
    """Its environment has been fetched through the service. What is changed cannot be built, which is told."""
    leave = '(pathlib.Path.home() / "agent was here").write_text("")\n'
    agent, toml = WRITE_REPORT + REPRO.format(LOOK_AROUND) + leave + FIX, 'rebuild = ["echo no compiler; exit 3"]'
    async with open_world(tmp_path, agent=agent, private=True, repository_toml=toml, verify_runs=1) as world:
        url = URL(world.playground.service.url)
        script = CALLS_OUT.format(url.host, url.port)
        report = await report_on(world, body=f"Look:\n\n```python\n{script}\n```\n")
        seen = seen_in(report)
        assert "fails 1/1 (`nobody there: Connection refused`)" in seen
        assert "fails 1/1 (`AssertionError: nothing of the agent is here`)" in seen
        assert "some runs are missing: `the machine says: the rebuild command ʼecho no compiler; exit 3ʼ failed" in seen
        assert "/ptq pr " in report


async def test_a_verification_outlives_a_restart_and_is_cancelled_at_once(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + as_told(tmp_path), verify_runs=1) as world:
        world.patience_s = PATIENCE_S
        world.tell_agents(REPRO.format("import time\ntime.sleep(1)\n" + GENUINE) + FIX)
        await world.open_issue()
        await world.label()
        await world.wait_for_job("verifying")
        await world.playground.stop_service()
        await world.playground.start_service()
        seen = seen_in(await world.wait_for_report())
        assert "- ✅ **the issue's repro**" in seen
        assert "- ✅ **the agent's repro**" in seen
        assert len(world.reports()) == 1

        world.tell_agents(REPRO.format("import time\ntime.sleep(600)\n") + FIX)
        await world.open_issue()
        await world.label()
        await world.wait_for_job("verifying")
        await world.comment("/ptq cancel")
        report = await world.wait_for_report()
        assert "Cancelled" in report
        assert "cancelled by " in report
        jobs = world.playground.folder / "machine" / "workspace" / "jobs"
        assert [path.name for path in jobs.iterdir()] == []
