from __future__ import annotations

import html
import json
import re
import shlex
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import handlers
from handlers.text import sanitize
from handlers.text.sanitize import (
    REDACTED,
    Rule,
    close_fence,
    collapse,
    cut,
    defuse,
    fence,
    make_plain_line,
    make_safe,
    make_safe_line,
    one_line,
    redact,
    show_code,
)
from handlers.text.secret_forms import PIECE, find_forms, find_matches
from tests.support.github_markdown import render_github
from tests.support.readers import MENTION, ends_outside, find_live, github_reads

PIECES = [
    *(
        "@octocat",
        "octo/widgets#12",
        "fixes ",
        "#12",
        "GH-12",
        "\\",
        "&#64;",
        "<b>",
        "<!-- ",
        " -->",
        "<details>",
        "/ptq",
    ),
    *(
        "`",
        "``",
        "```",
        "~~~",
        "\n",
        "\n\n",
        "    ",
        "\t",
        "- ",
        "> ",
        "1. ",
        "# ",
        "***",
        "---\n",
        "===\n",
        "| ",
        "\n|-|-|\n",
    ),
    *(
        "[a](",
        "b",
        ")",
        "![",
        "][",
        "]: ",
        "[^1]",
        "$",
        "www.a.b/",
        "https://github.com/a/b/issues/1",
        "Summary:",
        " ",
        "x",
    ),
    *("\u202e", "\u200b", "\r", "\x00", "&", ":", "{", '"', "'", "_", "*"),
]
hostile_text = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=200)

# Secrets


def test_an_address_of_mail_in_a_sentence_of_ours_is_no_link() -> None:
    shown = make_plain_line("ask a.b+c@evil.example or git@github.com:x", (), 100)
    assert shown == "ask a.b+c@&#8203;evil.example or git@&#8203;github.com:x"


def test_live_secrets_are_redacted_wherever_they_stand() -> None:
    assert redact("x=hunter22;hunter222", ["hunter22", "hunter222"]) == f"x={REDACTED};{REDACTED}"
    assert redact("a line: hunter22", ["hunter22\n"]) == f"a line: {REDACTED}"


ODD = "wH00k+se&cr/et=='\"x\\y<z> \u00e9"
PLAIN = "Zx81Kq0PpLm4TtYw7-_"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "an address": partial(quote, safe=""),
    "a path": quote,
    "a query": partial(quote, safe="!$&'()*+,;=~/:"),
    "a form": quote_plus,
    "an address in small letters": lambda secret: re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
    "HTML": html.escape,
    "a text in HTML": partial(html.escape, quote=False),
    "a shell": shlex.quote,
    "JSON by Go": lambda secret: _spell_signs(secret, "<>&", "04x"),
    "JSON by .NET": lambda secret: _spell_signs(secret, "<>&'+`", "04X"),
    "JSON without signs": lambda secret: _spell_signs(secret, "!#$%&'()*+,-./:;<=>?@[]^_`{|}~", "04x"),
    "Python": lambda secret: repr(secret)[1:-1],
    "Python in ASCII": lambda secret: ascii(secret)[1:-1],
    "bytes of Python": lambda secret: repr(secret.encode())[2:-1],
    "hexadecimal": lambda secret: secret.encode().hex(),
    "hexadecimal in capitals": lambda secret: secret.encode().hex().upper(),
    "base64": lambda secret: b64encode(secret.encode()).decode(),
    "base64 behind a name": lambda secret: b64encode(b"alice:" + secret.encode() + b"\n").decode(),
    "base64 behind a letter": lambda secret: b64encode(b"x" + secret.encode()).decode(),
    "base64 behind two letters": lambda secret: b64encode(b"xy" + secret.encode()).decode(),
    "base64 for addresses": lambda secret: urlsafe_b64encode(b"\xff" + secret.encode()).decode(),
}


def _spell_signs(secret: str, signs: str, form: str) -> str:
    spelled = json.dumps(secret)[1:-1]
    return "".join(f"\\u{ord(char):{form}}" if char in signs else char for char in spelled)


