"""Tests a machine before it is saved: fetches its host key, and runs a first job there without an agent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh

from bot.doctor.findings import Finding, Part, has_failed
from bot.doctor.machine_checks import UV, explain_failure, find_program, look_around
from bot.doctor.machine_trial import GIT, JOB, judge_git, try_job
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


STEPS: Mapping[str, str] = {
    "host key": "host key",
    "Python": "connection",
    "disk and GPUs": "disk",
    "sandbox": "sandbox",
    "git and agents": "agents",
    "first job": JOB,
}
"""The steps of a test, in order -> the check whose finding ends each."""

FIELDS: Mapping[str, str] = {"connection": "address", "login": "client_key_file", "program": "workspace"}
"""Check -> the field of the form that its failure may be about."""


class HostKeyUnavailable(Exception):  # noqa: N818 - what is the case
    """The host key cannot be fetched. The message is a clause for people."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A test, as far as it has come."""

    machine: MachineAnswer
    """After the last step with its work folder, and the programs that were found."""
    findings: tuple[Finding, ...] = ()

    def add(self, *findings: Finding) -> Trial:
        """The same test with more findings."""
        return replace(self, findings=(*self.findings, *findings))

    @property
    def remaining(self) -> list[str]:
        """The steps that are not done, in order."""
        done = {finding.check for finding in self.findings}
        has_key = self.machine.kind == "ssh"
        return [step for step, check in STEPS.items() if check not in done and (has_key or step != "host key")]

    @property
    def passed(self) -> bool:
        """Whether jobs can run there."""
        return not self.remaining and not has_failed(self.findings)

    @property
    def wrong_entry(self) -> tuple[str, Finding] | None:
        """The field that caused the failure, with its finding; None if no entry did."""
        failed = [finding for finding in self.findings if has_failed([finding])]
        entered = {"address": self.machine.host, "client_key_file": self.machine.client_key_file, "workspace": True}
        wrong = [(FIELDS[finding.check], finding) for finding in failed if finding.check in FIELDS]
        return next((one for one in wrong if entered[one[0]]), None)


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


async def try_machine(machine: MachineAnswer, folder: Path) -> AsyncIterator[Trial]:
    """Run our program there, as the service does. The test is given after each finding.

    `folder` is the folder of the configuration. The machine's host key must be the one that was confirmed.
    """
    part, trial = Part(f"machine {machine.name}"), Trial(machine)
    async with _reach(machine, folder) as (target, host):
        try:
            if machine.kind == "ssh":
                yield (trial := trial.add(part.ok("host key", "the one that you confirmed")))
            if not machine.workspace:
                target = replace(target, workspace=await _find_workspace(host))
            client = JobdClient(target, host)
            async for finding in look_around(part, target, client):
                yield (trial := trial.add(finding))
            programs = await client.find_programs([], [GIT, UV, *PROGRAMS.values()])
            found = {name: version for name, version in programs.versions.items() if version is not None}
            trial = replace(trial, machine=replace(machine, workspace=target.workspace, programs=found))
            yield (trial := trial.add(*_judge_programs(part, found)))
            if not has_failed(trial.findings):
                yield trial.add(await try_job(part, target, host, CREATE_VENV))
        except (HostError, JobdError) as error:
            yield trial.add(explain_failure(part, target, error))


async def find_on_machine(machine: MachineAnswer, folder: Path, program: str) -> bool | None:
    """Whether a machine has this program; None if it cannot be asked now."""
    try:
        async with _reach(machine, folder) as (target, host):
            found = await JobdClient(target, host).find_programs([program], [])
    except (HostError, JobdError):
        return None
    return found.versions.get(program) is not None


@asynccontextmanager
async def _reach(machine: MachineAnswer, folder: Path) -> AsyncIterator[tuple[Machine, Host]]:
    """The machine for the service's own code, and a connection to it. The confirmed host key is in a file meanwhile."""
    known_hosts = folder / f".{machine.name}.known_hosts"
    write_private(known_hosts, machine.known_hosts_line.encode())
    target = _as_machine(machine, folder, known_hosts)
    host = open_host(target)
    try:
        yield target, host
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
