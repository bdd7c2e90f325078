"""An agent that lies, a GitHub that says no for a while: what people read stays true, and nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from handlers.pulls.pull_steps import name_branch
from tests.support.jobd import GIT, Repository
from tests.support.lesser_kernel import write_interpreter
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, as_told, open_world

pytestmark = pytest.mark.slow

COMMENTS = "/repos/octo/widgets/issues/1/comments"

FORGE = """
import base64, json
control = output.parents[1] / "control"
innocent = pathlib.Path("widgets/chunks.py").read_text()
lines = innocent.splitlines()
evil = innocent + "import os  # nobody was shown this\\n"
hunk = f"@@ -1,2 +1,3 @@\\n+# harmless\\n {lines[0]}\\n {lines[1]}\\n"
name = "widgets/chunks.py"
patch = f"diff --git a/{name} b/{name}\\n--- a/{name}\\n+++ b/{name}\\n{hunk}"
content = base64.b64encode(("# harmless\\n" + evil).encode()).decode()
change = {"path": name, "mode": "100644", "old_mode": "100644", "content": content}
texts = {"report": "fix staged\\n\\n## Summary\\nA comment.\\n", "worklog": "", "pr_title": "", "repro": ""}
(control / "result.json").write_text(json.dumps({**texts, "patch": patch, "changes": [change], "problems": []}))
(control / "collect.request").write_text("{}")
(control / "collect.json").write_text(json.dumps({"state": "done", "result": {}}))
"""


REPLACE = (
    FORGE.replace("+1,3 @@\\n+# harmless\\n {lines[0]}\\n {lines[1]}\\n", "+1 @@\\n+# harmless\\n")
    .replace("@@ -1,2", "@@ -0,0")
    .replace("--- a/{name}", "new file mode 100644\\n--- /dev/null")
    .replace('("# harmless\\n" + evil)', '"# harmless\\n"')
    .replace('"old_mode": "100644"', '"old_mode": None')
)
"""A file that is there is called a new one, so that nobody sees what is lost."""


EVIL = "import os  # nobody was shown this"
HIDE = f"""
marker = "-----{{}} PRIVATE KEY-----\\n"
pathlib.Path("a.txt").write_text(marker.format("BEGIN"))
pathlib.Path("evil.py").write_text({EVIL!r} + "\\n")
pathlib.Path("z.txt").write_text(marker.format("END"))
"""
LEAK = """
pathlib.Path("evil.py").write_text("x = 1  # \\\\revil()\\n".replace("\\\\r", chr(13)))
pathlib.Path("key.txt").write_text("-----BEGIN PRIVATE KEY-----\\n" + "MIIEpAIBAAKCAQEA" * 4 + "\\n")
"""


async def start(world: World) -> None:
    await world.open_issue()
    await world.label()


async def test_a_line_that_no_report_showed_never_reaches_a_pull_request(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + as_told(tmp_path)) as world:
        for forge, words in (
            (FORGE, "holds something else than the diff shows"),
            (REPLACE, "`widgets/chunks.py` is a file with mode 100644 in the base commit, and not absent"),
        ):
            world.tell_agents(forge)
            await start(world)
            assert "# harmless" in await world.wait_for_report()
            await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
            refusal = await world.wait_for_reply("Could not open the pull request")
            assert words in refusal
            await world.settle()
            assert world.pulls() == []
            assert "ptq/" not in world.git("branch", "--list")


async def test_a_diff_shows_each_line_and_names_what_adds_a_secret_or_a_hidden_line_end(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path, agent=WRITE_REPORT + as_told(tmp_path)) as world,
        aiohttp.ClientSession() as session,
    ):
        world.tell_agents(HIDE)
        await start(world)
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        shown = [report]
        for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/patch"):
            async with session.get(f"{world.playground.service.url}{path}") as answer:
                shown.append(re.sub(r"<[^>]*>", "", await answer.text()))
        for text in shown:
            assert f"+{EVIL}" in text, "what looks like the ends of a key hides no file between them"
            assert "evil.py" in text

        world.tell_agents(LEAK)
        await start(world)
        report = await world.wait_for_report()
        assert "`evil.py` gets a carriage return within a line" in report
        assert "A possible secret is added in `key.txt`" in report
        assert "+x = 1  # ⟨U+000D⟩evil()" in report
        assert "/ptq pr" not in report
        await world.comment(f"/ptq pr\n\n{NOTE}")
        await world.settle()
        assert world.pulls() == []


LIAR = """#!/bin/bash
set -o pipefail
[ -f "{lie}.in" ] || exec {python} "$@"
sed -u -f "{lie}.in" | {python} "$@" | sed -u -f "{lie}.out"
"""
"""An interpreter on a machine that calls one commit by another's name in all that it answers."""


