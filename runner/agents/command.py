"""The agent of kind `command`: any program that keeps the contract (see README, "Bring your own agent")."""

from __future__ import annotations

from runner.agents.protocol import AgentSpec, Launch, Verdict


class CommandAgent:
    """Runs `command` as it stands. Exit status 0 means that it did its work."""

    def __init__(self, spec: AgentSpec) -> None:
        self.spec = spec

    def launch(self) -> Launch:
        """The operator's command, with the operator's environment."""
        return Launch(self.spec.command, self.spec.env)

    def read_line(self, line: str) -> str | None:
        """Every line is for people already."""
        return line

    def judge(self, exit_status: int) -> Verdict:
        """Zero is success; anything else is said as it is."""
        if exit_status == 0:
            return Verdict(finished=True)
        return Verdict(finished=False, reason=f"the agent exited with status {exit_status}")
