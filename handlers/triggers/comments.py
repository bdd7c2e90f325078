"""Commands in comments: `ACTIONS` has the function for each operation that a command asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from gidgethub import sansio
from gidgethub.routing import Router
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.cases import casebook
from handlers.cases.private_repositories import renew
from handlers.cases.withheld import fetch_withheld
from handlers.commands.options import read_options
from handlers.commands.permissions import admit, answer, fetch_person
from handlers.commands.rights import Operation, Person, Surface
from handlers.commands.table import (
    COMMANDS,
    Command,
    UnknownCommand,
    find_command_with_mail,
    parse_commands,
    render_help,
)
from handlers.context import Context
from handlers.effects.outbox import reply_once, was_answered, write_reply
from handlers.events import IssueCommentCreated, IssueCommentEdited, is_from_bot
from handlers.holds.by_comment import describe_hold, release, take_over
from handlers.inbox.inbox import TooEarly, has_earlier
from handlers.jobs.cancel import cancel
from handlers.jobs.outcomes import describe_active, render_report
from handlers.jobs.rebase import read_onto
from handlers.jobs.start import StartRequest, start_job, was_requested_before
from handlers.jobs.tell import NotTold, tell
from handlers.ports import NotFound
from handlers.pulls.pulls import NotApproved, ask_for_pull
from handlers.rules import REBASE, RepositoryRules
from handlers.words import replies, tellings
from runner.model.job import Job, Topic
from runner.rows import job_rows

router = Router()

LATE = timedelta(minutes=1)
"""A command that is older than this when it arrives may have been withdrawn."""

SAFE_IF_WITHDRAWN = frozenset({Operation.HELP, Operation.STATUS, Operation.RESULTS, Operation.OPEN_PULL})
"""Operations that run without a check whether the command was withdrawn.

They only answer, or read the comment again themselves (a note).
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One command in a comment, from a person with permission."""

    context: Context
    person: Person
    event: IssueCommentCreated
    number: int
    """The number of the issue, even if the command is on the issue's pull request."""
    occasion: str
    """A unique text for this command. A redelivery has the same one."""
    delivery: str
    """The id of its delivery."""

    @property
    def rules(self) -> RepositoryRules:
        """The rules of the repository."""
        return self.person.rules

    async def reply(self, body: str) -> None:
        """Reply to this command: once, even if it is delivered again."""
        await answer(self.context, self.person, self.event.issue.number, self.occasion, body)

    async def answer(self, decide: Callable[[AsyncConnection], Awaitable[str]]) -> None:
        """Decide and reply in one transaction, so that neither is done twice if the command is delivered again."""
        async with self.context.db.write() as connection:
            if await was_answered(connection, self.rules.name, self.occasion):
                return
            body = await decide(connection)
            thread = self.event.issue.number
            await write_reply(connection, self.context, self.rules.name, thread, self.occasion, body)
        self.context.notify()

    async def was_answered(self) -> bool:
        """Whether this command has its reply. Without one, it is processed again after a crash."""
        async with self.context.db.read() as connection:
            return await was_answered(connection, self.rules.name, self.occasion)

    async def is_private(self) -> bool:
        """Whether the repository is private now. Raises what `handlers.ports.GitHub` raises."""
        return (await renew(self.context.github, self.rules.name, self.event.repository)).private

    async def fetch_last_job(self) -> Job | None:
        """The newest job of this issue."""
        async with self.context.db.read() as connection:
            return await job_rows.fetch_last_job(connection, Topic(self.rules.name, self.number))


@router.register("issue_comment", action="created")
async def on_issue_comment_created(event: sansio.Event, context: Context) -> None:
    """Carry out the commands of a new comment. Comments of bots, including ours, are ignored."""
    if is_from_bot(event.data):
        return
    created = IssueCommentCreated.model_validate(event.data)
    author = created.comment.user
    # The sender of a comment is its author. If GitHub ever names two people, neither commands in the other's name.
    if created.sender.is_bot or (author and author.login != created.sender.login):
        return
    commands = parse_commands(created.comment.body or "")
    if not commands:
        await _explain_mail(context, created)
        return
    thread = created.issue.number
    # No command is carried out unless the person may give all of them.
    asked = {_find_operation(command): _name_command(command) for command in reversed(commands)}
    person = await admit(context, created.repository, thread, created.sender, asked)
    if person is None:
        return
    number = await _find_issue(context, person.rules.name, created)
    if number is None:
        body = replies.render_pull_request_thread()
        await answer(context, person, thread, f"#{thread} is a pull request", body)
        return
    for place, command in enumerate(commands):
        occasion = f"comment {created.comment.id} command {place}"
        if person.is_stranger and isinstance(command, Command):
            # A stranger gets one answer per thread and verb, so that nobody can make the bot fill a thread.
            occasion = f"#{thread} {command.verb} for @{created.sender.login}"
        await _carry_out(Request(context, person, created, number, occasion, event.delivery_id), command)


