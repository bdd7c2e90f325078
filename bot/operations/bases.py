"""`ptq-bot machines prepare`: builds or updates a machine's base environments now, and shows the log."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from bot.config.needed_programs import Missing, find_missing, list_names
from bot.config.policy_tables import RepositoryTable
from bot.config.settings import Settings
from bot.config.tables import find_web_url
from bot.operations.context import read_database
from bot.operations.machines import UnknownMachine, find_machine
from handlers.text.log_redactor import LogRedactor
from handlers.text.sanitize import redact
from handlers.text.stage_log import drop_marks
from runner.characters import show_for_terminal
from runner.db.errors import NoDatabase
from runner.model.environment import Profile
from runner.model.inventory import find_missing_gpus
from runner.model.jobd_answers import MAX_WORD, JobdError, StageState, read_text
from runner.model.machines import Machine, eligible
from runner.rows import job_rows
from runner.transport.host_errors import HostError
from runner.transport.hosts import open_host
from runner.transport.jobd_client import JobdClient

POLL_S = 1.0

WANTS_LOGIN = "could not read Username"
"""Git prints this if the server requires a login for a repository."""

WHERE_PRIVATE = (
    "\nWhere this repository is private: machines fetch such by the gateway, which only the running service has. "
    "Its first job on a machine makes the base there (docs/gateway.md)."
)


async def prepare_bases(settings: Settings, name: str, repository: str | None, show: Callable[[str], None]) -> bool:
    """Build or update the bases of one repository, or of all that may run on the machine. Returns whether all worked.

    Raises `DatabaseError`, and `UnknownMachine`, also if the machine may not run jobs of the repository.
    """
    machine = find_machine(settings, name)
    wanted = [profile for profile in settings.profile_list() if repository in (None, profile.repository)]
    profiles = await _choose_profiles(settings, machine, wanted)
    if not profiles:
        which = show_for_terminal(repository) if repository else "any repository"
        raise UnknownMachine(f"machine {machine.name} is not for {which}: see `repos`, `requires` and `serves`")

    def show_safely(text: str) -> None:
        show(show_for_terminal(redact(text, settings.secret_values())))

    host = open_host(machine)
    try:
        client = JobdClient(machine, host)
        await _show_missing_gpus(client, machine, show_safely)
        return all([await _prepare(settings, client, profile, show_safely) for profile in profiles])
    finally:
        await host.close()


async def _show_missing_gpus(client: JobdClient, machine: Machine, show: Callable[[str], None]) -> None:
    with suppress(HostError, JobdError):  # The first repository says it.
        inventory = await client.check()
        if inventory.gpu_trouble:
            show(f"{machine.name}: its GPUs cannot be used: {inventory.gpu_trouble}\n")
        elif missing := find_missing_gpus(machine, inventory):
            show(f"{machine.name}: {': '.join(missing)}\n")


async def _choose_profiles(settings: Settings, machine: Machine, profiles: Sequence[Profile]) -> list[Profile]:
    """The profiles of repositories whose jobs may run on the machine."""
    kinds: dict[str, bool] = {}
    with suppress(NoDatabase):  # Before the first start of the service there is no database.
        async with read_database(settings) as connection:
            kinds = {
                profile.repository: await find_kind(connection, profile.repository, machine) for profile in profiles
            }
    unknown = _guess_kind(machine)
    return [
        profile
        for profile in profiles
        if eligible([machine], profile.requires, private=kinds.get(profile.repository, unknown))
    ]


async def find_kind(connection: AsyncConnection, repository: str, machine: Machine) -> bool:
    """Whether a repository is private, according to its newest job on an issue.

    Without one, it counts as private if the machine does not run jobs of public repositories.
    """
    newest = await job_rows.fetch_newest_job(connection, repository, datetime.now(UTC))
    return newest.private if newest else _guess_kind(machine)


def _guess_kind(machine: Machine) -> bool:
    return not machine.is_for(private=False)


async def _prepare(settings: Settings, client: JobdClient, profile: Profile, show: Callable[[str], None]) -> bool:
    table, url = settings.repos[profile.repository], find_clone_url(settings, profile.repository)
    show(f"{profile.repository}:\n")
    job_id = secrets.token_hex(5)
    try:
        missing = (await look_for_programs(client, {profile.repository: table})).get(profile.repository, ())
    except (HostError, JobdError) as error:
        show(f"{profile.repository}: {error}\n")
        return False
    for program in missing:
        show(f"{profile.repository}: {program.words}: {program.fix}\n")
    if any(program.needed for program in missing):
        return False
    try:
        await client.make_base(job_id, profile.recipe(url, profile.trunk))
        made, words = await _follow(client, job_id, LogRedactor(settings.secret_values()), show)
    except (HostError, JobdError) as error:
        made, words = False, str(error)
    else:
        words += WHERE_PRIVATE if WANTS_LOGIN in words and not table.clone_url else ""
    finally:
        # Also after Ctrl-C. The next build skips the steps that are done.
        await asyncio.shield(_clean(client, job_id))
    show(f"{profile.repository}: {words}\n")
    return made


async def look_for_programs(
    client: JobdClient, tables: Mapping[str, RepositoryTable]
) -> Mapping[str, Sequence[Missing]]:
    """The programs that each repository needs, or tells agents about, and that the machine lacks."""
    if not any(table.programs or table.tools for table in tables.values()):
        return {}
    vendors = {gpu.vendor for gpu in (await client.check()).gpus}
    there = await client.find_programs(list_names(tables.values(), vendors), [])
    return {name: [*find_missing(table, there.versions, vendors)] for name, table in tables.items()}


async def _follow(client: JobdClient, job_id: str, log: LogRedactor, show: Callable[[str], None]) -> tuple[bool, str]:
    """Show the log, as far as no secret can begin in it, and say how the build ended."""
    offset = 0
    while True:
        poll = await client.poll(job_id, "base", log_offset=offset)
        offset += len(poll.log)
        is_over = poll.state is not StageState.RUNNING and not poll.log
        show(drop_marks("".join(one.text for one in (log.finish() if is_over else log.feed(poll.log)))))
        if not is_over:
            await asyncio.sleep(0 if poll.log else POLL_S)
        elif poll.state is StageState.DONE:
            about = found if isinstance(found := poll.result.get("base"), dict) else {}
            commit, way = read_text(about.get("commit"), 64), read_text(poll.result.get("way"), MAX_WORD)
            return True, f"its base is at commit {commit} ({way})"
        else:
            return False, poll.message or "the machine does not say how it ended"


async def _clean(client: JobdClient, job_id: str) -> None:
    try:
        await client.clean(job_id)
    except (HostError, JobdError):
        return


def find_clone_url(settings: Settings, repository: str) -> str:
    """The URL from which machines fetch a configured repository."""
    return settings.repos[repository].clone_url or f"{find_web_url(settings.github.api_url)}/{repository}.git"