@pytest.mark.parametrize("secret", [ODD, PLAIN])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_live_secrets_are_redacted_in_other_spellings(spelling: str, secret: str) -> None:
    spelled = SPELLINGS[spelling](secret)
    shown = redact(f"x {spelled} y", [secret])
    assert shown.startswith("x ")
    assert shown.endswith(" y")
    # The first and last signs of base64 also encode the bytes beside the secret.
    kept = shown[2:-2].replace(REDACTED, "")
    assert REDACTED in shown
    assert len(kept.strip("=")) <= (10 if spelling.startswith("base64") else 2)


def test_a_short_secret_is_not_looked_for_in_what_packs_it() -> None:
    assert redact("68756e746572", ["hunter"]) == "68756e746572"


def test_there_is_a_bound_to_the_spellings_of_a_secret() -> None:
    assert len(find_forms(frozenset([ODD]))) <= 50
    assert len(find_forms(frozenset(["Zx81Kq0PpLm4TtYw7"]))) <= 6


KEYS = (
    "sk-" + "ant-api03-" + "a1" * 20,
    "hf_" + "a1" * 17,
    "AKIA" + "ABCDEFGH12345678",
    "AIza" + "a1" * 17 + "b",
    "npm_" + "a1" * 18,
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "pYXQiOjE2fQ.abc",
)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "before", ["\\n", "\\\\n", "\\u003d", "\\u003D", "\\x3d", "%3D", "%3d", "=3D", "\x1b[31m", "\x1b[1;38;5;9m"]
)
def test_keys_behind_an_escape_are_redacted(key: str, before: str) -> None:
    assert redact(before + key) == before + REDACTED


def needs_another_sign(parsed: Any, known: Callable[[str], Any]) -> bool:
    """Whether every match of an expression has a character that is not `known`: one of its parts needs one."""
    return any(_needs(str(part), value, known) for part, value in parsed)


def _needs(part: str, value: Any, known: Callable[[str], Any]) -> bool:
    match part:
        case "LITERAL":
            return not (known(chr(value).lower()) or known(chr(value).upper()))
        case "SUBPATTERN":
            return needs_another_sign(value[-1], known)
        case "BRANCH":
            return all(needs_another_sign(branch, known) for branch in value[1])
        case "MAX_REPEAT" | "POSSESSIVE_REPEAT":
            return bool(value[0]) and needs_another_sign(value[-1], known)
        case "IN":
            return all(_needs(str(one), inner, known) for one, inner in value)
    return False


@pytest.mark.parametrize("shape", sanitize.KEY_SHAPES, ids=lambda shape: shape.name)
def test_no_key_consists_of_hexadecimal_digits_dashes_and_blanks(shape: Rule) -> None:
    """So a text of these is not searched for keys."""
    assert shape.pattern
    assert needs_another_sign(re._parser.parse(shape.pattern.pattern), sanitize.HEXADECIMAL.fullmatch)  # type: ignore[attr-defined]


def test_a_live_secret_of_hexadecimal_digits_is_redacted() -> None:
    assert redact("0a1b2c 0123456789abcdef", ["0123456789abcdef"]) == f"0a1b2c {REDACTED}"


@pytest.mark.parametrize("key", [*KEYS[:2], *KEYS[3:]])
def test_what_goes_on_from_a_word_is_no_key(key: str) -> None:
    assert redact(f"word{key}") == f"word{key}"


@pytest.mark.parametrize(
    "marked", ["{}**{}**", "**{}**{}", "{}*{}*", "{}~~{}~~", "{}***{}***", "x**{}**{}", "-*{}*{}", "{}**~~{}~~**"]
)
def test_a_secret_that_emphasis_parts_is_redacted(marked: str) -> None:
    live, token = "correct-horse-battery", "ghp_" + "a1B2" * 9
    for secret in (live, token):
        found = redact(marked.format(secret[:9], secret[9:]), (live,))
        assert REDACTED in found
        assert secret[9:15] not in found


@pytest.mark.parametrize(
    "text",
    ["def f(*args, **kwargs): return a**2 * b*c", "*All* of it **works**", "https://user:***@host/x", "a ~~b~~ c"],
)
def test_marks_that_part_no_secret_are_left_alone(text: str) -> None:
    assert redact(text, ("correct-horse-battery",)) == text


def test_a_value_too_short_to_be_a_secret_is_left_alone() -> None:
    assert redact("main is the branch", ["main", "", " "]) == "main is the branch"


