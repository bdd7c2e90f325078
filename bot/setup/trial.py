"""Tests a machine before it is saved: fetches its host key, and runs a first job there without an agent."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh

from bot.doctor.findings import Finding, Part, has_failed
from bot.doctor.machine_checks import UV, explain_failure, find_program, look_around
from bot.doctor.machine_trial import GIT, judge_git, try_job
from bot.setup.answers import MachineAnswer
from bot.setup.config_text import CLIENT_KEY
from bot.setup.files import write_private
from runner.agents import BACKENDS, AgentSpec
from runner.model.environment import Profile
from runner.model.jobd_answers import JobdError
from runner.model.machines import Machine
from runner.transport.host_errors import HostError
from runner.transport.hosts import Host, open_host
from runner.transport.jobd_client import JobdClient
from runner.transport.ssh import SILENCE_S, Hop, fetch_host_key

PROGRAMS = {kind: find_program(AgentSpec(kind, kind)) for kind in BACKENDS if kind != "command"}
"""Kind of agent -> its program."""

CREATE_VENV = Profile("").create_venv
"""The default command that creates a job's virtual environment."""

FOLDER = "ptq"
"""The default work folder, in the home of the machine's account."""


class HostKeyUnavailable(Exception):  # noqa: N818 - what is the case
    """The host key cannot be fetched. The message is a clause for people."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a test."""

    machine: MachineAnswer
    """With its work folder, and the programs that were found."""
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether jobs can run there."""
        return not has_failed(self.findings)


async def read_host_key(machine: MachineAnswer, silence_s: float = SILENCE_S) -> str:
    """The machine's current host key, as kind and Base64. Raises `HostKeyUnavailable`."""
    try:
        key = await fetch_host_key(Hop(machine.host.strip("[]"), machine.port), silence_s)
    except HostError as error:
        raise HostKeyUnavailable(str(error)) from error
    return " ".join(key.export_public_key().decode().split()[:2])


def describe_host_key(host_key: str) -> tuple[str, str]:
    """Kind and fingerprint of a host key, as `ssh-keygen -l` writes it. Pure."""
    key = asyncssh.import_public_key(host_key)
    return key.algorithm.decode(), key.get_fingerprint()


async def try_machine(machine: MachineAnswer, folder: Path) -> Trial:
    """Run our program there, as the service does. `folder` is the folder of the configuration."""
    part, findings = Part(f"machine {machine.name}"), list[Finding]()
    known_hosts = folder / f".{machine.name}.known_hosts"
    write_private(known_hosts, machine.known_hosts_line.encode())
    target = _as_machine(machine, folder, known_hosts)
    host = open_host(target)
    try:
        if not machine.workspace:
            target = replace(target, workspace=await _find_workspace(host))
        client = JobdClient(target, host)
        async for finding in look_around(part, target, client):
            findings.append(finding)
        programs = await client.find_programs([], [GIT, UV, *PROGRAMS.values()])
        found = {name: version for name, version in programs.versions.items() if version is not None}
        findings += _judge_programs(part, found)
        if not has_failed(findings):
            findings.append(await try_job(part, target, host, CREATE_VENV))
        machine = replace(machine, workspace=target.workspace, programs=found)
    except (HostError, JobdError) as error:
        findings.append(explain_failure(part, target, error))
    finally:
        known_hosts.unlink(missing_ok=True)
        await host.close()
    return Trial(machine, tuple(findings))


async def find_on_machine(machine: MachineAnswer, folder: Path, program: str) -> bool | None:
    """Whether a machine has this program; None if it cannot be asked now."""
    known_hosts = folder / f".{machine.name}.known_hosts"
    write_private(known_hosts, machine.known_hosts_line.encode())
    target = _as_machine(machine, folder, known_hosts)
    host = open_host(target)
    try:
        found = await JobdClient(target, host).find_programs([program], [])
        return found.versions.get(program) is not None
    except (HostError, JobdError):
        return None
    finally:
        known_hosts.unlink(missing_ok=True)
        await host.close()


async def _find_workspace(host: Host) -> str:
    said = (await host.run(["printenv", "HOME"])).stdout.decode(errors="replace").strip()
    if not re.fullmatch(r"/[^\0\n]+", said):
        raise JobdError("workspace_unusable", "the account's home is unknown: enter a work folder")
    return f"{said.rstrip('/')}/{FOLDER}"


def _judge_programs(part: Part, found: dict[str, str]) -> list[Finding]:
    agents = [f"{name} ({found[name]})" if found[name] else name for name in PROGRAMS.values() if name in found]
    words = f"agents there: {', '.join(agents)}" if agents else "no known agent found; you can use any program"
    return [judge_git(part, found.get(GIT)), part.ok("agents", words)]


def _as_machine(machine: MachineAnswer, folder: Path, known_hosts: Path) -> Machine:
    if machine.kind == "local":
        return Machine(machine.name, machine.workspace, "local")
    return Machine(
        name=machine.name,
        workspace=machine.workspace,
        host=machine.host,
        port=machine.port,
        user=machine.user,
        client_key_file=folder / Path(machine.client_key_file or CLIENT_KEY).expanduser(),
        known_hosts_file=known_hosts,
    )
