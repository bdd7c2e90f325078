"""A comment commands the bot: one function for each verb of `handlers.commands`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gidgethub import sansio
from gidgethub.routing import Router

from handlers import casebook, replies
from handlers.commands import COMMANDS, Command, UnknownCommand, parse_commands, render_help
from handlers.context import Context
from handlers.events import IssueCommentCreated
from handlers.inbox import TooEarly, has_earlier
from handlers.options import read_options
from handlers.outbox import reply_once, was_answered
from handlers.permissions import admit
from handlers.pulls import ask_for_pull
from handlers.report import is_confidential
from handlers.rules import RepositoryRules
from handlers.start import StartRequest, start_job
from runner import store
from runner.job import Job, JobState

router = Router()


@dataclass(frozen=True, slots=True)
class Request:
    """One command of one comment, by somebody who may give it."""

    context: Context
    rules: RepositoryRules
    event: IssueCommentCreated
    occasion: str
    """What names this command among all: a redelivery has the same one."""
    delivery: str
    """The id of the delivery that brought it."""

    async def reply(self, body: str) -> None:
        """Answer this command, once however often it is delivered."""
        await reply_once(self.context, self.rules.name, self.event.issue.number, self.occasion, body)

    async def was_answered(self) -> bool:
        """Whether this command has had its answer: it is worked again when we die before that is written down."""
        async with self.context.db.read() as connection:
            return await was_answered(connection, self.rules.name, self.occasion)

    async def fetch_last_job(self) -> Job | None:
        """The newest job of this issue."""
        async with self.context.db.read() as connection:
            return await store.fetch_last_job(connection, self.rules.name, self.event.issue.number)

    async def is_confidential(self, job: Job) -> bool:
        """Whether what came out of a job is for the operator alone."""
        async with self.context.db.read() as connection:
            report = await store.fetch_report(connection, job.id)
        return report is not None and is_confidential(report.body)


@router.register("issue_comment", action="created")
async def on_issue_comment_created(event: sansio.Event, context: Context) -> None:
    """Carry out the commands of a new comment. Edits, bots and we ourselves command nothing."""
    created = IssueCommentCreated.model_validate(event.data)
    commands = parse_commands(created.comment.body or "")
    if not commands or created.sender.is_bot:
        return
    repository, number = created.repository, created.issue.number
    needs_write = any(_needs_write(command) for command in commands)
    admission = await admit(context, repository, number, created.sender, needs_write=needs_write)
    if admission is None:
        return
    name = admission.rules.name
    if created.issue.pull_request:
        await reply_once(context, name, number, f"#{number} is a pull request", replies.render_pull_request_thread())
        return
    for place, command in enumerate(commands):
        occasion = f"comment {created.comment.id} command {place}"
        if not admission.can_write and isinstance(command, Command):
            # Strangers are answered too, but each of them once: nobody can make the bot fill a thread.
            occasion = f"#{number} {command.verb} for @{created.sender.login}"
        await _carry_out(Request(context, admission.rules, created, occasion, event.delivery_id), command)


def _needs_write(command: Command | UnknownCommand) -> bool:
    return isinstance(command, UnknownCommand) or COMMANDS[command.verb].needs_write


async def _carry_out(request: Request, command: Command | UnknownCommand) -> None:
    if isinstance(command, UnknownCommand):
        await request.reply(replies.render_unknown_command(command.word, command.suggestion))
        await request.context.github.react_to_comment(request.rules.name, request.event.comment.id, "confused")
        return
    await _VERBS[command.verb](request, command)


async def _start(request: Request, command: Command) -> None:
    event = request.event
    options, advice = read_options(command.argument)
    await start_job(
        request.context,
        request.rules,
        StartRequest(
            repository=event.repository,
            issue=event.issue,
            preset=COMMANDS[command.verb].preset or command.verb,
            requested_by=event.sender.login,
            triggered_at=event.comment.created_at,
            trigger=request.occasion,
            options=options,
            steering=f"{advice}\n\n{command.body}".strip(),
            comment_id=event.comment.id,
        ),
    )


async def _status(request: Request, command: Command) -> None:
    job, url = await request.fetch_last_job(), request.context.public_url
    if job is None or not job.active:
        confidential = job is not None and await request.is_confidential(job)
        await request.reply(replies.render_idle(url, job, confidential=confidential))
        return
    async with request.context.db.read() as connection:
        queued_before = await store.count_queued_before(connection, job)
    await request.reply(replies.render_status(job, url, queued_before))


async def _cancel(request: Request, command: Command) -> None:
    """End the job of this issue; and once all that came before is worked, the one that it may have started meanwhile.

    Raises `TooEarly` until then. However often it is worked, it is answered once.
    """
    context = request.context
    # Asked first: what is done by now has left its job where the next line finds it.
    async with context.db.read() as connection:
        too_early = await has_earlier(connection, request.delivery)
    job = await request.fetch_last_job()
    goes_on = job is not None and await _ask_to_end(request, job.id)
    if job and goes_on:
        await request.reply(replies.render_cancelling(job, context.public_url))
    if too_early:
        raise TooEarly
    if not goes_on:
        await request.reply(replies.render_nothing_to_cancel())


async def _ask_to_end(request: Request, job_id: str) -> bool:
    """Ask a job to end, or a lost one not to be started again, until its report says whether it is; False otherwise."""
    async with request.context.db.write() as connection:
        job = await store.fetch_job(connection, job_id)
        if job is None:
            return False
        is_told = await casebook.fetch_job_reply(connection, job_id, "report") is not None
        if job.active or (job.state is JobState.LOST and not is_told):
            await store.request_cancel(connection, job_id, request.event.sender.login, request.context.now())
            return True
        return False


async def _pull(request: Request, command: Command) -> None:
    """Take a note. One that was refused stays so, also where what stood in its way is gone when it comes again."""
    if await request.was_answered():
        return
    refusal = await ask_for_pull(
        request.context, request.rules, request.event.issue.number, request.event.comment, command
    )
    if refusal:
        await request.reply(refusal)
        await request.context.github.react_to_comment(request.rules.name, request.event.comment.id, "confused")


async def _help(request: Request, command: Command) -> None:
    await request.reply(render_help())


_VERBS: Mapping[str, Callable[[Request, Command], Awaitable[None]]] = {
    "diagnose": _start,
    "repro": _start,
    "fix": _start,
    "retry": _start,
    "status": _status,
    "cancel": _cancel,
    "pr": _pull,
    "help": _help,
}
