"""Texts made of what Markdown parsers disagree about: containers, fences, spans, tables, footnotes, definitions, HTML.

What it makes follows from the random numbers alone, so that a seed repeats a text.
"""

from __future__ import annotations

from random import Random

MARKS = (
    *("- ", "-", "* ", "+ ", "1. ", "2)", "10. ", "123456789. ", "> ", ">", ">\t", "# ", "- [ ] ", "[^1]: ", "[a]: "),
    *(" ", "  ", "   ", "    ", "     ", "\t", " \t", "| ", "**", "\\"),
)
"""What a line may begin with."""

LIVE = (
    *("@octocat", "@org/team", "@a", "/ptq cancel", "Fixes #99", "closes: #8203;", "resolved GH-7", "other/repo#7"),
    *("https://github.com/octo/widgets/issues/12", "www.github.com/a/b/pull/1", "fixes ", "#12", "GH-", "octo/x"),
    *("https://github.example/a/b/discussions/3", "Reviewers: x", "://github.com/a/b/issues/%31"),
)
"""What notifies, refers, closes or commands."""

HTML = (
    *("<!--", "-->", "<!-- hidden", "<!-- a -->", "<img src=x>", "<b>", "</b>", "<a href=x>", "<details>"),
    *("</details>", "<script>", "</script>", "<style>", "<pre>", "</pre>", "<div>", "<?php", "?>", "<![CDATA["),
    *("]]>", "<!X", "<", "<https://a.b/`>", "<a@b.c>", "<summary>", "<table>", "<textarea>", "<a\n"),
    *("<p title='", "\\<b>", "</", ">"),
)

TICKS = ("`", "`", "`", "``", "```", "````", "\\`", "`` ` ``", "`x`", "`@octocat`", "`<b>`", "`#12`", "~~~", "~~", "~")

INLINE = (
    *("[", "]", "](", ")", "[a](b)", "[a](b`c)", "![", "![a](b)", "[a][b`c]", "][", "]:", "[^1]", "[^`]"),
    *("[b]", "$", "$$", "|", " | ", "\\|", "\\", "\\\\", "*", "**", "_", "~~", "!", "#", "@", "/", ":", ";"),
    *(".", ",", "(", '"', "'", "www.", "www.a.b/", "http://", "https://a.b/x", "ftp://a.b", "a@b.c"),
    *("mailto:a@b.c", "xmpp:a@b.c", "://", "&#64;", "&commat;", "&#96;", "&lt;", "&amp;", "&#8203;", "&#x40"),
    *("&", "&grave;", "&#35;12", "&amp", "&#", "x", "word", "a b", "1", "8203;", "é", "_x_", " ", "  ", "\t"),
    *("   \n", "\u200b", "\u202e", "\u00a0", "\u3000", "http://a\u00a0`", "www.a.b\u2003", "]\u00a0("),
    *("@\u00a0", "\0", "\ue000", "⟨", "…", "\U0001f600", "`\n", "\n`", "\\\n", "  \n", "[x", "](<", ">)"),
    *('](b "', '")', "](\n", "[a]:\nb", "|`|"),
)

FENCES = (
    *("```", "````", "`````````", "~~~", "~~~~", "``` ", "~~~ `", "```x`", "```python", "~~~ mermaid", "``` GeoJSON"),
    *(
        "```math",
        "```diff @octocat",
        "~~~a b",
        "```suggestion",
        "``",
        "~~",
        "`" * 254,
        "`" * 255,
        "`" * 256,
        "`" * 300,
        "~" * 255,
        "~" * 256,
        "\\```",
        "```{=html}",
        "```&#109;ermaid",
    ),
)

