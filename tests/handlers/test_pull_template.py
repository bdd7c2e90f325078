"""What of a repository's template comes into a pull request: its headings, and nothing that is live."""

from __future__ import annotations

import pytest

from handlers.words.pull_template import MAX_ANSWER, MAX_RENDERED, choose_template, render_template
from runner.model.job import Report
from tests.support.jobs import make_job

BODY = (
    "fix staged\n\n## Summary\nFixed.\n\n## Root cause\nAn early end.\n\n## Change\nThe loop goes on, see @boss.\n\n"
    "## Test\nFails on base.\n"
)
JOB = make_job(thread=7)


def render(template: str, body: str = BODY) -> str:
    return render_template(template, JOB, Report(JOB.id, body, "", "", "", "", (), None), ["s3cret-value"])


@pytest.mark.parametrize(
    ("paths", "chosen"),
    [
        ([".github/CODEOWNERS", ".github/pull_request_template.md"], ".github/pull_request_template.md"),
        (["README.md", "PULL_REQUEST_TEMPLATE.md"], "PULL_REQUEST_TEMPLATE.md"),
        (["docs/Pull_Request_Template.TXT"], "docs/Pull_Request_Template.TXT"),
        ([".github/pull_request_template.md", "pull_request_template.md"], ".github/pull_request_template.md"),
        (["pull_request_template.md.orig", "my_pull_request_template.md"], None),
    ],
)
def test_a_template_is_known_by_its_name_in_any_case(paths: list[str], chosen: str | None) -> None:
    assert choose_template(paths) == chosen


@pytest.mark.parametrize(
    ("heading", "answer"),
    [
        ("Description", "See the note above."),
        ("## What does this do?", "See the note above."),
        ("Related issue", "#7"),
        ("Root Cause", "An early end."),
        ("Changes", "The loop goes on, see @&#8203;boss."),
        ("Test plan", "Fails on base."),
        ("How has this been tested?", "Fails on base."),
        ("Changelog", "n/a"),
        ("Checklist", "n/a"),
        ("Screenshots", "n/a"),
    ],
)
def test_under_a_heading_stands_what_we_have_to_say_about_it(heading: str, answer: str) -> None:
    text = render(f"### {heading.lstrip('# ')}\n\nplease fill in\n")
    assert text.startswith(f"### {heading.lstrip('# ')}\n\n")
    assert text.endswith(answer)
    assert "please fill in" not in text
    assert ("In the agent's words" in text) == (answer not in ("See the note above.", "#7", "n/a"))


def test_a_section_that_the_agent_left_out_is_not_made_up() -> None:
    assert render("## Test plan\n", "fix staged\n\n## Summary\nFixed.\n") == "## Test plan\n\nn/a"


def test_headings_keep_their_order_and_rank_and_nothing_of_the_rest_comes_along() -> None:
    template = (
        "<!-- # Hidden\n\n## Also hidden -->\n# One\n- [ ] I agree to sell my soul\n\nTwo\n---\n```\n# code\n```\n"
        "> # quoted\n\n/ptq cancel\n\n### Three <!-- say it -->\n"
    )
    assert render(template) == "# One\n\nn/a\n\n## Two\n\nn/a\n\n### Three\n\nn/a"


def test_a_heading_mentions_closes_and_embeds_nothing_and_tells_no_secret() -> None:
    text = render("# @boss closes #3 ![x](http://x/y.png) <img src=x> s3cret-value\n")
    assert "@boss" not in text
    assert "closes #3" not in text
    assert "![" not in text
    assert "<img" not in text
    assert "s3cret-value" not in text


def test_neither_a_long_template_nor_a_long_report_floods_the_pull_request() -> None:
    many = "".join(f"# Test {'@a ' * 60}\n\n" for number in range(1_000))
    assert len(render(many, f"fix staged\n\n## Test\n{'word ' * 9_000}")) <= MAX_RENDERED
    one = render("# Test\n", f"fix staged\n\n## Test\n{'word ' * 9_000}")
    assert len(one) < MAX_ANSWER + 100


def test_a_template_without_headings_adds_nothing() -> None:
    assert render("Please be kind.\n") == render("") == ""
