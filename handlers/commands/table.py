"""The commands: one table for parser, usage, permission and help. Pure.

A command counts only if its author clearly gave it: at the start of a line of a top-level paragraph. Text in code,
quotes, lists, headings, tables, links, HTML or forwarded mail is never a command, and neither is text that Markdown
parsers may read in different ways. If a comment contains a mail from GitHub, and the parser cannot see where the mail
begins, the comment has no commands at all, because any line may be another person's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import accumulate, pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from handlers.commands.options import ANYWAY, FRESH, GENERAL
from handlers.commands.rights import RIGHTS, Operation, Right
from handlers.rules import PRESETS, REBASE, VERIFY, RepositoryRules
from handlers.text.hidden_parts import RAW_TEXT

MAX_COMMANDS = 5
"""The most commands in one comment. The rest is ignored."""

MAX_READ = 4_000
"""How many characters of a comment are searched for commands. Anybody can write a comment, and the time to parse it
grows faster than its length."""

MAX_WORD = 30
"""The most characters of an unknown command that we repeat."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One row of the table. If the verb is the name of a preset, the command starts that preset."""

    verb: str
    usage: str
    summary: str
    operation: Operation
    details: str
    """More details, for the documentation."""

    @property
    def right(self) -> Right:
        """The right that a person needs to give the command."""
        return RIGHTS[self.operation]


