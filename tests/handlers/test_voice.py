"""Whose words are whose: an agent's stand in a quote that it cannot leave, and none of its lines begins like ours."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import handlers
from handlers.rules import REBASE
from handlers.text.sanitize import disarm
from handlers.text.voice import SPEAKER, mark_forgery, quote, show_words
from handlers.words.pull_body import render_commit_message
from handlers.words.report_comment import HEADLINES
from runner.characters import show_path
from runner.checks.verification import CheckKind
from runner.model.job import FileChange, JobState
from tests.fuzz.grammar import make_text
from tests.handlers.test_report_comment import PULL, body_of, done, render, result
from tests.handlers.test_thread import SAYINGS
from tests.handlers.test_verified import check, say
from tests.support.github_markdown import render_github
from tests.support.outside import read_outside

SOURCES = sorted(Path(handlers.__file__).parent.rglob("*.py"))
FORGERY = """**Seen by ptq-bot**, in clean environments:

- ✅ **the issue's repro**: before: fails 3/3; after: passes 3/3

**Diff: 1 file, +1 −1**

```diff
+harmless
```

**Next step.** Merge it.
"""


def list_own_lines() -> Iterator[str]:
    """The headings, folds and marked lines of whatever we post about a job, without what stands in a quote or code."""
    warned = result(digest=None, refusals=("`.ci/run` is protected",), warnings=("`a.py` is binary",))
    long = result(patch="+x\n" * 40_000)
    bodies = [body for bodies in SAYINGS.values() for body in bodies]
    bodies += [render(report=warned), render(report=long), body_of(), render_commit_message("", done(), PULL)]
    bodies += ["\n".join(say(check(), check(CheckKind.AGENT), check(runs={}, trouble="no room")))]
    bodies += [render(done(state=state, failure="it broke")) for state in HEADLINES]
    for body in bodies:
        text = re.sub(r"^(`{3,}).*?^\1$", "", body, flags=re.MULTILINE | re.DOTALL)
        for line in text.split("\n"):
            if re.match(r"\*|- \W |###? |<summary>|The change was|Approved by", line) and "**Root cause**" not in line:
                yield re.sub(r"</?summary>", "", line)


@pytest.mark.parametrize(
    "line",
    [
        "**@maintainer wrote:**",
        "@&#8203;maintainer wrote:",
        "### boss-2 wrote: it is right",
        "> *x[bot]* wrote :",
        "**@boss told the agent** on 1 May",
    ],
)
def test_no_line_of_an_agents_looks_like_the_name_above_a_humans_note(line: str) -> None:
    assert SPEAKER in mark_forgery(line)


@pytest.mark.slow
def test_every_line_that_stands_out_in_what_we_post_is_protected() -> None:
    lines = sorted(set(list_own_lines()))
    assert len(lines) > 25
    assert [line for line in lines if mark_forgery(line) == line] == []


@pytest.mark.slow
def test_only_the_registry_has_words_that_stand_out() -> None:
    """What is ours is then protected, however its wording changes."""
    found = [
        node.value
        for path in SOURCES
        if path.name != "voice.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"(?:^|\n)(?:\*\*\w|### \w)|[✅❔⚠⛔]", node.value)
    ]
    behind_a_mark = {"**the repro of ", "**the agent's repro**", "**the issue's repro**", "**not verified**: "}
    assert set(found) - behind_a_mark == {"**Root cause**\n\n"}, "that one stands in the agent's quote"


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("**Seen by ptq-bot**, each time", f"{SPEAKER} **Seen by ptq-bot**, each time"),
        ("## Next step", f"## {SPEAKER} Next step"),
        ("  > - **NEXT  STEP:** merge", f"  > - {SPEAKER} **NEXT  STEP:** merge"),
        ("__Why:__ cancelled", f"{SPEAKER} __Why:__ cancelled"),
        ("- [x] ✅ all of it", f"- [x] {SPEAKER} ✅ all of it"),
        ("⚠ no sign behind it", f"{SPEAKER} ⚠ no sign behind it"),
        (":white_check_mark: all of it", f"{SPEAKER} :white_check_mark: all of it"),
        ("- :no_entry: a secret", f"- {SPEAKER} :no_entry: a secret"),
        (":arrow_right: **Next step.** merge", f"{SPEAKER} :arrow_right: **Next step.** merge"),
        ("### :tada: Still reproduces", f"### {SPEAKER} :tada: Still reproduces"),
        ("→ ✅ **a repro**: fails 3/3", f"{SPEAKER} → ✅ **a repro**: fails 3/3"),
        ("🤖 :+1: ✅ x", f"{SPEAKER} 🤖 :+1: ✅ x"),
        ("1\\. ✅ x", f"{SPEAKER} 1\\. ✅ x"),
        ("- ✔️ all of it", f"- {SPEAKER} ✔️ all of it"),
        ("√ all of it", f"{SPEAKER} √ all of it"),
        ("| ❌ | x |", f"| {SPEAKER} ❌ | x |"),
        ("• **Next step.** merge", f"{SPEAKER} • **Next step.** merge"),
        ("👉 (“Next step.” merge", f"{SPEAKER} 👉 (“Next step.” merge"),
        ("1. ⛔ no", f"1. {SPEAKER} ⛔ no"),
        ("(1) Next step. merge", f"{SPEAKER} (1) Next step. merge"),
        ("b) Next step. merge", f"{SPEAKER} b) Next step. merge"),
        ("&#8203;" * 40 + "**Next step.** merge", f"{SPEAKER} {'&#8203;' * 40}**Next step.** merge"),
        (f"| {'x' * 300} | Next step. |", f"| {SPEAKER} {'x' * 300} | Next step. |"),
        ("| repro | ✅ fails on base |", f"| {SPEAKER} repro | ✅ fails on base |"),
        ("| agent: | Next step. |", f"| agent: | {SPEAKER} Next step. |"),
        ("| **agent:** | ✅ x |", f"| **agent:** | {SPEAKER} ✅ x |"),
        ("agent: | agent: | Done. | Next step.", f"agent: | agent: | {SPEAKER} Done. | Next step."),
        ("| Seen by ptq-bot | x |", f"| {SPEAKER} Seen by ptq-bot | x |"),
        ("S&#8203;een by ptq-bot", f"{SPEAKER} S&#8203;een by ptq-bot"),
        ("\uff33een by ptq\u2011bot", f"{SPEAKER} \uff33een by ptq\u2011bot"),
        ("[Seen by ptq-bot](x), each", f"{SPEAKER} [Seen by ptq-bot](x), each"),
        ("[Seen](x) by ptq-bot", f"{SPEAKER} [Seen](x) by ptq-bot"),
        ("[S](x(y))een [by](z) ptq-bot", f"{SPEAKER} [S](x(y))een [by](z) ptq-bot"),
        ("[](x) Seen by ptq-bot", f"{SPEAKER} [](x) Seen by ptq-bot"),
        (f"[Seen]({'x' * 300}) by ptq-bot", f"{SPEAKER} [Seen]({'x' * 300}) by ptq-bot"),
        ("[**Done**](x)", f"{SPEAKER} [**Done**](x)"),
        ("&#96;Seen by ptq-bot", f"{SPEAKER} &#96;Seen by ptq-bot"),
        ("`Seen by ptq-bot`", f"{SPEAKER} `Seen by ptq-bot`"),
        ("### Fix staged", f"### {SPEAKER} Fix staged"),
        ("**Approved by** maintainer", f"{SPEAKER} **Approved by** maintainer"),
        ("Diff: 1 file", f"{SPEAKER} Diff: 1 file"),
        ("&#8203;**Done**", f"{SPEAKER} &#8203;**Done**"),
        ("👉 __Lost__", f"{SPEAKER} 👉 __Lost__"),
        ("| a | **Done** |", f"| {SPEAKER} a | **Done** |"),
    ],
)
def test_a_line_that_begins_like_ours_says_who_wrote_it(line: str, marked: str) -> None:
    assert mark_forgery(line) == marked
    assert mark_forgery(marked) == marked


@pytest.mark.parametrize("underline", ["===", "---", "> ===", "|---|", ":-:|:-:", "> | -- | - |"])
def test_a_line_above_an_underline_is_a_heading(underline: str) -> None:
    assert mark_forgery("Done", underline) == f"{SPEAKER} Done"


@pytest.mark.parametrize("heading", ["Done\n===", "Done\nand seen by all\n===", "Done\nonce\nand twice\n---"])
def test_a_heading_of_several_lines_that_begins_like_ours_says_who_wrote_it(heading: str) -> None:
    assert quote(heading, (), 1_000, "…").startswith(f"> {SPEAKER} Done\n")
    assert quote(f"Done\n\n{heading}", (), 1_000, "…").startswith("> Done\n")


@pytest.mark.parametrize(
    "table", ["| Done | x |\n|---|---|\n| a | b |", "Done | x\n:--|--:", "x | Done\n-|-", "> | Done |\n> | :-: |"]
)
def test_the_head_of_a_table_that_looks_like_our_heading_says_who_wrote_it(table: str) -> None:
    assert "<th" in render_github(quote(table, (), 1_000, "…"))
    assert SPEAKER in quote(table, (), 1_000, "…").split("\n")[0]


@pytest.mark.parametrize(
    "line",
    [
        *("", "fix staged", "## Summary", "## Root cause", "Why it fails is not known.", "Now it passes.", "Done."),
        *("The diff adds a check.", "Different: yes", "It was seen by ptq-bot", "## Next steps", "all of it ✅"),
        *("[It](x) was seen by ptq-bot", "[Done](x)", "see [Seen by ptq-bot](x)"),
    ],
)
def test_any_other_line_stays(line: str) -> None:
    assert mark_forgery(line) == line


def test_what_an_agent_forges_stands_in_its_quote_and_says_so() -> None:
    text = render(report=result(body=f"fix staged\n\n## Test\n{FORGERY}\n\n## Summary\n{FORGERY}"))
    usual = render(report=result(body="fix staged\n\n## Test\nx\n\n## Summary\nx"))
    assert read_outside(text) == read_outside(usual)
    assert text.count(f"> {SPEAKER} **Seen by ptq-bot**") == 2, "in the summary, and in the rest of the report"
    assert text.count(f"> - {SPEAKER} ✅") == text.count(f"> {SPEAKER} **Next step.**") == 2
    assert text.index("**What the agent says** (`mine`)") < text.index("> ")


@pytest.mark.slow
def test_whatever_an_agent_writes_what_stands_outside_of_quotes_stays_the_same() -> None:
    """GitHub's own parser is asked."""
    body = "fix staged\n\n## Test\nx\n\n## Summary\nx"
    usual = read_outside(render(report=result(body=body, worklog="x")))
    random = Random(7)
    for _ in range(200):
        text = make_text(random)[:350]  # So that nothing is cut, even if all of it is spelled out.
        report = result(body=f"{body}\n\n{text}", worklog=f"x\n\n{text}")
        assert read_outside(render(report=report)) == usual, repr(text)


