"""The texts: cases of the corpus, some dozens to a text, and fragments that are repeated until a text is full."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.corpus import load_corpus

FULL = 60_000
"""Characters. GitHub takes comments of up to 65,536."""

TOGETHER = 40
"""Cases of the corpus in one text."""

FRAGMENTS = (
    *("@", "@a", "@a/", "#1", "a#1", "GH-1", "fixes ", "fixes #1 ", "closes: ", "/", "\\/", "/ptq fix\n", "//a/b/"),
    *("`", "``` ", "```\n", "~~~\n", "` `` ", "a`", "\\`", "*", "**a", "_", "*a_ ", "~~"),
    *("[", "]", "![", "[](", "[a](", "[a][", "[a]: b\n", "[^1]", "[^1]: ", "[^", "](", "[[", "\\["),
    *(
        "<",
        "<a",
        "<!--",
        "-->",
        "<!-",
        "<?",
        "<![CDATA[",
        "</",
        "<a b=",
        "<a b='",
        '<a b="',
        "<details>",
        "&",
        "&#",
        "&#64;",
    ),
    *("> ", ">", "- ", "-\n", "1. ", "1.\n   ", "+ a\n", "\t", "    ", " ", "\n", "\n\n", " \n", "\r", "\r\n"),
    *("|", "| a |\n|---|\n", "|-", "|a", "---\n", "===\n", "# ", "#", "\\", "$", "$$", ":", "://", "www.", "http://a"),
    *("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN ", "A" * 17 + "\n", "ghp_", "sk-", "sk-a-", "eyJ", "eyJa.", "xoxb-"),
    *(
        "authorization: ",
        "Authorization: bearer ",
        "://a:",
        "https://a:b",
        "AKIA",
        "hf_",
        "pypi-AgE",
        "glpat-",
        "hooks.slack.com/",
    ),
    *(
        "Summary:",
        "a-by: ",
        "Co-authored-by: a <b>\n",
        "[skip ci]",
        "[skip ",
        "Reviewed By: ",
        "\u202e",
        "\u200b",
        "e\u0301",
    ),
    *(
        "diff --git a/a b/a\n",
        "@@ -1 +1 @@\n",
        "+a\n",
        "--- a\n",
        "## Summary\n",
        "outcome: ",
        "security concern ",
        "fix staged\n",
    ),
    *(
        "Traceback (most recent call last):\n",
        '  File "a.py", line 1, in <module>\n',
        "```python\nimport a\n",
        "E   ",
        "ValueError: ",
    ),
    *('{"', '{"a":', "{}", '"', "'", "\x1b[31m", "\x1b]8;;", "\0", "\ud800", "0", "9" * 19, "1e", "-"),
)


def list_texts() -> list[str]:
    """Every text once, those of the corpus first."""
    return list(dict.fromkeys(_make_texts()))


def _make_texts() -> Iterator[str]:
    short = [case.text for case in load_corpus() if len(case.text) <= FULL]
    for start in range(0, len(short), TOGETHER):
        yield "\n\n".join(short[start : start + TOGETHER])[:FULL]
    for fragment in FRAGMENTS:
        yield fragment * (FULL // len(fragment))