BLOCKS = (
    *("| a |", "| a | b |", "|---|", "|---|---|", "|:-:|-", ":-", "a | b", "-|-", "| `a|b` | x |", "| ` | ` |"),
    *("---", "===", "***", "- - -", "-", "1.", "2.", "+", "#", "## x", "> [!NOTE]", "[^1]:", "[^1]: x", "[^]: a"),
    *("[a]: b", "[a]:", '[a]: b "', '"', "[`]: x", "[a]: <", "[log]: url", "    <!-- x", "x", "word", "Summary:", "\\"),
)

HIDES = (
    *('[x](b "word")', "[x](b 'word\n", "![word](b)", "![word\nword](b)", "![word][b]", "[x][word]", "[^word]"),
    *("[b]", '<img alt="word" src=b>', "<b title=word>", "<b\ntitle='word'>", "<word>", "</b word>"),
    *("<a href='b' word>", "[word]: b 'word'", "[//]: # (word)", "[b]:\nu\n'word'", "[^1]: word", "[^]: u 'word'"),
    *("[ ] [b]: word", "<!-- word -->", "<!--> word -->", "<!-- word --!> x -->", "<!--\nword\n-->", "<?word?>"),
    *("<!X word>", "</ word>", "<![CDATA[ > <!-- ]]> word -->", "<?x > <!-- ?> word -->", "<div>x <!-- word"),
    *("<template>word</template>", "<details>\n", "<details open>", "</details>", "<summary>word</summary>"),
    *("<details><summary>x</summary>\n\nword\n", "```python word", "~~~ a word", "| word | word | word |", "|-|"),
    *("x | word | word\n-|-\nx | word | word", "`<b>` word", "\n\n    <!-- word", "  <!-- word\n  -->", "  <div>"),
    *("  ```", "   ~~~", "<pre>\n\n", "<pre><b title='word'>", "<rp>word"),
)
"""What hides words from a reader of the page."""

NEWLINES = (*("\n",) * 30, "\r\n", "\r\n", "\r", "\u2028", "\u0085", "\v", "\f", "\n\n", "\n \n", "\n\t\n", "\n>\n")

_ATTACKS = (
    "| a |\n|---|\n2.\n   ```\n",
    "[^1]:\n2.\n   ```\n",
    "- [a]:b\nx\n  ```\n",
    "   - x\n    ```\n```",
    "-\n   \n  ```\n",
    "- a\n\n      ```\n",
    "> ```\n```\n",
    "1. a\n   - b\n     ~~~\n   ",
    "[a](\n`) @octocat `b",
    "x\n    ```\n",
    "<details>\n\n```\n",
)
"""Beginnings that have deceived a parser."""


def make_text(random: Random) -> str:
    """A text of a few lines, now and then with a very long run of one piece."""
    parts = ["\ufeff"] if random.random() < 0.05 else []
    parts += [random.choice(_ATTACKS)] if random.random() < 0.1 else []
    for _ in range(random.choice((1, 2, 3, 4, 6, 8, 12, 20))):
        parts += [_make_line(random), random.choice(NEWLINES)]
    if random.random() < 0.02:
        parts.insert(random.randrange(len(parts)), _make_piece(random) * random.randrange(50, 400))
    return "".join(parts)


def _make_line(random: Random) -> str:
    marks = "".join(random.choice(MARKS) for _ in range(random.choice((0, 0, 0, 1, 1, 2, 3))))
    kind = random.random()
    if kind < 0.1:
        return marks
    if kind < 0.3:
        return f"{marks}{random.choice(FENCES)}"
    if kind < 0.5:
        return f"{marks}{random.choice((BLOCKS, HIDES)[kind > 0.42])}"
    pieces = [_make_piece(random) for _ in range(random.choice((1, 1, 2, 3, 5, 8)))]
    return f"{marks}{random.choice(('', '', ' ')).join(pieces)}"


def _make_piece(random: Random) -> str:
    kinds = (LIVE, HTML, TICKS, TICKS, INLINE, INLINE, BLOCKS, FENCES, MARKS, HIDES)
    return random.choice(random.choice(kinds))
