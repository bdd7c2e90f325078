"""Colours for code, by one look from left to right. Pure.

The code is a stranger's, and an expression that goes back and forth in it would hold up the whole process: a lexer of
Pygments takes more than ten seconds for ten thousand blank lines of C. Here whatever has begun also ends, at the end of
its line or of the text if need be, so that no character is looked at much more than once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from markupsafe import Markup, escape

_NUMBER = r"(?P<number>\d(?:\w|\.(?=\d))*+)"
_WORD = r"(?P<word>[^\W\d]\w*+)"
_DECORATOR = r"(?P<name>@[^\W\d][\w.]*+)"

_TO_LINE_END = r"[^\n]*+"
_SLASHES = rf"//{_TO_LINE_END}|/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
_HASH = rf"#{_TO_LINE_END}"
_LOOSE_HASH = rf"(?<!\S)#{_TO_LINE_END}"
_DASHES = rf"--{_TO_LINE_END}"
_MARKUP = r"<!--(?:[^-]|-(?!->))*+(?:-->)?"

_DOUBLE = r'"[^"\\\n]*+(?:\\[\s\S][^"\\\n]*+)*+"?'
_SINGLE = r"'[^'\\\n]*+(?:\\[\s\S][^'\\\n]*+)*+'?"
_LETTER = r"'(?:[^'\\\n]|\\[^\n][^'\n]{0,8}+)'"
_TICKS = r"`[^`\\]*+(?:\\[\s\S][^`\\]*+)*+`?"
_TRIPLE = r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:""")?' + r"|'''(?:[^'\\]|\\[\s\S]|'(?!''))*+(?:''')?"
_PYTHON = rf"(?:\b[bBfFrRuU]{{1,2}}(?=[\"']))?(?:{_TRIPLE}|{_DOUBLE}|{_SINGLE})"

_DEFINING = frozenset(["class", "def", "enum", "fn", "func", "function", "interface", "struct", "trait"])
"""Words behind which stands the name of something new."""

_SHARED = (
    "abstract async await bool break case catch char class const continue default delete do double else enum extends "
    "extern false final finally float for goto if implements import in inline int interface long namespace new null "
    "operator override package private protected public return short signed sizeof static struct super switch this "
    "throw throws true try typedef typename union unsigned using var virtual void volatile while yield"
)


@dataclass(frozen=True, slots=True)
class Language:
    """How code of one kind is read."""

    tokens: re.Pattern[str]
    keywords: frozenset[str]


def _describe(comments: str, strings: str, keywords: str = "", more: str = "") -> Language:
    """A language by its comments and strings as expressions, each of which takes linear time, and its words."""
    parts = [*([more] if more else []), rf"(?P<comment>{comments})", rf"(?P<string>{strings})", _WORD, _NUMBER]
    return Language(re.compile("|".join(parts)), frozenset(keywords.split()))


_SQL = (
    "add all alter and as asc begin between by case check column commit constraint create cross default delete desc "
    "distinct drop else end exists foreign from full group having if in index inner insert into is join key left like "
    "limit not null on or order outer primary references returning right rollback select set table then union unique "
    "update using values view when where with"
)
_LANGUAGES: Mapping[str, Language] = {
    "py pyi pyx bzl": _describe(
        _HASH,
        _PYTHON,
        "False None True and as assert async await break case class continue def del elif else except finally for from "
        "global if import in is lambda match nonlocal not or pass raise return self try while with yield",
        _DECORATOR,
    ),
    "c cc cl cpp cu cuh cxx h hh hpp hip m mm metal": _describe(
        _SLASHES,
        f"{_DOUBLE}|{_LETTER}",
        f"{_SHARED} alignas auto concept constexpr co_await co_return co_yield decltype explicit friend mutable "
        "noexcept nullptr register requires restrict size_t static_assert static_cast template thread_local wchar_t "
        "__device__ __global__ __host__ __restrict__ __shared__",
        r"(?P<keyword>#[ \t]*+[a-z]++)",
    ),
    "js jsx mjs cjs ts tsx vue": _describe(
        _SLASHES,
        f"{_DOUBLE}|{_SINGLE}|{_TICKS}",
        f"{_SHARED} any as boolean constructor debugger declare export from function get instanceof keyof let never of "
        "readonly set string type typeof undefined unknown with",
        _DECORATOR,
    ),
    "java kt kts scala cs swift dart php groovy gradle proto": _describe(
        _SLASHES,
        f"{_TRIPLE}|{_DOUBLE}|{_SINGLE}",
        f"{_SHARED} actor as boolean byte data def echo fun func function guard instanceof is let message nil object "
        "repeated sealed self string synchronized trait type val when where with",
        _DECORATOR,
    ),
    "go": _describe(
        _SLASHES,
        f"{_DOUBLE}|{_LETTER}|{_TICKS}",
        "any bool break byte case chan const continue default defer else error fallthrough false for func go goto if "
        "import int int32 int64 interface iota map nil package range return rune select string struct switch true type "
        "uint8 uint32 uint64 var",
    ),
    "rs": _describe(
        _SLASHES,
        rf"{_DOUBLE}|{_LETTER}",
        "Self as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i32 i64 if "
        "impl in let loop match mod move mut pub ref return self static str struct super trait true type u8 u32 u64 "
        "unsafe use usize where while",
        r"(?P<name>#!?\[[^\]\n]*+\]?)",
    ),
    "sh bash zsh dockerfile makefile mk containerfile": _describe(
        _LOOSE_HASH,
        f"{_DOUBLE}|{_SINGLE}",
        "ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN USER VOLUME WORKDIR case do done elif else "
        "endif esac exit export fi for function if ifdef ifeq ifneq in include local return set then until while",
        r"(?P<name>\$\w++|\$[{(][\w.]++[)}])",
    ),
    "rb rake pl pm cmake r jl ex exs nix tf": _describe(
        _LOOSE_HASH,
        f"{_DOUBLE}|{_SINGLE}",
        "and begin break case class def do else elseif elsif end endfunction endif false for foreach function if in "
        "local macro module my next nil not or require rescue return self set sub then true unless until when while "
        "yield",
    ),
    "yaml yml toml ini cfg conf properties env": _describe(
        _LOOSE_HASH,
        rf"{_TRIPLE}|{_DOUBLE}|(?<!\w){_SINGLE}",
        "false no null off on true yes",
        r"(?P<name>(?m:^)[ \t]*+(?:- )?[\w.-]++(?=[ \t]*[:=])|(?m:^)\[[^\n]*+)",
    ),
    "json jsonc ipynb": _describe(_SLASHES, _DOUBLE, "false null true", rf"(?P<name>{_DOUBLE}(?=:))"),
    "css scss less": _describe(
        _SLASHES, f"{_DOUBLE}|{_SINGLE}", "important", r"(?P<name>(?<![\w-])[\w-]++(?=:\s))|(?P<keyword>@[\w-]++)"
    ),
    "html htm xml svg jinja j2": _describe(
        _MARKUP, rf"(?<==){_DOUBLE}|(?<==){_SINGLE}", "", r"(?P<keyword></?[A-Za-z][\w:-]*+)"
    ),
    "sql": _describe(_DASHES, f"{_DOUBLE}|{_SINGLE}", f"{_SQL} {_SQL.upper()}"),
    "lua hs elm adb ads": _describe(
        _DASHES,
        f"{_DOUBLE}|{_LETTER}",
        "and break data deriving do else elseif end false for function if import in instance let local module nil not "
        "of or repeat return then true type until where while",
    ),
}
_BY_ENDING = {ending: language for endings, language in _LANGUAGES.items() for ending in endings.split()}


def find_language(name: str) -> Language | None:
    """The language of a file, as far as its name tells."""
    path = PurePosixPath(name.lower())
    if path.name == "cmakelists.txt":
        return _BY_ENDING["cmake"]
    return _BY_ENDING.get(path.suffix.removeprefix(".")) or _BY_ENDING.get(path.name.partition(".")[0])


def paint(code: str, language: Language) -> list[Markup]:
    """The code as HTML, line by line, without their ends. Nothing is in it but escaped text, and spans with a class."""
    parts, at, before = [], 0, ""
    for found in language.tokens.finditer(code):
        kind, text = found.lastgroup, found[0]
        if kind == "word":
            kind = "keyword" if text in language.keywords else "name" if before in _DEFINING else None
        before = text
        if kind is not None:
            parts += [escape(code[at : found.start()]), _mark(kind, text)]
            at = found.end()
    return _split("".join([*parts, escape(code[at:])]))


def _mark(kind: str, text: str) -> str:
    """Marks that end with their line: each line stands in an element of its own."""
    opening = f'<span class="{kind}">'
    return f"{opening}{escape(text)}</span>".replace("\n", f"</span>\n{opening}")


def _split(html: str) -> list[Markup]:
    lines: Sequence[str] = html.split("\n")
    return [Markup(line) for line in lines]  # noqa: S704 - its parts are escaped
