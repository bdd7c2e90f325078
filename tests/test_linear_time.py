"""What reads strangers' text takes no more than linear time, whatever they write: for twice as much, 2.5 times at most.

Measured in the time of this process's CPU, so that other work on the machine counts for little.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from handlers.commands.table import Command, UnknownCommand, parse_commands
from handlers.pulls.note import find_note_fault, parse_note
from handlers.text.hidden_text import reveal
from handlers.text.log_redactor import LogRedactor
from handlers.text.markdown import find_headings
from handlers.text.report import parse_report
from handlers.text.repros import extract_repros
from handlers.text.sanitize import (
    COMMIT_RULES,
    KEY_SHAPES,
    RULES,
    TITLE_RULES,
    collapse,
    commands_in_commit,
    cut,
    defuse,
    disarm,
    find_open,
    make_safe,
    make_safe_line,
    one_line,
    redact,
    show_code,
)
from handlers.text.transcript import redact_log
from handlers.words.pull_template import render_template
from runner.agents.lines import parse_line
from runner.changes.concerns import names_concern
from runner.characters import drop_colours
from runner.checks.new_names import find_new_names
from runner.checks.regression_tests import find_tests
from runner.checks.signature import count_tests, find_signature, name_failure
from runner.model.job import FileChange, Report
from tests.support.cpu_time import measure_cpu, takes_at_most
from tests.support.jobs import make_job
from tests.support.site import make_report
from tests.support.world import NOTE

pytestmark = pytest.mark.slow

Function = Callable[[str], object]


@dataclass(frozen=True)
class Pattern:
    """A text of any length: a piece many times, between a beginning and an end."""

    head: str
    piece: str
    tail: str

    def make(self, size: int) -> str:
        return f"{self.head}{self.piece * (size // len(self.piece))}{self.tail}"


PIECES = (
    *("@", "#", "/", "\\", "`", "``a", "```\n", "~", "~~~\n", "<", "<a ", "<!--", "<!-- -->", "&", "&#64;"),
    *("&a", "&#", "[", "]", "](", "](a", "](((", "![", "[^", "[^1]: ", "]:", "[a]: b\n", "[a][b]", "(", "$"),
    *("|", "|-", "| a |\n", "-", "- ", "- a\n", "> ", ">", "* ", "*", "**a", "_", "1. ", "1.", "1) a\n  "),
    *("\t", "    a\n", " ", "\n", " \n", ":", "a", "a ", "a.", "a-", "a_", "aA1", "0", "0 ", "0x", "é"),
    *("\u200b", "\r", "\r\n", "\0", "\ue000", ".", "-----", "fix ", "fix", "fixes:#", "fix&#8203;", "closes\n"),
    *("GH-", "a/b#", "[skip", "***no", "skip-checks:", "--", "--title ", "://", "http://", "http://a:"),
    *("https://github.com/", "github.com/a/b/", "%", "github.com/a/b/%", "www.", "www.a`", "summary:"),
    *("Summary", "signed-off-by", "a-by", "-by", "Reviewers ", "\x1b[", "\x1b[0", '"', "'", "\\n", '\\"'),
    *("{", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A PRIVATE KEY-----\nAAAAAAAAAAAAAAAA\n"),
    *("BEGIN ", "ghp_", "sk-", "sk-a", "eyJ", "eyJaaaaaaaa.", "AKIA", "hf_", "xoxb-", "authorization: "),
    *("authorization: bearer ", "npm_", "pypi-AgE", "glpat-", "sk_live_", "hooks.slack.com/services/"),
    *("ptq-0123456789-", "AIza", "hunter2", "hunter", "/ptq", "/ptq fix\n", "wrote:\n", "On 1 wrote"),
    *("security ", "concern\n", "outcome ", "# Summary\n", "=\n", "security_", "self.a", "def a", "a = "),
    *("assert ", "AError", "AError: ", "FAILED a - ", "Ran 1 test in ", "in 1.", "1 passed "),
    *("machine a.b ", "machine a.b login a ", "x-api-key: ", "aws_secret_access_key=", "AccountKey=", "\\nhf_"),
    *("_TOKEN:$", "_TOKEN=${{", "PASSWORD=%a1", "PASSWORD:'*", "://{a}:{", "://a:$b.$", "://a:[", "curl -u a:$b"),
    *(":_authToken=*", "sk_test_", "SharedAccessKey=", "hf_oauth_", "        a", "\t\ta", "<br>", "&nbsp;\n", "<p>\n"),
    *("xai-", "gsk_", "key_", "crsr_", '"auth":"', "curl ", "curl -u a:", "2020:\n", "2020:\n> a\n"),
    *("fix.", "fix a/", "fix a/b/", "fix-a/b/%", "#[](", "#**", "#](a", "](a(b)", "](a#](b)"),
)
PATTERNS = [
    Pattern(head, piece, tail) for piece in dict.fromkeys(PIECES) for head, tail in (("fix x ", "!\n"), ("", ""))
]
PATTERNS += [
    *(Pattern("https://github.com/a/b/", "%", "!"), Pattern("fixes ", "#", "x"), Pattern("x](", "a", "\n")),
    *(
        Pattern("x](", "(a)", "\n"),
        Pattern("* ", "`a` ", "https://"),
        Pattern("```\n", "\t", "x"),
        Pattern("/", "a", "!"),
    ),
]

MARKS = Pattern("a", "\u0301\u0316", "")
"""Combining characters in an order that is not the canonical one, in which Unicode's forms sort them."""