@dataclass(frozen=True, slots=True)
class Command:
    """A command in a comment."""

    verb: str
    argument: str
    """The rest of the command's line."""
    body: str
    """The raw Markdown after that line, up to the next command or the end."""


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that does not exist. `word` is safe to repeat: only letters, digits, `_` and `-`."""

    word: str
    suggestion: str | None


def _starter(verb: str, details: str) -> CommandSpec:
    goal = PRESETS[verb].goal
    summary = f"{goal[0].upper()}{goal[1:]}."
    return CommandSpec(verb, f"/ptq {verb} [options] [advice]", summary, Operation.START, details)


COMMANDS: Mapping[str, CommandSpec] = {
    spec.verb: spec
    for spec in (
        _starter("repro", "Changes nothing. Ends with a script that fails, or with what was tried."),
        _starter("diagnose", "Changes nothing. Ends with the cause, how it was proved, and a plan."),
        _starter("fix", "Its diff waits for a human note (`/ptq pr`)."),
        _starter(
            "simplify",
            "Continues with the edits of the last attempt on the issue, which must have some. The result is a new "
            "diff, which needs its own note.",
        ),
        CommandSpec(
            REBASE,
            f"/ptq {REBASE} [onto REF] [options] [advice]",
            "Rebase the current diff or pull request onto the newest commit of its base branch, or onto `REF`.",
            Operation.START,
            "`REF` is a branch, or the full SHA of a commit on the base branch. An agent resolves conflicts, in up to "
            "three attempts; after that, people have to. The rebase changes no branch and no pull request: the result "
            "is a new diff, which needs its own note (docs/pull-requests.md).",
        ),
        CommandSpec(
            VERIFY,
            "/ptq verify [options]",
            "Check whether the issue still reproduces on the current base branch, without an agent.",
            Operation.START,
            "Runs the issue's own scripts and the last attempt's `repro.py` several times, each in a clean "
            "environment, and reports the commit and the results (docs/verification.md).",
        ),
        CommandSpec(
            "run",
            "/ptq run PRESET [options] [advice]",
            "Start a preset by name: the operator's own, or `ad-hoc`, which follows your instructions.",
            Operation.START,
            "`/ptq run` alone lists the presets. Operators describe their own in `[presets.NAME]`.",
        ),
        CommandSpec(
            "retry",
            "/ptq retry [options] [advice]",
            "Continue the last attempt, with its edits, its worklog and your advice.",
            Operation.START,
            "It uses the last attempt's agent, model, thinking, limits and preset unless the options say otherwise: "
            "`/ptq retry --preset fix` turns a diagnosis into a fix.",
        ),
        CommandSpec(
            "tell",
            "/ptq tell WORDS",
            "Tell the running agent something, without starting over.",
            Operation.TELL,
            "The agent gets your message when its current command finishes. If the command does not finish within one "
            "minute, it is stopped. The agent goes on in the same session, with the same limits and costs. If the job "
            "still waits, the agent gets the message with its instructions. If the agent has ended, the reply says so; "
            "`/ptq retry` with your message then starts another attempt. The report and the job's page show what was "
            "told.",
        ),
        CommandSpec(
            "status",
            "/ptq status",
            "Show the job's status: phase, queue position, last step, cost so far.",
            Operation.STATUS,
            "People who may not start jobs are answered once per issue.",
        ),
        CommandSpec(
            "results",
            "/ptq results",
            "Post the last report again, with diff and worklog.",
            Operation.RESULTS,
            "For long threads. It also says whether the diff is still waiting for a note.",
        ),
        CommandSpec(
            "cancel",
            "/ptq cancel",
            "Stop the job on this issue.",
            Operation.CANCEL,
            "It overtakes everything else that waits on the issue. The job's report has the results so far.",
        ),
        CommandSpec(
            "pr",
            '/ptq pr [digest] [--title "words"]',
            "Open a draft pull request from the report's diff. After this line, write a note in your own words: what "
            "the change does and why it is right.",
            Operation.OPEN_PULL,
            "A note approves exactly the diff with the given digest, or the one in the newest report at that time. An "
            "empty note, or one copied from the report, is refused.",
        ),
        CommandSpec(
            "takeover",
            "/ptq takeover",
            "Stop the job and give you SSH access to its environment for 8 hours.",
            Operation.TAKE_OVER,
            "The job's results are reported as usual. If the job has ended, its environment is rebuilt. You log in "
            "with the SSH keys of your GitHub account; the operator tells you the address (docs/takeover.md). "
            "Repeating the command restarts the 8 hours, even if somebody else holds the environment.",
        ),
        CommandSpec(
            "release",
            "/ptq release [drop]",
            "End the access and collect the edits as a new attempt. With `drop`, discard them.",
            Operation.RELEASE,
            "The slot is in use until then. Edits that are not released in time are lost.",
        ),
        CommandSpec("help", "/ptq help", "Show this table.", Operation.HELP, ""),
    )
}


def parse_commands(comment: str) -> list[Command | UnknownCommand]:
    """The commands of a comment in order, at most `MAX_COMMANDS`. Never raises.

    There are none if the comment contains a mail from GitHub and we cannot see where the mail begins.
    """
    commands, holds_mail = _parse(comment)
    return [] if holds_mail else commands


def find_command_with_mail(comment: str) -> Command | UnknownCommand | None:
    """The command on the first line of a comment, if it is ignored because of a mail in the comment. Never raises."""
    commands, holds_mail = _parse(comment)
    first = next((line for line in _unify(comment).split("\n") if line.strip()), "")
    return commands[0] if commands and holds_mail and _COMMAND.match(first) else None


def _parse(comment: str) -> tuple[list[Command | UnknownCommand], bool]:
    """Return what looks like a command, and whether the other lines contain a mail whose beginning we cannot see."""
    source = _unify(comment)
    near = _cut(source)
    if not _COMMAND.search(near):
        return [], False
    lines, read = source.split("\n"), near.split("\n")
    found = _find_starts(near, read, source[len(near) :])
    mail, end = (len(lines) if number == len(read) else number for number in (found.mail, found.end))
    commands = [_read(lines, start, stop) for start, stop in pairwise([*found.starts, end])][:MAX_COMMANDS]
    own = [line for number, line in enumerate(lines[:mail]) if number not in found.code and not _QUOTED.match(line)]
    return commands, bool(commands) and _MAIL_OF_GITHUB.search("\n".join(own)) is not None


def _unify(comment: str) -> str:
    # GitHub's parser drops one byte order mark at the beginning.
    source = comment.encode(errors="replace").decode().removeprefix("\ufeff")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _cut(source: str) -> str:
    """The lines that may contain commands."""
    if len(source) <= MAX_READ:
        return source
    # If the first line alone is too long, its beginning is enough to recognise a command.
    near = source[:MAX_READ]
    return near[: near.rfind("\n")] if near.count("\n") else near


def _read(lines: Sequence[str], start: int, stop: int) -> Command | UnknownCommand:
    word, argument = [*lines[start].split(None, 2)[1:], "", ""][:2]
    verb = word.rstrip(":,.;!?").casefold() or "help"
    if verb in COMMANDS:
        return Command(verb, argument.strip(), "\n".join(lines[start + 1 : stop]).strip())
    shown = re.sub(r"[^\w-]", "", verb[:MAX_WORD]) or "?"
    return UnknownCommand(shown, next(iter(get_close_matches(shown, COMMANDS, n=1)), None))


# Where commands are

_COMMAND = re.compile(r"^ {0,3}/ptq(?!\S)", re.IGNORECASE | re.MULTILINE)
_WROTE = (
    "wrote|schrieb|a écrit|escribió|ha scritto|schreef|skrev|escreveu|napisał|pisze|написал"
    "|написав|пише|napsal|napísal|kirjoitti|yazdı|írta|a scris|έγραψε|đã viết"
)
_WROTE_UNSPACED = "写道|寫道|のメール|書きました|님이 작성|작성"
_FORWARDED = re.compile(
    r"\s*(?:-{2,}\s?(?:original message|forwarded message|begin forwarded message)\s?-{2,}"
    # Some programs write these words in bold, as `*From:* alice`.
    r"|\*{0,2}(?:from|von|de|da|van|från|fra|od|发件人|寄件者|差出人|보낸 사람)\*{0,2}\s?[:：][^\n]+"
    r"\n[^\n:：]{1,30}[:：][^\n]*)\s*",
    re.IGNORECASE | re.DOTALL,
)
"""The lines that mail programs write above a quoted message."""

_MAIL_OF_GITHUB = re.compile(
    r"(?:[<(\[]|&lt;|mailto:)\s*[^<>()\[\]\s@]{1,300}@(?:(?:no)?reply\.)?github\.com(?![\w-]|[.:]\w)"
    r"|\*{3}@\*{3}\.\*{3}"
    r"|reply\s+to\s+this\s+email\s+directly|view\s+it\s+on\s+github|you\s+are\s+receiving\s+this\s+because"
    r"|message\s+id:\s*(?:<|&lt;)|^[ \t]*message id:",
    re.IGNORECASE | re.MULTILINE,
)
"""The signs of a mail from GitHub, in every language: an address in its head, or GitHub's own lines at its end.

