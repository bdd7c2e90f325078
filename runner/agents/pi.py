"""pi (`pi -p --mode json`), through its stream of JSON lines. Tested with 0.74.2; see docs/agents.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner.agents.events import AgentEvent, EventKind
from runner.agents.lines import count_of, money_of, parse_line, part, parts, show, text_of, texts_in
from runner.agents.protocol import TOKEN_VARIABLE, AgentSpec, Launch, Run
from runner.model.ending import Ending
from runner.model.usage import Usage

REPEATS = ('{"type":"message_update"', '{"type":"tool_execution_update"')
"""Prefixes of lines that repeat the whole message for each new word, so that a log would grow quadratically."""

SESSIONS, SKILLS = "sessions", "skills"
"""Folders in the home. pi's default folders depend on where pi is started, and on other files there."""

SILENT = (
    *("agent_start", "turn_start", "turn_end", "message_start", "message_update", "tool_execution_update"),
    *("auto_retry_end", "compaction_start", "compaction_end", "queue_update"),
)

ENDINGS = {
    "stop": Ending.FINISHED,
    "length": Ending.GAVE_UP,
    "toolUse": Ending.GAVE_UP,
    "error": Ending.MODEL_FAILED,
    "aborted": Ending.INTERRUPTED,
}


class PiAgent:
    """Runs in print mode, without extensions, skills, prompts and settings from the checkout."""

    speaks = True
    # As `pi --help` lists them.
    levels: tuple[str, ...] = ("off", "minimal", "low", "medium", "high", "xhigh")
    resumes = True

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self, run: Run) -> Launch:
        """The command line, with the prompt on standard input."""
        model, thinking = run.model or self.spec.model, run.thinking or self.spec.thinking
        options = [
            *("-p", "--mode", "json", "--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes"),
            *("--session-dir", f"{{home}}/{SESSIONS}"),
            *(["--skill", f"{{home}}/{SKILLS}"] if run.has_skills else []),
            *(["--session", run.resumes] if run.resumes else []),
            *(["--model", model] if model else []),
            *(["--thinking", thinking] if thinking else []),
        ]
        argv = (*(self.spec.command or ("pi",)), *options, *self.spec.args)
        return Launch(
            argv,
            {"PI_OFFLINE": "1", **({TOKEN_VARIABLE: run.token} if run.token else {}), **self.spec.env},
            prompt_on_stdin=True,
            drop_lines=REPEATS,
            # pi's settings may add a command before each tool call, and replace the system prompt.
            hidden=(".pi",),
            settings={".pi/agent/models.json": self._describe_provider(model or "")} if run.token else {},
            skills_folder=SKILLS,
        )

    def _describe_provider(self, model: str) -> str:
        """The settings of the model's provider, as JSON, with the gateway's address.

        If the operator has chosen an API for the gateway, the settings also list the model.
        """
        name, _, model_id = model.partition("/")
        api = self.spec.gateway_api
        # The vendors' libraries append different paths to an address.
        address = "{gateway}" if "anthropic" in (api or name) else "{gateway}/v1"
        provider: dict[str, Any] = {"baseUrl": address, "apiKey": TOKEN_VARIABLE}
        provider |= {"api": api, "models": [{"id": model_id}]} if api else {}
        return json.dumps({"providers": {name: provider}})

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """Parse one line."""
        entry = parse_line(line)
        return tuple(_read(entry)) if entry else ()


def _read(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    kind = text_of(entry, "type")
    if kind == "session":
        yield AgentEvent(EventKind.SESSION, text=text_of(entry, "id"))
    elif kind == "message_end":
        yield from _read_message(part(entry, "message"))
    elif kind == "tool_execution_start":
        asked = text_of(part(entry, "args"), "command", "path", "pattern", "query")
        yield AgentEvent(EventKind.TOOL_CALL, tool=text_of(entry, "toolName"), text=asked)
    elif kind == "tool_execution_end":
        text = texts_in(part(entry, "result").get("content"))
        yield AgentEvent(EventKind.TOOL_RESULT, text=text, failed=entry.get("isError") is True)
    elif kind == "auto_retry_start":
        yield AgentEvent(EventKind.RETRY, text=text_of(entry, "errorMessage"))
    elif kind == "agent_end":
        yield from _read_end([*parts(entry, "messages")])
    elif kind not in SILENT:
        yield AgentEvent(EventKind.UNKNOWN, text=kind)


def _read_message(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if message.get("role") != "assistant":
        return
    turn = show(f"{show(message.get('timestamp'))} {text_of(message, 'responseId')}")
    text = texts_in([block for block in parts(message, "content") if block.get("type") == "text"])
    if text:
        yield AgentEvent(EventKind.TEXT, text=text, turn=turn)
    if message.get("stopReason") == "error":
        yield AgentEvent(EventKind.ERROR, text=text_of(message, "errorMessage"))
    usage = part(message, "usage")
    yield AgentEvent(
        EventKind.USAGE, usage=_read_usage(usage) if usage else None, turn=turn, model=text_of(message, "model")
    )


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=count_of(usage, "input", "cacheRead", "cacheWrite"),
        cached_tokens=count_of(usage, "cacheRead"),
        output_tokens=count_of(usage, "output"),
    ).with_cost(money_of(part(usage, "cost"), "total"))


def _read_end(messages: list[Mapping[str, Any]]) -> Iterator[AgentEvent]:
    """The end of the run, from its last answer. If a retry follows, the run has not ended.

    pi's exit status is 0 even if the model failed.
    """
    answers = [message for message in messages if message.get("role") == "assistant"]
    reason = text_of(answers[-1], "stopReason") if answers else ""
    error = text_of(answers[-1], "errorMessage") if answers else "the model gave no answer"
    yield AgentEvent(EventKind.END, text=error, ending=ENDINGS.get(reason, Ending.GAVE_UP))
