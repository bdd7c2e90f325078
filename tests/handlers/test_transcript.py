from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from handlers.text.live_transcript import read_transcript
from handlers.text.sanitize import redact
from handlers.text.transcript import SHOWN_LINES, redact_each, redact_log
from runner.agents import AgentSpec, build_agent

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
SECRET = 'first "line"\nand a sécond'


def render(log: str, kind: str = "claude", secrets: Collection[str] = ()) -> list[tuple[str, str]]:
    entries = read_transcript(log.encode(), build_agent(AgentSpec("mine", kind)), secrets)
    return [(str(entry.kind), entry.text) for entry in entries]


def replay(kind: str, name: str) -> list[tuple[str, str]]:
    return render((TRANSCRIPTS / kind / f"{name}.jsonl").read_text(), kind)


def say(text: str) -> str:
    return json.dumps({"type": "assistant", "message": {"id": "1", "content": [{"type": "text", "text": text}]}})


def call(**arguments: str) -> str:
    block = {"type": "tool_use", "name": "Bash", "input": arguments}
    return json.dumps({"type": "assistant", "message": {"id": "1", "content": [block]}})


def answer(text: str, *, failed: bool = False) -> str:
    block = {"type": "tool_result", "content": text, "is_error": failed}
    return json.dumps({"type": "user", "message": {"content": [block]}})


@pytest.mark.parametrize(
    ("kind", "called"),
    [
        ("claude", "▸ Bash: echo hello"),
        ("codex", "▸ command_execution: /bin/bash -lc 'echo hello'"),
        ("pi", "▸ bash: echo hello"),
    ],
)
def test_a_finished_run_reads_as_what_was_done_and_said(kind: str, called: str) -> None:
    told = [("called", called), ("result", "hello"), ("said", "All done."), ("note", "The agent has finished.")]
    assert replay(kind, "finished") == told


@pytest.mark.parametrize(
    ("kind", "name", "last"),
    [
        ("claude", "max_turns", "The agent reached a limit of its own: error_max_turns"),
        ("claude", "interrupted", "The agent was interrupted: error_during_execution"),
        ("claude", "denied", "The agent has finished. 1 tool call was not permitted."),
        ("claude", "model_failed", "The model failed."),
        ("codex", "model_failed", "The model failed."),
        ("pi", "model_failed", "The model failed."),
    ],
)
def test_how_a_run_ended_is_said_in_words(kind: str, name: str, last: str) -> None:
    assert replay(kind, name)[-1] == ("note", last)


def test_why_the_model_failed_is_said_once() -> None:
    told = replay("claude", "model_failed_later")
    assert told[-2:] == [("note", "Error: API Error: 400 scripted"), ("note", "The model failed.")]


@pytest.mark.parametrize(("kind", "name"), [("claude", "refused_twice"), ("codex", "cut_once"), ("pi", "cut_once")])
def test_a_model_that_is_asked_again_is_noted(kind: str, name: str) -> None:
    assert any(text.startswith("The model did not answer. Trying again: ") for _, text in replay(kind, name))


def test_a_tool_that_failed_is_marked_in_words() -> None:
    assert render(answer("no such file", failed=True)) == [("failed", "It failed:\nno such file")]
    assert render(answer("", failed=True)) == [("failed", "It failed.")]
    assert render(answer("")) == [("result", "(no output)")]


@pytest.mark.slow
def test_of_a_long_result_the_last_lines_are_shown_however_long_it_is() -> None:
    for count in (100, 100_000):
        ((_, text),) = render(answer("\n".join(f"line {number}" for number in range(count))))
        shown = text.split("\n")
        assert shown[0] == "[the beginning is left out]"
        assert shown[1:] == [f"line {number}" for number in range(count - SHOWN_LINES, count)]


