"""What follows on an attempt, and what keeps one from being made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from runner.model.job import JobState, Report
from runner.rows import job_rows
from tests.support.jobs import make_job, store_report
from tests.support.readers import read_blocks
from tests.support.world import FIX, SIGNS, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

SAY_MODEL = "print('model', os.environ.get('PTQ_MODEL'), flush=True)\n"


def second_agent(folder: Path) -> str:
    """Another agent, with models to choose from, that runs the same script."""
    command = json.dumps([sys.executable, str(folder / "agent.py")])
    return f'[agents.second]\nkind = "command"\ncommand = {command}\nmodel = "small"\nmodels = ["big"]\n'


def list_folded(world: World) -> list[bool]:
    """For each of our comments, oldest first."""
    comments = world.github.issue(NAME, world.number).comments
    return [comment.minimized_as == "OUTDATED" for comment in comments if comment.via_app]


async def bring_again(world: World) -> None:
    """Every delivery once more, after the inbox has forgotten that it had them."""
    await world.settle()
    async with world.playground.service.context.db.write() as connection:
        await connection.exec_driver_sql("DELETE FROM deliveries")
    for guid in {delivery.guid for delivery in world.github.deliveries}:
        await world.github.redeliver(guid)
    await world.settle()


PLANT = """
planted = pathlib.Path(".claude/settings.json")
seen = planted.exists(), "size + 1" in pathlib.Path("widgets/chunks.py").read_text()
(output / "worklog.md").write_text(f"looked, found, fixed; planted, unfixed: {seen}")
planted.parent.mkdir(exist_ok=True)
if os.environ["PTQ_JOB_ID"] == first_job:
    planted.write_text("{}")
"""
LEARN_FIRST = """
first = pathlib.Path(SIGN)
if not first.exists():
    first.write_text(os.environ["PTQ_JOB_ID"])
first_job = first.read_text()
"""


async def test_a_retry_carries_on_from_the_last_attempt_and_is_one_however_often_it_is_delivered(
    tmp_path: Path,
) -> None:
    learn = LEARN_FIRST.replace("SIGN", repr(str(tmp_path / SIGNS / "first")))
    skills = '[skills.graph-breaks]\nlabels = ["Module: Dynamo"]\n'
    async with open_world(tmp_path, agent=WRITE_REPORT + learn + PLANT + FIX, more_toml=skills) as world:
        await world.open_issue()
        await world.label("module: dynamo")
        await world.label()
        assert "planted, unfixed: (False, True)" in await world.wait_for_report()
        digest = world.digest()
        await world.comment("/ptq retry keep it a generator\n\nand short")
        report = await world.wait_for_report(2)
        second, first = await world.jobs()
        assert (second.follows, second.attempt) == (first.id, 2)
        assert (second.preset, second.may_change) == (first.preset, first.may_change) == ("fix", True)
        assert second.base_branch == first.base_branch
        for words in (
            "from attempt 1",
            "as `succeeded`",
            "An early end.",
            "looked, found, fixed",
            "already holds its",
        ):
            assert words in second.prompt
            assert words not in first.prompt
        steering = second.prompt[second.prompt.index("## Steering") :]
        assert "keep it a generator\n\nand short" in steering
        assert first.skills == ("graph-breaks",), "the labels of an issue bring skills"
        assert "Skills are installed for you: `graph-breaks`." in first.prompt

        assert "planted, unfixed: (False, False)" in report, "the edits, but not what configures agents"
        assert "`.claude/settings.json` configures coding agents" in report
        assert world.digest() == digest, "the same change on the same base"
        await world.wait(lambda: list_folded(world) == [True, True, False, False] or None, "only the first is folded")
        await bring_again(world)
        assert len(await world.jobs()) == len(world.reports()) == len(world.replies()) / 2 == 2

        world.git("branch", "--move", "main", "away")
        await world.comment("/ptq retry")
        assert "no branch main" in await world.wait_for_report(3)
        world.git("branch", "--move", "away", "main")
        await world.comment("/ptq retry")
        await world.wait_for_report(4)
        jobs = {job.attempt: job for job in await world.jobs()}
        assert jobs[3].follows == jobs[4].follows == second.id, "an attempt of which nothing came is passed over"


DIAGNOSE_THEN_FIX = (
    WRITE_REPORT
    + """
