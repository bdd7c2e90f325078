"""Finds out which rights a person has. GitHub is asked for their role each time. It is never read from a payload.

Without an answer of GitHub, nothing is permitted. A role with rights is never cached. After several refusals, a role
without rights is cached for 1 to 30 minutes, because each question counts in GitHub's hourly limit, and strangers can
comment as often as they like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import structlog

from handlers.commands.own_rules import narrow
from handlers.commands.rights import RIGHTS, Operation, Person, Right, Surface
from handlers.context import Context
from handlers.effects.outbox import reply_once
from handlers.effects.strangers import reply_to_stranger
from handlers.events import Repository, User
from handlers.rules import RepositoryRules, Role
from handlers.words import replies
from runner.model.back_off import BackOff

log = structlog.get_logger()

FREE_QUESTIONS = 3
"""How often GitHub is asked about somebody without a right before the first wait."""

WAITS = BackOff(60.0, 1800.0)
"""The waits between later questions about the same person."""


async def fetch_person(context: Context, rules: RepositoryRules, login: str, surface: Surface) -> Person:
    """A person with the role that GitHub gives them now.

    In a thread, a person who was refused several times has no role until GitHub is asked about them again.
    """
    if surface is not Surface.THREAD:
        return Person(login, surface, rules, await context.github.fetch_role(rules.name, login))
    key, now = (login.casefold(), rules.name.lower()), context.now()
    refused, until = context.strangers.get(key, (0, now))
    if now < until:
        return Person(login, surface, rules, Role.NONE)
    person = Person(login, surface, rules, await context.github.fetch_role(rules.name, login))
    if person.is_stranger:
        wait_s = WAITS.after(refused + 1 - FREE_QUESTIONS) if refused >= FREE_QUESTIONS else 0.0
        context.strangers[key] = refused + 1, now + timedelta(seconds=wait_s)
    else:
        context.strangers.pop(key, None)
    return person


async def identify(
    context: Context, rules: RepositoryRules, login: str, surface: Surface, operation: Operation
) -> Person:
    """A person with the role that GitHub gives them now.

    If that role is enough by the operator's rules, the person's rules also contain the repository's own rules.
    """
    person = await fetch_person(context, rules, login, surface)
    if RIGHTS[operation] is not Right.ANYONE and person.may(operation):
        return replace(person, rules=await narrow(context, rules))
    return person


async def admit(
    context: Context, repository: Repository, issue_number: int, sender: User, asked: Mapping[Operation, str]
) -> Person | None:
    """The sender, if they may do all that they ask for. Otherwise, reply once in the thread, and return None.

    `asked` maps each operation to the command that asks for it. The command is empty if there is none.

    A repository without configuration is explained once to each requester, a missing permission once to each person on
    an issue, and strangers are answered only a few times an hour (`handlers.effects.strangers`).
    """
    rules = context.rules_for(repository.full_name)
    if rules is None:
        log.info("request.not_configured", by=sender.login)
        body = replies.render_not_configured(sender.login, repository.full_name)
        occasion = f"not configured @{sender.login}"
        await reply_to_stranger(context, repository.full_name, issue_number, occasion, body, sender.login)
        return None
    # By the operator's rules. By the repository's own rules, another operation may need the highest role.
    hardest = max(asked, key=lambda operation: _rank(operation, rules))
    person = await identify(context, rules, sender.login, Surface.THREAD, hardest)
    refused = [operation for operation in asked if not person.may(operation)]
    if not refused:
        return person
    log.info("request.refused", by=sender.login)
    least = max(refused, key=lambda operation: _rank(operation, person.rules))
    right = RIGHTS[least]
    helper = person.may(Operation.START)  # They can do other things here, and are told once for each right.
    role = right.find_role(person.rules)
    body = replies.render_no_permission(sender.login, rules.name, role, command=asked[least], helps=helper)
    occasion = f"#{issue_number} no permission @{sender.login}" + f" {right.name}" * helper
    await answer(context, person, issue_number, occasion, body)
    return None


async def answer(context: Context, person: Person, issue_number: int, occasion: str, body: str) -> None:
    """Reply to a person in a thread of the repository of their rules. The number of replies to strangers is limited."""
    if person.is_stranger:
        await reply_to_stranger(context, person.rules.name, issue_number, occasion, body, person.name)
    else:
        await reply_once(context, person.rules.name, issue_number, occasion, body)


def _rank(operation: Operation, rules: RepositoryRules) -> tuple[Role, bool]:
    right = RIGHTS[operation]
    return right.find_role(rules), right is not Right.ANYONE