@pytest.mark.slow
def test_a_pull_request_begins_with_the_note_and_ends_with_the_approval_whatever_an_agent_writes() -> None:
    usual = read_outside(body_of(body="x", worklog="x"))
    random = Random(8)
    for _ in range(100):
        text = make_text(random)[:350]  # So that nothing is cut, even if all of it is spelled out.
        assert read_outside(body_of(body=f"x\n\n{text}", worklog=f"x\n\n{text}")) == usual, repr(text)


@pytest.mark.parametrize("limit", [60, 200, 1_000])
@pytest.mark.parametrize(
    "text",
    ["word " * 400, "\n" * 900 + "a\n\n" * 900, "```\n" + "code\n" * 400, "<" * 2_000, "✅\n" * 900, "`a` " * 500, "a"],
)
def test_a_quote_keeps_its_limit_and_its_end(text: str, limit: int) -> None:
    quoted = quote(text, (), limit, "(the rest is elsewhere)")
    assert len(quoted) <= limit
    assert ("(the rest is elsewhere)" in quoted) == (text != "a")
    outside = read_outside(f"{quoted}\n\nPROBE")
    assert outside[:2] == ["<blockquote>", "</blockquote>"] or quoted.startswith("\n")
    assert outside[-3:] == ["<p>", "PROBE", "</p>"]


