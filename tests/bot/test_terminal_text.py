"""What the command line prints: no text, whoever wrote it, commands the terminal that shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import typer

import bot
from bot.cli import main
from bot.cli.failures import FAILURES
from bot.cli.options import give_up, write
from bot.cli.run import print_answer, wait_for
from bot.operations.context import UnknownRepository
from bot.operations.machines import UnknownMachine

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "line drawn over": "all is well\rit failed",
    "8-bit control": "\x9b31mred",
    "bell and backspace": "\x07a\x08b",
    "bidi": "safe\u202eexe.txt",
    "isolate": "\u2066x\u2069",
    "invisible": "a\u200bb\U000e0041",
    "half": "\udc9b31m",
    "delete": "a\x7f",
}
FORBIDDEN = {*map(chr, range(32)), *map(chr, range(127, 160)), *"\u202e\u2066\u2069\u200b\U000e0041"} - {"\n", "\t"}

each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def assert_plain(shown: str) -> None:
    assert shown
    assert not FORBIDDEN & set(shown), ascii(shown)


@each_text
def test_an_answer_and_a_failure_are_plain(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(text)
    write(text, err=True)
    with pytest.raises(typer.Exit):
        give_up(f"ptq-bot: {text}")
    printed = capsys.readouterr()
    assert_plain(printed.out)
    assert_plain(printed.err)


@pytest.mark.parametrize("kind", [*FAILURES, UnknownMachine, UnknownRepository], ids=lambda kind: str(kind.__name__))
def test_what_any_command_fails_with_is_plain(kind: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> str:
        error: Exception = kind.__new__(kind)  # Some want more than a text to be made.
        error.args = ("".join(HOSTILE.values()),)
        raise error

    with pytest.raises(typer.Exit):
        print_answer(fail())
    assert_plain(capsys.readouterr().err)


def test_ctrl_c_is_answered_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit):
        wait_for(interrupt(), "".join(HOSTILE.values()))
    assert_plain(capsys.readouterr().err)


@each_text
def test_a_fault_of_ours_is_told_in_plain_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    def break_down() -> None:
        raise RuntimeError(text)

    with pytest.raises(SystemExit) as ended:
        main.main(break_down)
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert "RuntimeError" in printed
    assert_plain(printed)


def find_prints(path: Path) -> list[str]:
    """The calls in a module that print by themselves."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {ast.unparse(call.func) for call in calls}
    passed = {ast.unparse(argument) for call in calls for argument in call.args}
    return sorted({"print", "typer.echo", "sys.stdout.write", "sys.stderr.write"} & (names | passed))


@pytest.mark.slow
def test_nothing_else_prints() -> None:
    modules = [path for path in Path(bot.__path__[0]).rglob("*.py") if "demo" not in path.parts]
    assert len(modules) > 50
    assert {path.name: found for path in modules if (found := find_prints(path))} == {}
