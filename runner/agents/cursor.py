"""Cursor's command line (`cursor-agent`), through its stream of JSON lines. Never tested: see docs/agents.md.

The sources are Cursor's pages about its output format and its command line (cursor.com/docs/cli/reference). What these
pages do not say comes from users' reports about versions from 2026.01 to 2026.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.agents.events import WHOLE, AgentEvent, EventKind
from runner.agents.lines import count_of, parse_line, part, show, text_of, texts_in
from runner.agents.protocol import AgentSpec, Launch, Run
from runner.model.ending import Ending
from runner.model.usage import Usage

SILENT = ("user", "thinking", "connection")

LAST_ANSWER = "last answer"
"""The turn of entries that have no id of an answer. Only entries of the last answer have none."""


class CursorAgent:
    """Runs in print mode with every permission and without its own sandbox; the machine's sandbox limits it."""

    speaks = True
    levels: tuple[str, ...] = ()
    resumes = True

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self, run: Run) -> Launch:
        """The command line, with the prompt on standard input."""
        model = run.model or self.spec.model
        options = [
            # Without `--approve-mcps`, servers from the checkout are not approved.
            *("-p", "--output-format", "stream-json", "--force", "--trust", "--sandbox", "disabled"),
            *(["--model", model] if model else []),
            *(["--resume", run.resumes] if run.resumes else []),
        ]
        return Launch(
            (*(self.spec.command or ("cursor-agent",)), *options, *self.spec.args),
            self.spec.env,
            prompt_on_stdin=True,
            hidden=(".cursor", ".cursorrules"),
            skills_folder=".cursor/skills",
        )

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """Parse one line. Errors are plain text between the events."""
        entry = parse_line(line)
        if entry is None:
            words = show(line.strip())
            return (AgentEvent(EventKind.ERROR, text=words),) if words else ()
        return tuple(_read(entry)) if entry else ()


def _read(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    kind, subtype = text_of(entry, "type"), text_of(entry, "subtype")
    if (kind, subtype) == ("system", "init"):
        yield AgentEvent(EventKind.SESSION, text=text_of(entry, "session_id"), model=text_of(entry, "model"))
    elif kind == "assistant":
        text = texts_in(part(entry, "message").get("content"))
        yield AgentEvent(EventKind.TEXT, text=text, turn=text_of(entry, "model_call_id") or LAST_ANSWER)
    elif kind == "tool_call":
        yield _read_tool(entry, completed=subtype == "completed")
    elif kind == "retry":
        # A retry has several lines, one for each step.
        if subtype == "starting":
            yield AgentEvent(EventKind.RETRY, text="the connection to Cursor was lost")
    elif kind == "result":
        yield _read_result(entry)
    elif kind not in SILENT:
        yield AgentEvent(EventKind.UNKNOWN, text=kind)


def _read_tool(entry: Mapping[str, Any], *, completed: bool) -> AgentEvent:
    """A tool call is an object with one key, its name: `{"shellToolCall": {"args": ..., "result": ...}}`."""
    call = part(entry, "tool_call")
    name = next((key for key, value in call.items() if isinstance(value, dict)), "")
    body, turn = part(call, name), text_of(entry, "model_call_id")
    if not completed:
        tool = text_of(body, "name") or text_of(part(body, "args"), "name") or show(name.removesuffix("ToolCall"))
        return AgentEvent(EventKind.TOOL_CALL, tool=tool, text=_show_asked(body), turn=turn)
    result = part(body, "result")
    failed = bool(result) and "success" not in result
    denials = int("rejected" in result)
    said = next((value for value in result.values() if isinstance(value, dict)), {})
    text = text_of(said, "stdout", "content", "reason", "error", "stderr")
    return AgentEvent(EventKind.TOOL_RESULT, text=text, failed=failed, turn=turn, denials=denials)


def _show_asked(body: Mapping[str, Any]) -> str:
    asked = text_of(part(body, "args"), "command", "path", "pattern", "globPattern", "query", "url")
    return asked or text_of(body, "arguments")


def _read_result(entry: Mapping[str, Any]) -> AgentEvent:
    """The end of the run. Cursor documents that it appears only after success. This code does not rely on that."""
    ending = Ending.FINISHED if text_of(entry, "subtype") == "success" else Ending.GAVE_UP
    if entry.get("is_error"):
        ending = Ending.MODEL_FAILED
    told = "" if ending is Ending.FINISHED else text_of(entry, "result", "subtype")
    usage = part(entry, "usage")
    return AgentEvent(EventKind.END, text=told, ending=ending, usage=_read_usage(usage) if usage else None, scope=WHOLE)


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    """The cached tokens are not included in the input tokens."""
    read = count_of(usage, "inputTokens", "cacheReadTokens", "cacheWriteTokens")
    cached, written = count_of(usage, "cacheReadTokens"), count_of(usage, "outputTokens")
    return Usage(input_tokens=read, cached_tokens=cached, output_tokens=written, unpriced=1)