_SECRETS = ("hunter22", "hunter\nhunter\nhunter33")
_JOB = make_job()


def _read_notes(text: str) -> None:
    for command in (Command("pr", text, ""), Command("pr", "", text)):
        parse_note(command)
    find_note_fault(text, [text], "0" * 12)


def _render_template(text: str) -> str:
    return render_template(text, _JOB, make_report(body=text), ())


def _find_names(text: str) -> list[str]:
    patch = "".join(f"+{line}\n" for line in text.split("\n"))
    return find_new_names(text, [FileChange("a.py", "100644", text.encode(errors="replace"), None)], patch, text)


def _find_repros(text: str) -> object:
    return extract_repros([("here", f"```python\n{text}\n```")], ())


def _find_tests(text: str) -> list[object]:
    return [*find_tests([FileChange("tests/test_a.py", "100644", text.encode(errors="replace"), None)], "")]


def _read_log(text: str, *, by_line: bool = True) -> None:
    redactor = LogRedactor(_SECRETS, by_line=by_line)
    redactor.feed(text.encode(errors="replace"))
    redactor.finish()


RULES_BY_NAME: dict[str, Function] = {
    f"{kind}: {rule.name}": rule.apply
    for kind, rules in (("secret", KEY_SHAPES), ("post", RULES), ("title", TITLE_RULES), ("commit", COMMIT_RULES))
    for rule in rules
}
WHOLE: dict[str, Function] = {
    "redact": lambda text: redact(text, _SECRETS),
    "find_open": lambda text: find_open(text, _SECRETS),
    "defuse": defuse,
    "disarm": disarm,
    "commands_in_commit": commands_in_commit,
    "make_safe": lambda text: make_safe(text, _SECRETS),
    "make_safe, cut": lambda text: make_safe(text, _SECRETS, len(text) - 10),
    "make_safe_line": lambda text: make_safe_line(text, _SECRETS, len(text)),
    "one_line": lambda text: one_line(text, len(text)),
    "show_code": lambda text: show_code(text, _SECRETS, len(text)),
    "cut": lambda text: cut(text, len(text) // 2, "…"),
    "collapse": lambda text: collapse(text, text),
    "parse_commands": parse_commands,
    "reveal": reveal,
    "extract_repros": _find_repros,
    "parse_report": parse_report,
    "find_headings": find_headings,
    "names_concern": lambda text: names_concern(Report("0123456789", text, "", "", "", "", (), None)),
    "notes": _read_notes,
    "notes, against a report": lambda text: find_note_fault(NOTE, [text], "0" * 12),
    "template": _render_template,
    "name_failure": lambda text: name_failure(text, 1, timed_out=False),
    "find_signature": lambda text: find_signature(text, 1, timed_out=False),
    "count_tests": count_tests,
    "find_new_names": _find_names,
    "find_tests": _find_tests,
    "drop_colours": drop_colours,
    "redact_log": lambda text: redact_log(text, redact),
    "LogRedactor": _read_log,
    "parse_line": parse_line,
}


def test_there_are_enough_patterns() -> None:
    assert len(PATTERNS) >= 2 * 120
    assert UnknownCommand in {type(found) for found in parse_commands("/ptq nothing")}


def _measure(function: Function, text: str, times: int) -> float:
    return measure_cpu(lambda: function(text), times)


def _grows_faster(function: Function, pattern: Pattern, size: int) -> bool:
    """Whether twice as much takes more than 2.5 times as long, each time it is tried."""
    while _measure(function, pattern.make(size), 1) < 0.004:
        size *= 2
    short, long = (partial(function, pattern.make(one)) for one in (size, 2 * size))
    return not takes_at_most(2.5, short, long)


def find_slow(function: Function, patterns: Sequence[Pattern], size: int) -> list[Pattern]:
    """The patterns on which a function takes more than linear time: looked for among those that take far longer than
    others."""
    took = {pattern: _measure(function, pattern.make(size), 1) for pattern in patterns}
    usual = statistics.median(took.values())
    suspects = [pattern for pattern in patterns if took[pattern] > 5 * usual + 0.001]
    return [pattern for pattern in suspects if _grows_faster(function, pattern, size // 4)]


@pytest.mark.parametrize("name", RULES_BY_NAME)
def test_every_rule_takes_linear_time(name: str) -> None:
    assert find_slow(RULES_BY_NAME[name], PATTERNS, 2_000) == []


@pytest.mark.parametrize("name", WHOLE)
def test_everything_that_reads_strangers_text_takes_linear_time(name: str) -> None:
    assert find_slow(WHOLE[name], PATTERNS[::4], 1_000) == []


@pytest.mark.parametrize("name", WHOLE)
def test_combining_characters_take_linear_time(name: str) -> None:
    assert find_slow(WHOLE[name], [*PATTERNS[::24], MARKS], 4_000) == []


@pytest.mark.parametrize(
    "piece", ["[^", "\n[^", "[^a", "> [^", "- [^a", "\n- [^a", "](", "[", "![", "\n[", "[a]:", "$", "$a", "`$", "$ a"]
)
def test_brackets_that_never_end_take_linear_time(piece: str) -> None:
    assert not _grows_faster(reveal, Pattern("", piece, ""), 8_000)


_HEAD, _SIZE = "-----BEGIN PRIVATE KEY-----\n", 250_000


@pytest.mark.parametrize(
    "piece",
    [
        _HEAD,
        f"{_HEAD}x\n",
        f"x{_HEAD}",
        f"{_HEAD}-----END \n",
        _HEAD + 500 * "-----END \n",
        _HEAD + 500 * f"{54 * 'x'}-----END \n",
        _HEAD + 100_000 * "\n",
        90_000 * "x" + _HEAD + 990 * "authorization:\n",
        "authorization:\n",
        "authorization: bearer\n",
        "machine a.b\n",
        "machine\n",
        "authorization:\n" + 100_000 * "\n",
        "hunter\n",
    ],
    ids=lambda piece: f"{piece[:40]!r}, {len(piece)}",
)
def test_a_log_in_which_secrets_begin_again_and_again_is_read_as_fast_as_another(piece: str) -> None:
    log = piece * (_SIZE // len(piece))
    harmless = re.sub(r"[^\n]", "x", log)
    assert takes_at_most(8, lambda: _read_log(harmless, by_line=False), lambda: _read_log(log, by_line=False))


def test_a_quadratic_rule_is_found() -> None:
    quadratic = re.compile("@+(?=[A-Za-z0-9])")
    assert [found.piece for found in find_slow(partial(quadratic.sub, ""), PATTERNS[::2][:20], 2_000)] == ["@"]
