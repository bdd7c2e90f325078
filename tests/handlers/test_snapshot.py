from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from handlers.events import Issue, IssueLabel, User
from handlers.jobs.snapshot import (
    MAX_ALL_COMMENTS,
    MAX_BODY,
    MAX_COMMENT,
    MAX_COMMENTS,
    MAX_READ,
    MAX_TITLE,
    NewestComments,
    Snapshot,
    freeze_issue,
)
from handlers.ports import Comment
from handlers.text.links import MAX_ADDRESS, MAX_LINKS
from handlers.text.repros import ReproScript

OPENED_AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FROZEN_AT = OPENED_AT + timedelta(hours=1)


def comment(number: int, body: str = "me too", author: str = "bob", **times: int) -> Comment:
    """A comment; `created` and `updated` are seconds from the trigger."""
    created = times.get("created", number - 1000)
    created_at, updated_at = (FROZEN_AT + timedelta(seconds=at) for at in (created, times.get("updated", created)))
    return Comment(number, author, body, created_at, updated_at, "", by_bot=author.endswith("[bot]"))


def freeze(
    *comments: Comment,
    title: str = "It fails",
    body: str = "",
    labels: Sequence[str] = (),
    trigger_comment_id: int | None = None,
) -> Snapshot:
    newest = NewestComments(FROZEN_AT, "ptq-bot[bot]", trigger_comment_id)
    for one in comments:
        newest.add(one)
    issue = Issue(
        number=7,
        title=title,
        user=User(login="alice"),
        body=body,
        labels=tuple(IssueLabel(name=label) for label in labels),
        created_at=OPENED_AT,
        updated_at=OPENED_AT,
    )
    return freeze_issue(issue, newest, ("widgets",))


def bodies(snapshot: Snapshot) -> list[str]:
    return [comment.body for comment in snapshot.comments]


def test_comments_up_to_the_trigger_are_kept_oldest_first() -> None:
    snapshot = freeze(comment(2, "second"), comment(1, "first"), comment(3, "now", created=0))
    assert bodies(snapshot) == ["first", "second", "now"]


def test_a_comment_after_the_trigger_is_left_out() -> None:
    assert bodies(freeze(comment(1, created=1))) == []


def test_a_comment_edited_after_the_trigger_is_left_out_whole() -> None:
    assert bodies(freeze(comment(1, created=-60, updated=1), comment(2, "kept", created=-60, updated=-1))) == ["kept"]


def test_our_own_comments_are_left_out() -> None:
    assert bodies(freeze(comment(1, author="PTQ-bot[bot]"), comment(2, author="ptq-bot"))) == ["me too"]


def test_the_comment_that_asked_is_left_out() -> None:
    asking, other = comment(1, "/ptq fix", created=0), comment(2, "also /ptq fix", created=0)
    assert bodies(freeze(asking, other, trigger_comment_id=1)) == ["also /ptq fix"]


def test_comments_of_other_bots_are_marked() -> None:
    snapshot = freeze(comment(1, author="ci[bot]"), comment(2))
    assert [(kept.author, kept.by_bot) for kept in snapshot.comments] == [("ci[bot]", True), ("bob", False)]


def test_repros_are_found_in_the_issue_and_in_kept_comments_only() -> None:
    def script(name: str) -> str:
        return f"```py\nimport widgets  # {name}\n```"

    snapshot = freeze(comment(1, script("early")), comment(2, script("late"), created=5), body=script("body"))
    assert snapshot.repros == (
        ReproScript("the issue", "python", "import widgets  # body"),
        ReproScript("comment by bob", "python", "import widgets  # early"),
    )


def test_hidden_text_is_neither_shown_nor_run() -> None:
    script = "```python\nimport widgets\n```"
    snapshot = freeze(comment(1, f"a\n<!--\n{script}\n-->"), title="a\u202eb\nc", body=f"<!--\n{script}\n-->z\u200bz")
    assert (snapshot.title, snapshot.body, snapshot.repros) == ("a⟨U+202E⟩b c", "z⟨U+200B⟩z", ())
    assert "import" not in bodies(snapshot)[0]


