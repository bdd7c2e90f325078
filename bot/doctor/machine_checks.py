"""Checks each machine: connection, sandbox, disk, GPUs, clock, programs, and a first job."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence

from bot.config.needed_programs import Missing, explain_install
from bot.config.settings import Settings
from bot.doctor.findings import DoctorVerdict, Finding, Part
from bot.doctor.github_checks import judge_skew
from bot.doctor.key_files import find_key_problem
from bot.doctor.machine_trial import GIT, judge_git, try_job
from bot.operations.bases import look_for_programs
from bot.operations.context import find_login
from runner.agents import AgentSpec, Run, build_agent
from runner.model.environment import Profile
from runner.model.inventory import (
    Inventory,
    describe_disk,
    describe_gpus,
    describe_shares,
    find_missing_gpus,
    find_shortage,
)
from runner.model.jobd_answers import JobdError
from runner.model.machines import Machine, eligible
from runner.transport.host_errors import AccessDenied, HostError, HostKeyMismatch
from runner.transport.hosts import open_host
from runner.transport.jobd_client import Capabilities, JobdClient, Programs

UV = "uv"
SEAL = "allow namespaces there: docs/machines.md#how-jobs-are-sealed-from-each-other lists the settings"


async def check_machine(settings: Settings, machine: Machine) -> AsyncIterator[Finding]:
    """Check one machine over the service's connection. Ends early if it cannot be reached."""
    part = Part(f"machine {machine.name}")
    if machine.client_key_file and (problem := find_key_problem(machine.client_key_file, find_login())):
        yield part.fail("SSH key", problem.words, problem.fix)
        return
    host = open_host(machine)
    try:
        client = JobdClient(machine, host)
        async for finding in look_around(part, machine, client):
            yield finding
        agents = list(list_agents(settings, machine))
        before = time.time()
        programs = await client.find_programs(*choose_programs(agents, uses_uv=_uses_uv(settings, machine)))
        yield judge_skew(part, "the machine", machine.name, find_skew_s(before, time.time(), programs.now))
        found = list(judge_programs(part, agents, programs))
        names = [profile.repository for profile in _list_profiles(settings, machine)]
        missing = await look_for_programs(client, {name: settings.repos[name] for name in names})
        found += judge_missing(part, missing, programs.versions.keys())
        for finding in found:
            yield finding
        if not any(finding.check == GIT and finding.verdict is DoctorVerdict.FAILED for finding in found):
            for create_venv in dict.fromkeys(profile.create_venv for profile in _list_profiles(settings, machine)):
                yield await try_job(part, machine, host, create_venv)
    except (HostError, JobdError) as error:
        yield explain_failure(part, machine, error)
    finally:
        await host.close()


async def look_around(part: Part, machine: Machine, client: JobdClient) -> AsyncIterator[Finding]:
    """Check what every machine needs, for any agent. Raises `HostError` and `JobdError`."""
    version = await client.version()
    yield part.ok("connection", f"connected; Python {version.python}")
    for finding in judge_room(part, machine, await client.check()):
        yield finding
    yield judge_sandbox(part, machine, await client.capabilities())


def explain_failure(part: Part, machine: Machine, error: HostError | JobdError) -> Finding:
    """Why a machine could not be checked, and the fix."""
    if isinstance(error, HostError):
        return explain_silence(part, machine, error)
    return explain_refusal(part, machine, error)


def find_skew_s(before: float, after: float, theirs: float) -> float:
    """How far our clock is ahead of a clock that was read between `before` and `after`; 0 if it may be right. Pure."""
    return max(before - theirs, 0.0) or min(after - theirs, 0.0)


def explain_silence(part: Part, machine: Machine, error: HostError) -> Finding:
    """Why a machine cannot be reached, and the fix."""
    where = f"{machine.user}@{machine.host}" if machine.user else machine.host
    if isinstance(error, HostKeyMismatch):
        fix = "compare the host key (ssh-keyscan) with one that you trust, and add that to known_hosts_file"
        return part.fail("host key", str(error), fix)
    if isinstance(error, AccessDenied):
        key = f"the output of `ssh-keygen -y -f {machine.client_key_file}`" if machine.client_key_file else "your key"
        account = f"~{machine.user}" if machine.user else "~"
        return part.fail("login", str(error), f"add {key} to {account}/.ssh/authorized_keys on {machine.host}")
    fix = f"make `ssh -p {machine.port or 22} {where}` work from this host, if necessary with jump_hosts"
    return part.fail("connection", str(error), fix)


