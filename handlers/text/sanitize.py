"""Makes text that we did not write safe to post. It redacts secrets, then defuses the text, then cuts it.

This is the only sanitiser. Every rule is one named step, so that a test can switch a rule off and see what it held
back. Pure: this module does not know who wrote a text or where it goes. `runner.characters` decides which characters a
reader cannot see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from handlers.text.markdown import LANGUAGES, LINE_START, Fence, find_half_span, find_spans, parse_blocks, split_fences
from handlers.text.secret_forms import PIECE, find_forms, find_head, find_matches, find_present, has_head, mask_escaped
from runner.characters import normalise_newlines, show_invisible
from runner.model.jobd_answers import SAYS

REDACTED = "[redacted]"

_GAP = "&#8203;"
"""A zero-width space, written so that readers of the source see it. It separates characters and has no meaning in
Markdown, so inserting it anywhere changes no other mark."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One step, from text to safer text. `in_code` says whether it also works inside code."""

    name: str
    apply: Callable[[str], str]
    in_code: bool = False
    pattern: re.Pattern[str] | None = None


def _replace(name: str, pattern: str, replacement: str = REDACTED, flags: re.RegexFlag = re.NOFLAG) -> Rule:
    compiled = re.compile(pattern, flags)
    return Rule(name, partial(_substitute, compiled, replacement), pattern=compiled)