ORDINARY = r"""
$ export PATH=$HOME/bin:$PATH; echo "${API_KEY:?not set}" "$1" "$@" $(date) `pwd`
+ docker run -e DB_PASSWORD="$DB_PASSWORD" -e TOKEN=${{ secrets.GITHUB_TOKEN }} -p 5432:5432 -u 1000:1000 x
print("%s: %d of %5.1f%% %(name)s" % (a, b, c)); f"{user}:{password}@{host}"; "://%s:%s@%s" % (u, p, h)
[tool.pytest.ini_options] [section] [[tool.mypy.overrides]] arr[0] = x[1:2] *args, **kwargs *.py **/*.md
git add *.py && rm -rf build/* && ls -la [a-z]*; SELECT * FROM t WHERE a LIKE '%foo%' -- 100%
password = getpass.getpass(); PASSWORD = os.environ["PASSWORD"]; api_key = settings.OPENAI_API_KEY
self.password = password; if password != "": raise ValueError("password: too short"); passwd: x:0:0:root
PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]; PASSWORD_RESET_TIMEOUT=259200
MAX_TOKEN=4096 NUM_TOKENS: 32768 PAD_TOKEN = "<pad>" EOS_TOKEN='<|endoftext|>' tokens=[1, 2, 3]
PWD=/home/runner/work/repo1 OLDPWD=/tmp/a1 SSH_AUTH_SOCK=/tmp/ssh-x1/agent.1 COMPASS=north-9%
sk_test_mode=1 task_test_runner_4 hf_hub_download(repo_id) ya29 SG.1 AIza xapp shpat dop_v1 gho_ ASIA-PACIFIC-1
whsec_ is the prefix; see /webhooks/12/events, /webhooks/payments and hooks.slack.com/services/T/B/X
{"env": "DB_PASSWORD=$DB_PASS1\nPASSWORD=%PASS_1%\nB=1"}; <protocol>://[<user>[:<password>]@]<hostname>[:<port>]
commit 3f9c21d07ab4a1b2c3d4e5f60718293a4b5c6d7e sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
http://localhost:8080/a@b https://[::1]:8443/x git@github.com:octo/widgets.git ssh://git@host:22/x ws://h:1/@x/y
tests/test_a.py::test_b[param-1] PASSED [ 50%]; 1 passed, 2 warnings in 0.10s; E   assert 1 == 2; ==== FAILURES ====
"""


@pytest.mark.parametrize("line", ORDINARY.strip().split("\n"))
def test_what_ordinary_logs_say_stays_readable(line: str) -> None:
    assert redact(line) == line


@pytest.mark.slow
def test_nothing_in_our_own_sources_and_manuals_looks_like_a_secret() -> None:
    root = Path(handlers.__file__).parents[1]
    paths = [*root.glob("handlers/**/*.py"), *root.glob("bot/**/*.py"), *root.glob("runner/**/*.py")]
    paths += [*root.glob("docs/*.md"), *root.glob("*.md"), *root.glob("*.toml"), *root.glob("prompts/**/*.j2")]
    # Of the rules themselves some look like what they find, and `PASSWORD` in an address cannot be told from one.
    texts = {path.name: path.read_text().replace("USER:PASSWORD@", "") for path in paths if path.name != "sanitize.py"}
    assert len(texts) > 300
    assert [name for name, text in texts.items() if redact(text).count(REDACTED) > text.count(REDACTED)] == []


@given(hostile_text)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


# Prose


@pytest.mark.slow
@settings(max_examples=300)
@given(hostile_text)
def test_nothing_in_defused_text_is_live(text: str) -> None:
    assert find_live(defuse(text)) == []


@pytest.mark.slow
@settings(max_examples=300)
@given(hostile_text)
def test_what_is_left_raw_is_code_for_github(text: str) -> None:
    """Every `<` and every mention that the source still holds stands in a code block or a code span."""
    source = defuse(text)
    code = "".join(
        token.content for token in github_reads(source) if token.type in ("fence", "code_block", "code_inline")
    )
    assert source.count("<") == code.count("<")


@pytest.mark.slow
@settings(max_examples=300)
@given(hostile_text, st.integers(min_value=3, max_value=150))
def test_what_follows_a_cut_text_stands_outside_of_it(text: str, limit: int) -> None:
    whole = cut(defuse(redact(text)), limit, "(cut)")
    assert len(whole) <= limit or whole == defuse(redact(text))
    assert ends_outside(whole)