In a comment that was sent by e-mail, GitHub shows addresses as `***@***.***`.
"""

_QUOTED = re.compile(r"\s*>")
_CONTAINERS = ("blockquote_open", "bullet_list_open", "ordered_list_open")
_CLOSING = ("fence", "hr", "heading_open", "blockquote_open")
"""The blocks that end a paragraph wherever they begin."""

_SIGNATURE = "--"
"""The line that mail programs write above a signature."""

_ATTRIBUTED = re.compile(rf"(?:\S\s+(?:{_WROTE})\b|\S\s*(?:{_WROTE_UNSPACED}))[^\n]{{0,200}}[:：]\s*\Z", re.IGNORECASE)
"""The end of a line such as `On 1 March 2026, alice wrote:`, in several languages."""

_DATED = re.compile(r"\d[:.]\d\d|\b20\d\d(?:\b|年)|@")
"""The time, the year or the address in such a line."""

_RULE_OF_MAIL = re.compile(r"_{10,}")
"""Outlook's line above a quoted message."""

_MAX_FORWARDED = 700
_COMMENT = re.compile(r"<!--(?!-?>).*?(--!?>|\Z)", re.DOTALL)
_LEFT_OPEN = re.compile(
    r"<(?:!--(?!-?>)|(?=[!?/a-z])[^<>]*+\Z"
    r"|[a-z](?:=\s*+\"[^\"]*+\"|=\s*+'[^']*+'|=(?!\s*+[\"'])|[^<>=])*+=\s*+[\"'])",
    re.IGNORECASE,
)
"""A comment, a tag or a quote in a tag that is not closed in its block. A page may hide everything after it."""
_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)((?:=\s*+\"[^\"]*+\"|=\s*+'[^']*+'|[^>])*+)", re.IGNORECASE)
_HIDING = re.compile(r"\b(?:hidden|style)\b", re.IGNORECASE)
_HARMLESS = frozenset(
    {
        *("abbr", "b", "cite", "dfn", "em", "i", "ins", "kbd", "mark", "p", "samp", "span", "strong", "time", "tt"),
        *("u", "var"),
    }
)
"""HTML elements whose contents are shown unchanged, and may be plain text of the author."""

_ELEMENTS = re.compile(
    r"a|acronym|address|applet|article|aside|audio|bdi|bdo|big|blink|blockquote|body|button|canvas|caption"
    r"|center|code|colgroup|data|datalist|dd|del|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|font"
    r"|footer|form|frameset|h1|h2|h3|h4|h5|h6|head|header|hgroup|html|iframe|label|legend|li|listing|main|map"
    r"|marquee|math|menu|meter|multicol|nav|nobr|noembed|noframes|noscript|object|ol|optgroup|option|output"
    r"|picture|plaintext|pre|progress|q|rb|rp|rt|rtc|ruby|s|script|search|section|select|slot|small|strike|style"
    r"|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|title|tr|ul|video|xmp"
)
"""The other HTML elements with content. Any other name in angle brackets (`List<int>`) is not an element."""

CONTAINERS = r"[ \t>*+.)0-9-]*+"
"""The marks of quotes and lists, and the space before a block in them."""

_FOOTNOTE = re.compile(rf"{CONTAINERS}\[\^[^\] \t\n\0]++\]:")
"""The beginning of a footnote. A page shows its text at the end, or not at all. Our parser does not know footnotes."""


_DELIMITERS = re.compile(r"(?=[^|:\v\f\n]*[|:\v\f])(?=[^-\n]*-)[\s|:-]*+")
"""A line that may separate the head of a table from its rows, with `|`, `-` and `:`.

The rows go on to the end of the paragraph, with or without `|`. GitHub finds tables that our parser does not: tables
with one column and no `|`, and tables with other kinds of space.
"""

_UNDERLINE = re.compile(r" {0,3}(?:-+|=+)\s*")
"""A line that makes the paragraph above a heading on GitHub. Our parser may see it as the delimiters of a table."""


_DISPUTED = re.compile(rf"{CONTAINERS}<(?:/?(?:search|source|textarea)(?![a-z0-9-])|![a-z])", re.IGNORECASE)
"""The beginning of a block of HTML that only one of two parsers recognises: GitHub's, or ours.

GitHub's (https://github.com/github/cmark-gfm/blob/master/src/scanners.re) knows the name `source`. Ours knows the two
other names, and also `<!` before a small letter.
"""

_ITEM = re.compile(r" {0,3}(?:[-+*]|[0-9]{1,9}[.)])")
_FENCE = re.compile(r" {0,3}(?:~~~|```[^`]*\Z)")
_OPENING = re.compile(r"[`<\[*_~$]")
"""A character that may begin something that continues on the next line, and hides or changes what follows."""

_BRACKET = re.compile(r"\[")


class OpenElements:
    """The open HTML elements: Markdown blocks may be inside one."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._raw = ""
        """The open element in which browsers parse no other tags. Empty if there is none."""
        self._is_torn = False
        """Whether a comment or a tag was left open. Anything after it may be hidden."""

    def __bool__(self) -> bool:
        """Whether anything is open."""
        return self._is_torn or any(self._open.values())

    def read(self, html: str) -> None:
        """Continue with more HTML. The text of a comment that nothing ends is searched only once."""
        left = _COMMENT.sub(lambda found: "" if found[1] else "<!--", html)
        self._is_torn = self._is_torn or _LEFT_OPEN.search(left) is not None
        for closing, tag, attributes in _TAG.findall(left):
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
    # Images are off, because they take longest to parse. An image is then parsed as a link.
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("image")


@dataclass(slots=True)
class _Layout:
    """The roles of a comment's lines, by line number."""

    mail: int
    """The line where another person's message begins, if its head is recognised. Otherwise the number of lines."""
    end: int
    """The line where the author's own text ends: at a message, or at a signature."""
    starts: list[int] = field(default_factory=list)
    """The lines where commands begin."""
    code: set[int] = field(default_factory=set)
    """The lines inside closed fences."""


def _find_starts(source: str, lines: Sequence[str], rest: str) -> _Layout:
    """Find the roles of the lines of `source`. `rest` is the text after them, which is not parsed."""
    found = _Layout(len(lines), len(lines))
    # An end tag inside a list or a quote does not close an element that was opened outside, so `nested` is separate.
    elements, nested = OpenElements(), OpenElements()
    blanks = list(accumulate((not line.rstrip(" \t").strip(">") for line in lines), initial=0))
    done = 0
    blanks_before = -1
    ends: list[tuple[int, int]] = []
    fences: list[int] = []
    closing: set[int] = set()
    for before, token in pairwise([Token("", "", 0), *_parser().parse(source)]):
        first, last = token.map or (done, done)
        if token.type in _CLOSING and not token.level:
            closing.add(first)
        if token.type == "fence":
            fences.append(first)
        # GitHub's parser may see a list where ours sees a table.
        if token.type in ("table_open", *_CONTAINERS) and not token.level and (item := _ITEM.match(lines[first])):
            ends.append((last, item.end() + 1))
        if token.type == "hr" and _RULE_OF_MAIL.fullmatch(token.markup):
            found.mail = first
        elif token.type == "fence" and not token.level and lines[last - 1].strip().startswith(token.markup):
            found.code.update(range(first + 1, last - 1))
        elif token.type == "html_block":
            (nested if token.level else elements).read(token.content)
        elif token.type == "inline" and (before.type != "paragraph_open" or before.level):
            for child in token.children or []:
                nested.read(child.content if child.type == "html_inline" else "")
        elif token.type in _CONTAINERS and not token.level:
            blanks_before = blanks[last - 1]
        elif token.type == "inline":
            starts, mail = _find_in_paragraph(lines, (done, first, last), token.children or [], (elements, nested))
            # In GitHub's parser, a paragraph of a quote or list can go on below it, also after a link definition.
            found.starts += starts if blanks[first] > blanks_before else []
            if rest and last == len(lines):
                plain = -1 if _goes_on_as_other(rest) else _find_line(_OPENING, lines, first)
                found.starts = [at for at in found.starts if at < first or at <= plain]
            elif "]:" in rest:
                # Whether brackets are a link depends on definitions anywhere in the comment.
                plain = _find_line(_BRACKET, lines, first)
                found.starts = [at for at in found.starts if at <= plain]
            found.mail = len(lines) if mail is None else mail
            signature = next((at for at in range(first, last) if lines[at].strip() == _SIGNATURE), len(lines))
            found.end = min(found.end, signature)
        if found.mail < len(lines):
            break
        # On GitHub, the lines above and below an underline may be one table, or one footnote.
        is_underlined = before.type == "heading_open" and before.markup in ("-", "=")
        if not token.type.endswith("_open") and not is_underlined:
            done = max(done, last)
    found.end = min(found.end, found.mail)
    disputed = (at for at, line in enumerate(lines) if at not in found.code and _DISPUTED.match(line))
    torn = (at for end, indent in ends for at in _find_contents(lines, end, indent, closing))
    notes = _find_notes(lines, found.code)
    # On GitHub, the end of a fence in a footnote may be the beginning of another fence.
    noted = (at for at in fences if at in notes)
    unsure = _find_unsure(lines, next(disputed, len(lines)))
    sure = min(unsure, min(torn, default=len(lines)), min(noted, default=len(lines)), found.end)
    found.starts = [start for start in found.starts if start < sure and start not in notes]
    return found


def _find_unsure(lines: Sequence[str], disputed: int) -> int:
    """The first line that GitHub may show as something else, because of the `disputed` line.

    If the disputed line is in a paragraph, something that opens above it may continue over it.
    """
    if disputed == len(lines):
        return disputed
    first = next((at + 1 for at in range(disputed - 1, -1, -1) if not lines[at].strip(" \t")), 0)
    return min(_find_line(_OPENING, lines, first) + 1, disputed)


def _measure_indent(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def _find_contents(lines: Sequence[str], end: int, indent: int, closing: Collection[int]) -> Iterator[int]:
    """Yield the first line below a list that GitHub may show in the list's last item, if there is one.

    Our parser ends a list below an item without text, and below some definitions of links. In GitHub's parser,
    lines that continue a paragraph are still in the item, and so are all lines that are indented by `indent`.
    """
    blank = not lines[end - 1].strip(" \t")
    for number in range(end, len(lines)):
        line = lines[number]
        if not line.strip(" \t"):
            blank = True
        elif _measure_indent(line) >= indent:
            yield number
            return
        elif blank or number in closing:
            return


def _find_notes(lines: Sequence[str], code: Collection[int]) -> set[int]:
    """The lines that may belong to a footnote: its first line, indented lines, and lines that continue a paragraph."""
    notes = set()
    noted = blank = False
    for number, line in enumerate(lines):
        is_blank = not line.strip(" \t")
        if number in code:
            noted = False
        elif not is_blank:
            goes_on = noted and (not blank or _measure_indent(line) >= 4)
            noted = goes_on or _FOOTNOTE.match(line) is not None
        blank = is_blank
        if noted:
            notes.add(number)
    return notes


def _find_line(what: re.Pattern[str], lines: Sequence[str], first: int) -> int:
    """The number of the first line from `first` on that contains `what`. The number of all lines if there is none."""
    return next((at for at in range(first, len(lines)) if what.search(lines[at])), len(lines))


def _goes_on_as_other(rest: str) -> bool:
    """Whether the unparsed `rest` of a paragraph may turn the paragraph into a heading or a table."""
    for line in rest.split("\n")[1:]:
        if not line.strip(" \t") or _FENCE.match(line):
            break
        if _UNDERLINE.fullmatch(line) or _DELIMITERS.fullmatch(line):
            return True
    return False


def _find_in_paragraph(
    lines: Sequence[str],
    numbers: tuple[int, int, int],
    children: Sequence[Token],
    elements: tuple[OpenElements, OpenElements],
) -> tuple[list[int], int | None]:
    """The lines of a paragraph that begin a command, and the line where another person's message begins, or None.

    `numbers` are the first line after the blocks above, the paragraph's first line, and the line after its last. The
    parser treats some footnotes as link definitions, which are in no block.
    """
    above, first, last = numbers
    starts: list[int] = []
    firsts = list(_find_firsts(children, elements))
    # The raw lines are searched, because a name in the head of a message may contain a backtick.
    mail = next((number for number in range(first, last) if _is_forwarded(lines, number, last)), None)
    if len(firsts) != last - first:
        # A code span, a tag or a link continues on the next line, so it is unknown what begins that line.
        return starts, mail
    # GitHub may join the lines around to the paragraph: link definitions above it, or a table below it.
    top = next((number + 1 for number in range(first - 1, above - 1, -1) if not lines[number].strip(" \t")), above)
    table = next(
        (number - 1 for number in range(top, min(last + 1, len(lines))) if _DELIMITERS.fullmatch(lines[number])), last
    )
    if any("|" in head and _UNDERLINE.fullmatch(line) for head, line in pairwise(lines[last : last + 2])):
        return starts, mail
    dollars = 0
    for number, opening in enumerate(firsts, first):
        # Between two `$$` GitHub reads mathematics.
        plain = opening.content if opening and not dollars % 2 and number < table else ""
        if plain[:4].casefold() == "/ptq" and _COMMAND.match(lines[number]):
            starts.append(number)
        dollars += lines[number].count("$$")
    return starts, mail


def _find_firsts(children: Sequence[Token], elements: tuple[OpenElements, OpenElements]) -> Iterator[Token | None]:
    """Yield the text at the start of each line of a paragraph. None if it starts with or inside something else."""
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
    """Whether another person's message begins at this line. Its heading may span two lines."""
    for end in (number + 1, min(number + 2, last)):
        head = "\n".join(lines[number:end])
        if len(head) <= _MAX_FORWARDED and (_begins_mail(head) or (_is_dated(head) and _is_quoted(lines, end))):
            return True
    return False


def _is_dated(head: str) -> bool:
    return head.rstrip().endswith((":", "：")) and _DATED.search(head) is not None


def _is_quoted(lines: Sequence[str], start: int) -> bool:
    """Whether everything that follows is a quote. A heading with a date then names its author, in any language."""
    written = [line for at in range(start, len(lines)) if (line := lines[at].strip())]
    return bool(written) and all(line.startswith(">") for line in written)


def _begins_mail(head: str) -> bool:
    if _is_dated(head) and _ATTRIBUTED.search(head):
        return True
    return _FORWARDED.fullmatch(head) is not None


# Help


def render_help(rules: RepositoryRules | None = None) -> str:
    """The table as Markdown, with every command in code, so that our reply has no live command.

    With `rules`, it shows the role that each command needs in that repository.
    """
    rows = [f"| `{spec.usage}` | {spec.summary} | {_name_right(spec.right, rules)} |" for spec in COMMANDS.values()]
    head = ["| Command | What it does | Who can use it |", "| --- | --- | --- |"]
    options = ", ".join(f"`--{name} {placeholder}`" for name, (placeholder, _) in GENERAL.items())
    foot = (
        f"Options are {options}, `--{ANYWAY}` and `--{FRESH}`; put them before the advice. "
        f"Put each command on its own line, in the first {MAX_READ:,} characters of a comment (up to {MAX_COMMANDS} "
        "commands). Commands in edited comments are ignored."
    )
    return "\n".join([*head, *rows, "", foot])


def _name_right(right: Right, rules: RepositoryRules | None) -> str:
    if rules is None or right is Right.ANYONE:
        return str(right)
    return f"{right.find_role(rules).word} access"


def render_manual() -> str:
    """The generated part of `docs/commands.md`."""
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
