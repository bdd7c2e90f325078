"""What a pull request is made of, and where: as the repository's table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.demo.repository import NAME
from tests.support.world import FIX, NOTE, WRITE_REPORT, World, open_world

pytestmark = pytest.mark.slow

AGENT = WRITE_REPORT + FIX


async def report(world: World) -> str:
    """A note on the report on a new issue."""
    await world.open_issue()
    await world.label()
    await world.wait_for_report()
    return f"/ptq pr {world.digest()}\n\n{NOTE}"


def read_commit(world: World, sha: str, git_dir: Path | None = None) -> list[str]:
    """Author, committer and message."""
    words = ("log", "-1", "--format=%an <%ae>%x00%cn <%ce>%x00%B", sha)
    return world.git(*([f"--git-dir={git_dir}"] if git_dir else []), *words).split("\0")


async def test_a_pull_request_is_the_apps_is_assigned_to_its_approver_and_keeps_the_templates_headings(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path, agent=AGENT, repository_toml="max_open_pulls = 2") as world:
        await world.comment(await report(world))
        pull = await world.wait_for_pull()
        assert [user.login for user in pull.assignees] == ["maintainer"]
        author, committer, message = read_commit(world, pull.head_sha)
        assert author.startswith("ptq-bot[bot] <")
        assert committer == "GitHub <noreply@github.com>"
        assert "Signed-off-by" not in message

        # A failed assignment changes nothing else. The headings of the template are below the note.
        world.github.faults.add("POST", "/repos/octo/widgets/issues/4/assignees", 403)
        template = "## Summary\n<!-- be brief -->\n## Root cause\n\n## Checklist\n- [ ] I have read it\n"
        world.commit({".github/Pull_Request_Template.md": template, "docs/pull_request_template.md": "# Other"})
        await world.comment(await report(world))
        await world.wait_for_reply("Draft pull request #4 is open")
        second = world.pulls()[1]
        assert second.assignees == []
        said = "## Summary\n\nSee the note above.\n\n## Root cause\n\n*In the agent's words:*\n\n> An early end."
        said = f"**@maintainer wrote:**\n\n{NOTE}\n\n<!-- ptq:pull={(await world.jobs())[0].id} -->\n\n{said}"
        assert second.body.startswith(
            f"{said}\n\n## Checklist\n\nn/a\n\nFixes #{world.number}\n\n**What the agent says**"
        )

        # The answer to a note beyond the limit names the open ones. The note can be repeated later.
        note = await report(world)
        await world.comment(note)
        await world.wait_for_reply(f"(#{pull.number}, #{second.number}), and the limit is 2")
        assert world.pulls() == [pull, second]
        await world.github.close_issue(NAME, pull.number, by="maintainer")
        await world.comment(note)
        await world.wait(lambda: world.pulls()[2:] or None, "the third pull request")
        await world.wait_for_reply("Draft pull request #6")
        await world.settle()
        assert len(world.pulls()) == 3


def add_fork(world: World, folder: Path) -> Path:
    """A fork without the App, which has the objects of what it is a fork of, as on GitHub."""
    fork = folder / "fork.git"
    world.git("clone", "--quiet", "--bare", "--shared", ".", str(fork))
    world.github.add_repository("forks/widgets", fork, installed=False, fork_of=NAME)
    return fork


@pytest.mark.slow(30)
async def test_the_operator_can_have_branches_in_a_fork_and_commits_that_the_approver_signs_off(
    tmp_path: Path,
) -> None:
    differently = "pathlib.Path('attempt.txt').write_text(os.environ['PTQ_JOB_ID'])\n"
    toml = 'push_to = "forks/widgets"\ncommit_author = "approver"\nsign_off = true'
    async with open_world(tmp_path, agent=AGENT + differently, repository_toml=toml) as world:
        fork = add_fork(world, tmp_path)
        note = await report(world)
        await world.comment(note)
        await world.wait_for_reply("the App is not installed on forks/widgets")
        assert world.pulls() == []

        world.github.set_installed("forks/widgets", True)
        await world.comment(note)
        pull = await world.wait_for_pull()
        assert (pull.source.full_name, pull.base) == ("forks/widgets", "main")
        author, committer, message = read_commit(world, pull.head_sha, fork)
        person = f"maintainer <{world.github.add_user('maintainer').id}+maintainer@users.noreply.github.com>"
        bot = world.github.add_user("ptq-bot[bot]").id
        assert (author, committer) == (person, f"ptq-bot[bot] <{bot}+ptq-bot[bot]@users.noreply.github.com>")
        assert message.rstrip().endswith(f"\n\nSigned-off-by: {person}")

        await world.comment("/ptq fix")
        await world.wait_for_report(2)
        await world.comment(f"/ptq pr {world.digest()}\n\n{NOTE}")
        await world.wait_for_reply(f"Pull request #{pull.number} now has this diff")
        assert world.pulls() == [pull]
        assert world.git("branch", "--format=%(refname:short)").split() == ["main"]
        assert world.git(f"--git-dir={fork}", "rev-parse", pull.head).strip() == pull.head_sha