def test_words_stay_readable_in_their_code() -> None:
    assert show_words("ls | `head`\n@a\u202e", (), 60) == "`ls | \u02bchead\u02bc @a⟨U+202E⟩`"
    assert show_words("x" * 70, (), 60) == f"`{'x' * 59}…`"
    assert show_words(" \n", (), 60) == "no words"


def test_nothing_to_quote_is_no_quote() -> None:
    assert quote(" \n", (), 100, "…") == ""


def test_a_secret_that_the_limit_would_halve_is_taken_out_first() -> None:
    quoted = quote(f"{'x' * 40} hunter2-hunter2", ("hunter2-hunter2",), 60, "…")
    assert "hunter2" not in quoted


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["```\n", "`a ", "a\n", "\u202e"])
def test_a_report_ten_times_as_long_costs_little_more(piece: str) -> None:
    """Only what is shown is made safe; the rest of it is read once."""

    def measure(length: int) -> float:
        text = f"fix staged\n\n## Summary\n{piece * (length // len(piece))}"
        report = result(body=text, worklog=text)
        times = []
        for _ in range(2):  # The garbage collection of the whole test process may fall into one.
            began = time.thread_time()
            render(report=report)
            times.append(time.thread_time() - began)
        return min(times)

    assert measure(200_000) < 4 * measure(20_000) + 0.05


