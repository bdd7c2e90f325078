"""Makes text that we did not write safe to post: secrets redacted, then defused, then cut. The only sanitiser.

Every rule is one named step, so that a test can switch one off and see what it held back. Pure; refuses to know who
wrote a text and where it goes. What a reader cannot see is decided in `runner.characters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from handlers.text.markdown import LANGUAGES, LINE_START, Fence, find_half_span, find_spans, parse_blocks, split_fences
from handlers.text.secret_forms import PIECE, find_forms, find_head, find_matches, find_present, has_head, mask_escaped
from runner.characters import show_invisible
from runner.model.jobd_answers import SAYS

REDACTED = "[redacted]"

_GAP = "&#8203;"
"""A zero-width space, spelled so that whoever reads the source sees it. It separates and has no meaning in Markdown, so
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
    # The end of a sequence that colours a terminal or moves its cursor, also where its first sign is written out.
    r"[\[;0-9][A-HJKSTfhlmsu]",
)
"""Each spells one sign that is no letter, but ends with a letter or a digit. A lookbehind needs a fixed width."""


def _begin(letters: str, alphabet: str = "A-Za-z0-9") -> str:
    """The letters that a key begins with, and before them nothing of the alphabet but an escape."""
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
"""What code, a shell or a template leaves open in the place of a password. All is bounded: it is looked for often."""


def _not_left_open(end: str) -> str:
    """What begins here, up to `end`, is more than places that are left open."""
    return rf"(?!(?:{_LEFT_OPEN}[]:._-]?+){{1,4}}+(?:{end}|\Z))"


_VALUE_END = r"[\s\"',;)&|<>\\]"

_HOST = r"[\w-]{1,60}(?:\.[\w-]{1,60}){1,8}"
_AWS_VALUE = r"[\"']?[ \t]{0,5}[:=][ \t]{0,5}[\"']?)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"

