"""The commands: one table that is parser, usage, permission and help at once. Pure.

A command is read only where its author plainly gave it: at the start of a line of a top-level paragraph. What stands
in code, quotes, lists, headings, tables, links, HTML or forwarded mail commands nothing, and where Markdown can be
read in two ways the answer is "no command". Refuses to know what a command does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from handlers.commands.options import ANYWAY, NAMES
from handlers.commands.rights import RIGHTS, Operation, Right
from handlers.rules import PRESETS, REBASE, VERIFY, RepositoryRules
from handlers.text.hidden_parts import RAW_TEXT

MAX_COMMANDS = 5
"""Commands that one comment may give; the rest is ignored."""

MAX_READ = 4_000
"""Characters of a comment in which commands are looked for. Anybody may write one, and the time to parse it grows
faster than its length."""

MAX_WORD = 30
"""Characters of an unknown command that we repeat."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One row of the table. `preset` is what the command starts, if it starts anything by itself."""

    verb: str
    usage: str
    summary: str
    operation: Operation
    details: str
    """What else there is to know, for the documentation."""
    preset: str | None = None

    @property
    def right(self) -> Right:
        """Who may give it."""
        return RIGHTS[self.operation]


@dataclass(frozen=True, slots=True)
class Command:
    """A command as somebody gave it."""

    verb: str
    argument: str
    """The rest of the command's line."""
    body: str
    """The raw Markdown below that line, up to the next command or the end."""


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that does not exist. `word` is safe to repeat: letters, digits, `_`, `-` and nothing else."""

    word: str
    suggestion: str | None


def _starter(verb: str, details: str) -> CommandSpec:
    goal = PRESETS[verb].goal
    return CommandSpec(
        verb, f"/ptq {verb} [options] [advice]", f"{goal[0].upper()}{goal[1:]}.", Operation.START, details, preset=verb
    )


COMMANDS: Mapping[str, CommandSpec] = {
    spec.verb: spec
    for spec in (
        _starter("repro", "Changes nothing. Ends with a script that fails, or with what was tried."),
        _starter("diagnose", "Changes nothing. Ends with the cause, how it was proved, and a plan."),
        _starter("fix", "Its diff waits for a human note (`/ptq pr`)."),
        _starter(
            "simplify",
            "Takes up the edits of the last attempt on the issue; without such there is nothing to simplify. What "
            "comes of it is a new diff, which needs a note of its own.",
        ),
        CommandSpec(
            REBASE,
            f"/ptq {REBASE} [onto REF] [options] [advice]",
            "Bring the diff that stands, or that of the pull request, onto the newest commit of its base branch, or "
            "onto `REF`.",
            Operation.START,
            "`REF` is a branch, or a commit of the base branch by its full name. Git merges by itself; conflicts an "
            "agent resolves, in up to three attempts, and then people have to. It touches no branch and no pull "
            "request: what comes of it is a new diff, which needs a note of its own (docs/pull-requests.md).",
            preset=REBASE,
        ),
        CommandSpec(
            VERIFY,
            "/ptq verify [options]",
            "See whether the issue still reproduces on today's base branch, without an agent.",
            Operation.START,
            "Runs the issue's own scripts and the last attempt's `repro.py`, each several times and each time in a "
            "fresh environment, and says on which commit that was and how each ended (docs/verification.md).",
            preset=VERIFY,
        ),
        CommandSpec(
            "run",
            "/ptq run PRESET [options] [advice]",
            "Start a preset by its name: the operator's own, or `ad-hoc`, which does what your advice says.",
            Operation.START,
            "`/ptq run` alone lists the presets. Operators describe their own in `[presets.NAME]`.",
        ),
        CommandSpec(
            "retry",
            "/ptq retry [options] [advice]",
            "Make another attempt that carries on from the last one: with its edits, its worklog, and your advice.",
            Operation.START,
            "It has the agent, the model and the preset of the last one, where the options say nothing else.",
        ),
        CommandSpec(
            "status",
            "/ptq status",
            "Say how the job on this issue stands: phase, place in line, last step, cost so far.",
            Operation.STATUS,
            "Whoever may not start jobs is answered once an issue.",
        ),
        CommandSpec(
            "results",
            "/ptq results",
            "Post the last report again, with diff and worklog.",
            Operation.RESULTS,
            "For a thread in which it is far above. It says whether its diff still waits for a note.",
        ),
        CommandSpec(
            "cancel",
            "/ptq cancel",
            "End the job on this issue.",
            Operation.CANCEL,
            "It overtakes whatever waits on the issue. The job's report says what it had found by then.",
        ),
        CommandSpec(
            "pr",
            '/ptq pr [digest] [--title "words"]',
            "Open a draft pull request from the report's diff. Below this line say, in your own words, what the change "
            "does and why it is right.",
            Operation.OPEN_PULL,
            "A note approves exactly the diff whose digest it names, or that of the newest report that stood when it "
            "was written. It is refused where it is empty, or says what the report says.",
        ),
        CommandSpec(
            "takeover",
            "/ptq takeover",
            "End the job on this issue, and keep its environment for you for 8 hours, to go on by hand.",
            Operation.TAKE_OVER,
            "What the job found is reported as usual; where it has ended, its environment is made anew. The public SSH "
            "keys of your GitHub account let you in; the operator tells you where (docs/takeover.md). Asked for again, "
            "the 8 hours begin anew, also where somebody else held it.",
        ),
        CommandSpec(
            "release",
            "/ptq release [drop]",
            "Give the environment back: what was edited in it comes as a new attempt. With `drop` it is thrown away.",
            Operation.RELEASE,
            "Whoever held it. Until then the slot stays taken; what is not released in time is lost.",
        ),
        CommandSpec("help", "/ptq help", "Show this table.", Operation.HELP, ""),
    )
}


def parse_commands(comment: str) -> list[Command | UnknownCommand]:
    """The commands of a comment in their order, at most `MAX_COMMANDS`. Never raises, whatever the text."""
    # GitHub's parser drops one byte order mark at the beginning.
    source = comment.encode(errors="replace").decode().removeprefix("\ufeff")
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    near = _cut(source)
    if not _COMMAND.search(near):
        return []
    lines, read = source.split("\n"), near.split("\n")
    starts, end = _find_starts(near, read)
    end = len(lines) if end == len(read) else end
    return [_read(lines, start, stop) for start, stop in pairwise([*starts, end])][:MAX_COMMANDS]


def _cut(source: str) -> str:
    """The lines in which commands may stand."""
    if len(source) <= MAX_READ:
        return source
    # Of a last line that is too long the beginning is enough to see a command.
    near = source[:MAX_READ]
    return near[: near.rfind("\n")] if near.count("\n") else near


def _read(lines: Sequence[str], start: int, stop: int) -> Command | UnknownCommand:
    word, argument = [*lines[start].split(None, 2)[1:], "", ""][:2]
    verb = word.rstrip(":,.;!?").casefold() or "help"
    if verb in COMMANDS:
        return Command(verb, argument.strip(), "\n".join(lines[start + 1 : stop]).strip())
    shown = re.sub(r"[^\w-]", "", verb[:MAX_WORD]) or "?"
    return UnknownCommand(shown, next(iter(get_close_matches(shown, COMMANDS, n=1)), None))


# Where commands stand

_COMMAND = re.compile(r"^ {0,3}/ptq(?!\S)", re.IGNORECASE | re.MULTILINE)
_WROTE = (
    "wrote|schrieb|a écrit|escribió|ha scritto|schreef|skrev|escreveu|napisał|pisze|написал"
    "|написав|пише|napsal|napísal|kirjoitti|yazdı|írta|a scris|έγραψε|đã viết"
)
_WROTE_UNSPACED = "写道|寫道|のメール|書きました|님이 작성|작성"
_FORWARDED = re.compile(
    r"\s*(?:-{2,}\s?(?:original message|forwarded message|begin forwarded message)\s?-{2,}"
    # Some write these words in bold, as `*From:* alice`.
    r"|\*{0,2}(?:from|von|de|da|van|från|fra|od|发件人|寄件者|差出人|보낸 사람)\*{0,2}\s?[:：][^\n]+"
    r"\n[^\n:：]{1,30}[:：][^\n]*"
    r"|--"
    r"|(?:reply to this email directly|you are receiving this because|message id:)[^\n]*(?:\n[^\n]*)?)\s*",
    re.IGNORECASE | re.DOTALL,
)
"""What mail programs write above the message that somebody answers, and GitHub below its own."""

_ATTRIBUTED = re.compile(rf"(?:\S\s+(?:{_WROTE})\b|\S\s*(?:{_WROTE_UNSPACED}))[^\n]{{0,200}}[:：]\s*\Z", re.IGNORECASE)
_DATED = re.compile(r"\d[:.]\d\d|\b20\d\d(?:\b|年)|@")
"""`On 1 March 2026, alice wrote:`, in several languages."""

_RULE_OF_MAIL = re.compile(r"_{10,}")
"""The line that Outlook draws above the message that somebody answers."""

_MAX_FORWARDED = 700
_COMMENT = re.compile(r"<!--(?!-?>).*?(?:--!?>|\Z)", re.DOTALL)
_WHOLE_COMMENT = re.compile(r"<!--(?!-?>).*?--!?>", re.DOTALL)
_LEFT_OPEN = re.compile(r"<(?=[!?/a-z])[^<>]*+\Z", re.IGNORECASE)
"""A comment, or a tag, that does not end where its block does: a page may hide everything behind it."""
_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)((?:=\s*+\"[^\"]*+\"|=\s*+'[^']*+'|[^>])*+)", re.IGNORECASE)
_HIDING = re.compile(r"\b(?:hidden|style)\b", re.IGNORECASE)
_HARMLESS = frozenset(
    {
        *("abbr", "b", "cite", "dfn", "em", "i", "ins", "kbd", "mark", "p", "samp", "span", "strong", "time", "tt"),
        *("u", "var"),
    }
)
"""HTML elements whose contents are shown as they are, and may be plain words of the comment's author."""