# Code in our own sentences

OURS = frozenset(
    (
        *("job.preset", "last.preset", "preset", "preset.command", "find_command(job.preset)", "command", "spec.usage"),
        *("job.agent", "author.agent", "agent", "model", "job.machine", "lost.machine", "machine", "name", "ANYWAY"),
        "FRESH",
        *("job.base_commit[:10]", "(job.base_commit or '')[:10]", "base[:10]", "base_before[:10]", "commit[:10]"),
        *("pull.digest[:DIGEST_SHOWN]", "given", "standing", "PATH", "pull.branch", "branch", "suggestion"),
        *("use.key", "use.scope", "placeholder", "example"),
        # Levels that the agents' command lines have, and folders that the operator has named.
        *("job.thinking", "level", "folder"),
        *("payload['command']", "earlier.state", "earlier.base_commit", "earlier.number", "outcome"),
        # A repository's and a person's name, which GitHub checks or an operator has written.
        *("repository", "rules.name", "login", "person", "before", "hold.person", "worktree.requested_by"),
        # Of these nothing is left but letters, digits and `-`, or what an operator has written.
        *("word", "shown", "path"),
    )
)
"""What may stand between backticks as it is: names of ours and of the operator's, digests, and what was checked."""


def list_code(path: Path) -> Iterator[str]:
    """The expressions between backticks in the f-strings of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        before = ""
        for part in node.values if isinstance(node, ast.JoinedStr) else ():
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue) and re.sub("``+", "", before).count("`") % 2:
                yield ast.unparse(part.value)


@pytest.mark.slow
def test_no_sentence_puts_a_strangers_words_between_backticks() -> None:
    """`sanitize.show_code` is for those: a backtick in them would end the code, and what follows would be live."""
    sources = [path for path in SOURCES if path.name not in ("sanitize.py", "voice.py", "hidden_parts.py")]
    found = {f"{path.name}: {code}" for path in sources for code in list_code(path) if code not in OURS}
    assert found == set()


def test_such_a_sentence_would_be_found(tmp_path: Path) -> None:
    (source := tmp_path / "sentences.py").write_text("f'`a` and `{job.preset}` in `{make_safe_line(path)}`, {fine}'")
    assert [*list_code(source)] == ["job.preset", "make_safe_line(path)"]


def test_no_prompt_puts_a_strangers_words_between_backticks() -> None:
    prompts = Path(handlers.__file__).parents[1] / "prompts"
    lines = [line for path in prompts.glob("*.j2") for line in path.read_text().split("\n")]
    found = {
        name[1]
        for line in lines
        for name in re.finditer(r"\{\{ (.*?) \}\}", line)
        if line[: name.start()].count("`") % 2
    }
    assert found - OURS == {"nonce"}
    assert "rules.name" in found


NAMES = (
    *("a`b", "a``<img src=x>`@octocat`", "`", "``` \n@octocat", "a\n\n## Seen by ptq-bot", "x|y|z", "@octocat/x.py"),
    *("<!-- x.py", "a](https://evil.example)", "\u202egnp.exe", "x" * 900, "a\\`b", "[^1]: x", "&#64;octocat", " a "),
)


@pytest.mark.parametrize("path", NAMES)
def test_a_path_is_code_wherever_a_comment_names_it(path: str) -> None:
    """From the sentence of a machine's answer to what GitHub shows: as refusal, as warning, as secret, as conflict."""
    secret = "hunter2-hunter2"
    sentence = f"{show_path(path)} is protected by {show_path('*.toml')}"
    leaky = FileChange(path, "100644", b"\0" + secret.encode())
    left = FileChange(path, "100644", b"<<<<<<< onto\none\n", "100644")
    torn = done(preset=REBASE, state=JobState.FAILED, failure="conflicts are left", conflicts=(path,))
    comments = [
        render(report=result(digest=None, refusals=(sentence,), warnings=(sentence,), changes=(leaky,))),
        render(torn, result(changes=(left,))),
        "\n".join(say(check(CheckKind.TESTS, path))),
    ]
    for comment in comments:
        shown = render_github(comment)
        assert set(re.findall(r"<([a-z][a-z0-9]*)", shown)) <= TAGS
        outside = re.sub(r"<(code|pre)[ >].*?</\1>", "", shown, flags=re.DOTALL)
        assert "octocat" not in outside
        assert "evil" not in outside
        assert "<!--" not in shown
    assert comments[0].count("protected by `*.toml`") == 2


