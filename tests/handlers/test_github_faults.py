"""Whatever GitHub does to us: nothing spins, nothing is lost, nothing is said twice, and the state is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from github_standin.model.faults import ApiKind
from handlers.effects.outbox import count_backlog, list_troubles
from handlers.effects.retry_policy import MAX_WAIT_S
from handlers.pulls.pull_steps import name_branch
from tests.support.mishaps import NAME, UNHURRIED_S, URL, Counter, open_counter

pytestmark = pytest.mark.slow

FOR_EVER = 10_000
DONE = "done"
SHORT = f"GitHub rejected this comment's text: [read it here]({URL}/jobs/0123456789)."


@dataclass(frozen=True)
class Row:
    """A mishap, and what becomes of a reply, of an edit, of a pull request, and of a question for a permission.

    That is `done`, or the reason for which it was given up.
    """

    kind: ApiKind
    times: int
    reply: str = DONE
    edit: str = DONE
    pull: str = DONE
    asked: str = DONE
    message: str = "Server Error"
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


GONE = "the issue was deleted, moved, or converted to a discussion"
COMMENT_GONE = "our comment or its issue was deleted, moved, or converted to a discussion"
LOCKED, ARCHIVED = "the issue is locked", "the repository is archived"
SUSPENDED = "the installation is suspended"
MOVED = "the repository or the issue has moved to a place that the App cannot access"

ROWS = {
    "500": Row(500, 3),
    "502": Row(502, 3),
    "503": Row(503, 3),
    "reset before it was done": Row("reset", 3),
    "reset after it was done": Row("lose_answer", 1),
    "time-out": Row("delay", 1, delay_s=0.5),
    "429": Row(429, 2),
    "429 with Retry-After": Row(429, 2, headers={"Retry-After": "30"}),
    "secondary 403": Row(403, 2, message="You have exceeded a secondary rate limit."),
    "secondary 403 with Retry-After": Row(403, 2, message="Wait.", headers={"Retry-After": "7200"}),
    "401 once": Row(401, 1, message="Bad credentials"),
    "401 for a while": Row(401, 7, message="Bad credentials"),
    "404 for a moment": Row(404, 2, message="Not Found", asked="refused"),
    "404 for good": Row(404, FOR_EVER, GONE, COMMENT_GONE, "404", "refused", "Not Found"),
    "410": Row(410, FOR_EVER, GONE, COMMENT_GONE, "410", "refused", "This issue was deleted"),
    "locked": Row(403, FOR_EVER, LOCKED, LOCKED, "locked", "failed", "Unable to create comment: issue is locked."),
    "archived": Row(
        403, FOR_EVER, ARCHIVED, ARCHIVED, "archived", "failed", "Repository was archived so is read-only."
    ),
    "suspended": Row(
        403, FOR_EVER, SUSPENDED, SUSPENDED, "suspended", "failed", "This installation has been suspended"
    ),
    "suspended for a while": Row(403, 2, message="This installation has been suspended"),
    "moved out of reach": Row(301, FOR_EVER, MOVED, MOVED, "301", "failed", "Moved Permanently"),
    "invalid for good": Row(
        422, FOR_EVER, "GitHub rejected the text", "GitHub rejected the text", "422", "failed", "Invalid"
    ),
    "submitted too quickly": Row(422, 3, message="Validation Failed: was submitted too quickly", pull="too quickly"),
}
HURRIED_S = 0.3
PATIENCE = [(row, HURRIED_S if row.delay_s else UNHURRIED_S) for row in ROWS.values()]
TABLE = pytest.mark.parametrize(("row", "timeout_s"), PATIENCE, ids=ROWS)


@pytest.fixture
def timeout_s() -> float:
    return UNHURRIED_S


@pytest.fixture
async def counter(tmp_path: Path, timeout_s: float) -> AsyncIterator[Counter]:
    async with open_counter(tmp_path, timeout_s) as counter:
        yield counter


def order(counter: Counter, row: Row, method: str, path: str) -> None:
    counter.github.faults.add(
        method, path, row.kind, times=row.times, delay_s=row.delay_s, message=row.message, headers=row.headers
    )


def check_patience(counter: Counter, calls: int, longest_s: float = MAX_WAIT_S) -> None:
    """Every repeat came after a wait that is neither short nor endless, and they were few."""
    assert all(1 <= wait_s <= longest_s for wait_s in counter.waits_s), counter.waits_s
    assert counter.waits_s == sorted(counter.waits_s), "a wait may not shrink while the trouble lasts"
    assert calls <= 2 * (len(counter.waits_s) + 2)


def count_calls(counter: Counter, method: str, ending: str) -> int:
    return len([seen for seen in counter.github.exchanges if seen.method == method and seen.path.endswith(ending)])


@TABLE
async def test_a_reply_ends_posted_once_or_given_up_with_a_reason(counter: Counter, row: Row) -> None:
    job = await counter.add_job()
    order(counter, row, "POST", "*/issues/1/comments")
    reply_id = await counter.add_reply(job)
    await counter.post(rest_s=2 * row.delay_s)
    reply = await counter.reply(reply_id)
    assert (reply.abandoned or DONE, reply.trouble) == (row.reply, None)
    assert counter.comments() == (["Here it is."] if row.reply == DONE else [])
    check_patience(counter, count_calls(counter, "POST", "/comments"))
    async with counter.db.read() as connection:
        troubles = await list_troubles(connection, job)
    backlog = await count_backlog(counter.db)
    if row.reply == DONE:
        assert (troubles, backlog.waiting, backlog.abandoned, backlog.reasons) == ([], 0, 0, {})
    else:
        assert troubles == [f"Its report was given up: {row.reply}."]
        assert (backlog.waiting, backlog.abandoned, backlog.reasons) == (0, 1, {"octo": {row.reply: 1}})


@TABLE
async def test_an_edit_ends_made_or_given_up_with_a_reason(counter: Counter, row: Row) -> None:
    reply_id = await counter.add_reply(await counter.add_job(), "status")
    await counter.post()
    order(counter, row, "PATCH", "*/issues/comments/*")
    await counter.edit_reply(reply_id, "It goes on.")
    await counter.post(rest_s=2 * row.delay_s)
    reply = await counter.reply(reply_id)
    assert (reply.abandoned or DONE, reply.trouble) == (row.edit, None)
    assert counter.comments() == (["It goes on."] if row.edit == DONE else ["Here it is."])
    check_patience(counter, count_calls(counter, "PATCH", ""))


@TABLE
async def test_a_pull_request_ends_open_once_or_given_up_with_a_reason(counter: Counter, row: Row) -> None:
    job = await counter.add_job()
    order(counter, row, "POST", "*/pulls")
    await counter.add_pull(job)
    await counter.open(rest_s=2 * row.delay_s)
    pull = await counter.pull(job)
    assert pull.trouble is None
    assert len(counter.github.pulls(NAME)) == (row.pull == DONE)
    check_patience(counter, count_calls(counter, "POST", "/pulls"))
    if row.pull == DONE:
        assert (pull.number, pull.abandoned) == (2, None)
        return
    assert row.pull in (pull.abandoned or "")
    async with counter.db.read() as connection:
        (trouble,) = await list_troubles(connection, job)
    assert trouble == f"Its pull request was given up: {pull.abandoned}."
    await counter.post()
    assert (
        "Could not open the pull request" in counter.comments()[0]
        or "GitHub rejected this comment's text" in counter.comments()[0]
    )


async def test_a_pull_request_of_somebody_else_from_our_branch_is_not_taken_for_ours(counter: Counter) -> None:
    job = await counter.add_job()
    await counter.add_pull(job)
    where, branch = counter.github._world.repository(NAME), name_branch(job)
    await where.git.run("update-ref", f"refs/heads/{branch}", counter.base)
    number = await counter.github.open_pull(NAME, "Fix it", f"<!-- ptq:pull={job.id} -->", "alice", branch)
    await counter.open()
    assert len(counter.github.pulls(NAME)) == 1
    assert f"`alice` has opened pull request #{number}" in ((await counter.pull(job)).abandoned or "")
    await counter.github.close_issue(NAME, number, by="alice")
    await counter.add_pull(job)
    await counter.open()
    assert "exists with another commit" in ((await counter.pull(job)).abandoned or "")


async def test_a_note_whose_author_may_write_no_more_opens_nothing(counter: Counter) -> None:
    job = await counter.add_job()
    counter.github.faults.add("POST", "*/git/trees", 502)
    await counter.add_pull(job)
    await counter.open(passes=1)
    counter.github.set_permission(NAME, "alice", "read")
    await counter.open()
    assert counter.github.pulls(NAME) == []
    assert count_calls(counter, "POST", "/git/refs") == 0
    assert (await counter.pull(job)).abandoned == "alice no longer has write access, so the note is not valid"
    await counter.post()
    assert "no longer has write access" in counter.comments()[0]


@TABLE
async def test_a_question_for_a_permission_ends_answered_or_set_aside(counter: Counter, row: Row) -> None:
    order(counter, row, "GET", "*/collaborators/alice/permission")
    state = await counter.admit(rest_s=2 * row.delay_s)
    if row.asked == "failed":
        assert (state, counter.admitted) == ("failed", [])
    else:
        # Fail closed: where GitHub does not know a person, the answer is no.
        assert (state, counter.admitted) == ("done", [row.asked == DONE])
    check_patience(counter, count_calls(counter, "GET", "/permission") // 3, longest_s=7200)


async def test_our_marker_in_somebody_elses_comment_is_none(counter: Counter) -> None:
    reply_id = await counter.add_reply(await counter.add_job())
    forged = f"{(await counter.reply(reply_id)).marker}\nI say this for you."
    await counter.github.comment(NAME, 1, forged, by="alice")
    counter.github.faults.add("POST", "*/issues/1/comments", "reset")
    await counter.post()
    assert counter.comments() == ["I say this for you.", "Here it is."]


async def test_while_a_reply_waits_its_trouble_is_shown(counter: Counter) -> None:
    job = await counter.add_job()
    order(counter, ROWS["locked"], "POST", "*/issues/1/comments")
    await counter.add_reply(job)
    await counter.post(passes=2)
    async with counter.db.read() as connection:
        assert await list_troubles(connection, job) == ["Its report waits: the issue is locked."]
    backlog = await count_backlog(counter.db)
    assert (backlog.waiting, backlog.abandoned, backlog.reasons) == (1, 0, {"octo": {"the issue is locked": 1}})


async def test_a_comment_that_a_human_deleted_is_not_posted_again_and_the_report_still_is(counter: Counter) -> None:
    job = await counter.add_job()
    status = await counter.add_reply(job, "status", "At work.")
    await counter.post()
    comment_id = (await counter.reply(status)).comment_id
    assert comment_id
    await counter.github.delete_comment(NAME, comment_id, by="alice")
    await counter.edit_reply(status, "Still at work.")
    await counter.add_reply(job, "report", "Fixed.")
    await counter.post()
    assert counter.comments() == ["Fixed."]
    assert ((await counter.reply(status)).abandoned or "").startswith("our comment or its issue")


async def test_a_text_that_github_refuses_is_posted_in_a_short_form_that_links_the_page(counter: Counter) -> None:
    counter.github.limits.body_characters = 300
    reply_id = await counter.add_reply(await counter.add_job(), "report", "x" * 300)
    await counter.post()
    assert counter.comments() == [SHORT]
    assert (await counter.reply(reply_id)).abandoned is None
    assert counter.waits_s == []


async def test_a_renamed_repository_is_written_to_by_its_former_name(counter: Counter) -> None:
    job = await counter.add_job()
    status = await counter.add_reply(job, "status", "At work.")
    await counter.post()
    counter.github.rename_repository(NAME, "gadgets")
    counter.name = "octo/gadgets"
    await counter.edit_reply(status, "Still at work.")
    await counter.add_reply(job, "report", "Fixed.")
    await counter.add_pull(job)
    await counter.post()
    await counter.open()
    # The token that was minted under the former name has expired.
    counter.clock.forward(2 * 3600)
    await counter.edit_reply(status, "Done.")
    await counter.post()
    assert counter.comments()[:2] == ["Done.", "Fixed."]
    assert [pull.draft for pull in counter.github.pulls("octo/gadgets")] == [True]
    assert await counter.admit() == "done"
    assert counter.admitted == [True]


async def test_a_transferred_issue_ends_with_a_reason(counter: Counter) -> None:
    elsewhere = f"{counter.github.api_url}/repos/octo/elsewhere/issues/1/comments"
    counter.github.faults.add(
        "POST", f"/repos/{NAME}/issues/1/comments", 301, times=FOR_EVER, headers={"Location": elsewhere}
    )
    reply_id = await counter.add_reply(await counter.add_job())
    await counter.post()
    assert (await counter.reply(reply_id)).abandoned == GONE


async def test_an_app_that_was_removed_and_comes_back_says_what_it_has_to_say(counter: Counter) -> None:
    job = await counter.add_job()
    repository = counter.github._world.repository(NAME)
    repository.installed = False
    await counter.add_reply(job)
    await counter.post(passes=9)
    async with counter.db.read() as connection:
        (trouble,) = await list_troubles(connection, job)
    assert trouble.startswith("Its report waits: the App is not installed there")
    assert await counter.admit(passes=3) == "pending"
    repository.installed = True
    await counter.post()
    assert counter.comments() == ["Here it is."]


async def test_an_app_that_was_suspended_gives_up_after_hours_with_a_reason(counter: Counter) -> None:
    order(counter, ROWS["suspended"], "POST", "*/access_tokens")
    reply_id = await counter.add_reply(await counter.add_job())
    await counter.post()
    assert (await counter.reply(reply_id)).abandoned == SUSPENDED
    assert sum(counter.waits_s) > 3 * 3600


async def test_a_permission_that_the_app_lacks_is_no_fault_of_the_text(counter: Counter) -> None:
    message = "The permissions requested are not granted to this installation."
    counter.github.faults.add("POST", "*/access_tokens", 422, times=4, message=message)
    await counter.add_reply(await counter.add_job())
    await counter.post()
    assert counter.comments() == ["Here it is."]


async def test_an_accident_of_our_own_waits_too(counter: Counter) -> None:
    job = await counter.add_job()
    reply_id = await counter.add_reply(job)
    await counter.session.close()
    with structlog.testing.capture_logs() as lines:
        await counter.post(passes=2)
    assert [line["exc_info"] for line in lines if line["event"] == "reply.waits_for_github"] == [True, True]
    reply = await counter.reply(reply_id)
    assert reply.trouble == "an internal error (see the service log)"
    assert counter.waits_s == [15, 15], "it may have been sent all the same"
