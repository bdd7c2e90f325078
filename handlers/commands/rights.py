"""What people can do, who they are, and the right that each operation needs. Pure.

Every right is checked here and nowhere else. `handlers.commands.permissions` asks GitHub for a person's role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from handlers.rules import RepositoryRules, Role
from runner.model.job import OPERATOR


class Right(StrEnum):
    """The right to do something. A repository's rules say which role has it there."""

    ANYONE = "anyone"
    START = "who may start jobs"
    OPEN = "who may open pull requests"
    OPERATE = "operators"

    def find_role(self, rules: RepositoryRules) -> Role:
        """The lowest role that has this right in a repository. No role has `OPERATE`."""
        return {Right.ANYONE: Role.NONE, Right.START: rules.who_may_start, Right.OPEN: rules.who_may_open}[self]


class Operation(StrEnum):
    """Something that a person can do."""

    HELP = "help"
    STATUS = "status"
    WITHDRAW = "withdraw"
    """Take a request back before its job has begun, by taking the label off or closing the issue."""
    START = "start"
    RESULTS = "results"
    CANCEL = "cancel"
    TELL = "tell"
    """Tell the agent of an active job something."""
    PAUSE = "pause"
    RESUME = "resume"
    OPEN_PULL = "open pull request"
    TAKE_OVER = "take over"
    RELEASE = "release"
    REPLAY = "replay"
    """Have a delivery handled again."""
    DRAIN_MACHINE = "drain machine"
    RESUME_MACHINE = "resume machine"
    MAKE_WORKTREE = "make worktree"
    ASSIGN = "assign"
    """Let an agent continue in a worktree."""
    RENAME = "rename"
    """Give a worktree or a task another name."""
    CLEAN = "clean"
    """Delete the logs of a job."""
    LIFT = "lift"
    """Let further jobs of a confidential issue post their reports again."""
    ACCEPT_REPOSITORY = "accept repository"
    """Let another repository have the name of one that is known."""


RIGHTS: Mapping[Operation, Right] = {
    Operation.HELP: Right.ANYONE,
    Operation.STATUS: Right.ANYONE,
    Operation.WITHDRAW: Right.ANYONE,  # GitHub decides who may take labels off and close issues.
    Operation.START: Right.START,
    Operation.RESULTS: Right.START,
    Operation.CANCEL: Right.START,
    Operation.TELL: Right.START,
    Operation.PAUSE: Right.START,
    Operation.RESUME: Right.START,
    Operation.OPEN_PULL: Right.OPEN,
    Operation.TAKE_OVER: Right.OPEN,
    Operation.RELEASE: Right.OPEN,
    Operation.REPLAY: Right.OPERATE,
    Operation.DRAIN_MACHINE: Right.OPERATE,
    Operation.RESUME_MACHINE: Right.OPERATE,
    Operation.MAKE_WORKTREE: Right.OPERATE,
    Operation.ASSIGN: Right.OPERATE,
    Operation.RENAME: Right.OPERATE,
    Operation.CLEAN: Right.OPERATE,
    Operation.LIFT: Right.OPERATE,
    Operation.ACCEPT_REPOSITORY: Right.OPERATE,
}
"""The right that each operation needs."""

FOR_OPERATORS_TOO = frozenset({Operation.PAUSE, Operation.RESUME})
"""The operations that operators can do on pages for each repository, and for all at once, without a role there."""


class NotPermitted(Exception):  # noqa: N818
    """A person lacks the right to an operation in the repository of these rules."""

    def __init__(self, operation: Operation, rules: RepositoryRules) -> None:
        super().__init__(f"{operation} is for: {RIGHTS[operation]}")
        self.rules = rules
        self.right = RIGHTS[operation]


class Surface(StrEnum):
    """The place where a person asks for an operation."""

    THREAD = "thread"
    """A comment or a label on GitHub."""
    PAGE = "page"
    TERMINAL = "terminal"
    """The command line on the service's own host."""


NOWHERE = RepositoryRules(name="", agent="")
"""The rules of a person whose role in a repository was not asked for."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who asks for an operation: their name, the surface that they use, and their role in one repository."""

    name: str
    """Their login on GitHub. At a terminal, their account on the host."""
    surface: Surface
    rules: RepositoryRules = NOWHERE
    """The rules of the repository in which they have their role."""
    role: Role = Role.NONE
    is_operator: bool = False
    """Whether they operate the service: at the terminal, or named in `[dashboard] operators`."""

    @property
    def signature(self) -> str:
        """Their name in rows. The account of a person at a terminal is left out, because threads show this name."""
        return OPERATOR if self.surface is Surface.TERMINAL else self.name

    @property
    def mention(self) -> str:
        """Their name in the history of a job."""
        return OPERATOR if self.surface is Surface.TERMINAL else f"@{self.name}"

    def may(self, operation: Operation) -> bool:
        """Whether they may do it in this repository. At the terminal people may do everything."""
        right = RIGHTS[operation]
        if self._may_everywhere(operation):
            return True
        return self.is_operator if right is Right.OPERATE else self.role >= right.find_role(self.rules)

    @property
    def is_stranger(self) -> bool:
        """Whether they can neither start jobs nor open pull requests in this repository."""
        return not (self.may(Operation.START) or self.may(Operation.OPEN_PULL))

    def require(self, operation: Operation, repository: str | None = None) -> None:
        """Raise `NotPermitted` unless they may do this.

        If the operation concerns a `repository`, their role has to be in that repository.
        """
        elsewhere = repository is not None and repository.lower() != self.rules.name.lower()
        if not self.may(operation) or (elsewhere and not self._may_everywhere(operation)):
            raise NotPermitted(operation, self.rules)

    def _may_everywhere(self, operation: Operation) -> bool:
        is_operator = self.is_operator and self.surface is Surface.PAGE
        return self.surface is Surface.TERMINAL or (is_operator and operation in FOR_OPERATORS_TOO)
