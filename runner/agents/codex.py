"""Codex (`codex exec`), through its stream of JSON lines. Tested with 0.169.0; see docs/agents.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner.agents.events import THREAD, AgentEvent, EventKind
from runner.agents.lines import count_of, parse_line, part, show, text_of
from runner.agents.protocol import TOKEN_VARIABLE, AgentSpec, Launch, Run, Tail
from runner.model.ending import Ending
from runner.model.usage import Usage

TOOLS = {
    "command_execution": ("command", "aggregated_output"),
    "file_change": ("status", "status"),
    "mcp_tool_call": ("tool", "status"),
    "web_search": ("query", "query"),
}
"""Kind of item -> the fields with its input and output. Items of these kinds are tool calls."""

PROVIDER = (
    f'{{name="gateway", base_url="{{gateway}}/v1", wire_api="responses", env_key="{TOKEN_VARIABLE}", '
    "requires_openai_auth=false}"
)
GATEWAY = (
    *("-c", 'model_provider="gateway"', "-c", f"model_providers.gateway={PROVIDER}"),
    # By default Codex requests the vendor's search, which the gateway refuses unless the operator allows it.
    *("-c", 'web_search="disabled"'),
)

SILENT = ("turn.started", "item.updated")

SESSIONS = ".codex/sessions/**/rollout-*.jsonl"
"""Codex's session files. They contain token counts during a turn; the output has them only at the end of a turn."""


class CodexAgent:
    """Runs `codex exec` without approvals and without its own sandbox; the machine's sandbox limits it."""

    speaks = True
    # The values of `model_reasoning_effort` in Codex's configuration reference. Codex passes on any other value, too.
    levels: tuple[str, ...] = ("minimal", "low", "medium", "high", "xhigh")
    resumes = True

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self, run: Run) -> Launch:
        """The command line, with the prompt on standard input."""
        model, thinking = run.model or self.spec.model, run.thinking or self.spec.thinking
        own = {TOKEN_VARIABLE: run.token} if run.token else {}
        options = [
            *("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            # Codex's tools see all variables except secrets, such as the model's key.
            *("-c", 'shell_environment_policy.inherit="all"'),
            *("-c", f"shell_environment_policy.exclude={json.dumps(sorted({*self.spec.secret_names, *own}))}"),
            *(GATEWAY if run.token else ()),
            *(["-c", f'model_reasoning_effort="{thinking}"'] if thinking else []),
            *(["--model", model] if model else []),
        ]
        session = ("resume", run.resumes) if run.resumes else ()
        return Launch(
            (*(self.spec.command or ("codex",)), "exec", *options, *self.spec.args, *session, "-"),
            {**own, **self.spec.env},
            prompt_on_stdin=True,
            skills_folder=".codex/skills",
            tail=Tail(SESSIONS, '"token_count"'),
        )

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """Parse one line."""
        entry = parse_line(line)
        return tuple(_read(entry)) if entry else ()


def _read(entry: Mapping[str, Any]) -> Iterator[AgentEvent]:
    kind = text_of(entry, "type")
    if kind == "thread.started":
        yield AgentEvent(EventKind.SESSION, text=text_of(entry, "thread_id"))
    elif kind in ("item.started", "item.completed"):
        yield from _read_item(part(entry, "item"), completed=kind == "item.completed")
    elif kind == "turn.completed":
        usage = _read_usage(part(entry, "usage"))
        yield AgentEvent(EventKind.END, usage=usage, scope=THREAD, ending=Ending.FINISHED)
    elif kind == "event_msg":
        yield from _read_tail(part(entry, "payload"))
    elif kind == "turn.failed":
        yield AgentEvent(EventKind.END, text=text_of(part(entry, "error"), "message"), ending=Ending.MODEL_FAILED)
    elif kind == "error":
        message = text_of(entry, "message")
        retries = message.startswith("Reconnecting")
        yield AgentEvent(EventKind.RETRY if retries else EventKind.ERROR, text=message)
    elif kind not in SILENT:
        yield AgentEvent(EventKind.UNKNOWN, text=kind)


def _read_item(item: Mapping[str, Any], *, completed: bool) -> Iterator[AgentEvent]:
    kind, turn = text_of(item, "type"), text_of(item, "id")
    if kind in TOOLS:
        asked, answered = TOOLS[kind]
        if not completed:
            yield AgentEvent(EventKind.TOOL_CALL, tool=kind, text=text_of(item, asked), turn=turn)
        else:
            failed = item.get("status") in ("failed", "declined")
            yield AgentEvent(EventKind.TOOL_RESULT, text=text_of(item, answered), failed=failed, turn=turn)
    elif kind == "agent_message" and completed:
        yield AgentEvent(EventKind.TEXT, text=text_of(item, "text"), turn=turn)
    elif kind == "error":
        # An item of this kind is only a warning. A run ends with another event.
        yield AgentEvent(EventKind.ERROR, text=text_of(item, "message"))
    elif kind not in ("reasoning", "todo_list", "agent_message"):
        yield AgentEvent(EventKind.UNKNOWN, text=show(f"item {kind}"))


def _read_tail(payload: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """A line of the session file: the usage of the thread, and of the last answer."""
    total, last = part(payload, "info", "total_token_usage"), part(payload, "info", "last_token_usage")
    if payload.get("type") == "token_count" and total:
        usage = _read_usage(total)
        yield AgentEvent(EventKind.USAGE, usage=usage, scope=THREAD, before=usage - _read_usage(last))


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=count_of(usage, "input_tokens"),
        cached_tokens=count_of(usage, "cached_input_tokens"),
        output_tokens=count_of(usage, "output_tokens"),
        unpriced=1,
    )
