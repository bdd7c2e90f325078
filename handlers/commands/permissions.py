"""Who may command the bot: asked of GitHub live, never read from a payload; no answer means no."""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from handlers.commands.own_rules import narrow
from handlers.commands.table import Right
from handlers.context import Context
from handlers.effects.outbox import reply_once
from handlers.events import Repository, User
from handlers.rules import RepositoryRules, Role
from handlers.words import replies

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Admission:
    """Somebody who is heard, and how far."""

    rules: RepositoryRules
    role: Role

    def may(self, right: Right) -> bool:
        """Whether they may give a command that takes this right."""
        return self.role >= right.find_role(self.rules)


async def ask_live(
    context: Context, rules: RepositoryRules, repository: Repository, login: str, right: Right
) -> Admission:
    """How far somebody is heard just now, by the repository's own word too where it comes to that."""
    admission = Admission(rules, await context.github.fetch_role(rules.name, login))
    if right is not Right.ANYONE and admission.may(right):
        return replace(admission, rules=await narrow(context, rules, repository))
    return admission


async def admit(
    context: Context, repository: Repository, issue_number: int, sender: User, *rights: Right
) -> Admission | None:
    """Whether `sender` is heard with something that takes all these rights; else one friendly reply, and None.

    A repository without configuration is explained once to each requester, a missing permission once an issue and
    person: whoever asks again hears nothing.
    """
    rules = context.rules_for(repository.full_name)
    if rules is None:
        log.info("request.not_configured", by=sender.login)
        body = replies.render_not_configured(sender.login, repository.full_name)
        await reply_once(context, repository.full_name, issue_number, f"not configured @{sender.login}", body)
        return None
    # Which right takes most is a matter of the rules, and the repository's own may differ from the operator's.
    hardest = max(rights, key=lambda right: (right.find_role(rules), right is not Right.ANYONE))
    admission = await ask_live(context, rules, repository, sender.login, hardest)
    refused = [right for right in rights if not admission.may(right)]
    if not refused:
        return admission
    right = max(refused, key=lambda right: right.find_role(admission.rules))
    log.info("request.refused", by=sender.login)
    helper = admission.may(Right.START)  # Heard on other things: they are told what this one takes.
    least = right.find_role(admission.rules)
    body = replies.render_no_permission(sender.login, rules.name, least, helps=helper)
    occasion = f"#{issue_number} no permission @{sender.login}" + f" {right.name}" * helper
    await reply_once(context, rules.name, issue_number, occasion, body)
    return None
