from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.text.repros import MAX_CODE, MAX_REPROS, ReproScript, extract_repros

CODE = "import widgets\nwidgets.go()"


def codes(text: str, *import_names: str) -> list[str]:
    return [repro.code for repro in extract_repros([("the issue", text)], import_names)]


def fenced(code: str, info: str = "") -> str:
    return f"```{info}\n{code}\n```"


@pytest.mark.parametrize(
    "text",
    [
        fenced(CODE, "python"),
        fenced(CODE),
        fenced(CODE, "Py3 title=x"),
        f"~~~~\n{CODE}\n~~~~",
        textwrap.indent(fenced(CODE), "> "),
        "1. so:\n\n" + textwrap.indent(fenced(CODE, "py"), "   "),
        "- > " + fenced(CODE).replace("\n", "\n  > "),
        fenced(textwrap.indent(CODE, "    ")),
        f"```python\n{CODE}",
    ],
)
def test_a_block_that_imports_the_project_is_a_repro(text: str) -> None:
    assert codes(f"It fails:\n\n{text}", "widgets") == [CODE]


@pytest.mark.parametrize(
    "code",
    [
        "from widgets import go",
        "from widgets.chunks import chunked as c",
        "def f():\n    try:\n        import numpy, widgets.chunks\n    except: pass",
        "%timeit 1\nfrom widgets import go\n...",
    ],
)
def test_any_form_of_import_counts(code: str) -> None:
    assert codes(fenced(code, "python"), "widgets") == [code]


@pytest.mark.parametrize(
    "text",
    [
        fenced("import numpy"),
        fenced("from .widgets import go"),
        fenced("import widgets_extra", "python"),
        fenced("widgets.go()", "python"),
        fenced("'import widgets'"),
        fenced("import widgets from 'widgets'", "js"),
        "import widgets",
        f"<!--\n{fenced(CODE)}\n-->",
        f"<rp>\n\n{fenced(CODE)}\n\n</rp>",
        f"<template>\n\n{fenced(CODE)}\n\n</template>",
        fenced(CODE + "\n#" * MAX_CODE, "python"),
    ],
)
def test_other_blocks_are_no_repro(text: str) -> None:
    assert codes(text, "widgets") == []


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_script_after_a_comment_counts_and_one_that_may_be_hidden_does_not(newline: str) -> None:
    comment = "<!--\n" + "Describe the bug.\n" * 20 + "-->"
    text = f"{comment}\n\n{fenced(CODE)}\n\n<template>\n\n{fenced('import widgets')}"
    assert codes(text.replace("\n", newline), "widgets") == [CODE]


def test_code_that_python_would_warn_about_is_code() -> None:
    assert codes(fenced("import widgets\n'\\d' is 1"), "widgets") == ["import widgets\n'\\d' is 1"]


def test_any_import_will_do_when_the_project_names_no_modules() -> None:
    assert codes(fenced("import numpy")) == ["import numpy"]
    assert codes(fenced("print(1)", "python")) == []


def test_a_transcript_becomes_code() -> None:
    transcript = ">>> import widgets\n>>> for a in widgets.go():\n...     print(a)\n...\n1\n2\n>>> widgets.stop()"
    expected = "import widgets\nfor a in widgets.go():\n    print(a)\n\nwidgets.stop()"
    assert codes(fenced(transcript, "pycon"), "widgets") == [expected]
    assert codes(fenced(textwrap.indent(transcript, "  ")), "widgets") == [expected]


def test_each_script_is_named_once_with_the_first_place_it_stood_in() -> None:
    texts = [
        ("the issue", fenced(CODE, "python")),
        ("comment by bob", fenced(f"\n{CODE}\n") + "\n" + fenced("import a")),
    ]
    assert extract_repros(texts, ()) == (
        ReproScript("the issue", "python", CODE),
        ReproScript("comment by bob", "python", "import a"),
    )


def test_there_are_only_so_many() -> None:
    text = "\n".join(fenced(f"import widgets  # {number}") for number in range(MAX_REPROS + 5))
    assert len(codes(text, "widgets")) == MAX_REPROS


@pytest.mark.parametrize(
    "code",
    [
        "-" * 5_900 + "1",
        "(" * 5_900,
        "a" + ".b" * 2_900,
        "lambda:" * 800 + "1",
        "9" * 5_900,
        "import widgets\0",
        "'\ud800'",
        "f'" + "{" * 5_000,
    ],
)
def test_code_written_to_break_the_parser_is_survived(code: str) -> None:
    assert len(codes(fenced(code) + "\n" + fenced(CODE), "widgets")) in (1, 2)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    assert codes(fenced(text, "python") + "\n" + text) is not None
