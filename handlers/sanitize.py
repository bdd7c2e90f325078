"""Makes text that we did not write safe to post: secrets redacted, then defused, then cut. The only sanitiser.

Every rule is one named step, so that a test can switch one off and see what it held back. Pure; refuses to know who
wrote a text and where it goes. What a reader cannot see is decided in `runner.characters`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from handlers.markdown import AnyLink
from runner.characters import show_invisible

REDACTED = "[redacted]"
MIN_SECRET = 6
"""Characters. A shorter value would be found in innocent words."""

_GAP = "&#8203;"
"""A zero-width space, spelt so that whoever reads the source sees it. It separates and has no meaning in Markdown, so
inserting it anywhere changes no other mark."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One step, from text to safer text. `in_code` says whether it also works inside code."""

    name: str
    apply: Callable[[str], str]
    in_code: bool = False
    pattern: re.Pattern[str] | None = None


def _replace(name: str, pattern: str, replacement: str = REDACTED, flags: re.RegexFlag = re.NOFLAG) -> Rule:
    compiled = re.compile(pattern, flags)
    return Rule(name, partial(compiled.sub, replacement), pattern=compiled)


# Secrets

_PEM = r"-----{} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BEGIN, _PEM_END = _PEM.format("BEGIN"), _PEM.format("END")