async def _explain_mail(context: Context, created: IssueCommentCreated) -> None:
    """If a comment begins with a command that is ignored because of a mail in the comment, say so.

    Strangers get no answer.
    """
    command = find_command_with_mail(created.comment.body or "")
    rules = context.rules_for(created.repository.full_name)
    if command is None or rules is None:
        return
    person = await fetch_person(context, rules, created.sender.login, Surface.THREAD)
    if person.may(_find_operation(command)) and not person.is_stranger:
        occasion = f"comment {created.comment.id} mail"
        await reply_once(context, rules.name, created.issue.number, occasion, replies.render_quoted_mail())


@router.register("issue_comment", action="edited")
async def on_issue_comment_edited(event: sansio.Event, context: Context) -> None:
    """Say once that a command in an edited comment is ignored. Strangers get no answer."""
    if is_from_bot(event.data):
        return
    edited = IssueCommentEdited.model_validate(event.data)
    if edited.sender.is_bot:
        return
    commands = parse_commands(edited.comment.body or "")
    if not commands:
        return
    rules = context.rules_for(edited.repository.full_name)
    if rules is None:
        return
    person = await fetch_person(context, rules, edited.sender.login, Surface.THREAD)
    # The old text is parsed last, because parsing it can take as long as everything else here.
    if not person.may(Operation.START) or commands == parse_commands(edited.old_body):
        return
    occasion = f"comment {edited.comment.id} edited"
    await reply_once(context, rules.name, edited.issue.number, occasion, replies.render_edited())


def _find_operation(command: Command | UnknownCommand) -> Operation:
    """The operation of a command. An unknown command counts as a start."""
    return COMMANDS[command.verb].operation if isinstance(command, Command) else Operation.START


def _name_command(command: Command | UnknownCommand) -> str:
    """The command without its argument. Empty for an unknown command."""
    return f"/ptq {command.verb}" if isinstance(command, Command) else ""


async def _find_issue(context: Context, repository: str, created: IssueCommentCreated) -> int | None:
    """The number of a thread's issue. None if the thread is a pull request that is not ours."""
    if not created.issue.pull_request:
        return created.issue.number
    async with context.db.read() as connection:
        case = await casebook.fetch_case_of_pull(connection, repository, created.issue.number)
    return case.issue_number if case else None


async def _carry_out(request: Request, command: Command | UnknownCommand) -> None:
    operation = _find_operation(command)
    request.person.require(operation, request.rules.name)
    if isinstance(command, UnknownCommand):
        await request.reply(replies.render_unknown_command(command.word, command.suggestion))
        await request.context.github.react_to_comment(request.rules.name, request.event.comment.id, "confused")
        return
    if operation in SAFE_IF_WITHDRAWN or await _still_stands(request, command):
        await ACTIONS[operation](request, command)


async def _still_stands(request: Request, command: Command) -> bool:
    """Check that a command that arrives late is still in its comment. If it is not, reply so, and return False.

    People withdraw a command by deleting or editing the comment.
    """
    context, comment = request.context, request.event.comment
    if context.now() - comment.created_at <= LATE:
        return True
    with suppress(NotFound):
        body = (await context.github.fetch_comment(request.rules.name, comment.id)).body
        if command in parse_commands(body):
            return True
    await request.reply(replies.render_withdrawn())
    return False


async def _start(request: Request, command: Command) -> None:
    """Start a job with the preset that the verb names, or the word after `run`. The verb `retry` is `start.RETRY`."""
    event, pull_number = request.event, None
    preset, argument = command.verb, command.argument
    if preset == "run":
        name, argument = [*argument.split(None, 1), "", ""][:2]
        preset = name.strip("`").casefold()
    onto, argument = read_onto(argument) if preset == REBASE else (None, argument)
    options, advice = read_options(argument)
    if preset == REBASE and onto is None:
        onto, advice = read_onto(advice)
    issue = event.issue
    if issue.number != request.number:
        pull_number = issue.number
        try:
            issue = await request.context.github.fetch_issue(request.rules.name, request.number)
        except NotFound:
            await request.reply(replies.render_issue_gone(request.number))
            return
    await start_job(
        request.context,
        StartRequest(
            person=request.person,
            repository=event.repository,
            issue=issue,
            preset=preset,
            triggered_at=event.comment.created_at,
            trigger=request.occasion,
            options=options,
            onto=onto,
            steering=f"{advice}\n\n{command.body}".strip(),
            comment_id=event.comment.id,
            pull_number=pull_number,
        ),
    )