def push_as_stranger(world: World, folder: Path) -> str:
    """The head of a stranger's pull request, which whoever knows its name can fetch from the base repository."""
    subprocess.run([*GIT, "clone", "--quiet", str(world.playground.git_dir), str(folder)], check=True)
    fork = Repository(folder)
    head = fork.commit({"evil.py": "import os\n"})
    fork.git("push", "--quiet", "origin", "HEAD:refs/pull/99/head")
    return head


async def test_a_machine_cannot_bring_a_strangers_commits_into_our_branch(tmp_path: Path) -> None:
    python, lie = tmp_path / "python-that-lies", tmp_path / "lie"
    python.write_text(LIAR.format(lie=lie, python=sys.executable))
    python.chmod(0o755)
    async with open_world(tmp_path, on_real_machine=True, agent=WRITE_REPORT + FIX, python=str(python)) as world:
        base, strangers = world.playground.base_commit, push_as_stranger(world, tmp_path / "fork")
        Path(f"{lie}.out").write_text(f"s/{base}/{strangers}/g\n")
        Path(f"{lie}.in").write_text(f"s/{strangers}/{base}/g\n")
        await start(world)
        report = await world.wait_for_report()
        assert f"the machine checked out commit {strangers[:10]}, which is not on main" in report
        assert "/ptq pr" not in report
        assert "ptq/" not in world.git("branch", "--list")


async def test_no_pull_request_is_opened_once_the_base_branch_has_lost_the_base_commit(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        world.commit({"news.txt": "news\n"})
        await start(world)
        await world.wait_for_report()
        world.git("update-ref", "refs/heads/main", "main~1")  # As a forced push does.
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        refusal = await world.wait_for_reply("Could not open the pull request")
        assert "is not on `main`" in refusal
        assert "`/ptq rebase`" in refusal
        assert "ptq/" not in world.git("branch", "--list")
        await world.comment("/ptq rebase")
        await world.wait_for_report(2)
        await world.comment(f"/ptq pr {world.digest()}\n\nNow on what is there. {NOTE}")
        await world.wait_for_pull()


BLOW_UP = "import os\nos.truncate(output.parents[1] / 'control' / 'agent.log', 60_000_000)\ntime.sleep(60)\n"


async def test_a_log_that_an_agent_has_blown_up_ends_the_run_and_is_not_swallowed(tmp_path: Path) -> None:
    agent, python = WRITE_REPORT + FIX + BLOW_UP, write_interpreter(tmp_path)
    limits = "[limits]\nmax_log_bytes = 1000\n"
    async with open_world(tmp_path, on_real_machine=True, agent=agent, more_toml=limits, python=python) as world:
        await start(world)
        report = await world.wait_for_report()
        assert "its cap of 1,000 bytes of output" in report
        assert "It is fixed" in report
        spooled = list((tmp_path / "var").rglob("*.log"))
        assert sum(path.stat().st_size for path in spooled) < 1_000_000


@pytest.mark.slow(20)
async def test_refused_requests_and_lost_answers_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + wait + FIX) as world:
        world.github.faults.add("GET", "/repos/octo/widgets/issues/*/timeline", 404, times=9)
        world.github.faults.add("POST", "/repos/octo/widgets/issues/*/reactions", 404, times=10)
        await start(world)
        deliveries = [delivery.guid for delivery in world.github.deliveries if delivery.event == "issues"]
        for guid in deliveries:
            await world.github.redeliver(guid)
        await world.wait_for_reply("the agent is working")
        world.github.faults.add("POST", COMMENTS, 403)
        world.github.faults.add("POST", COMMENTS, "lose_answer")
        go.touch()
        assert "It is fixed" in await world.wait_for_report()
        for guid in deliveries:
            await world.github.redeliver(guid)
        await world.settle()
        (job,) = await world.jobs()
        assert len(world.statuses()) == len(world.reports()) == 1

        branch = f"refs/heads/{name_branch(job)}"
        world.git("update-ref", branch, "main")
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        assert "exists with another commit" in await world.wait_for_reply("Could not open the pull request")
        assert world.pulls() == []
        world.git("update-ref", "-d", branch)
        await world.comment(f"/ptq pr {world.digest()}\n\nOnce more, now that nothing is in the way: {NOTE}")
        pull = await world.wait_for_pull()
        assert pull.body.startswith("**@maintainer wrote:**\n\nOnce more")
