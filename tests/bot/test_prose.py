"""Reports as pages show them: a stranger's Markdown, and what it may not do."""

from __future__ import annotations

import pytest

from bot.web.dashboard.prose import MAX_PROSE, render_prose
from handlers.text.sanitize import redact
from runner.characters import show_invisible
from tests.support.site import SECRET, Page

TAGS = {"a", "blockquote", "code", "div", "em", "li", "ol", "p", "pre", "s", "strong", "ul"} | {"h3", "h4", "h5", "h6"}
TAGS |= {"br", "hr", "table", "thead", "tbody", "tr", "th", "td"}
ATTRIBUTES = {"class", "href", "rel", "tabindex", "role", "aria-label", "start"}


def clean(text: str) -> str:
    return show_invisible(redact(text, (SECRET, "line one\nline two")))


def render(text: str) -> Page:
    page = Page(200, {}, str(render_prose(text, clean)))
    assert {tag for tag, _ in page.tags} <= TAGS
    assert {name for _, attrs in page.tags for name in attrs} <= ATTRIBUTES
    assert all(attrs["rel"] == "noopener nofollow noreferrer" for tag, attrs in page.tags if tag == "a")
    return page


def tags_of(page: Page) -> list[str]:
    return [tag for tag, _ in page.tags]


def test_a_report_has_its_shape_below_the_headings_of_the_page() -> None:
    page = render("# One\n\n###### Six\n\n* a **b** ~~c~~\n\n```py\nx < 1\n```\n\n| h |\n|--:|\n| d |\n")
    assert tags_of(page)[:3] == ["div", "h3", "h6"]
    assert tags_of(render("#### Four\n\n##### Five\n"))[1:] == ["h3", "h4"], "no level is left out"
    assert {"li", "strong", "s", "pre", "code", "td"} <= set(tags_of(page))
    assert "x < 1" in page.text
    assert "right" in page.classes()


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<div>\n<img src=x onerror=alert(1)>\n</div>",
        "a <b onclick=x hx-get=/>b</b> <!-- c -->",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        '`<script>`\n\n    <script>\n\n```<script> "onx=\n<script>\n```',
        "# <img src=x>\n\n> <iframe src=x>\n\n| <form> |\n|--|\n| </table></section> |",
    ],
)
def test_html_in_a_report_is_words(text: str) -> None:
    assert "<" in render(text).text


@pytest.mark.parametrize(
    "address",
    [
        *(
            "javascript:alert(1)",
            "JaVaScRiPt&colon;alert(1)",
            "java&#115;cript:alert(1)",
            "vbscript:x",
            "/jobs",
            "//x.y",
        ),
        *(
            "data:text/html,<script>",
            "data:image/png;base64,AA",
            "file:///etc/passwd",
            "mailto:a@b.c",
            "#main",
            "http:x",
        ),
        *("https://a.b/?k=a%20secret%20%6Ff%20the%20operator", "https://a.b/%E2%80%AE", "ftp://a.b", "//x.y", "http:x"),
    ],
)
def test_a_link_leads_into_the_web_or_nowhere(address: str) -> None:
    for text in (f"[name]({address})", f"[name]: {address}\n\n[name]", f"<{address}>", f"![name]({address})"):
        assert render(text).links() == []


def test_a_link_keeps_no_secret_that_is_spelt_for_addresses() -> None:
    [link] = render("[name](https://a.b/?k=a%20secret%20of%20the%20operator)").links()
    assert link.startswith("https://a.b/?k=")
    assert "operator" not in link