TAGS = frozenset(
    ("p", "h3", "ul", "li", "ol", "code", "pre", "strong", "em", "details", "summary", "blockquote", "h2", "sub", "a")
)


def test_the_title_of_a_pull_request_is_shown_as_it_will_be_where_a_note_may_approve_it() -> None:
    title = "Keep @octocat's row"
    assert "**Pull request:** `Keep octocat's row`" in render(report=result(pr_title=title))
    assert "**Pull request:** `Fix: It breaks` → `main`" in render(report=result(pr_title=""))
    assert "**Pull request:**" not in render(report=result(pr_title=title, digest=None))


def test_a_report_names_the_branch_that_its_pull_request_goes_to() -> None:
    assert "**Pull request:** `Keep the last chunk` → `release/1.2`\n" in render(done(base_branch="release/1.2"))


def test_a_report_says_that_an_open_pull_request_keeps_its_title() -> None:
    kept = "(while it is open, pull request #13 keeps its title)"
    assert f"**Pull request:** `Keep the last chunk` → `main` {kept}" in render(pull_number=13)
    assert "keeps its title" not in render()


@pytest.mark.parametrize("link", ['[a]***http://e.example "hidden words, skip"***', '[[skip]]***/b "hidden, skip"***'])
def test_words_to_ci_that_are_made_harmless_become_no_link_with_hidden_words(link: str) -> None:
    safe = disarm(quote(link, (), 1000, ""))
    assert "***" not in safe
    assert "title=" not in render_github(safe)
    assert disarm("[skip ci] ***no_ci***") == "(skip ci) (no_ci)"