def test_of_a_long_call_the_first_lines_are_shown() -> None:
    ((_, text),) = render(call(command="\n".join(f"echo {number}" for number in range(50))))
    shown = text.split("\n")
    assert (shown[0], shown[-1], len(shown)) == ("▸ Bash: echo 0", "[the rest is left out]", SHOWN_LINES + 1)


def test_lines_between_the_events_stay_as_they_are() -> None:
    log = f"{say('One.')}\n(node:1) Warning: so\n  and so\n\n{say('Two.')}\n[1, 2]\n"
    plain = [("said", "One."), ("plain", "(node:1) Warning: so\n  and so"), ("said", "Two."), ("plain", "[1, 2]")]
    assert render(log) == plain


def test_events_that_nobody_knows_are_only_counted() -> None:
    unknown = '{"type": "brand new", "words": "unheard of"}'
    assert render(f"{unknown}\n{say('One.')}\n{unknown}") == [
        ("said", "One."),
        ("note", "2 events are not shown, because this version does not know them."),
    ]


def test_the_event_that_is_being_written_is_not_shown_by_halves() -> None:
    line = say("Two.")
    assert render(f"{say('One.')}\n{line[:30]}") == [("said", "One.")]
    assert render(f"{say('One.')}\n{line}") == [("said", "One."), ("said", "Two.")]


def redact_secret(text: str) -> str:
    return redact(text, [SECRET])


@pytest.mark.parametrize("escaped", [True, False])
def test_a_secret_is_found_however_json_spells_it(escaped: bool) -> None:
    inner = json.dumps({"inner": SECRET}, ensure_ascii=escaped)
    for value in (SECRET, inner, json.dumps(inner, ensure_ascii=escaped)):
        event = {"type": "user", "message": {"content": [{"type": "tool_result", "content": f"a {value} z"}]}}
        log = json.dumps(event, ensure_ascii=escaped)
        told = [*render(log, secrets=[SECRET]), ("", redact_log(log, redact_secret))]
        for _, text in told:
            assert "[redacted]" in text
            assert "line" not in text
            assert "cond" not in text


def test_a_secret_behind_a_line_break_is_found_in_the_raw_log_as_well() -> None:
    token = "hf_" + "a1B2" * 9
    log = answer(f"the token is\n{token}") + f"\nplain\n{token}\n"
    cleaned = redact_log(log, redact)
    assert token not in cleaned
    assert cleaned == answer("the token is\n[redacted]") + "\nplain\n[redacted]\n"
    assert token not in redact_log(log[log.index('"tool_result') + 1 :], redact), "from within a string on"


@pytest.mark.parametrize("place", [0, 1990, 3990, 100_000])
def test_no_part_of_a_secret_is_left_where_a_text_is_cut(place: int) -> None:
    long = "\n".join(f"part {number} of the secret" for number in range(SHOWN_LINES + 5))
    told = render(answer("x" * place + long + "\nend"), secrets=[long])
    assert "of the secret" not in told[0][1]
    assert told[0][1].endswith("[redacted]\nend")


def test_a_log_without_secrets_is_the_same_raw() -> None:
    log = r"""say "a\nb" \" "\x" "unclosed \" """ + answer('a\t"quoted"\\\n') + "\n\u2028é\n"
    assert redact_log(log, redact_secret) == log


def test_texts_are_redacted_one_by_one_where_one_needs_it() -> None:
    texts = ["one", f"two {SECRET}", "", "three"]
    assert redact_each(texts, redact_secret) == ["one", "two [redacted]", "", "three"]
    assert redact_each([], redact_secret) == []


@pytest.mark.slow
def test_lines_that_were_written_to_hurt_are_read_all_the_same() -> None:
    for line in ('\\"' * 50_000, "[" * 30_000, '{"a":' * 30_000, '{"type":"assistant","message":7}', '{"type":[]}'):
        redact_log(line, redact)
        render(f"{line}\n{say('One.')}")
    assert render(say("half a \ud83d character"))[0][1].startswith("half a")