@pytest.mark.slow
@settings(max_examples=300)
@given(hostile_text, st.integers(min_value=3, max_value=150))
def test_cutting_brings_nothing_back_to_life(text: str, limit: int) -> None:
    tokens = github_reads(cut(defuse(text), limit, "(cut)"))
    prose = "\0".join(token.content for token in tokens if token.type == "text")
    assert not MENTION.search(prose)
    assert not {token.type for token in tokens} & {"html_block", "html_inline", "image"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["`", "[", "![", "<", "<!--", "@a", "fix ", "fix.", "- ", "> ", "/", "://", "|a", "&a", "-a", "\\", "```\n", "a\n"],
)
def test_a_long_text_is_defused_in_little_time(piece: str) -> None:
    text = piece * (65_000 // len(piece))
    assert len(cut(defuse(redact(text)), 60_000, "…")) <= 60_000


REPORT = """\
## Summary

The loop in [`rows.py`](https://example.com/rows.py) ends *early*, **not** late: `range(n - 1) | None`.

1. Install:

   ```sh
   pip install -e .
   ```

2. Run it:
   - with `pytest -k rows`
     ```console
     $ pytest
       1 failed
     ```
     which fails
   - twice

| File | Lines |
|------|-------|
| `rows.py` | 3 |

> It said `IndexError`.

~~~c++
std::vector<int> rows;
~~~
"""


def test_an_honest_report_looks_as_its_author_meant_it() -> None:
    shown = render_github(defuse(REPORT), hard_breaks=False)
    for part in (
        "<h2>Summary</h2>",
        '<a href="https://example.com/rows.py"><code>rows.py</code></a> ends <em>early</em>, <strong>not</strong>',
        "<code>range(n - 1) | None</code>",
        "<ol>\n<li>Install:</li>\n</ol>",
        '<pre><code class="language-sh">pip install -e .\n</code></pre>\n<ol start="2">\n<li>Run it:',
        '<pre><code class="language-console">$ pytest\n  1 failed\n</code></pre>',
        "</pre>\n<p>which fails</p>\n<ul>\n<li>twice</li>",
        "<td><code>rows.py</code></td>\n<td>3</td>",
        "<blockquote>\n<p>It said <code>IndexError</code>.</p>\n</blockquote>",
        '<pre><code class="language-c++">std::vector&lt;int&gt; rows;\n</code></pre>',
    ):
        assert part in shown


def test_a_fence_holds_more_backticks_than_github_counts() -> None:
    """GitHub's parser counts up to 255 and would take any longer run for the end."""
    ran = f"```\n{'`' * 300}\n<img src=x>"
    assert "<img" not in render_github(fence(ran))
    assert fence(ran) == "````\n```\n⟨U+0060 × 300⟩\n<img src=x>\n````"


def test_the_summary_of_a_fold_is_no_code() -> None:
    """GitHub reads it as HTML, where backticks are only backticks."""
    assert "<img" not in render_github(collapse("`<img src=x>`", "x"))


def test_a_line_never_opens_a_block_of_code() -> None:
    assert make_safe_line("```sh @octocat", (), 50) == "&#96;&#96;&#96;sh octocat"


# Titles


def test_a_title_is_cut_before_it_is_read() -> None:
    count = Rule("count", lambda text: text if "characters" in text else f"{len(text)} characters")
    assert one_line("word " * 40_000, 60, [count]) == "120 characters…"


@given(hostile_text, st.integers(min_value=1, max_value=50))
def test_a_title_never_breaks_mentions_or_grows(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert not MENTION.search(line)


# Shapes


@given(hostile_text)
def test_nothing_inside_a_fence_ends_it(text: str) -> None:
    block = fence(text, "diff")
    assert ends_outside(block)
    assert [token.type for token in MarkdownIt("commonmark").parse(block)] == ["fence"]


def test_a_fence_is_longer_than_any_run_inside() -> None:
    assert fence("a ```` b", "diff") == "`````diff\na ```` b\n`````"
    assert fence("a\n") == "```\na\n```"


def test_closing_a_fence_leaves_other_text_alone() -> None:
    assert close_fence("a\n\n```\nb\n```\n") == "a\n\n```\nb\n```\n"
    assert close_fence("a\n```` x\nb\n```\n") == "a\n```` x\nb\n```\n````"
    assert close_fence("```\ra\r```") == "```\ra\r```", "an old Mac's line ends"
    assert close_fence("```\ra\r") == "```\ra\r\n```"


def test_a_folded_part_ends_whatever_it_holds() -> None:
    folded = collapse("Log of <b> & @octocat", "```\n</details>")
    assert folded.startswith("<details>\n<summary>Log of &lt;b> & octocat</summary>\n\n")
    assert folded.endswith("```\n</details>\n```\n\n</details>")


def test_the_summary_of_a_folded_part_has_at_most_200_characters() -> None:
    assert collapse("x" * 300, "").startswith(f"<details>\n<summary>{'x' * 199}…</summary>\n")


def test_a_short_text_is_not_cut() -> None:
    assert cut("abc", 3, "…") == "abc"


def test_a_text_is_cut_at_the_end_of_a_line_if_one_is_near() -> None:
    assert cut("first line\nsecond line\n" + "x" * 50, 30, "…") == "first line\nsecond line\n\n…"


def test_a_cut_in_a_fence_closes_it() -> None:
    assert cut(fence("\n".join("abcdefgh")), 20, "(cut)") == "```\na\nb\nc\n```\n\n(cut)"


def test_a_cut_never_leaves_half_of_a_code_span() -> None:
    assert cut("see `@octocat and <b>` or not", 20, "…") == "see \n\n…"


def test_a_notice_longer_than_the_limit_is_cut_itself() -> None:
    assert cut("x" * 50, 4, "(shortened)") == "(sho"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("src/a b.py", "`src/a b.py`"),
        ("a`<img src=x>`b", "`a⟨U+0060⟩<img src=x>⟨U+0060⟩b`"),
        ("a|b\\", "`a⟨U+007C⟩b\\`"),
        ("a\n\n/ptq cancel\t\r", "`a⟨U+000A⟩⟨U+000A⟩/ptq cancel⟨U+0009⟩⟨U+000D⟩`"),
        ("\u202egnp.py\0", "`⟨U+202E⟩gnp.py⟨U+0000⟩`"),
        (" a ", "`⟨U+0020⟩a⟨U+0020⟩`"),
        ("", "`⟨empty⟩`"),
        ("hunter22.txt", "`[redacted].txt`"),
        ("x" * 70, f"`{'x' * 59}…`"),
    ],
)
def test_a_path_is_one_code_span_whatever_it_holds(text: str, shown: str) -> None:
    assert show_code(text, ["hunter22"], 60) == shown