def explain_refusal(part: Part, machine: Machine, error: JobdError) -> Finding:
    """Why a machine can be reached, but cannot run jobs."""
    fixes = {
        "no_python": ("python", f"install Python 3.9 or newer there, or fix `python` (it is {machine.python})"),
        "not_sealed": ("sandbox", SEAL),
    }
    check, fix = fixes.get(error.code, ("program", f"make {machine.workspace} writable for the account"))
    return part.fail(check, error.message, fix)


def judge_room(part: Part, machine: Machine, inventory: Inventory) -> Iterator[Finding]:
    """Check disk and GPUs."""
    shortage = find_shortage(machine, inventory)
    if inventory.free_inodes == 0:
        yield part.fail("disk", "no inodes left", "delete files there")
    elif shortage and not inventory.gpu_trouble:
        yield part.fail("disk", shortage, "free disk space there, or lower min_free_gb")
    else:
        yield part.ok("disk", describe_disk(inventory))
    if inventory.gpu_trouble:
        fix = "fix this on the machine, for the account that jobs use; a driver update may have broken it"
        yield part.fail("GPUs", inventory.gpu_trouble, fix)
    elif missing := find_missing_gpus(machine, inventory):
        yield part.warn("GPUs", *missing)
    elif inventory.gpus:
        shares = describe_shares(inventory.gpus, machine.slots, machine.gpus_per_slot)
        yield part.ok("GPUs", f"{describe_gpus(inventory.gpus)}; {shares}")


def judge_sandbox(part: Part, machine: Machine, found: Capabilities) -> Finding:
    """Check whether jobs are isolated from each other and from the service, and what they can reach."""
    if not found.sealed and machine.kind == "local":
        words = f"jobs are {found.words}; they run as the service's account, and can read its keys and database"
        return part.fail("sandbox", words, f'{SEAL}; or use kind = "ssh" with another account')
    if not found.sealed:
        return part.warn("sandbox", f"jobs are {found.words}", SEAL)
    if found.open:
        words = f"{found.words}; open: {'; '.join(found.open)}"
        return part.warn("sandbox", words, "close these: an agent can reach them (docs/machines.md)")
    return part.ok("sandbox", f"{found.words}; environments by {found.way}")


def list_agents(settings: Settings, machine: Machine) -> Iterator[AgentSpec]:
    """The agents that can run on a machine."""
    names = {
        name
        for rules in settings.repository_rules()
        if eligible([machine], rules.requires, private=None)
        for name in rules.agents
    }
    yield from (spec for spec in settings.agent_specs() if spec.name in names)


def _list_profiles(settings: Settings, machine: Machine) -> Iterator[Profile]:
    yield from (profile for profile in settings.profile_list() if eligible([machine], profile.requires, private=None))


def _uses_uv(settings: Settings, machine: Machine) -> bool:
    return any(
        command.split()[:1] == [UV]
        for profile in _list_profiles(settings, machine)
        for command in (*profile.setup, " ".join(profile.create_venv))
    )


def choose_programs(agents: Sequence[AgentSpec], *, uses_uv: bool) -> tuple[list[str], list[str]]:
    """The required programs, and the known ones among them, which are asked for their version. Pure."""
    own = [find_program(spec) for spec in agents if spec.kind == "command"]
    known = [find_program(spec) for spec in agents if spec.kind != "command"]
    return own, [GIT, *([UV] if uses_uv else []), *known]


def find_program(spec: AgentSpec) -> str:
    """The program of an agent."""
    return build_agent(spec).launch(Run(session_id="")).argv[0]


def judge_programs(part: Part, agents: Sequence[AgentSpec], programs: Programs) -> Iterator[Finding]:
    """Check git, uv, and the agents' programs."""
    names: Mapping[str, str] = {find_program(spec): f"agent {spec.name}" for spec in agents}
    for program, version in programs.versions.items():
        check = names.get(program, program)
        if program == GIT:
            yield judge_git(part, version)
        elif version is None:
            yield part.fail(check, f"{program} is not installed", explain_install(program))
        else:
            yield part.ok(check, version or program)


def judge_missing(part: Part, missing: Mapping[str, Sequence[Missing]], judged: Collection[str]) -> Iterator[Finding]:
    """Report the programs that repositories need and the machine lacks, except those `judged` already. Pure."""
    for repository, programs in missing.items():
        for program in programs:
            if program.name not in judged:
                tell = part.fail if program.needed else part.warn
                yield tell(f"programs of {repository}", program.words, program.fix)