async def _status(request: Request, command: Command) -> None:
    job = await request.fetch_last_job()
    pages = request.context.find_page_root(job) if job else ""
    async with request.context.db.read() as connection:
        hold = await describe_hold(connection, request.context, request.rules, request.number)
        confidential = job is not None and await fetch_withheld(connection, job.id)
    if job is None or not job.active:
        await request.reply(replies.render_idle(pages, job, confidential=confidential) + hold)
        return
    async with request.context.db.read() as connection:
        body = await describe_active(connection, request.context, job)
    await request.reply(body + hold)


async def _cancel(request: Request, command: Command) -> None:
    """Cancel the issue's job. A job that was requested after the comment continues.

    The delivery of the comment may be late, or a copy of an old one. Raises `TooEarly` until all earlier deliveries are
    processed. The cancel is then processed again, and also ends a job that one of them has started. The command gets
    only one reply.
    """
    context = request.context
    # Checked before the job is read. If all earlier deliveries are processed now, the read below sees their job.
    async with context.db.read() as connection:
        too_early = await has_earlier(connection, request.delivery)
    job, is_ending = await request.fetch_last_job(), False
    if job and was_requested_before(job, request.event.comment.created_at):
        async with context.db.write() as connection:
            is_ending = await cancel(connection, request.person, job, context.now())
    if job and is_ending:
        await request.reply(replies.render_cancelling(job, context.find_page_root(job)))
    if too_early:
        raise TooEarly
    if not is_ending:
        await request.reply(replies.render_nothing_to_cancel())


async def _tell(request: Request, command: Command) -> None:
    """Pass words on to the issue's agent, or say why not.

    Words that were written before the job was requested are not for that job.
    """
    context, person = request.context, request.person
    words, written_at = f"{command.argument}\n\n{command.body}", request.event.comment.created_at

    async def decide(connection: AsyncConnection) -> str:
        job = await job_rows.fetch_last_job(connection, Topic(request.rules.name, request.number))
        if job is None or not was_requested_before(job, written_at):
            return f"{tellings.say_ended()} {tellings.RETRY}"
        try:
            await tell(connection, person, job, words, request.occasion, context.now())
        except NotTold as reason:
            return f"{reason} {tellings.RETRY}" if reason.is_late else str(reason)
        return tellings.render_told(job, context.find_page_root(job))

    await request.answer(decide)


async def _pull(request: Request, command: Command) -> None:
    """Accept or refuse a note. A refused note stays refused if it is delivered again, even if the reason is gone."""
    if await request.was_answered():
        return
    try:
        await ask_for_pull(request.context, request.person, request.number, request.event.comment, command)
    except NotApproved as refused:
        await request.reply(refused.reply)
        await request.context.github.react_to_comment(request.rules.name, request.event.comment.id, "confused")


async def _results(request: Request, command: Command) -> None:
    """Post the newest report again, with the current commands for its diff.

    The report of a private repository is posted only if the repository is private now. By now it may be public, or
    another repository may have its name.
    """
    context = request.context
    async with context.db.read() as connection:
        reports = await casebook.fetch_reports_of(connection, request.rules.name, request.number)
        job = await job_rows.fetch_job(connection, reports[0].job_id or "") if reports else None
    if job and job.private and not await request.is_private():
        await request.reply(replies.render_private_before())
        return
    body = replies.render_again(await render_report(context, job)) if job else None
    await request.reply(body or replies.render_no_results())


async def _takeover(request: Request, command: Command) -> None:
    """Hold the newest job's environment for the author, with their SSH keys on GitHub."""
    context, person = request.context, request.person
    if await request.was_answered():
        return
    offered = await context.github.list_public_keys(person.rules.name, person.name)
    written_at = request.event.comment.created_at
    await request.answer(lambda connection: take_over(connection, context, person, request.number, offered, written_at))


async def _release(request: Request, command: Command) -> None:
    context, person = request.context, request.person
    how, event = command.argument.strip("`").casefold(), request.event
    written_at, private = event.comment.created_at, await request.is_private()
    await request.answer(
        lambda connection: release(connection, context, person, request.number, how, written_at, private=private)
    )


async def _help(request: Request, command: Command) -> None:
    await request.reply(render_help(request.rules))


ACTIONS: Mapping[Operation, Callable[[Request, Command], Awaitable[None]]] = {
    Operation.START: _start,
    Operation.TELL: _tell,
    Operation.STATUS: _status,
    Operation.RESULTS: _results,
    Operation.CANCEL: _cancel,
    Operation.OPEN_PULL: _pull,
    Operation.TAKE_OVER: _takeover,
    Operation.RELEASE: _release,
    Operation.HELP: _help,
}
