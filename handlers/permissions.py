"""Who may command the bot: asked of GitHub live, never read from a payload; no answer means no."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from handlers import replies
from handlers.context import Context
from handlers.events import Repository, User
from handlers.outbox import reply_once
from handlers.rules import RepositoryRules

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Admission:
    """Somebody who is heard, and how far."""

    rules: RepositoryRules
    can_write: bool


async def admit(
    context: Context, repository: Repository, issue_number: int, sender: User, *, needs_write: bool = True
) -> Admission | None:
    """Whether `sender` is heard; else one friendly reply, and None.

    A repository without configuration is explained once to each requester, a missing permission once an issue and
    person: whoever asks again hears nothing.
    """
    rules = context.rules_for(repository.full_name)
    if rules is None:
        log.info("request.not_configured", by=sender.login)
        body = replies.render_not_configured(sender.login, repository.full_name)
        await reply_once(context, repository.full_name, issue_number, f"not configured @{sender.login}", body)
        return None
    can_write = await context.github.can_write(rules.name, sender.login)
    if needs_write and not can_write:
        log.info("request.refused", by=sender.login)
        body = replies.render_no_permission(sender.login, rules.name)
        await reply_once(context, rules.name, issue_number, f"#{issue_number} no permission @{sender.login}", body)
        return None
    return Admission(rules, can_write)