_ELEMENTS = re.compile(
    r"a|acronym|address|applet|article|aside|audio|bdi|bdo|big|blink|blockquote|body|button|canvas|caption"
    r"|center|code|colgroup|data|datalist|dd|del|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|font"
    r"|footer|form|frameset|h1|h2|h3|h4|h5|h6|head|header|hgroup|html|iframe|label|legend|li|listing|main|map"
    r"|marquee|math|menu|meter|multicol|nav|nobr|noembed|noframes|noscript|object|ol|optgroup|option|output"
    r"|picture|plaintext|pre|progress|q|rb|rp|rt|rtc|ruby|s|script|search|section|select|slot|small|strike|style"
    r"|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|title|tr|ul|video|xmp"
)
"""The other HTML elements that have content. Any other name in angle brackets (`List<int>`) is no element."""

_FOOTNOTE = re.compile(r"[ \t>*+.)0-9-]*+\[\^[^\] \t\n\0]++\]:")
"""Begins the words of a footnote, which a page shows at its end or nowhere. Our parser of Markdown knows none."""


class _OpenElements:
    """Which HTML elements are open: blocks of Markdown may stand inside one."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._raw = ""
        """The open element in which a browser reads no other tags, if any."""
        self._is_torn = False
        """Whether a comment or a tag was left open: then nobody knows what is hidden below."""

    def __bool__(self) -> bool:
        return self._is_torn or any(self._open.values())

    def read(self, html: str) -> None:
        self._is_torn = self._is_torn or _LEFT_OPEN.search(_WHOLE_COMMENT.sub("", html)) is not None
        for closing, tag, attributes in _TAG.findall(_COMMENT.sub("", html)):
            name = tag.lower()
            if closing:
                if self._raw in ("", name):
                    self._open[name] = max(0, self._open[name] - 1)
                    self._raw = ""
            elif _ELEMENTS.fullmatch(name) or (name in _HARMLESS and _HIDING.search(attributes)):
                self._open[name] += 1
                self._raw = self._raw or (name if RAW_TEXT.fullmatch(name) else "")


@cache
def _parser() -> MarkdownIt:
    # Without images, which take longest: for us they are links.
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("image")


def _find_starts(source: str, lines: Sequence[str]) -> tuple[list[int], int]:
    """The numbers of the lines that begin a command, and of the line at which the author's own words end."""
    starts: list[int] = []
    # Of what lists and quotes hold, an end tag does not close what was opened outside.
    elements, nested = _OpenElements(), _OpenElements()
    done = 0
    for before, token in pairwise([Token("", "", 0), *_parser().parse(source)]):
        first, last = token.map or (done, done)
        if token.type == "hr" and _RULE_OF_MAIL.fullmatch(token.markup):
            return starts, first
        if token.type == "html_block":
            (nested if token.level else elements).read(token.content)
        elif token.type == "inline" and (before.type != "paragraph_open" or before.level):
            for child in token.children or []:
                nested.read(child.content if child.type == "html_inline" else "")
        elif token.type == "inline":
            found, mail = _find_in_paragraph(lines, (done, first, last), token.children or [], (elements, nested))
            starts += found
            if mail is not None:
                return starts, mail
        if not token.type.endswith("_open"):
            done = max(done, last)
    return starts, len(lines)