def _substitute(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    if len(text) <= PIECE:
        return pattern.sub(replacement, text)
    parts, done = [], 0
    for found in find_matches(pattern, text):
        parts += [text[done : found.start()], found.expand(replacement)]
        done = found.end()
    return "".join([*parts, text[done:]]) if parts else text


# Secrets

_PEM = r"-----{} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BEGIN, _PEM_END = _PEM.format("BEGIN"), _PEM.format("END")

_ESCAPES = (
    r"\\[abfnrtv0]",
    r"\\[0-7]{3}",
    r"\\x[0-9A-Fa-f]{2}",
    r"\\u[0-9A-Fa-f]{4}",
    r"[%=][0-9A-F]{2}",
    r"%[0-9a-f]{2}",
    # The end of a sequence that colours a terminal or moves its cursor, even if its first sign is written out.
    r"[\[;0-9][A-HJKSTfhlmsu]",
)
"""Escapes that end with a letter or a digit, but spell another sign. Their width is fixed, for a lookbehind."""


def _begin(letters: str, alphabet: str = "A-Za-z0-9") -> str:
    """A pattern for the letters that a key begins with. None of the alphabet precedes them, except in an escape."""
    escapes = "".join(rf"|(?<={escape}{letters})" for escape in _ESCAPES)
    return rf"{letters}(?:(?<![{alphabet}]{letters}){escapes})"


_LEFT_OPEN = (
    # `$NAME`, `${NAME:-x}`, `$(cat x)`, `${{ secrets.X }}`
    r"(?:\$(?:\w{1,60}+|\{\{[^{}\n]{0,60}+\}\}|\{[^{}\n]{0,60}+\}|\([^\s()]{0,60}+\))"
    # `%s`, `%(name)s`, `%NAME%`
    r"|%(?:\w{1,60}+%|\(\w{1,60}+\)[a-z]|[dqrsv](?![A-Za-z0-9]))"
    # `***`, `<password>`, `{password}`, `{{password}}`, `#{password}`, `[redacted]`
    r"|\*{1,60}+|<[^<>\s]{0,60}+>|#?\{\{?[^\s{}]{0,60}+\}\}?|\[[\w .-]{0,60}+\])"
)
"""Placeholders for a password in code, a shell or a template. All are bounded, because they are searched often."""


def _not_left_open(end: str) -> str:
    """A pattern that looks ahead: the text up to `end` is more than placeholders (`_LEFT_OPEN`)."""
    return rf"(?!(?:{_LEFT_OPEN}[]:._-]?+){{1,4}}+(?:{end}|\Z))"


_VALUE_END = r"[\s\"',;)&|<>\\]"

_HOST = r"[\w-]{1,60}(?:\.[\w-]{1,60}){1,8}"
_AWS_VALUE = r"[\"']?[ \t]{0,5}[:=][ \t]{0,5}[\"']?)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"

KEY_SHAPES: tuple[Rule, ...] = (
    _replace("private keys", rf"{_PEM_BEGIN}(?:(?!-----BEGIN ).)*?{_PEM_END}", flags=re.DOTALL),
    # A private key whose end is missing, because a log was cut: its head, and the lines of base64 after it.
    _replace("cut private keys", rf"{_PEM_BEGIN}(?:(?:[\s\"'+|>,-]|\\[nr])*+[A-Za-z0-9+/=]{{16,}}+)++"),
    _replace("github tokens", r"gh[pousr]_[A-Za-z0-9._]{30,}|github_pat_[A-Za-z0-9_]{22,}"),
    _replace("api keys", _begin("sk-") + r"(?=[A-Za-z_-]{0,80}[0-9])[A-Za-z0-9_-]{20,}"),
    _replace("hugging face tokens", _begin("hf_") + r"(?:[A-Za-z0-9]{30,}|oauth_[A-Za-z0-9._-]{20,})"),
    _replace("aws keys", _begin("A[KS]IA", "A-Z0-9") + r"[A-Z0-9]{16}(?![A-Z0-9])"),
    _replace("tokens of jobs", r"ptq-[0-9a-f]{10}-[0-9a-f]{40}"),
    _replace("google keys", _begin("AIza", "A-Za-z0-9_-") + r"[A-Za-z0-9_-]{35}"),
    _replace(
        "tokens of package registries",
        _begin("npm_") + r"[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,}|dckr_pat_[A-Za-z0-9_-]{20,}",
    ),
    _replace("gitlab tokens", r"gl(?:pat|dt|rt|cbt|ptt|soat)-[A-Za-z0-9_.-]{20,}"),
    _replace(
        "xai and groq keys",
        rf"{_begin('xai-')}[A-Za-z0-9]{{40,}}|{_begin('gsk_')}[A-Za-z0-9]{{40,}}|nvapi-[A-Za-z0-9_-]{{40,}}",
    ),
    _replace("cursor keys", rf"{_begin('crsr_')}[A-Za-z0-9]{{32,}}|{_begin('key_')}[0-9a-f]{{64}}"),
    _replace("stripe keys", r"[rs]k_(?:live|test)_[A-Za-z0-9]{20,}|whsec_[A-Za-z0-9+/=]{20,}"),
    _replace(
        "slack tokens",
        r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{20,}"
        r"|hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]{20,}",
    ),
    _replace(
        "json web tokens", _begin("eyJ", "A-Za-z0-9_-") + r"[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"
    ),
    _replace(
        "authorization headers",
        r"(authorization[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:bearer|basic|token)\s{1,5})"
        r"(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{16,}",
        rf"\1{REDACTED}",
        re.IGNORECASE,
    ),
    _replace(
        "keys in headers",
        r"(-(?i:api-key)(?<=[xX].{8})[\"']?[ \t]{0,5}[:=][ \t]{0,5}[\"']?)"
        r"(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{16,}",
        rf"\1{REDACTED}",
    ),
    _replace("azure keys", r"(AccountKey=)[A-Za-z0-9+/]{86}==", rf"\1{REDACTED}"),
    _replace("azure keys of access", r"(SharedAccessKey=)[A-Za-z0-9+/]{43}=", rf"\1{REDACTED}"),
    _replace("azure secrets of apps", r"8Q~[A-Za-z0-9_~.-]{31,}"),
    _replace("azure signatures", r"([?&]sig=)[A-Za-z0-9%+/]{40,}=*", rf"\1{REDACTED}"),
    _replace("digitalocean tokens", r"do[opr]_v1_[0-9a-f]{64}"),
    *(
        _replace(f"{vendor} keys", _begin(letters, "A-Za-z0-9_-") + rest)
        for vendor, letters, rest in (
            ("google oauth", r"ya29\.", r"[A-Za-z0-9_-]{30,}"),
            ("google client", "GOCSPX-", r"[A-Za-z0-9_-]{20,}"),
            ("sendgrid", r"SG\.", r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
            ("databricks", "dapi", r"[0-9a-f]{32}(?![0-9a-f])"),
            ("replicate", "r8_", r"[A-Za-z0-9]{30,}"),
            ("perplexity", "pplx-", r"[A-Za-z0-9]{40,}"),
            ("linear", "lin_api_", r"[A-Za-z0-9]{30,}"),
            ("shopify", "shp[a-z]{2}_", r"[0-9a-f]{32}"),
            ("vault", r"hv[sb]\.", r"[A-Za-z0-9_-]{24,}"),
            ("grafana", "glsa_", r"[A-Za-z0-9]{32}_[0-9a-f]{8}"),
            ("supabase", "sbp_", r"[0-9a-f]{40}"),
            ("notion", "ntn_", r"[A-Za-z0-9]{40,}"),
            ("fly", "fm[12]_", r"[A-Za-z0-9+/=_-]{80,}"),
            ("kaggle", "KGAT_", r"[0-9a-f]{32}"),
            ("age", "AGE-SECRET-KEY-1", r"[A-Z0-9]{58}"),
        )
    ),
    _replace("terraform tokens", r"\.atlasv1\.[A-Za-z0-9_=-]{40,}"),
    _replace("discord webhooks", r"(/webhooks/[0-9]{15,22}/)[A-Za-z0-9_-]{40,}", rf"\1{REDACTED}"),
    _replace("telegram tokens", r":AA(?<=[0-9]{8}:AA)[A-Za-z0-9_-]{33}"),
    _replace("tokens in npmrc", rf"(:_authToken=){_not_left_open(_VALUE_END)}[^\s\"']{{16,}}", rf"\1{REDACTED}"),
    _replace(
        "aws session tokens",
        r"(?i:(session_?token[\"']?[ \t]{0,5}[:=][ \t]{0,5}[\"']?)[A-Za-z0-9/+=]{100,})",
        rf"\1{REDACTED}",
    ),
    # From an environment that was printed, or from a line of a shell.
    _replace(
        "keys in variables",
        rf"(_(?:API_KEY|TOKEN|SECRET)[\"']?[ \t]{{0,5}}[:=][ \t]{{0,5}}[\"']?){_not_left_open(_VALUE_END)}"
        r"[%$*\[]?(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{24,}",
        rf"\1{REDACTED}",
    ),
    # Only passwords with letters, digits and signs, because code and words do not look like that.
    _replace(
        "passwords in variables",
        rf"(PASS(?:WORD|WD|PHRASE)(?:=[\"']?|[\"']?:[ \t]?[\"'])){_not_left_open(_VALUE_END)}"
        r"(?=[^\s\"'()\\]{0,80}[%$*\[!@#^&?])(?=[^\s\"'()\\]{0,80}[0-9])"
        r"(?=[^\s\"'()\\]{0,80}[A-Za-z])(?:[^\s\"'()\\]|\\(?![nrt\"'])){8,}+",
        rf"\1{REDACTED}",
    ),
    _replace(
        "aws secrets",
        rf"(ccess_?[Kk]ey(?:(?<=ecret_access_key)|(?<=ecretAccessKey)){_AWS_VALUE}",
        rf"\1{REDACTED}",
    ),
    _replace("aws secrets in variables", rf"(SECRET_ACCESS_KEY{_AWS_VALUE}", rf"\1{REDACTED}"),
    _replace(
        "passwords for machines",
        rf"(machine\s{{1,5}}{_HOST}\s{{1,5}}(?:login\s{{1,5}}\S{{1,100}}\s{{1,5}})?"
        rf"password\s{{1,5}}){_not_left_open(_VALUE_END)}\S{{6,}}",
        rf"\1{REDACTED}",
    ),
    _replace(
        "passwords for registries",
        r"(auth(?<=[\"']auth)\\?[\"'][ \t]{0,5}:[ \t]{0,5}\\?[\"'])[A-Za-z0-9+/]{12,}={0,2}",
        rf"\1{REDACTED}",
    ),
    _replace(
        "passwords for curl",
        r"(curl[ \t](?:(?!curl[ \t])[^\n;|]){0,150}?(?<=[ \t])(?:-u|--user)[ \t=]{0,3}[\"']?[\w.@+-]{1,60}:)"
        rf"{_not_left_open(_VALUE_END)}(?=[^\s\"']{{0,80}}[0-9])[^\s\"']{{4,}}",
        rf"\1{REDACTED}",
    ),
    _replace(
        "passwords in addresses",
        rf"://[^\s/:@]{{0,100}}:{_not_left_open('@')}[^\s/@]{{1,201}}@",
        f"://{REDACTED}@",
    ),
)
"""The forms of credentials. GitHub's installation tokens can have some 520 characters since 2026.

A pattern begins with the letters of its key. The pattern for what may not precede them comes after them, because a
search for plain letters is the fastest, and every line of the log is searched.
"""


HEXADECIMAL = re.compile(r"[0-9a-f\s-]*+")
"""A text of ids, hashes and numbers: no shape of a key can be in it. Many texts are like that, above all in logs."""


def redact(text: str, secrets: Collection[str] = (), shapes: Sequence[Rule] = KEY_SHAPES) -> str:
    """Replace the live `secrets`, and all text that looks like a secret.

    Redact a text before it is cut, because half a secret is not found. A text of `HEXADECIMAL` is searched only for the
    live secrets.
    """
    live = find_forms(frozenset(secrets))
    for secret in find_present(text, live):
        text = text.replace(secret, REDACTED)
    if HEXADECIMAL.fullmatch(text):
        return text
    for shape in shapes:
        text = shape.apply(text)
    return mask_escaped(text, live, [shape.pattern for shape in shapes], REDACTED)


_KEY_BEGUN = re.compile(_PEM_BEGIN)
_KEY_CLOSED = re.compile(rf"{_PEM_END}|-----BEGIN ")
"""What ends a private key: its last line, or the first line of another one."""

_HEADER = re.compile("authorization", re.IGNORECASE)
_HEADER_BEGUN = re.compile(
    r"authorization[\"']?\s{0,5}(?:[:=]\s{0,5}(?:[\"']?(?:bearer|basic|token)\s{1,5})?)?\Z", re.IGNORECASE
)
_LONGEST_HEADER = 40
"""The most characters that `_HEADER_BEGUN` finds."""

_NETRC = re.compile(rf"machine(?:[ \t]{{0,5}}\n|[ \t]{{1,5}}{_HOST}[ \t]{{0,5}}(?:\n|login|password))")
_NETRC_BEGUN = re.compile(
    rf"machine\s{{1,5}}(?:{_HOST}\s{{1,5}}(?:login\s{{1,5}}(?:\S{{1,100}}\s{{1,5}})?)?(?:password\s{{1,5}})?)?\Z"
)
_LONGEST_NETRC = 750
"""The most characters that `_NETRC_BEGUN` finds."""


def may_open(text: str, secrets: Collection[str]) -> bool:
    """Whether `find_open` can find anything in the text. Call this first: it is fast, and usually returns False."""
    return (
        "-----BEGIN " in text or has_head(text, frozenset(secrets)) or bool(_HEADER.search(text) or _NETRC.search(text))
    )


def find_open(text: str, secrets: Collection[str], start: int = 0) -> int:
    """Find where something begins that the lines after the text may turn into a secret.

    Returns the length of the text if nothing does. The text has whole lines. Only live secrets, and the forms that can
    be longer than a line, are searched for. `start` is the beginning of a line, and nothing before it is open.
    """
    places = [find_head(text, frozenset(secrets))]
    if text.find("-----BEGIN ", start) >= 0:
        heads = [found.span() for found in _KEY_BEGUN.finditer(text, start)]
        places += [at for at, end in heads[-1:] if not closes_key(text, end)]
    if header := _HEADER_BEGUN.search(text, max(len(text) - _LONGEST_HEADER, 0)):
        places.append(header.start())
    return min([*places, *_find_netrc(text)])


def _find_netrc(text: str) -> Iterator[int]:
    """Where incomplete entries of a .netrc may begin. A name in an entry may contain the word `machine`, too."""
    at = len(text)
    for _ in range(4):
        at = text.rfind("machine", max(len(text) - _LONGEST_NETRC, 0), at)
        if at < 0:
            return
        if _NETRC_BEGUN.match(text, at):
            yield at


def closes_key(text: str, start: int = 0) -> bool:
    """Whether a private key that began before `start` has its end in the text, or is cut off by another beginning."""
    return _KEY_CLOSED.search(text, start) is not None


# Prose

_FIELDS = (
    "Summary|Test Plan|Reviewers?|Reviewed By|Approved By|Subscribers|CC|Auditors|Tasks|Maniphest Tasks|Tags"
    "|JIRA Issues|Revert Plan|Blame Revision|Differential Revision|Differential Version|Pulled By"
    "|Pull Request resolved|Change-Id|fbshipit-source-id|ghstack-source-id|[a-z][a-z-]{0,40}-by"
)
_KEYWORD = r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?![A-Za-z0-9])"
_SLASH = r"(?:\\?/|%2F){1,3}"
"""Markdown drops a backslash before a slash or a dot. Browsers read some slashes as one, servers `%2F` as one."""
_THREAD = rf"{_SLASH}[\w.\\-]+{_SLASH}[\w.\\-]+{_SLASH}(?:issues|pull|discussions|[^\s/%]*+%[^\s/]*+){_SLASH}"

_MARKS = {"<": "lt", "`": "#96", "$": "#36", "~": "#126"}
_OUR_ENTITIES = rf"(?:{'|'.join(_MARKS.values())}|gt|amp|quot|#8203);"
_ADDRESS_OF_LINK = r"(?:[^\s()<>`\\\ue000]++|\([^\s()<>`\\\ue000]*+\))*+\)"


_EVEN = r"(?<!\\)((?:\\\\)*+)"
"""Backslashes before a mark that escape each other, and not the mark."""


def _spell(name: str, mark: str) -> Rule:
    """A rule that writes a mark as an entity, so that Markdown does not see the mark.

    A backslash that escapes the mark is removed, because it would escape the entity.
    """
    pattern = re.compile(rf"{_EVEN}\\?({mark})")
    return Rule(name, partial(pattern.sub, lambda found: found[1] + "".join(f"&{_MARKS[char]};" for char in found[2])))


_BETWEEN = rf"(?:[^A-Za-z0-9#&]++|&(?:{_OUR_ENTITIES})?)*+"
"""What may be between a closing keyword and the issue that it closes: anything but words and the number of an issue."""
_CLOSING = rf"{_KEYWORD}{_BETWEEN}(?:#++|GH\\?-)"
_CLOSES = re.compile(rf"{_CLOSING}\d", re.IGNORECASE)
_MARKS_OF_WORDS = re.compile(rf"\]\({_ADDRESS_OF_LINK}|[][*_~\\]|{_GAP}(?!\d)")
_NUMBER = re.compile(
    rf"(?!(?<=&){_GAP[1:]})((?:#|GH\\?-)(?:{_MARKS_OF_WORDS.pattern})*+)(?=\d)",
    re.IGNORECASE,
)
"""The mark before the number of an issue. The number inside `_GAP` does not count."""


def _part_from_numbers(text: str) -> str:
    """Separate all numbers of issues from their marks, if the text would close one of the issues."""
    # A bracket may be between words, or inside a word.
    readings = dict.fromkeys((text, text.replace("]", " "), text.replace("[", " ")))
    closes = any(_CLOSES.search(_MARKS_OF_WORDS.sub("", reading)) for reading in readings)
    return _NUMBER.sub(rf"\1{_GAP}", text) if closes else text


_FIELD_LABELS = _replace("field labels", rf"{LINE_START}(?:{_FIELDS})[ \t]*):", r"\1\:", re.MULTILINE | re.IGNORECASE)


RULES: tuple[Rule, ...] = (
    Rule("invisible characters", show_invisible, in_code=True),
    # `&#64;` becomes a live @ after Markdown is rendered. Only our own entities and harmless ones stay.
    _replace("entities", rf"{_EVEN}(?:\\&|&(?!{_OUR_ENTITIES}))(?=#?[0-9A-Za-z]{{1,40}};)", r"\1&amp;"),
    _spell("html", "<"),
    # Every fence and every span is one that we write, so that all parsers see code in the same places as we do.
    _spell("marks of code", "`"),
    _spell("fences of tildes", "~{3,}"),
    # GitHub draws mathematics, and readers then do not see the text as it is written.
    _spell("mathematics", r"\$"),
    _replace("mentions", r"(?<![A-Za-z0-9])@(?=[A-Za-z0-9])", f"@{_GAP}"),
    _replace(
        "closing keywords",
        rf"({_CLOSING})(?=\d)",
        rf"\1{_GAP}",
        re.IGNORECASE,
    ),
    # `clos*es* #12` is a closing keyword once Markdown has dropped its marks.
    Rule("closing keywords in marks", _part_from_numbers),
    _replace("images", r"!(?=\[)", f"!{_GAP}"),
    # The text of a footnote would be at the very end of our comment, below our own text.
    _replace("footnotes", r"\[(?=\^)", f"[{_GAP}"),
    # GitHub turns a quote that begins with `[!NOTE]` into a coloured box of its own.
    _replace("alerts", r"\[(?=\\*!\\*[A-Za-z])", f"[{_GAP}"),
    # A definition is invisible, and makes brackets in our own text links to its address.
    _replace("definitions of links", r"\](?=[:\[])", f"]{_GAP}"),
    # A title or an address over several lines would swallow our own backticks.
    _replace("links with more than an address", rf"\](?=\()(?!\({_ADDRESS_OF_LINK})", f"]{_GAP}"),
    _replace(
        "references to other repositories",
        r"((?<=[\w.\\-])#|(?<![A-Za-z0-9])GH\\?-)(?=\d)",
        rf"\1{_GAP}",
        re.IGNORECASE,
    ),
    # GitHub's own way to link a thread without leaving a mark in it.
    _replace(
        "links to threads",
        rf"(?<![A-Za-z0-9.-])(?:www\\?\.)?github\\?\.com(?={_THREAD}[\d%])",
        "redirect.github.com",
        re.IGNORECASE,
    ),
    _replace(
        "links to threads elsewhere",
        rf"(://(?!redirect\.github\.com/)[^\s/]+{_THREAD})(?=[\d%])",
        rf"\1{_GAP}",
        re.IGNORECASE,
    ),
    _replace("commands", rf"{LINE_START})/(?=[A-Za-z])", r"\1\/", re.MULTILINE),
    _FIELD_LABELS,
)
"""The rules that make text safe to post as Markdown, in this order. No rule adds or moves a line."""

_SPAN = "\ue000"
"""Replaces a code span while the rules are applied. No text contains it: invisible characters are written out."""

_LANGUAGES = re.compile(LANGUAGES)
"""Words after the mark of a fence that only colour its code. Other words may make GitHub draw it, now or one day."""


def defuse(text: str, rules: Sequence[Rule] = RULES) -> str:
    """Markdown that notifies nobody, closes no issue, and has no command, picture or hidden text. Code stays code.

    The text is not searched for code. It is rewritten: fences begin at the margin, each span is on one line, and every
    other mark of code becomes an entity. So nothing depends on where a parser would have seen code.
    """
    text = normalise_newlines(text)
    for rule in rules:
        text = rule.apply(text) if rule.in_code else text
    parts = [
        fence("".join(f"{line}\n" for line in part.lines), part.info if _LANGUAGES.fullmatch(part.info) else "")
        if isinstance(part, Fence)
        else _defuse_prose(part, rules)
        for part in split_fences(text)
    ]
    return "\n\n".join(parts)


def _defuse_prose(lines: Sequence[str], rules: Sequence[Rule] = RULES) -> str:
    hidden, spans = [], []
    for line, found in find_spans(lines):
        parts, at = [], 0
        for start, end, code in found:
            parts += [line[at:start], _SPAN]
            ticks = "``" if "`" in code else "`"
            spans.append(f"{ticks}{code}{ticks}")
            at = end
        hidden.append("".join([*parts, line[at:]]))
    prose = "\n".join(hidden)
    for rule in rules:
        prose = prose if rule.in_code else rule.apply(prose)
    shown = iter(spans)
    return re.sub(_SPAN, lambda _: next(shown, ""), prose)


# Plain text

_TO_CI = r"[^\[\]]{0,40}skip[^\[\]]{0,40}|\s*(?:no|without)[\s_-]*(?:ci|cd|build|deploy|actions?|checks?|tests?)\s*"

_WORDS_TO_CI = rf"\[({_TO_CI})\]|\*\*\*({_TO_CI})\*\*\*"

_RULES_FOR_CI = (
    # In a commit's message, these words keep GitHub Actions and other CI from running.
    _replace("words to CI", _WORDS_TO_CI, r"(\1\2)", re.IGNORECASE),
    _replace("options to CI", r"(skip-checks)\s{0,9}:(?=\s{0,9}true)|--(?=skip-ci|ci-skip)", r"\1 ", re.IGNORECASE),
)

TITLE_RULES: tuple[Rule, ...] = (
    Rule("invisible characters", show_invisible),
    _replace("mentions", r"(?<!@)(?:(?<![A-Za-z0-9])@++|@{2,}+)(?=[A-Za-z0-9])", ""),
    _replace(
        "closing keywords",
        rf"({_KEYWORD}[^A-Za-z0-9#]*+(?:GH(?=-))?)[#-]+(?=\d)",
        r"\1 ",
        re.IGNORECASE,
    ),
    _replace("references to other repositories", r"(?<=[\w.-])#++(?=\d)", " "),
    _replace("links to threads", rf"({_THREAD})(?=[\d%])", r"\1 ", re.IGNORECASE),
    *_RULES_FOR_CI,
    _replace("commands", r"^/+(?=\w+(?:\s|$))", ""),
    # The title is the first line of a commit's message, where git reads such a line as a trailer.
    _replace("field labels", rf"^((?:{_FIELDS})[ \t]*):++(?!\w)", r"\1", re.IGNORECASE),
)


MAX_ROUNDS = 10
"""How often the rules of titles are applied. What one rule removes may join text that another rule looks for."""


def one_line(text: str, limit: int, rules: Sequence[Rule] = TITLE_RULES) -> str:
    """A title of at most `limit` characters: no line breaks or control characters, no mention, no command.

    For plain text (titles, commit messages), where an escape would be visible. For Markdown, use `make_safe_line`.
    """
    whole = " ".join(text.split())
    # The rules need not read text that is cut off anyway. They read more than is kept, and may remove some of it.
    line = whole[: 2 * limit]
    is_cut = line != whole
    for _ in range(MAX_ROUNDS):
        before = line
        for rule in rules:
            line = rule.apply(line)
        if line == before:
            break
    line = " ".join(line.split())
    return line if len(line) <= limit and not is_cut else f"{line[: limit - 1].rstrip()}…"


def make_safe(text: str, secrets: Collection[str], limit: int | None = None, notice: str = "…") -> str:
    """Make somebody's Markdown safe to post: without secrets, with nothing live, with at most `limit` characters."""
    text = redact(text, secrets)
    if limit is None or len(text) <= limit:
        safe = defuse(text)
        return safe if limit is None else cut(safe, limit, notice)
    return _shorten(defuse(text[:limit]), limit, notice)


def make_safe_line(text: str, secrets: Collection[str], limit: int) -> str:
    """Make somebody's words one line of Markdown that is safe to post. `limit` does not count our own marks."""
    return _defuse_prose([make_safe_title(text, secrets, limit)])


LIKE_A_TICK = "\u02bc"
"""Replaces a backtick in code within a line of ours."""


def make_plain_line(text: str, secrets: Collection[str], limit: int) -> str:
    """Make a sentence of ours with somebody's words in it safe to post. It has code spans, and no other Markdown.

    A path in a code span is shown exactly as it is. What a machine says (after `SAYS`) is code, up to the end.
    """
    line = show_invisible(" ".join(map(str.strip, redact(text, secrets).splitlines())))
    line = line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
    ours, says, said = line.partition(SAYS)
    quoted = f"`{said.replace('`', LIKE_A_TICK)}`" if said.strip() else ""
    return f"{_defuse_prose([ours + says], (*RULES, _PLAIN))}{quoted}"


def _spell_out_markup(text: str) -> str:
    # An underscore inside a word is not emphasis, and names have many.
    text = re.sub(r"[\\*~\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda found: f"&#{ord(found[0])};", text)
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<=[a-z0-9._+-]@)(?=[a-z0-9])", _GAP, text)


_PLAIN = Rule("emphasis, links and addresses", _spell_out_markup)


def make_safe_title(text: str, secrets: Collection[str], limit: int) -> str:
    """`one_line` without secrets. Secrets that appear only when `one_line` removes something are redacted, too."""
    return one_line(redact(one_line(redact(text, secrets), 4 * limit), secrets), limit)


# Commit messages

COMMIT_RULES: tuple[Rule, ...] = (
    _replace(
        "closing keywords",
        rf"({_KEYWORD}{_BETWEEN}(?:(?:[\w.-]{{1,100}}+/[\w.-]{{1,100}}+)?#++|GH-"
        rf"|(?!(?:https?://)?redirect\.github\.com/)(?:https?:/{{1,3}}+)?[\w.:-]{{1,100}}+{_THREAD}))(?=[\d%])",
        r"\1 ",
        re.IGNORECASE,
    ),
    *_RULES_FOR_CI,
)
"""The rules that make safe Markdown safe in a commit's message, too. There, code and quotes protect nothing."""


_NO_LINK = _replace("links that words to CI become", rf"(?<=\])(?={_WORDS_TO_CI})", " ", re.IGNORECASE)
"""After a bracket, the parentheses of "words to CI" would be the address and the title of a link."""


def disarm(text: str) -> str:
    """Change words that would act as commands in a commit's message.

    The body of a pull request can become the message of a commit.
    """
    for rule in (_NO_LINK, *COMMIT_RULES):
        text = rule.apply(text)
    return text


def commands_in_commit(script: str) -> bool:
    """Whether a script contains words that would act as commands in a commit's message."""
    script = normalise_newlines(script)
    return any(rule.apply(script) != script for rule in (*COMMIT_RULES, _FIELD_LABELS))


# Shapes

_NEVER_IN_CODE = re.compile(r"[`|\t\r\n]|^ | $")
_TICKS = re.compile(r"`+")
_MAX_TICKS = 250
"""GitHub's parser counts at most 255 backticks of a fence, so a run of 256 would end even a longer fence."""


def show_code(text: str, secrets: Collection[str], limit: int = 300) -> str:
    """A stranger's path or name as one code span, also in a list item and a table cell. Put no backtick around it.

    What could end the span or a cell is written out, as `⟨U+0060⟩`, and so is a space at either end.
    """
    line = show_invisible(redact(text, secrets)[: limit + 1])
    shown = _NEVER_IN_CODE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", line) or "⟨empty⟩"
    return f"`{shown if len(shown) <= limit else f'{shown[: limit - 1]}…'}`"


def fence(text: str, info: str = "") -> str:
    """The text as a code block that nothing inside can end. A run of backticks too long to count is written out."""
    text = re.sub(rf"`{{{_MAX_TICKS},}}", lambda run: f"⟨U+0060 × {len(run[0])}⟩", normalise_newlines(text))
    ticks = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    newline = "" if text.endswith("\n") else "\n"
    return f"{ticks}{info}\n{text}{newline}{ticks}"


def close_fence(text: str) -> str:
    """Return a person's text, and close a fence that it leaves open, so that what follows is outside the fence."""
    tokens = parse_blocks(text)
    if not tokens or tokens[-1].type != "fence" or tokens[-1].level:
        return text
    first, last = tokens[-1].map or (0, 0)
    mark = tokens[-1].markup
    closing = re.compile(rf" {{0,3}}{mark}{mark[0]}*[ \t]*")
    if last - first > 1 and closing.fullmatch(normalise_newlines(text).split("\n")[last - 1]):
        return text
    newline = "" if text.endswith("\n") else "\n"
    return f"{text}{newline}{mark}"


def _end_fence(text: str) -> str:
    """Like `close_fence`, for text whose fences are all ours. It uses no parser, because a parser may be deceived."""
    mark = ""
    for line in text.split("\n"):
        if not mark and line.startswith("```"):
            mark = line[: len(line) - len(line.lstrip("`"))]
        elif mark == line:
            mark = ""
    return f"{text}\n{mark}" if mark else text


def collapse(summary: str, markdown: str) -> str:
    """Fold Markdown away under a one-line summary. All fences in the Markdown are ours, as in `cut`."""
    # Not as Markdown, because GitHub reads a summary as HTML.
    title = one_line(summary, 200)
    for rule in RULES:
        title = rule.apply(title)
    return f"<details>\n<summary>{title}</summary>\n\n{_end_fence(markdown)}\n\n</details>"


def cut(text: str, limit: int, notice: str) -> str:
    """At most `limit` characters: the whole text, or as much as fits, with the notice below it and outside any fence.

    The text is ours, or went through `defuse`. So every backtick in it is a mark of code, and `fence` made every fence.
    """
    return text if len(text) <= limit else _shorten(text, limit, notice)


def _shorten(text: str, limit: int, notice: str) -> str:
    room = limit - len(notice) - 2
    while room > 0:
        head = _end_fence(_take(text, room))
        whole = f"{head}\n\n{notice}" if head else notice
        if len(whole) <= limit:
            return whole
        room -= len(whole) - limit
    return notice[:limit]


def _take(text: str, room: int) -> str:
    """The first `room` characters or fewer: up to the end of a line if that is near, and never half a code span."""
    if len(text) <= room:
        return text
    line_end = text.rfind("\n", 0, room + 1)
    if line_end > room * 0.8:
        return text[:line_end].rstrip("\n")
    line = text[line_end + 1 : room]
    # The cut may be inside an entity: `fixes &#126;` would become `fixes &#1`.
    line = re.sub(r"&#?\w{0,6}\Z", "", line[: find_half_span(line)])
    return f"{text[: line_end + 1]}{line}".rstrip("\n")