def test_images_and_links_are_listed_once_each_with_what_they_are() -> None:
    snapshot = freeze(
        comment(1, "see https://a.example/x(1), <https://b.example> and [c](javascript:run)"),
        comment(2, "later https://d.example", created=5),
        body="![](shots/1.png) <img src='https://e.example/2.png'>\n\n<a href=/f>f</a>\n\n`https://code.example`",
    )
    assert snapshot.links == (
        *("image: shots/1.png", "image: https://e.example/2.png", "link: /f"),
        *("link: https://a.example/x(1", "link: https://b.example", "link: javascript:run"),
    )


def test_of_many_links_the_first_are_listed() -> None:
    links = freeze(body=" ".join(f"https://{number}.example/{'x' * 300}" for number in range(MAX_LINKS + 9))).links
    assert [len(link) for link in links] == [MAX_ADDRESS] * MAX_LINKS


def test_a_long_body_is_cut_with_a_notice() -> None:
    snapshot = freeze(body="word " * 13_000)
    assert len(snapshot.body) == MAX_BODY
    assert snapshot.body.endswith("\n[cut here: the original has 65000 characters]")


@pytest.mark.parametrize("hidden", ["<!-- SECRET ", "![SECRET ", "<p title='SECRET "])
def test_the_cut_opens_nothing_that_was_hidden(hidden: str) -> None:
    snapshot = freeze(comment(1, f"a {hidden}{'word ' * MAX_COMMENT}"))
    assert bodies(snapshot)[0].startswith("a \n[cut here")


@pytest.mark.parametrize(
    ("opening", "end"),
    [
        ("see [this page][SECRET]", "[SECRET]: https://a.example"),
        ("see ![SECRET][p]", "[p]: https://a.example/1.png"),
        ("see this[^SECRET]", "[^SECRET]: a note"),
    ],
)
def test_what_is_defined_behind_the_cut_hides_nothing_before_it(opening: str, end: str) -> None:
    body = bodies(freeze(comment(1, f"{opening}\n\n(then) {'word ' * MAX_COMMENT}\n\n{end}")))[0]
    line = body.split("\n")[0]
    assert line.startswith("⟨perhaps unseen⟩") or "⟨footnote⟩[^SECRET" in line


def test_the_newest_comments_win_when_there_are_too_many() -> None:
    snapshot = freeze(*(comment(number, f"number {number}") for number in range(MAX_COMMENTS + 7)))
    assert bodies(snapshot) == [f"number {number}" for number in range(7, MAX_COMMENTS + 7)]
    assert snapshot.comments_left_out == 7


def test_the_newest_comments_win_when_they_are_too_long() -> None:
    snapshot = freeze(*(comment(number, f"{number} " + "x" * 2 * MAX_COMMENT) for number in range(20)))
    assert [body.split()[0] for body in bodies(snapshot)] == ["14", "15", "16", "17", "18", "19"]
    assert sum(map(len, bodies(snapshot))) <= MAX_ALL_COMMENTS


def test_only_so_much_of_the_comments_is_looked_at() -> None:
    hidden = f"<!-- {'x' * 2 * MAX_COMMENT} -->"
    snapshot = freeze(*(comment(number, hidden) for number in range(40)))
    assert len(snapshot.comments) == MAX_READ // (2 * MAX_COMMENT)
    assert snapshot.comments_left_out == 40 - len(snapshot.comments)


def test_titles_and_labels_are_bounded_lines() -> None:
    snapshot = freeze(title="long " * 1000, labels=["bug", "two\nlines", *"x" * 100])
    assert len(snapshot.title) == MAX_TITLE
    assert snapshot.labels[:2] == ("bug", "two lines")
    assert len(snapshot.labels) == 50
