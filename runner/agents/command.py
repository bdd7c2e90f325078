"""The agent of kind `command`: any program that keeps the contract (docs/agents.md, "Bring your own agent")."""

from __future__ import annotations

from runner.agents.events import MAX_TEXT, AgentEvent, EventKind
from runner.agents.protocol import TOKEN_VARIABLE, URL_VARIABLE, AgentSpec, Launch, Run


class CommandAgent:
    """Runs the operator's `command` unchanged. Exit status 0 means that the program did its work."""

    speaks = False
    levels: tuple[str, ...] = ()
    resumes = False

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self, run: Run) -> Launch:
        """The operator's command and environment variables."""
        model = run.model or self.spec.model
        env = {
            "PTQ_SKILLS_DIR": "{home}/skills",
            **({"PTQ_MODEL": model} if model else {}),
            **({URL_VARIABLE: "{gateway}", TOKEN_VARIABLE: run.token} if run.token else {}),
            **self.spec.env,
        }
        return Launch((*self.spec.command, *self.spec.args), env, skills_folder="skills")

    def read_line(self, line: str) -> tuple[AgentEvent, ...]:
        """Every line that is not blank is a text for people."""
        return (AgentEvent(EventKind.TEXT, text=line[:MAX_TEXT]),) if line.strip() else ()
