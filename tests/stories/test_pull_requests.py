"""What a pull request is made of, and where: as the repository's table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.repository import NAME
from github_standin import Pull
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + FIX


async def approve(world: World, *, title: str = "") -> Pull:
    """An issue, a job, a report and a note, and the pull request that comes of them."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()
    await world.comment(f"/ptq pr {world.digest()}{title}\n\n{NOTE}")
    return await world.wait_for_pull()


async def test_the_approver_is_assigned_and_what_stands_in_the_way_of_that_costs_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT) as world:
        pull = await approve(world)
        assert [user.login for user in pull.assignees] == ["maintainer"]
        world.github.faults.add("POST", "/repos/octo/widgets/issues/4/assignees", 403)
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_reply("Draft pull request #4 is open")
        assert world.pulls()[1].assignees == []


async def test_a_commit_is_the_apps_and_signed_by_github_unless_the_operator_wants_a_persons(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT) as world:
        pull = await approve(world)
        author, committer, message = read_commit(world, pull.head_sha)
        assert author.startswith("ptq-bot[bot] <")
        assert committer == "GitHub <noreply@github.com>"
        assert "Signed-off-by" not in message


async def test_the_approver_is_the_author_and_signs_off_where_the_operator_wants_it(tmp_path: Path) -> None:
    asked = 'commit_author = "approver"\nsign_off = true'
    async with open_world(tmp_path, agent=AGENT, repository_toml=asked) as world:
        pull = await approve(world)
        author, committer, message = read_commit(world, pull.head_sha)
        person = f"maintainer <{world.github.add_user('maintainer').id}+maintainer@users.noreply.github.com>"
        bot = world.github.add_user("ptq-bot[bot]").id
        assert (author, committer) == (person, f"ptq-bot[bot] <{bot}+ptq-bot[bot]@users.noreply.github.com>")
        assert message.rstrip().endswith(f"\n\nSigned-off-by: {person}")


def read_commit(world: World, sha: str) -> list[str]:
    """Author, committer and message."""
    return world.git("log", "-1", "--format=%an <%ae>%x00%cn <%ce>%x00%B", sha).split("\0")


async def test_a_template_of_the_repository_keeps_its_headings_below_the_note(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT) as world:
        template = "## Summary\n<!-- be brief -->\n## Root cause\n\n## Checklist\n- [ ] I have read it\n"
        world.commit({".github/Pull_Request_Template.md": template, "docs/pull_request_template.md": "# Other"})
        pull = await approve(world)
        said = "## Summary\n\nSee the note above.\n\n## Root cause\n\n*In the agent's words:*\n\n> An early end."
        (job,) = await world.jobs()
        said = f"**@maintainer wrote:**\n\n{NOTE}\n\n<!-- ptq:pull={job.id} -->\n\n{said}"
        assert pull.body.startswith(
            f"{said}\n\n## Checklist\n\nn/a\n\nFixes #{world.number}\n\n**What the agent says**"
        )


FORK = 'push_to = "forks/widgets"'


def add_fork(world: World, folder: Path, *, installed: bool = True) -> Path:
    """A fork, which has the objects of what it is a fork of, as on GitHub."""
    fork = folder / "fork.git"
    world.git("clone", "--quiet", "--bare", "--shared", ".", str(fork))
    world.github.add_repository("forks/widgets", fork, installed=installed, fork_of=NAME)
    return fork


async def test_with_a_fork_to_push_to_no_branch_of_ours_comes_into_the_repository(tmp_path: Path) -> None:
    differently = "pathlib.Path('attempt.txt').write_text(os.environ['PTQ_JOB_ID'])\n"
    async with open_world(tmp_path, agent=AGENT + differently, repository_toml=FORK) as world:
        fork = add_fork(world, tmp_path)
        pull = await approve(world)
        assert (pull.source.full_name, pull.base) == ("forks/widgets", "main")
        await world.comment("/ptq fix")
        await world.wait_for_report(2)
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_reply(f"Pull request #{pull.number} now has this diff")
        assert world.pulls() == [pull]
        assert world.git("branch", "--format=%(refname:short)").split() == ["main"]
        assert world.git(f"--git-dir={fork}", "rev-parse", pull.head).strip() == pull.head_sha


async def test_a_fork_without_the_app_is_named_in_the_reply(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, repository_toml=FORK) as world:
        add_fork(world, tmp_path, installed=False)
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_reply("the App is not installed on forks/widgets")
        assert world.pulls() == []


async def test_a_note_that_would_open_one_too_many_names_the_open_ones_and_may_come_again(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AGENT, repository_toml="max_open_pulls = 1") as world:
        first = await approve(world)
        await world.open_issue()
        await world.label()
        await world.wait_for_report()
        note = f"/ptq pr {world.digest()}\n\n{NOTE}"
        await world.comment(note)
        await world.wait_for_reply(f"(#{first.number}), and the limit is 1")
        assert world.pulls() == [first]
        await world.github.close_issue(NAME, first.number, by="maintainer")
        await world.comment(note)
        await world.wait(lambda: world.pulls()[1:] or None, "the second pull request")
        await world.wait_for_reply("Draft pull request #4")
        await world.settle()
        assert len(world.pulls()) == 2