KEY_SHAPES: tuple[Rule, ...] = (
    _replace("private keys", rf"{_PEM_BEGIN}(?:(?!-----BEGIN ).)*?{_PEM_END}", flags=re.DOTALL),
    # One whose end is missing, because a log was cut: the lines of base64 that follow its head.
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
    # An environment that was printed, or a line of a shell.
    _replace(
        "keys in variables",
        rf"(_(?:API_KEY|TOKEN|SECRET)[\"']?[ \t]{{0,5}}[:=][ \t]{{0,5}}[\"']?){_not_left_open(_VALUE_END)}"
        r"[%$*\[]?(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{24,}",
        rf"\1{REDACTED}",
    ),
    # Those that no code and no word looks like: they have letters, digits and signs.
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
"""What credentials look like. GitHub's installation tokens can be some 520 characters since 2026.

A shape begins with its letters, and what may not stand before them comes after: the search for plain letters is the
fastest there is, and every line of the log is searched.
"""


def redact(text: str, secrets: Collection[str] = (), shapes: Sequence[Rule] = KEY_SHAPES) -> str:
    """Replace the live `secrets` and whatever looks like one. Do this first: a secret that was cut is not found."""
    live = find_forms(frozenset(secrets))
    for secret in find_present(text, live):
        text = text.replace(secret, REDACTED)
    for shape in shapes:
        text = shape.apply(text)
    return mask_escaped(text, live, [shape.pattern for shape in shapes], REDACTED)


_KEY_BEGUN = re.compile(_PEM_BEGIN)
_KEY_CLOSED = re.compile(rf"{_PEM_END}|-----BEGIN ")
"""Its end closes a private key, and so does the next beginning."""

_HEADER = re.compile("authorization", re.IGNORECASE)
_HEADER_BEGUN = re.compile(
    r"authorization[\"']?\s{0,5}(?:[:=]\s{0,5}(?:[\"']?(?:bearer|basic|token)\s{1,5})?)?\Z", re.IGNORECASE
)
_LONGEST_HEADER = 40
"""Characters of what `_HEADER_BEGUN` finds, at most."""

_NETRC = re.compile(rf"machine(?:[ \t]{{0,5}}\n|[ \t]{{1,5}}{_HOST}[ \t]{{0,5}}(?:\n|login|password))")
_NETRC_BEGUN = re.compile(
    rf"machine\s{{1,5}}(?:{_HOST}\s{{1,5}}(?:login\s{{1,5}}(?:\S{{1,100}}\s{{1,5}})?)?(?:password\s{{1,5}})?)?\Z"
)
_LONGEST_NETRC = 750
"""Characters of what `_NETRC_BEGUN` finds, at most."""


def may_open(text: str, secrets: Collection[str]) -> bool:
    """Whether `find_open` can find anything in the text. Ask this first: it is cheap, and usually the answer is no."""
    return (
        "-----BEGIN " in text or has_head(text, frozenset(secrets)) or bool(_HEADER.search(text) or _NETRC.search(text))
    )


def find_open(text: str, secrets: Collection[str], start: int = 0) -> int:
    """Where in a text of whole lines something begins that the next lines may turn into a secret; else its length.

    Only live secrets and the shapes that can be longer than a line are searched for. `start` is the beginning of a
    line before which nothing is open.
    """
    places = [find_head(text, frozenset(secrets))]
    if text.find("-----BEGIN ", start) >= 0:
        heads = [found.span() for found in _KEY_BEGUN.finditer(text, start)]
        places += [at for at, end in heads[-1:] if not closes_key(text, end)]
    if header := _HEADER_BEGUN.search(text, max(len(text) - _LONGEST_HEADER, 0)):
        places.append(header.start())
    return min([*places, *_find_netrc(text)])


def _find_netrc(text: str) -> Iterator[int]:
    """Where an entry of a .netrc begins that is not complete. Its names may contain the word, too."""
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
"""Markdown drops a backslash before a slash or a dot, browsers read some slashes as one, and servers `%2F` as one."""
_THREAD = rf"{_SLASH}[\w.\\-]+{_SLASH}[\w.\\-]+{_SLASH}(?:issues|pull|discussions|[^\s/%]*+%[^\s/]*+){_SLASH}"

_MARKS = {"<": "lt", "`": "#96", "$": "#36", "~": "#126"}
_OUR_ENTITIES = rf"(?:{'|'.join(_MARKS.values())}|gt|amp|quot|#8203);"
_ADDRESS_OF_LINK = r"(?:[^\s()<>`\\\ue000]++|\([^\s()<>`\\\ue000]*+\))*+\)"


_EVEN = r"(?<!\\)((?:\\\\)*+)"
"""The backslashes before a mark that escape each other."""


def _spell(name: str, mark: str) -> Rule:
    """A rule that spells out a mark, so that it is none. The backslash of an escaped one would escape the spelling."""
    pattern = re.compile(rf"{_EVEN}\\?({mark})")
    return Rule(name, partial(pattern.sub, lambda found: found[1] + "".join(f"&{_MARKS[char]};" for char in found[2])))


_BETWEEN = rf"(?:[^A-Za-z0-9#&]++|&(?:{_OUR_ENTITIES})?)*+"
"""What may be between a closing keyword and what it closes: anything but words and the number of an issue."""
_CLOSING = rf"{_KEYWORD}{_BETWEEN}(?:#++|GH\\?-)"
_CLOSES = re.compile(rf"{_CLOSING}\d", re.IGNORECASE)
_MARKS_OF_WORDS = re.compile(rf"\]\({_ADDRESS_OF_LINK}|[][*_~\\]|{_GAP}(?!\d)")
_NUMBER = re.compile(
    rf"(?!(?<=&){_GAP[1:]})((?:#|GH\\?-)(?:{_MARKS_OF_WORDS.pattern})*+)(?=\d)",
    re.IGNORECASE,
)
"""What may begin the number of an issue, but not the number within `_GAP`."""


def _part_from_numbers(text: str) -> str:
    """Part all numbers of issues from their marks, where words of the text would close one of them."""
    # A bracket may stand between words, or within one.
    readings = dict.fromkeys((text, text.replace("]", " "), text.replace("[", " ")))
    closes = any(_CLOSES.search(_MARKS_OF_WORDS.sub("", reading)) for reading in readings)
    return _NUMBER.sub(rf"\1{_GAP}", text) if closes else text


_FIELD_LABELS = _replace("field labels", rf"{LINE_START}(?:{_FIELDS})[ \t]*):", r"\1\:", re.MULTILINE | re.IGNORECASE)


RULES: tuple[Rule, ...] = (
    Rule("invisible characters", show_invisible, in_code=True),
    # `&#64;` becomes a live @ after Markdown is rendered; only our own marks and the harmless ones stay.
    _replace("entities", rf"{_EVEN}(?:\\&|&(?!{_OUR_ENTITIES}))(?=#?[0-9A-Za-z]{{1,40}};)", r"\1&amp;"),
    _spell("html", "<"),
    # Every fence and every span is one that we write, so that no parser sees code in another place than we do.
    _spell("marks of code", "`"),
    _spell("fences of tildes", "~{3,}"),
    # What GitHub draws, nobody reads as it is written.
    _spell("mathematics", r"\$"),
    _replace("mentions", r"(?<![A-Za-z0-9])@(?=[A-Za-z0-9])", f"@{_GAP}"),
    _replace(
        "closing keywords",
        rf"({_CLOSING})(?=\d)",
        rf"\1{_GAP}",
        re.IGNORECASE,
    ),
    # `clos*es* #12`: what is left of them once Markdown has dropped its marks.
    Rule("closing keywords in marks", _part_from_numbers),
    _replace("images", r"!(?=\[)", f"!{_GAP}"),
    # The words of a footnote would stand at the very end of our comment, below what is ours.
    _replace("footnotes", r"\[(?=\^)", f"[{_GAP}"),
    # GitHub turns a quote that begins with `[!NOTE]` into a coloured box of its own.
    _replace("alerts", r"\[(?=\\*!\\*[A-Za-z])", f"[{_GAP}"),
    # Nobody sees a definition, and brackets in our own words would lead where it says.
    _replace("definitions of links", r"\](?=[:\[])", f"]{_GAP}"),
    # A title or an address over several lines takes backticks of ours with it.
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
"""What makes text safe to post as Markdown, in this order. None of them makes or moves a line."""

_SPAN = "\ue000"
"""Stands for a code span while the rules are applied. No text holds it: invisible characters are written out."""

_LANGUAGES = re.compile(LANGUAGES)
"""Words behind a fence that colour it. Others may make GitHub draw what is in it, now or one day."""


def defuse(text: str, rules: Sequence[Rule] = RULES) -> str:
    """Markdown that notifies nobody, closes no issue, and has no command, picture or hidden text. Code stays code.

    The text is not searched for code, but rewritten: its fences at the margin, its spans each in a line, and every
    other mark of code spelled out. So nothing depends on where a parser would have seen code.
    """
    text = _normalise_newlines(text)
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


def _normalise_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Plain text

_TO_CI = r"[^\[\]]{0,40}skip[^\[\]]{0,40}|\s*(?:no|without)[\s_-]*(?:ci|cd|build|deploy|actions?|checks?|tests?)\s*"

_WORDS_TO_CI = rf"\[({_TO_CI})\]|\*\*\*({_TO_CI})\*\*\*"

_RULES_FOR_CI = (
    # In a commit's message they keep GitHub Actions and the CI of others from running.
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
"""Times that the rules of titles are applied: what one takes away may bring together what another looks for."""


def one_line(text: str, limit: int, rules: Sequence[Rule] = TITLE_RULES) -> str:
    """A title of at most `limit` characters: no line breaks or control characters, no mention, no command.

    For plain text (titles, commit messages), where an escape would be seen; as Markdown it needs `make_safe_line`.
    """
    whole = " ".join(text.split())
    # The rules need not read what is cut off anyway. They may take away some of what they read.
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
    """Somebody's Markdown as it may be posted: without secrets, nothing live in it, of at most `limit` characters."""
    text = redact(text, secrets)
    if limit is None or len(text) <= limit:
        safe = defuse(text)
        return safe if limit is None else cut(safe, limit, notice)
    return _shorten(defuse(text[:limit]), limit, notice)


def make_safe_line(text: str, secrets: Collection[str], limit: int) -> str:
    """Somebody's words as one line of Markdown that may be posted. `limit` counts its characters without our marks."""
    return _defuse_prose([make_safe_title(text, secrets, limit)])


LIKE_A_TICK = "\u02bc"
"""Stands for a backtick in code within a line of ours."""


def make_plain_line(text: str, secrets: Collection[str], limit: int) -> str:
    """The same for a sentence of ours that has somebody's words in it: it has code spans, and no other Markdown.

    A path in a code span is shown exactly as it is. What a machine says is code to its end.
    """
    line = show_invisible(" ".join(map(str.strip, redact(text, secrets).splitlines())))
    line = line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
    ours, says, said = line.partition(SAYS)
    quoted = f"`{said.replace('`', LIKE_A_TICK)}`" if said.strip() else ""
    return f"{_defuse_prose([ours + says], (*RULES, _PLAIN))}{quoted}"


def _spell_out_markup(text: str) -> str:
    # Within a word an underscore is no emphasis, and names have many.
    text = re.sub(r"[\\*~\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda found: f"&#{ord(found[0])};", text)
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<=[a-z0-9._+-]@)(?=[a-z0-9])", _GAP, text)


_PLAIN = Rule("emphasis, links and addresses", _spell_out_markup)


def make_safe_title(text: str, secrets: Collection[str], limit: int) -> str:
    """Somebody's words as `one_line`, without secrets, also those that appear when `one_line` removes something."""
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
"""What also makes safe Markdown safe in a commit's message, where code and quotes protect nothing."""


_NO_LINK = _replace("links that words to CI become", rf"(?<=\])(?={_WORDS_TO_CI})", " ", re.IGNORECASE)
"""After a bracket, the parentheses of "words to CI" would be the address and the title of a link."""


def disarm(text: str) -> str:
    """Change words that would command in a commit's message. The body of a pull request can become one."""
    for rule in (_NO_LINK, *COMMIT_RULES):
        text = rule.apply(text)
    return text


def commands_in_commit(script: str) -> bool:
    """Whether a script holds words that command when they are in a commit's message."""
    script = _normalise_newlines(script)
    return any(rule.apply(script) != script for rule in (*COMMIT_RULES, _FIELD_LABELS))


# Shapes

_NEVER_IN_CODE = re.compile(r"[`|\t\r\n]|^ | $")
_TICKS = re.compile(r"`+")
_MAX_TICKS = 250
"""GitHub's parser counts no more than 255 backticks of a fence: one more would end a fence that is longer still."""


def show_code(text: str, secrets: Collection[str], limit: int = 300) -> str:
    """A stranger's path or name as one code span, also in a list item and a table cell. Put no backtick around it.

    What could end the span or a cell is written out, as `⟨U+0060⟩`, and so is a space at either end.
    """
    line = show_invisible(redact(text, secrets)[: limit + 1])
    shown = _NEVER_IN_CODE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", line) or "⟨empty⟩"
    return f"`{shown if len(shown) <= limit else f'{shown[: limit - 1]}…'}`"


def fence(text: str, info: str = "") -> str:
    """The text as a code block that nothing inside can end. A run of backticks too long to count is written out."""
    text = re.sub(rf"`{{{_MAX_TICKS},}}", lambda run: f"⟨U+0060 × {len(run[0])}⟩", _normalise_newlines(text))
    ticks = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    newline = "" if text.endswith("\n") else "\n"
    return f"{ticks}{info}\n{text}{newline}{ticks}"


_LINE_END = re.compile(r"\r\n?|\n")
"""As CommonMark counts lines."""


def close_fence(text: str) -> str:
    """What a person wrote. If it leaves a fence open, this closes it, so that what follows is outside the fence."""
    tokens = parse_blocks(text)
    if not tokens or tokens[-1].type != "fence" or tokens[-1].level:
        return text
    first, last = tokens[-1].map or (0, 0)
    mark = tokens[-1].markup
    closing = re.compile(rf" {{0,3}}{mark}{mark[0]}*[ \t]*")
    if last - first > 1 and closing.fullmatch(_LINE_END.split(text)[last - 1]):
        return text
    newline = "" if text.endswith("\n") else "\n"
    return f"{text}{newline}{mark}"


def _end_fence(text: str) -> str:
    """The same for text whose fences are all of our making. No parser is asked, for a parser may be deceived."""
    mark = ""
    for line in text.split("\n"):
        if not mark and line.startswith("```"):
            mark = line[: len(line) - len(line.lstrip("`"))]
        elif mark == line:
            mark = ""
    return f"{text}\n{mark}" if mark else text


def collapse(summary: str, markdown: str) -> str:
    """The Markdown folded away under a one-line summary. Its fences are of our making, as in `cut`."""
    # No Markdown in there: GitHub reads it as HTML.
    title = one_line(summary, 200)
    for rule in RULES:
        title = rule.apply(title)
    return f"<details>\n<summary>{title}</summary>\n\n{_end_fence(markdown)}\n\n</details>"


def cut(text: str, limit: int, notice: str) -> str:
    """At most `limit` characters: the whole text, or as much as fits and below it the notice, outside any fence.

    The text is ours or went through `defuse`: every backtick in it is a mark of code, and every fence is `fence`'s.
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
    """The first `room` characters or fewer: up to the end of a line if one is near, and never half a code span."""
    if len(text) <= room:
        return text
    line_end = text.rfind("\n", 0, room + 1)
    if line_end > room * 0.8:
        return text[:line_end].rstrip("\n")
    line = text[line_end + 1 : room]
    # Of `fixes &#126;` there may be `fixes &#1` left.
    line = re.sub(r"&#?\w{0,6}\Z", "", line[: find_half_span(line)])
    return f"{text[: line_end + 1]}{line}".rstrip("\n")