def test_links_and_pictures_lead_where_they_say_and_load_nothing() -> None:
    page = render(
        '[a](https://a.b/c "t") ![p *q*](http://d.e/f.png) [![g](https://h.i)](https://j.k) <https://l.m> ![](x)'
    )
    assert page.links() == ["https://a.b/c", "http://d.e/f.png", "https://j.k", "https://l.m"]
    assert page.text.strip() == "a p q g https://l.m image"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("## Next step", "agent: Next step"),
        ("**Seen by ptq-bot**, each time", "agent: Seen by ptq-bot, each time"),
        ("a\\\n✅ fails on base", "a\nagent: ✅ fails on base"),
        ("* :warning: look", "agent: :warning: look"),
        ("# Fix staged", "agent: Fix staged"),
        ("Done\n---", "agent: Done"),
        ("👉 *Done*", "agent: 👉 Done"),
        ("| Done | x |\n|---|---|", "agent: Done x"),
        ("| a | **Done** |\n|---|---|\n| b | *Lost* |", "a agent: Done b agent: Lost"),
        ("Seen [by](https://a.b) ptq-bot", "agent: Seen by ptq-bot"),
    ],
)
def test_words_that_look_like_ours_say_who_wrote_them(text: str, shown: str) -> None:
    assert render(text).text.split() == shown.split()


@pytest.mark.parametrize(
    "text", ["# Summary", "Done", "Fix staged\nDone", "a [Done](https://a.b)", "| a |\n|--|\n| Done |"]
)
def test_other_words_stay_as_they_are(text: str) -> None:
    assert "agent:" not in render(text).text


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        SECRET.replace("secret", "sec**re**t"),
        SECRET.replace("e", "&#101;"),
        SECRET.replace("secret", "s[ecr](https://a.b)et"),
        SECRET.replace("secret", "![secret](x)"),
        SECRET.replace("secret", "s\\ecret").replace("\\e", "`e`"),
        "> line one\n> line two",
        "* line one\n* line two",
        "```\nline one\nline two\n```",
        "> ```\n> line one\n> line two\n> ```",
        "gh*p*_" + "a1B2" * 9,
        f"| {SECRET.replace('of', '*of*')} |\n|--|",
    ],
)
def test_no_secret_comes_out_of_its_marks(text: str) -> None:
    shown = render(f"# Before\n\n{text}\n\nafter").text
    assert "[redacted]" in shown
    assert "after" in shown
    assert SECRET not in shown
    assert "line two" not in shown
    assert "a1B2" not in shown


def test_what_nobody_sees_is_written_out_however_it_is_said() -> None:
    assert "a⟨U+202E⟩b⟨U+200B⟩" in render("a&#x202e;b\u200b").text
    assert render("[a\u202eb](https://c.d)").text.strip() == "a⟨U+202E⟩b"


HOSTILE = (
    *(
        "[",
        "![",
        "](",
        "[a](",
        "[a][",
        "[[a]",
        "![a](b",
        "<https://a>",
        "<",
        ">",
        "> ",
        "- ",
        "1. ",
        "*",
        "_",
        "*a_",
        "**a",
    ),
    *(
        "`",
        "~",
        "~~a",
        "\\",
        "|",
        "a|\n",
        "&#",
        "# ",
        "\n- ",
        "\n\t",
        "[a]: x\n",
        "*a **a ",
        "  ",
        "```\n",
        "|a|b|c|d|e|f|g|h\n",
        "|-|-|-|-|-|-|-|-\n",
    ),
)


TABLE = f"{'|a' * 100}\n{'|-' * 100}\n{'|a' * 10}" + "\n|a" * 1000
"""Small as it is: each of its rows would have a hundred cells."""


@pytest.mark.slow
@pytest.mark.parametrize(("length", "every"), [(MAX_PROSE, 5), (MAX_PROSE // 8, 1), (65_536, 1)])
def test_no_text_is_lost_or_never_done(length: int, every: int) -> None:
    for unit in HOSTILE[::every]:
        text = f"{'![' * 12}{unit * length}"[: length - 4] + "\n\nE"
        page = render(text)
        assert "E" in page.text or unit == "```\n", unit


@pytest.mark.parametrize(
    "text", [">" * 60 + " deep", "- " * 60 + "deep", "x " * MAX_PROSE + "deep", "[" * 15_000 + "deep"]
)
def test_what_is_too_deep_or_too_long_is_shown_as_it_was_typed(text: str) -> None:
    page = render(text)
    assert tags_of(page) == ["pre"]
    assert page.text == text