def _find_in_paragraph(
    lines: Sequence[str],
    numbers: tuple[int, int, int],
    children: Sequence[Token],
    elements: tuple[_OpenElements, _OpenElements],
) -> tuple[list[int], int | None]:
    """The lines of a paragraph that begin a command, and the one at which somebody else's message begins, if any.

    `numbers` are those of the first line that no block above holds, of the paragraph's first line, and past its last.
    The parser takes some footnotes for definitions of links, which no block holds.
    """
    above, first, last = numbers
    starts: list[int] = []
    firsts = list(_find_firsts(children, elements))
    if len(firsts) != last - first:
        # A code span, a tag or a link goes over the end of a line: what begins a line there is anybody's guess.
        return starts, None
    noted = False
    for line in lines[above:first]:
        noted = bool(line.strip()) and (noted or _FOOTNOTE.match(line) is not None)
    dollars = 0
    for number, opening in enumerate(firsts, first):
        if _is_forwarded(lines, number, last):
            return starts, number
        noted = noted or _FOOTNOTE.match(lines[number]) is not None
        # Between two `$$` GitHub reads mathematics.
        plain = opening.content if opening and not noted and not dollars % 2 else ""
        if plain[:4].casefold() == "/ptq" and _COMMAND.match(lines[number]):
            starts.append(number)
        dollars += lines[number].count("$$")
    return starts, None