@given(hostile_text)
def test_a_path_stays_code_in_a_list_and_in_a_table(text: str) -> None:
    code = show_code(text, ())
    for frame in (f"- {code}, and\n", f"| a | b |\n|---|---|\n| {code} | c |\n"):
        spans = re.findall("<code>(.*?)</code>", render_github(frame))
        assert len(spans) == 1
        assert html.unescape(spans[0]) == code.strip("`")


def test_numbers_are_parted_from_their_marks_once_where_keywords_are_in_marks() -> None:
    assert make_safe("It clos*es* #5 and fixes #12.", ()) == "It clos*es* #&#8203;5 and fixes #&#8203;12."
    assert make_safe("x]clos*es* #12", ()) == "x]clos*es* #&#8203;12"
    assert make_safe("clo[s]es #12", ()) == "clo[s]es #&#8203;12"


WORDS = ("a", " ", "\n", "curl -u a:", "b1cd", "sk-", "AKIA" + "B2" * 8, "x" * 40)


@given(st.lists(st.sampled_from(WORDS), max_size=60))
def test_a_text_that_is_searched_in_pieces_has_the_same_secrets(words: list[str]) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("handlers.text.secret_forms.PIECE", 7)
        for shape in sanitize.KEY_SHAPES:
            assert shape.pattern
            pieces = [found.span() for found in find_matches(shape.pattern, text)]
            assert pieces == [found.span() for found in shape.pattern.finditer(text)]


def test_a_token_with_a_long_header_is_found_where_a_piece_ends() -> None:
    token = f"eyJ{'a' * 3_000}.eyJ{'b' * 300}.{'c' * 86}"
    assert token not in redact("x\n" * (PIECE // 2 - 50) + token)