if os.environ["PTQ_PRESET"] == "diagnose":
    (output / "report.md").write_text("reproduced\\n\\n## Summary\\nThe loop ends early.\\n")
    (output / "repro.py").write_text("from widgets import chunked\\nassert list(chunked([1], 2))\\n")
    sys.exit()
"""
    + FIX
)


async def test_a_fix_knows_what_a_diagnosis_has_found_and_a_retry_with_its_preset_continues_it(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=DIAGNOSE_THEN_FIX) as world:
        await world.open_issue()
        await world.comment("/ptq diagnose")
        await world.wait_for_report()
        world.commit({"NEWS": "something else\n"})
        newest = world.git("rev-parse", "main").strip()
        await world.comment("/ptq fix keep it short")
        await world.wait_for_report(2)
        second, first = await world.jobs()
        blocks = read_blocks(second.prompt)
        assert "The loop ends early." in blocks["report of the earlier attempt"]
        assert "looked, found, fixed" in blocks["worklog of the earlier attempt"]
        assert "assert list(chunked([1], 2))" in blocks["repro.py of the earlier attempt"]
        assert blocks["the maintainer who asked"] == "keep it short"
        assert f"had the task `diagnose` and ended as `succeeded`, at commit `{first.base_commit}`" in second.prompt
        assert (second.follows, second.base_commit) == (None, newest) != (None, first.base_commit)
        await world.settle()
        assert list_folded(world) == [False] * 4, "a diagnosis stays to be read when a fix has used it"

        await world.open_issue()
        await world.comment("/ptq diagnose")
        await world.wait_for_report()
        world.commit({"NEWS": "something newer\n"})
        for count, (typed, refusal) in enumerate(
            (
                (
                    "/ptq fix --preset diagnose",
                    "`--preset` only works with `/ptq retry`. `/ptq fix` always uses its own",
                ),
                ("/ptq retry --preset verify", "this preset cannot continue an attempt. Use `/ptq verify`."),
                ("/ptq retry --preset rebase", "this preset cannot continue an attempt. Use `/ptq rebase`."),
                ("/ptq retry --preset simplify", "has no change, and `/ptq simplify` needs one"),
                ("/ptq retry --preset <b>x", "Not started. Usage: `/ptq run PRESET`"),
                ("/ptq retry --fresh", "does not work with"),
            ),
            1,
        ):
            await world.comment(typed)
            assert "<b>" not in await world.wait_for_reply(refusal), count
        assert len(await world.jobs()) == 3
        await world.comment("/ptq retry --preset Fix keep it short")
        report = await world.wait_for_report(2)
        assert "`fix` attempt 2" in report
        second, first, *_ = await world.jobs()
        assert (second.preset, second.may_change, second.follows) == ("fix", True, first.id)
        assert (second.base_commit, second.base_branch) == (first.base_commit, first.base_branch)
        assert "carries on from attempt 1 on this issue, which had the task `diagnose`" in second.prompt
        assert "assert list(chunked([1], 2))" in read_blocks(second.prompt)["repro.py of the earlier attempt"]
        await world.wait(lambda: list_folded(world)[:2] == [True, True] or None, "the new report replaces the old one")

        await world.comment("/ptq fix --fresh")
        await world.wait_for_report(3)
        third, *_ = await world.jobs()
        assert "The earlier attempt" not in third.prompt
        assert "The loop ends early." not in third.prompt


async def test_options_choose_the_agent_and_its_model_and_a_retry_keeps_them(tmp_path: Path) -> None:
    toml, rules = second_agent(tmp_path), 'agents = ["second"]'
    agent = WRITE_REPORT + SAY_MODEL
    async with open_world(tmp_path, agent=agent, more_toml=toml, repository_toml=rules) as world:
        await world.open_issue()
        await world.comment("/ptq diagnose —agent second --model=big look at the loop")
        assert "agent `second` (`big`)" in await world.wait_for_report()
        await world.comment("/ptq retry")
        await world.wait_for_report(2)
        await world.comment("/ptq retry --agent script")
        await world.wait_for_report(3)
        third, second, first = await world.jobs()
        assert (first.agent, first.model) == (second.agent, second.model) == ("second", "big")
        assert (third.agent, third.model) == ("script", None)
        assert [job.preset for job in (first, second, third)] == ["diagnose"] * 3
        assert "look at the loop\n</steering" in first.prompt
        assert "--model" not in first.prompt
        assert "## Steering" not in second.prompt
        async with world.playground.service.context.db.read() as connection:
            assert b"model big" in (await job_rows.fetch_log(connection, first.id, "agent") or b"")
            assert b"model None" in (await job_rows.fetch_log(connection, third.id, "agent") or b"")


async def test_unknown_options_and_a_retry_without_an_attempt_start_nothing_and_are_answered_once(
    tmp_path: Path,
) -> None:
    toml, rules = second_agent(tmp_path), 'agents = ["second"]'
    async with open_world(tmp_path, agent=WRITE_REPORT, more_toml=toml, repository_toml=rules) as world:
        named = await world.open_issue()
        for count, typed in enumerate(("--agent <b>@evil", "--foo", "—model", "--model big"), 1):
            await world.comment(f"/ptq fix {typed} please")
            reply = await world.wait_for_reply("Not started", count)
            assert "- `--agent script`\n- `--agent second`, with `--model small` or `--model big`" in reply
            assert "evil" not in reply
        retried = await world.open_issue()
        await world.comment("/ptq retry")
        assert "`/ptq diagnose`" in await world.wait_for_reply("No attempt has run on this issue yet")
        await bring_again(world)
        assert await world.jobs() == []
        for number, replies in ((named, 4), (retried, 1)):
            world.number = number
            assert len(world.replies()) == replies

        await world.open_issue()
        await world.comment("/ptq retry --agent nobody")
        await world.wait_for_reply("No attempt has run on this issue yet")
        await add_ended_job(world, "security concern\n\n## Summary\nThe parser of headers.")
        await world.comment("/ptq retry --agent nobody")
        reply = await world.wait_for_reply("`/ptq retry` cannot continue this attempt")
        assert "secur" not in reply.casefold(), "nobody but the operator hears of the concern"
        await world.settle()
        assert len(await world.jobs()) == 1


async def add_ended_job(world: World, report: str) -> None:
    rules = world.playground.service.context.repositories["octo/widgets"]
    job = make_job(repository=rules.name, thread=world.number, agent=rules.agent, state=JobState.SUCCEEDED)
    async with world.playground.service.context.db.write() as connection:
        await job_rows.insert_job(connection, job)
        await store_report(connection, Report(job.id, report, "", "", "", "", (), None))


async def test_a_request_that_came_too_early_is_not_carried_out_when_it_comes_again(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + wait) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_job("running")
        await world.label("ptq")
        await world.comment("/ptq retry")
        await world.wait_for_reply("Only one job at a time", 2)
        go.touch()
        await world.wait_for_report()
        before = len(world.replies())
        await bring_again(world)
        assert len(await world.jobs()) == 1
        assert len(world.replies()) == before


async def test_while_a_cap_is_used_up_nothing_starts_and_each_request_is_answered_once(tmp_path: Path) -> None:
    caps = "[caps.user_day]\njobs = 1\n[caps.repository_month]\njobs = 2\n"
    async with open_world(tmp_path, agent=WRITE_REPORT, more_toml=caps) as world:
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        words = "for what maintainer asked for today is used up. It resets at 00:00 UTC."
        await world.label("ptq")
        assert words in await world.wait_for_reply("Not started")
        await world.comment("/ptq retry")
        assert words in await world.wait_for_reply("Not started", 2)
        for login in ("ada", "bob"):
            world.github.add_user(login)
            world.github.set_permission(NAME, login, "write")
        await world.comment("/ptq repro", by="ada")
        await world.wait_for_report(2)
        await world.comment("/ptq repro", by="bob")
        words = "the cap of 2 jobs for this repository this month is used up. It resets next month (UTC)."
        assert words in await world.wait_for_reply("Not started", 3)
        before = len(world.replies())
        await bring_again(world)
        assert len(await world.jobs()) == 2
        assert len(world.replies()) == before