def _find_firsts(children: Sequence[Token], elements: tuple[_OpenElements, _OpenElements]) -> Iterator[Token | None]:
    """For each line of a paragraph the text that begins it, or None where it begins inside or with something else."""
    depth = 0
    begins = True
    for child in children:
        if begins:
            yield child if child.type == "text" and not depth and not any(elements) else None
        depth += child.nesting
        if child.type == "html_inline":
            elements[0].read(child.content)
        begins = child.type in ("softbreak", "hardbreak")


def _is_forwarded(lines: Sequence[str], number: int, last: int) -> bool:
    """Whether somebody else's message begins at this line; its head may be folded into two."""
    for end in (number + 1, min(number + 2, last)):
        head = "\n".join(lines[number:end])
        if len(head) <= _MAX_FORWARDED and (_begins_mail(head) or (_is_dated(head) and _is_quoted(lines, end))):
            return True
    return False


def _is_dated(head: str) -> bool:
    return head.rstrip().endswith((":", "：")) and _DATED.search(head) is not None


def _is_quoted(lines: Sequence[str], start: int) -> bool:
    """Whether all that follows is a quote: then a head with a date names its author, in any language."""
    written = [line for at in range(start, len(lines)) if (line := lines[at].strip())]
    return bool(written) and all(line.startswith(">") for line in written)


def _begins_mail(head: str) -> bool:
    if _is_dated(head) and _ATTRIBUTED.search(head):
        return True
    return _FORWARDED.fullmatch(head) is not None


# Help


def render_help(rules: RepositoryRules | None = None) -> str:
    """The table as Markdown, with every command in code: no reply of ours holds a live one.

    With `rules` it says which role each command takes in their repository.
    """
    rows = [f"| `{spec.usage}` | {spec.summary} | {_name_right(spec.right, rules)} |" for spec in COMMANDS.values()]
    head = ["| Command | What it does | Who may |", "| --- | --- | --- |"]
    options = ", ".join(f"`--{name} NAME`" for name in NAMES)
    foot = (
        f"Options are {options} and `--{ANYWAY}`; they stand before the advice. "
        f"A command begins a line of its own, in the first {MAX_READ:,} characters of a comment. A comment may hold "
        f"{MAX_COMMANDS}; an edited comment does nothing."
    )
    return "\n".join([*head, *rows, "", foot])


def _name_right(right: Right, rules: RepositoryRules | None) -> str:
    if rules is None or right is Right.ANYONE:
        return str(right)
    return f"{right.find_role(rules).word} access"


def render_manual() -> str:
    """`docs/commands.md`, but for what no table knows."""
    parts = [
        f"## `{spec.usage}`\n\n{spec.summary} *{str(spec.right).capitalize()}.* {spec.details}".rstrip()
        for spec in COMMANDS.values()
    ]
    presets = [
        f"| `{preset.command}` | {preset.promise} | {'yes' if preset.may_change else 'no'} |"
        for preset in PRESETS.values()
    ]
    table = ["## Presets", "", "| Command | What it does | May change files |", "| --- | --- | --- |", *presets]
    return "\n\n".join([*parts, "\n".join(table)])
