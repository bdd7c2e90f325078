"""Who a person is: their role is asked of GitHub live, never read from a payload; no answer means no.

A right is never kept. That somebody has none is kept for moments, because each question counts in GitHub's hourly
limit, and strangers can comment as often as they like.
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
"""The waits between later questions about them."""


async def fetch_person(context: Context, rules: RepositoryRules, login: str, surface: Surface) -> Person:
    """A person with the role that GitHub gives them now.

    In a thread, somebody who was refused several times counts as without a role until the next question.
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
    """Somebody with the role that GitHub says they have just now. Where that is enough by the operator's rules, the
    repository's own rules count too.
    """
    person = await fetch_person(context, rules, login, surface)
    if RIGHTS[operation] is not Right.ANYONE and person.may(operation):
        return replace(person, rules=await narrow(context, rules))
    return person


async def admit(
    context: Context, repository: Repository, issue_number: int, sender: User, asked: Mapping[Operation, str]
) -> Person | None:
    """The sender, if they may do all of this; else one friendly reply in the thread, and None.

    `asked` are the operations, each with the command that asks for it, if there is one.

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
    # Which operation takes most is a matter of the rules, and the repository's own may differ from the operator's.
    hardest = max(asked, key=lambda operation: _rank(operation, rules))
    person = await identify(context, rules, sender.login, Surface.THREAD, hardest)
    refused = [operation for operation in asked if not person.may(operation)]
    if not refused:
        return person
    log.info("request.refused", by=sender.login)
    least = max(refused, key=lambda operation: _rank(operation, person.rules))
    right = RIGHTS[least]
    helper = person.may(Operation.START)  # They can do other things, and read what this one takes.
    role = right.find_role(person.rules)
    body = replies.render_no_permission(sender.login, rules.name, role, command=asked[least], helps=helper)
    occasion = f"#{issue_number} no permission @{sender.login}" + f" {right.name}" * helper
    await answer(context, person, issue_number, occasion, body)
    return None


async def answer(context: Context, person: Person, issue_number: int, occasion: str, body: str) -> None:
    """Reply to somebody in a thread of the repository in which they have their role: to strangers within limits."""
    if person.is_stranger:
        await reply_to_stranger(context, person.rules.name, issue_number, occasion, body, person.name)
    else:
        await reply_once(context, person.rules.name, issue_number, occasion, body)


def _rank(operation: Operation, rules: RepositoryRules) -> tuple[Role, bool]:
    right = RIGHTS[operation]
    return right.find_role(rules), right is not Right.ANYONE