KEY_SHAPES: tuple[Rule, ...] = (
    _replace("private keys", rf"{_PEM_BEGIN}(?:(?!-----BEGIN ).)*?{_PEM_END}", flags=re.DOTALL),
    # One whose end is missing, because a log was cut: the lines of base64 that follow its head.
    _replace("cut private keys", rf"{_PEM_BEGIN}(?:(?:[\s\"'+|>,-]|\\[nr])*+[A-Za-z0-9+/=]{{16,}}+)++"),
    _replace("github tokens", r"gh[pousr]_[A-Za-z0-9._]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    _replace("api keys", r"sk-(?<![A-Za-z0-9]sk-)(?=[A-Za-z_-]{0,80}[0-9])[A-Za-z0-9_-]{20,}"),
    _replace("hugging face tokens", r"hf_(?<![A-Za-z0-9]hf_)[A-Za-z0-9]{30,}"),
    _replace("aws keys", r"A[KS]IA(?<![A-Z0-9]A[KS]IA)[A-Z0-9]{16}(?![A-Z0-9])"),
    _replace("tokens of jobs", r"ptq-[0-9a-f]{10}-[0-9a-f]{40}"),
    _replace("google keys", r"AIza(?<![A-Za-z0-9_-]AIza)[A-Za-z0-9_-]{35}"),
    _replace("tokens of package registries", r"npm_(?<![A-Za-z0-9]npm_)[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,}"),
    _replace("gitlab tokens", r"gl(?:pat|dt|rt|cbt|ptt|soat)-[A-Za-z0-9_.-]{20,}"),
    _replace("stripe keys", r"(?:[rs]k_live|whsec)_[A-Za-z0-9]{20,}"),
    _replace("slack tokens", r"xox[a-z]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"),
    _replace("json web tokens", r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"),
    _replace(
        "authorization headers",
        r"(authorization[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:bearer|basic|token)\s{1,5})"
        r"(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{16,}",
        rf"\1{REDACTED}",
        re.IGNORECASE,
    ),
    # Not `{user}:{password}@` and other places that code leaves open.
    _replace("passwords in addresses", r"://[^\s/:@]{0,100}:[^\s/@{<$%*\[][^\s/@]{0,200}@", f"://{REDACTED}@"),
)
"""What credentials look like. GitHub's installation tokens can be some 520 characters since 2026.

A shape begins with its letters, and what may not stand before them comes after: the search for plain letters is the
fastest there is, and every line of the log is searched.
"""


def redact(text: str, secrets: Collection[str] = (), shapes: Sequence[Rule] = KEY_SHAPES) -> str:
    """Replace the live `secrets` and whatever looks like one. Do this first: a secret that was cut is not found."""
    for secret in _find_live(frozenset(secrets)):
        text = text.replace(secret, REDACTED)
    for shape in shapes:
        text = shape.apply(text)
    return text


_HEADER_BEGUN = re.compile(
    r"authorization[\"']?\s{0,5}(?:[:=]\s{0,5}(?:[\"']?(?:bearer|basic|token)\s{1,5})?)?\Z", re.IGNORECASE
)
_LONGEST_HEADER = 40
"""Characters of what `_HEADER_BEGUN` finds, at most."""


def find_open(text: str, secrets: Collection[str]) -> int:
    """Where, in whole lines, something begins that the lines after them may turn into a secret; else their length.

    Every live secret and every shape that may go over several lines is looked for, and no other has to be.
    """
    places = [len(text) - len(head) for head in _find_heads(frozenset(secrets)) if text.endswith(head)]
    if "-----BEGIN " in text:
        heads = [found.span() for found in re.finditer(_PEM_BEGIN, text)]
        # Closed by its end, and by the beginning of whatever comes next.
        places += [at for at, end in heads[-1:] if not re.search(rf"{_PEM_END}|-----BEGIN ", text[end:])]
    shift = max(len(text) - _LONGEST_HEADER, 0)
    if header := _HEADER_BEGUN.search(text[shift:]):
        places.append(shift + header.start())
    return min(places, default=len(text))


@cache
def _find_heads(secrets: frozenset[str]) -> Sequence[str]:
    """What the first lines of secrets that have several look like, up to the end of each line but their last."""
    found = [(form, place) for form in _find_live(secrets) for place in range(len(form) - 1) if form[place] == "\n"]
    # Not an empty line: it would hold back every line there is, and what comes after it is a secret, too.
    return [form[: place + 1] for form, place in found if form[:place].strip()]


@cache
def _find_live(secrets: frozenset[str]) -> Sequence[str]:
    """What to look for, the longest first: one may be part of another. Sets of secrets are few, texts are many."""
    live = {form for secret in secrets for form in (secret, secret.strip()) if len(form) >= MIN_SECRET}
    return sorted(live, key=len, reverse=True)


# Where the code is

_MAX_TICKS = 80
"""GitHub's parser takes a longer run of backticks for text."""

_TICKS = re.compile(r"`+")
_TICKS_OR_ESCAPE = re.compile(r"\\.|`+", re.DOTALL)
_UNSURE = re.compile(r"\]\(|\]\[|\]:|\[\^|\$|://|www\.|^[ \t|:]*-[ \t|:-]*$", re.MULTILINE)
"""Links, footnotes, mathematics, bare addresses, rows of a table: what may claim a backtick before it can open code."""


class _Blocks(AnyLink):
    """CommonMark's blocks alone. Tables are paragraphs (`_UNSURE`)."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802
        return url


@cache
def _parser() -> MarkdownIt:
    return _Blocks("commonmark", {"html": False}).disable(["inline", "text_join", "html_block"])


def _shadow(text: str) -> str:
    """The text as Markdown reads it once each `<` is escaped, character for character."""
    return text.replace("<", "&")


def _find_code(text: str) -> list[tuple[int, int]]:
    """Where code stands for sure, as offsets: the insides of fences, and spans within one line.

    Where GitHub's parser could come to another view than ours the answer is "no code": a mark too many in code is
    ugly, a live mention in what only looked like code is not.
    """
    environment: dict[str, object] = {}
    tokens = _parser().parse(_shadow(text), environment)
    lines = _shadow(text).split("\n")
    offsets = _find_offsets(lines)
    plain = not environment.get("references")
    found: list[tuple[int, int]] = []
    for before, token in pairwise([Token("", "", 0), *tokens]):
        first, last = token.map or (0, 0)
        if token.type == "fence":
            found.append((offsets[first + 1], offsets[last]))
        elif token.type == "inline" and plain and _is_running_text(before):
            found += _find_spans(token.content, lines[first:last], offsets[first:last])
    return [(start, min(end, len(text))) for start, end in found]


def _find_offsets(lines: Sequence[str]) -> list[int]:
    """Where each line starts in the text, and where one more would."""
    return [0, *accumulate(len(line) + 1 for line in lines)]


def _is_running_text(opening: Token) -> bool:
    return opening.type == "paragraph_open" or (opening.type == "heading_open" and opening.markup.startswith("#"))


def _find_spans(content: str, lines: list[str], offsets: list[int]) -> Iterator[tuple[int, int]]:
    """The code spans of a block, as offsets into the whole text. `lines` are the block's, with their prefixes."""
    inner = content.split("\n")
    if "`" not in content or len(inner) != len(lines) or _UNSURE.search(content):
        return
    starts = _find_offsets(inner)
    for start, end in _pair_ticks(content):
        place = bisect_left(starts, start + 1) - 1
        shown, line = inner[place].strip(" \t"), lines[place].rstrip(" \t")
        if end < starts[place + 1] and line.endswith(shown):
            shift = offsets[place] + len(line) - len(inner[place].rstrip(" \t")) - starts[place]
            yield start + shift, end + shift


def _pair_ticks(content: str) -> Iterator[tuple[int, int]]:
    """CommonMark's rule: a run of backticks opens code that the next run of the same length closes."""
    closers: dict[int, list[int]] = defaultdict(list)
    for run in _TICKS.finditer(content):
        closers[len(run[0])].append(run.start())
    at = 0
    while opener := _TICKS_OR_ESCAPE.search(content, at):
        at, length = opener.end(), len(opener[0])
        if opener[0].startswith("\\") or length > _MAX_TICKS:
            continue
        place = bisect_left(closers[length], at)
        if place < len(closers[length]):
            at = closers[length][place] + length
            yield opener.start(), at


def _find_closer(text: str) -> str:
    """What would close the fence that is open at the end of the text; empty where none is."""
    tokens = _parser().parse(_shadow(text))
    if not tokens or tokens[-1].type != "fence" or tokens[-1].level:
        return ""
    first, last = tokens[-1].map or (0, 0)
    mark = tokens[-1].markup
    closing = re.compile(rf" {{0,3}}{mark}{mark[0]}*[ \t]*")
    closed = last - first > 1 and closing.fullmatch(text.split("\n")[last - 1])
    return "" if closed else mark


def close_fence(text: str) -> str:
    """The text, with the fence closed that it leaves open, if any: what follows it then stands outside."""
    closer = _find_closer(text)
    newline = "" if text.endswith("\n") or not closer else "\n"
    return f"{text}{newline}{closer}"


# Prose

_LINE_START = r"^([ \t]*+(?:(?:[>*+-]|\d{1,9}[.)])[ \t]*+)*+"
"""The start of a line and the marks of quotes, lists and emphasis. Its group is left open."""

_FIELDS = (
    "Summary|Test Plan|Reviewers?|Reviewed By|Approved By|Subscribers|CC|Auditors|Tasks|Maniphest Tasks|Tags"
    "|JIRA Issues|Revert Plan|Blame Revision|Differential Revision|Differential Version|Pulled By"
    "|Pull Request resolved|Change-Id|fbshipit-source-id|ghstack-source-id|[a-z][a-z-]{0,40}-by"
)
_CLOSING = r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?![A-Za-z0-9])[^A-Za-z0-9#]*+"
_SLASH = r"(?:\\?/){1,3}"
"""Markdown drops a backslash before a slash or a dot, and browsers read some slashes as one."""
_THREAD = rf"{_SLASH}[\w.\\-]+{_SLASH}[\w.\\-]+{_SLASH}(?:issues|pull|discussions|[^\s/]*%[^\s/]*){_SLASH}"
_DRAWN = r"^([ \t>*+-]*(?:\d{1,9}[.)][ \t]*)?(?:`{3,}|~{3,})[ \t]*)(?:mermaid|geojson|topojson|stl|math)\b"

RULES: tuple[Rule, ...] = (
    Rule("invisible characters", show_invisible, in_code=True),
    # A picture may link anywhere, and its source is not seen.
    Rule("drawings", partial(re.compile(_DRAWN, re.MULTILINE | re.IGNORECASE).sub, r"\1text"), in_code=True),
    Rule("open fences", close_fence, in_code=True),
    # `&#64;` becomes a live @ after Markdown is rendered; only our own mark and the harmless ones stay.
    _replace("entities", r"&(?!(?:lt|gt|amp|quot|#8203);)(?=#?[0-9A-Za-z]{1,40};)", "&amp;"),
    _replace("html", r"\\?<", "&lt;"),
    _replace("mentions", r"(?<![A-Za-z0-9])@(?=[A-Za-z0-9])", f"@{_GAP}"),
    _replace("closing keywords", rf"({_CLOSING}(?:#+|GH-))(?!8203;)(?=\d)", rf"\1{_GAP}", re.IGNORECASE),
    _replace("images", r"!(?=\[)", f"!{_GAP}"),
    _replace("references to other repositories", r"(?<=[\w.\\-])#(?=\d)", f"#{_GAP}"),
    # GitHub's own way to link a thread without leaving a mark in it.
    _replace(
        "links to threads",
        rf"(?<![\w.-])(?:www\\?\.)?github\\?\.com(?={_THREAD}\d)",
        "redirect.github.com",
        re.IGNORECASE,
    ),
    _replace(
        "links to threads elsewhere",
        rf"(://(?!redirect\.github\.com/)[^\s/]+{_THREAD})(?=\d)",
        rf"\1{_GAP}",
        re.IGNORECASE,
    ),
    _replace("commands", rf"{_LINE_START})/(?=[A-Za-z])", r"\1\\/", re.MULTILINE),
    _replace(
        "field labels",
        rf"{_LINE_START}(?:{_FIELDS})[ \t]*):",
        r"\1\\:",
        re.MULTILINE | re.IGNORECASE,
    ),
)
"""What makes text safe to post as Markdown, in this order.

None of them adds a space, a bracket or a backtick, so the text keeps the structure in which its code was found.
"""


def defuse(text: str, rules: Sequence[Rule] = RULES) -> str:
    """Markdown in which nothing notifies, closes, commands, embeds or hides. What stands in code stays readable."""
    text = _normalise_newlines(text)
    for rule in rules:
        if rule.in_code:
            text = rule.apply(text)
    parts, at = [], 0
    for start, end in [*_find_code(text), (len(text), len(text))]:
        prose = text[at:start]
        for rule in rules:
            prose = prose if rule.in_code else rule.apply(prose)
        parts += [prose, text[start:end]]
        at = end
    return "".join(parts)


def _normalise_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Plain text

TITLE_RULES: tuple[Rule, ...] = (
    Rule("invisible characters", show_invisible),
    _replace("mentions", r"(?<![A-Za-z0-9])@+(?=[A-Za-z0-9])", ""),
    _replace(
        "closing keywords",
        rf"({_CLOSING}(?:GH(?=-))?)[#-]+(?=\d)",
        r"\1 ",
        re.IGNORECASE,
    ),
    _replace("references to other repositories", r"(?<=[\w.-])#+(?=\d)", " "),
    _replace("links to threads", rf"({_THREAD})(?=\d)", r"\1 ", re.IGNORECASE),
    # In a commit's message they keep GitHub Actions from running.
    _replace("words to CI", r"\[(skip ci|ci skip|no ci|skip actions|actions skip)\]", r"(\1)", re.IGNORECASE),
    _replace("commands", r"^/+(?=\w+(?:\s|$))", ""),
)


def one_line(text: str, limit: int, rules: Sequence[Rule] = TITLE_RULES) -> str:
    """A title of at most `limit` characters: no line breaks or control characters, no mention, no command.

    For plain text (titles, commit messages), where an escape would be seen; as Markdown it needs `defuse` on top.
    """
    line = " ".join(text.split())
    for rule in rules:
        line = rule.apply(line)
    line = " ".join(line.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def make_safe(text: str, secrets: Collection[str], limit: int | None = None, notice: str = "…") -> str:
    """Somebody's Markdown as it may be posted: without secrets, nothing live in it, of at most `limit` characters."""
    safe = defuse(redact(text, secrets))
    return safe if limit is None else cut(safe, limit, notice)


def make_safe_line(text: str, secrets: Collection[str], limit: int) -> str:
    """Somebody's words as one line of Markdown that may be posted, of some `limit` characters: no mark is counted."""
    return defuse(one_line(redact(text, secrets), limit))


# Shapes


def fence(text: str, info: str = "") -> str:
    """The text as a code block that nothing inside can end."""
    text = _normalise_newlines(text)
    ticks = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    newline = "" if text.endswith("\n") else "\n"
    return f"{ticks}{info}\n{text}{newline}{ticks}"


def collapse(summary: str, markdown: str) -> str:
    """The Markdown folded away under a one-line summary."""
    title = defuse(one_line(summary, 200))
    return f"<details>\n<summary>{title}</summary>\n\n{close_fence(markdown)}\n\n</details>"


def cut(text: str, limit: int, notice: str) -> str:
    """At most `limit` characters: the whole text, or as much as fits and below it the notice, outside any fence."""
    if len(text) <= limit:
        return text
    code = _find_code(text)
    room = limit - len(notice) - 2
    while room > 0:
        head = _shorten(text, room, code)
        whole = f"{close_fence(head)}\n\n{notice}"
        if len(whole) <= limit:
            return whole
        room -= len(whole) - limit
    return notice[:limit]


def _shorten(text: str, room: int, code: list[tuple[int, int]]) -> str:
    """The first `room` characters or fewer: up to the end of a line if one is near, and never half a code span."""
    for start, end in code:
        if start < room < end and "\n" not in text[start:end]:
            room = start
    line_end = text.rfind("\n", 0, room + 1)
    return text[: line_end if line_end > room * 0.8 else room].rstrip("\n")
