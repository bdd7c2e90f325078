"""Why a machine could not be asked, in words for people."""

from __future__ import annotations

from typing import ClassVar


class HostError(Exception):
    """A machine could not be asked. The message is a clause for people, without addresses, paths or secrets."""

    permanent: ClassVar[bool] = False
    """Whether trying again is useless until an operator has acted."""


class Unreachable(HostError):  # noqa: N818 - says what is the case
    """Refused, unknown, silent for too long, or lost in mid-command: then nobody knows how far the command went."""


class HostKeyMismatch(HostError):  # noqa: N818 - says what is the case
    """The machine is not provably the one that the known_hosts file names."""

    permanent = True


class AccessDenied(HostError):  # noqa: N818 - says what is the case
    """The machine does not accept our user and key, or we have no key."""

    permanent = True


class OutputTooLarge(HostError):  # noqa: N818 - says what is the case
    """The command wrote more than its caller allows; it was cut off."""

    permanent = True


def silent_for(timeout_s: float) -> Unreachable:
    """The error of a machine that says nothing."""
    return Unreachable(f"it did not answer within {timeout_s:g} seconds")
