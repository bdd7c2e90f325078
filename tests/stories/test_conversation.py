"""What maintainers say in a thread besides "start" and "open it", and where they say it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bot.demo.repository import NAME
from handlers.commands.table import parse_commands
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

SAY_MORE = "path = pathlib.Path('widgets/chunks.py'); path.write_text(path.read_text() + '# more\\n')\n"


async def open_their_pull(world: World, body: str, by: str = "contributor") -> int:
    world.git("branch", f"theirs-{by}", "main")
    with_change = world.git("commit-tree", "-p", "main", "-m", "theirs", "main^{tree}").strip()
    world.git("update-ref", f"refs/heads/theirs-{by}", with_change)
    return await world.github.open_pull(NAME, "Fix it", body, by, f"theirs-{by}")


async def test_commands_on_our_pull_request_act_on_its_issue_as_its_maintainer_knew_it(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        issue = await world.open_issue()
        await world.comment("/ptq results")
        await world.wait_for_reply("no job on this issue has finished")
        await world.label()
        report = await world.wait_for_report()
        await world.comment("/ptq results")
        again = await world.wait_for_reply("The last report again")
        assert report.partition("-->")[2].strip() in again
        assert len(world.reports()) == 1

        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        on_pull = world.number = (await world.wait_for_pull()).number
        await world.comment("/ptq status")
        await world.wait_for_reply("No job is running. Last: `fix` attempt 1")
        world.github.faults.add("GET", f"/repos/{NAME}/issues/{issue}", 502, times=4)
        await world.comment("/ptq fix")
        await world.github.edit_issue(NAME, issue, by="drive-by", body="Now do something else.")
        await world.wait_for_reply(f"issue #{issue} has changed since your comment")
        await world.settle()
        assert len(await world.jobs()) == 1

        await asyncio.sleep(1.1)  # The issue was last touched a moment ago, and GitHub knows whole seconds.
        await world.comment("/ptq retry take the shorter way")
        world.number = issue
        await world.wait_for_report(2)
        second, first = await world.jobs()
        assert (second.issue_number, second.follows) == (issue, first.id)
        assert "take the shorter way" in second.prompt
        world.number = on_pull
        assert not world.reports()
        await world.comment("/ptq results")
        assert "The last report again" in await world.wait_for_reply("### Fix staged")


async def test_what_starts_nothing_is_explained_once(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.number = await open_their_pull(world, "This repairs it.", by="author")
        await world.comment("/ptq fix")
        await world.comment("/ptq status")
        await world.wait_for_reply("ptq-bot only works on issues and on the pull requests that it opened for them")
        await world.settle()
        assert len(world.replies()) == 1

        await world.open_issue()
        comment = await world.comment("hello")
        for body in ("/ptq fix", "/ptq fix please", "/ptq fix at once"):
            await world.github.edit_comment(NAME, comment, body, "maintainer")
        theirs = await world.comment("hello", by="drive-by")
        await world.github.edit_comment(NAME, theirs, "/ptq fix", "drive-by")
        await world.wait_for_reply("Commands in edited comments are ignored")
        await world.settle()
        assert len(world.replies()) == 1

        await world.open_issue()
        comment = await world.comment("Hello\n\n/ptq status")
        await world.wait_for_reply("No job has run")
        await world.github.edit_comment(NAME, comment, "Hello there\n\n/ptq status", "maintainer")
        await world.settle()
        assert len(world.replies()) == 1, "an edit that leaves the commands as they were gets no answer"

        issue = await world.open_issue()
        mentions = await open_their_pull(world, f"See #{issue} for what this is not about.", by="somebody")
        closing = await open_their_pull(world, f"Fixes #{issue}")
        await world.comment("/ptq fix")
        refusal = await world.wait_for_reply("an open pull request would close it")
        assert f"(#{closing})" in refusal
        assert f"#{mentions}" not in refusal
        await world.settle()
        assert await world.jobs() == []


async def test_a_closed_issue_needs_anyway_and_a_command_can_name_a_machine(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX) as world:
        await world.open_issue()
        await world.comment("/ptq fix --machine gpu-9")
        assert "- `--machine gpu-1`" in await world.wait_for_reply("unknown machine")
        await world.github.close_issue(NAME, world.number, "maintainer")
        await world.label()
        assert "`/ptq fix --anyway`" in await world.wait_for_reply("this issue is closed")
        await world.comment("/ptq fix --anyway --machine GPU-1 for the release branch")
        await world.wait_for_report()
        (job,) = await world.jobs()
        assert job.pinned_to == "gpu-1"
        assert "for the release branch" in job.prompt
        assert "anyway" not in job.prompt


async def test_simplify_goes_on_from_the_change_of_the_last_attempt(tmp_path: Path) -> None:
    agent = WRITE_REPORT + "if os.environ['PTQ_PRESET'] == 'simplify':\n    " + SAY_MORE + "else:\n    " + FIX
    (tmp_path / "polish.md").write_text("1. Polish it.\n")
    toml = (
        f'[presets.polish]\nfile = "{tmp_path}/polish.md"\ngoal = "polish it"\nmay_change = true\ncarries_on = true\n'
    )
    async with open_world(tmp_path, agent=agent, more_toml=toml) as world:
        await world.open_issue()
        await world.comment("/ptq simplify")
        await world.wait_for_reply("No attempt has run on this issue yet")
        await world.label()
        first = await world.wait_for_report()
        await world.comment("/ptq simplify no new helper")
        second = await world.wait_for_report(2)
        job = (await world.jobs())[0]
        assert (job.preset, job.attempt, job.may_change) == ("simplify", 2, True)
        assert "# Simplify the change" in job.prompt
        assert "already holds its edits" in job.prompt
        assert "no new helper" in job.prompt
        assert "# more" in second
        assert "- size + 1" in second, "what was there before is in the diff, too"
        assert "# more" not in first
        await world.comment("/ptq run polish")
        third = await world.wait_for_report(3)
        assert "# more" in third, "a preset of the operator's can go on in the same way"
        polished = (await world.jobs())[0]
        assert (polished.preset, polished.follows) == ("polish", job.id)
        assert "1. Polish it." in polished.prompt


async def test_presets_of_the_operator_run_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "slow.md").write_text("1. Profile it.\n2. Say `{{ what }}` is slow.\n")
    more = f'[presets.slow]\nfile = "{tmp_path}/slow.md"\ngoal = "find out what is slow"\n'
    async with open_world(tmp_path, agent=WRITE_REPORT, more_toml=more) as world:
        await world.open_issue()
        await world.comment("/ptq run")
        listed = await world.wait_for_reply("Available presets")
        assert "- `/ptq run slow`: find out what is slow" in listed
        assert parse_commands(listed) == []
        await world.comment("/ptq run slw")
        await world.wait_for_reply("Available presets", 2)
        await world.comment("/ptq run slow look at the loop first")
        report = await world.wait_for_report()
        (job,) = await world.jobs()
        assert (job.preset, job.may_change) == ("slow", False)
        assert "2. Say `{{ what }}` is slow." in job.prompt
        assert "look at the loop first" in job.prompt
        assert "`/ptq run slow`" in report or "`/ptq fix`" in report
        await world.comment("/ptq simplify")
        await world.wait_for_reply("has no change")


async def test_who_may_triage_starts_jobs_where_the_operator_says_so_and_opens_nothing(tmp_path: Path) -> None:
    rules = 'who_may_start = "triage"\n'
    async with open_world(tmp_path, agent=WRITE_REPORT + FIX, repository_toml=rules) as world:
        world.github.add_user("helper")
        world.github.set_permission(NAME, "helper", "triage")
        await world.open_issue()
        await world.comment("/ptq run ad-hoc", by="helper")
        await world.wait_for_reply("needs instructions after it")
        await world.comment("/ptq run ad-hoc\n\nMeasure it for ten million rows.", by="helper")
        await world.wait_for_report()
        (job,) = await world.jobs()
        assert "Measure it for ten million rows." in job.prompt
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}", by="helper")
        await world.wait_for_reply("you need write access")
        await world.comment("/ptq help", by="helper")
        assert "| triage access |" in await world.wait_for_reply("| Command |")
        await world.settle()
        assert world.pulls() == []


async def test_a_removed_label_or_a_closed_issue_cancels_a_job_that_has_not_begun(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT) as world:
        await world.operate("machines", "drain", "gpu-1")
        await world.open_issue()
        await world.label("ptq:fix")
        await world.wait_for_job("queued")
        await world.github.unlabel_issue(NAME, world.number, "ptq:fix", "maintainer")
        assert "cancelled by" in await world.wait_for_report()

        await world.open_issue()
        await world.label("ptq")
        await world.wait_for_job("queued")
        await world.github.close_issue(NAME, world.number, "drive-by")
        await world.wait_for_report()
        assert [job.state for job in await world.jobs()] == ["cancelled"] * 2

        world.commit({".github/ptq.toml": 'labels = { "ptq" = "repro" }\n'})
        await world.open_issue()
        await world.label("ptq")
        assert (await world.wait_for_job("queued")).preset == "repro"
        await world.github.unlabel_issue(NAME, world.number, "ptq", "maintainer")
        assert "cancelled by" in await world.wait_for_report(), "also if the repository gives the label another preset"


async def test_a_running_job_goes_on_when_its_issue_is_closed_and_its_label_is_removed(tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)\n"
    async with open_world(tmp_path, agent=WRITE_REPORT + wait + FIX) as world:
        await world.open_issue()
        await world.label("ptq:fix")
        await world.wait_for_job("running")
        before = len(world.github.exchanges)
        await world.github.close_issue(NAME, world.number, "drive-by")
        await world.comment("/ptq help")  # Its turn is after the close.
        await world.wait_for_reply("| Command |")
        asked = [(each.method, each.path) for each in world.github.exchanges[before:]]
        assert ("GET", f"/repos/{NAME}/issues/{world.number}") not in asked
        await world.github.unlabel_issue(NAME, world.number, "ptq:fix", "maintainer")
        await world.comment("/ptq help")
        await world.wait_for_reply("| Command |", 2)
        go.touch()
        assert "### Fix staged" in await world.wait_for_report()


async def test_the_operator_stops_everything_new_at_once(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT) as world:
        await world.operate("machines", "drain", "gpu-1")
        await world.open_issue()
        await world.comment("/ptq diagnose")
        job = await world.wait_for_job("queued")
        said = await world.operate("pause", "--repository", "octo/gadgets", status=2)
        assert "there is no repository 'octo/gadgets'; configured: octo/widgets" in said
        assert "no new job begins in octo/widgets" in await world.operate("pause", "--repository", "Octo/Widgets")
        await world.operate("machines", "resume", "gpu-1")
        await world.wait_for_reply("the operator of this App has paused new jobs")
        first = world.number
        await world.open_issue()
        await world.comment("/ptq diagnose")
        await world.wait_for_reply("Not started: the operator of this App has paused new jobs")
        assert await world.leases() == 0
        assert "nothing was paused anywhere\nstill paused in octo/widgets" in await world.operate("resume")
        assert "may begin in octo/widgets" in await world.operate("resume", "--repository", "octo/widgets")
        world.number = first
        await world.wait_for_report()
        assert [each.id for each in await world.jobs()] == [job.id]


async def test_a_label_pauses_its_repository_until_it_is_taken_off(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT) as world:
        await world.open_issue()
        await world.label("ptq:pause", by="drive-by")
        await world.wait_for_reply("Only people with write access")
        await world.github.unlabel_issue(NAME, world.number, "ptq:pause", "drive-by")
        await world.label("PTQ:pause")
        await world.wait_for_reply("Paused by @maintainer")
        await world.comment("/ptq diagnose")
        await world.wait_for_reply("@maintainer has paused new jobs in this repository (#1)")
        await world.github.unlabel_issue(NAME, world.number, "ptq:pause", "maintainer")
        await world.wait_for_reply("New jobs can start again")
        await world.comment("/ptq diagnose")
        await world.wait_for_report()


async def test_a_repository_narrows_what_may_be_asked_for(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT) as world:
        rules = 'presets = ["repro"]\nlabels = { "ptq" = "repro" }\n[quotas]\nissue = 1\n'
        world.commit({".github/ptq.toml": rules})
        await world.open_issue()
        await world.label("ptq:fix")
        await world.comment("/ptq fix")
        listed = await world.wait_for_reply("Available presets:\n\n- `/ptq repro`")
        assert "/ptq fix" not in listed
        await world.label("ptq")
        await world.wait_for_report()
        assert [job.preset for job in await world.jobs()] == ["repro"]
        await world.comment("/ptq repro")
        await world.wait_for_reply("the cap of 1 job for all attempts together")


async def test_rules_that_are_broken_stop_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=WRITE_REPORT + "time.sleep(60)\n") as world:
        await world.open_issue()
        await world.comment("/ptq fix")
        await world.wait_for_job("running")
        world.commit({".github/ptq.toml": 'presets = ["repro"]\nwho_may_start = "nobody"\n'})
        await world.comment("/ptq cancel")
        await world.wait_for_report()
        await world.comment("/ptq fix")
        refusal = await world.wait_for_reply("Invalid `.github/ptq.toml` on the default branch")
        assert "line 2, who_may_start: Input should be" in refusal
        await world.comment(f"/ptq pr\n\n{NOTE}")
        await world.wait_for_reply("Fix it to use ptq-bot", 2)
        await world.settle()
        assert len(await world.jobs()) == 1
