"""Claude Code (`claude`), through its stream of JSON lines. Tested with 2.1.197; see docs/agents.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner.agents.events import WHOLE, AgentEvent, EventKind
from runner.agents.lines import count_of, money_of, parse_line, part, parts, show, text_of, texts_in
from runner.agents.protocol import AgentSpec, Launch, Run
from runner.model.ending import Ending
from runner.model.usage import Usage

SILENT = ("user_prompt", "status", "compact_boundary", "hook_started", "hook_response", "post_turn_summary")

NOTICE = (
    'f="$PTQ_NOTICE_FILE"; [ -f "$f" ] && mv "$f" "$f.read" && printf '
    """'{"hookSpecificOutput":{"hookEventName":"PostToolUse","additionalContext":"%s"}}' "$(cat "$f.read")"; true"""
)
"""A hook that passes a notice of the service to the agent, once. Claude Code's tools ignore `BASH_ENV`."""

SETTINGS = {
    "enableAllProjectMcpServers": False,
    "includeCoAuthoredBy": False,
    "hooks": {"PostToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": NOTICE}]}]},
}
"""Settings that override those of a checkout."""

ENDINGS = {
    "success": Ending.FINISHED,
    "error_max_turns": Ending.CAPPED,
    "error_max_budget_usd": Ending.CAPPED,
}


class ClaudeAgent:
    """Runs in print mode with every permission; the machine's sandbox limits it."""

    speaks = True
    # As `claude --help` lists them.
    levels: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    resumes = True

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self, run: Run) -> Launch:
        """The command line, with the prompt on standard input."""
        model, thinking = run.model or self.spec.model, run.thinking or self.spec.thinking
        options = [
            *("-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"),
            # With these, no servers and settings are loaded from the checkout.
            *("--strict-mcp-config", "--setting-sources", "user", "--settings", json.dumps(SETTINGS)),
            *(("--resume", run.resumes) if run.resumes else ("--session-id", run.session_id)),
            *(["--model", model] if model else []),
            *(["--effort", thinking] if thinking else []),
            *(["--max-turns", str(run.max_turns)] if run.max_turns else []),
            *(["--max-budget-usd", f"{run.max_cost_usd:.2f}"] if run.max_cost_usd else []),
        ]
        env = {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
            **({"ANTHROPIC_BASE_URL": "{gateway}", "ANTHROPIC_API_KEY": run.token} if run.token else {}),
            **self.spec.env,
        }
        return Launch(
            (*(self.spec.command or ("claude",)), *options, *self.spec.args),
            env,
            prompt_on_stdin=True,
            skills_folder=".claude/skills",
        )

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """Parse one line."""
        entry = parse_line(line)
        return tuple(_read(entry)) if entry else ()


def _read(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    kind = entry.get("type")
    if kind == "assistant":
        yield from _read_answer(entry)
    elif kind == "user":
        for block in parts(part(entry, "message"), "content"):
            if block.get("type") == "tool_result":
                failed = block.get("is_error") is True
                yield AgentEvent(EventKind.TOOL_RESULT, text=texts_in(block.get("content")), failed=failed)
    elif kind == "result":
        yield _read_result(entry)
    elif kind == "system":
        yield from _read_system(entry)
    else:
        yield AgentEvent(EventKind.UNKNOWN, text=text_of(entry, "type"))


def _read_system(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    subtype = text_of(entry, "subtype")
    if subtype == "init":
        yield AgentEvent(EventKind.SESSION, text=text_of(entry, "session_id"), model=text_of(entry, "model"))
    elif subtype == "api_retry":
        status = show(entry.get("error_status"))
        yield AgentEvent(EventKind.RETRY, text=show(f"{text_of(entry, 'error')} (status {status or 'none'})"))
    elif subtype not in SILENT:
        yield AgentEvent(EventKind.UNKNOWN, text=subtype)


def _read_answer(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """One line of an answer. An answer has a line for each block, and each line repeats the usage."""
    message = part(entry, "message")
    turn = text_of(message, "id")
    if message.get("model") == "<synthetic>":
        yield AgentEvent(EventKind.ERROR, text=texts_in(message.get("content")))
        return
    for block in parts(message, "content"):
        if block.get("type") == "text":
            yield AgentEvent(EventKind.TEXT, text=text_of(block, "text"), turn=turn)
        elif block.get("type") == "tool_use":
            tool = text_of(block, "name")
            yield AgentEvent(EventKind.TOOL_CALL, tool=tool, text=_show_input(part(block, "input")), turn=turn)
    yield AgentEvent(EventKind.USAGE, usage=_read_usage(part(message, "usage")), scope=turn, turn=turn)


def _show_input(arguments: Mapping[str, Any]) -> str:
    return text_of(arguments, "command", "file_path", "path", "pattern", "query", "url", "prompt")


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    cached = count_of(usage, "cache_read_input_tokens")
    read = count_of(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    written = count_of(usage, "output_tokens")
    return Usage(input_tokens=read, cached_tokens=cached, output_tokens=written, unpriced=1)


def _read_result(entry: Mapping[str, Any]) -> AgentEvent:
    """The end of the run. `subtype` is "success" even if the model could not be reached. Then `is_error` is true."""
    ending = ENDINGS.get(text_of(entry, "subtype"), Ending.GAVE_UP)
    if ending is Ending.FINISHED and entry.get("is_error"):
        ending = Ending.MODEL_FAILED
    if ending is not Ending.CAPPED and text_of(entry, "terminal_reason").startswith("aborted"):
        ending = Ending.INTERRUPTED
    return AgentEvent(
        EventKind.END,
        text="" if ending is Ending.FINISHED else text_of(entry, "result", "subtype"),
        usage=_read_total(entry),
        scope=WHOLE,
        ending=ending,
        denials=sum(1 for _ in parts(entry, "permission_denials")),
    )


def _read_total(entry: Mapping[str, Any]) -> Usage:
    """The usage of all models. The field `usage` would not include the answer at which a budget ran out."""
    models = [model for model in part(entry, "modelUsage").values() if isinstance(model, dict)]
    read = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    return Usage(
        input_tokens=sum(count_of(model, *read) for model in models),
        cached_tokens=sum(count_of(model, "cacheReadInputTokens") for model in models),
        output_tokens=sum(count_of(model, "outputTokens") for model in models),
    ).with_cost(money_of(entry, "total_cost_usd"))
