"""Why a machine could not be reached, in words for people."""

from __future__ import annotations

from typing import ClassVar


class HostError(Exception):
    """A machine could not be reached. The message is a clause for people, without addresses, paths or secrets."""

    permanent: ClassVar[bool] = False
    """Whether another attempt is useless until an operator has acted."""


class Unreachable(HostError):  # noqa: N818 - a state
    """The host is unknown, refused the connection or did not answer, or the connection was lost.

    After a lost connection, it is unknown how far the command ran.
    """


class HostKeyMismatch(HostError):  # noqa: N818 - a state
    """The machine's host key is not in the known_hosts file."""

    permanent = True


class AccessDenied(HostError):  # noqa: N818 - a state
    """The machine does not accept the configured user and key, or the key cannot be read."""

    permanent = True


class OutputTooLarge(HostError):  # noqa: N818 - a state
    """The command wrote more than its caller allows, and was cut off."""

    permanent = True


def no_answer(timeout_s: float) -> Unreachable:
    """The error for a machine that does not answer in time."""
    return Unreachable(f"it did not answer within {timeout_s:g} seconds")
