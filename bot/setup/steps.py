"""Takes what somebody typed into a page, and gives answers that hold it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from bot.config.contradictions import name_key
from bot.config.policy_tables import RepositoryTable
from bot.config.settings import describe_problems
from bot.config.tables import AgentTable, MachineTable, ProxyTable, ServerTable, parse_private_key
from bot.doctor.github_checks import name_label_command
from bot.github.session import is_loopback
from bot.setup.answers import SCRIPT, TESTS, AgentAnswer, Answers, App, MachineAnswer, Place, RepositoryAnswer
from runner.transport.ssh import DEFAULT_PORT, parse_hop

Form = Mapping[str, str]

GATEWAYS: Mapping[str, str] = {"claude": "https://api.anthropic.com", "codex": "https://api.openai.com"}
"""Where the models of a kind are, where nobody says otherwise."""

IN_THE_CLOUD = re.compile(r"https://(github\.com|[a-z0-9-]+\.ghe\.com)")
MAX_NAME = 34
"""Characters of an App's name on GitHub."""


class Wrong(ValueError):  # noqa: N818 - what is the case
    """What was typed cannot be. The message is a sentence for people, and holds no secret."""


def find_api_url(web_url: str) -> str:
    """Where the API of a GitHub is: beside github.com, or a folder of an Enterprise Server."""
    if IN_THE_CLOUD.fullmatch(web_url):
        return web_url.replace("https://", "https://api.", 1)
    return f"{web_url}/api/v3"


def set_place(answers: Answers, form: Form) -> Answers:
    """Where GitHub is, and where we shall be. Raises `Wrong`."""
    web_url = _read(form, "web_url").rstrip("/")
    public_url = _read(form, "public_url").rstrip("/")
    webhook_url, port = _read(form, "webhook_url").rstrip("/"), _read_number(form, "port", "The port")
    if not re.fullmatch(r"https?://[^\s/?#@]+", web_url):
        raise Wrong("The address of GitHub is like https://github.com, without anything behind the host.")
    given = {"public_url": public_url, "port": port, **({"webhook_url": webhook_url} if webhook_url else {})}
    _check(ServerTable, given)
    organization, app_name = _read(form, "organization"), _read(form, "app_name")
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9-]{0,38})?", organization):
        raise Wrong("An organisation's name has letters, digits and hyphens.")
    if not 1 <= len(app_name) <= MAX_NAME:
        raise Wrong(f"The App's name has 1 to {MAX_NAME} characters, and nobody else on GitHub has it.")
    ca_file = _read(form, "ca_file")
    if ca_file and not Path(ca_file).expanduser().is_absolute():
        raise Wrong("Give the whole path of the file of certificates.")
    place = Place(
        web_url=web_url,
        api_url=find_api_url(web_url),
        ca_file=ca_file,
        organization=organization,
        app_name=app_name,
        public_url=public_url,
        webhook_url=webhook_url,
        port=port,
        **_read_proxy(answers.place, form),
    )
    if trouble := find_trouble(place):
        raise Wrong(trouble)
    return replace(answers, place=place)


def _read_proxy(known: Place, form: Form) -> dict[str, str]:
    """The proxy. Its credentials are shown to nobody, so an empty field keeps those of the same one."""
    url, credentials = _read(form, "proxy"), _read(form, "proxy_credentials")
    if url == known.proxy:
        credentials = credentials or known.proxy_credentials
    _check(ProxyTable, {"url": url or None, **({"credentials": credentials} if credentials else {})})
    return {"proxy": url, "proxy_credentials": credentials}


def find_trouble(place: Place) -> str:
    """Why GitHub could not send deliveries there, as a sentence; empty where it may."""
    if _is_here(place.web_url) or not _is_here(place.delivery_url):
        return ""
    return (
        f"GitHub cannot reach {place.delivery_url}: that is this computer alone. Give a forwarder's address, such as "
        "a channel of https://smee.io, as the webhook's address (docs/setup.md)."
    )


def describe_forwarding(place: Place) -> str:
    """What somebody types so that deliveries come from a channel of smee.io to the service; empty for other ways."""
    if not place.webhook_url.startswith("https://smee.io/"):
        return ""
    return f"npx smee-client --url {shlex.quote(place.webhook_url)} --target http://127.0.0.1:{place.port}/webhook"


def describe_labels(answers: Answers) -> str:
    """What somebody types so that the chosen repositories have the labels that start jobs."""
    labels = [label for label in (answers.diagnose_label, answers.fix_label) if label]
    pages = [f"{answers.place.web_url}/{repository.name}" for repository in answers.repositories]
    return "\n".join(name_label_command(page, label) for page in pages for label in labels)


def _is_here(url: str) -> bool:
    """Whether an address leads nowhere but to the computer that asks."""
    return is_loopback(urlsplit(url).hostname or "")


def set_known_app(answers: Answers, form: Form) -> Answers:
    """An App that was registered by hand. Raises `Wrong`."""
    app_id, secret = _read(form, "app_id"), _read(form, "webhook_secret")
    if not re.fullmatch(r"[0-9]{1,18}", app_id):
        raise Wrong("The App's id is a number; it stands on the App's settings page.")
    if not secret:
        raise Wrong("Without the webhook's secret nobody could tell GitHub's deliveries from others.")
    try:
        key = parse_private_key(_read(form, "private_key"))
    except ValueError as error:
        raise Wrong(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    client_id, client_secret = _read(form, "client_id"), _read(form, "client_secret")
    return replace(answers, app=App(app_id, "", "", key, secret, client_id, client_secret))


def set_repositories(answers: Answers, form: Form, chosen: Sequence[str], private: Iterable[str]) -> Answers:
    """Those that jobs run for, out of those that GitHub told us of. Raises `Wrong`."""
    labels = [_read(form, "diagnose_label"), _read(form, "fix_label")]
    if not chosen:
        raise Wrong("Choose at least one repository.")
    if not any(labels) or labels[0] == labels[1]:
        raise Wrong("Give two labels that differ; one of them may be left empty.")
    hidden = frozenset(private)
    repositories = tuple(
        RepositoryAnswer(
            name,
            name in hidden,
            tuple(line.strip() for line in form.get(f"setup:{name}", "").splitlines() if line.strip()),
            _read(form, f"tests:{name}") or TESTS,
            _read(form, f"script:{name}") or SCRIPT,
        )
        for name in chosen
    )
    for one in repositories:
        _check(RepositoryTable, {"agent": "any", "setup": one.setup, "test_command": one.tests})
    return replace(answers, repositories=repositories, diagnose_label=labels[0], fix_label=labels[1])


def look_at_machine(answers: Answers, form: Form) -> Answers:
    """A machine that is to be looked at. Raises `Wrong`."""
    name, workspace = _read(form, "name"), _read(form, "workspace").rstrip("/")
    slots = _read_number(form, "slots", "The number of slots")
    if name in [machine.name for machine in answers.machines]:
        raise Wrong(f"There is a machine {name} already.")
    if form.get("kind") == "local":
        machine = MachineAnswer(name, workspace, "local", slots=slots)
    else:
        machine = _parse_machine(name, workspace, slots, _read(form, "address"), _read(form, "client_key_file"))
    given = {"name": name, "kind": "local", "slots": slots, "workspace": workspace or "/home"}
    _check(MachineTable, given)
    return replace(answers, looked_at=machine)


def _parse_machine(name: str, workspace: str, slots: int, address: str, key_file: str) -> MachineAnswer:
    try:
        hop = parse_hop(address)
    except ValueError:
        raise Wrong("A machine's address is like ptq@gpu-1.example.org or ptq@10.0.0.5:2222.") from None
    if not hop.user:
        raise Wrong("Say the account, too: like ptq@gpu-1.example.org.")
    port = hop.port or DEFAULT_PORT
    return MachineAnswer(name, workspace, "ssh", hop.host, port, hop.user, key_file, slots)


def keep_machine(answers: Answers, machine: MachineAnswer) -> Answers:
    """A machine that can run jobs."""
    return replace(answers, machines=(*answers.machines, machine), looked_at=None)


def drop_machine(answers: Answers, name: str) -> Answers:
    """Without the machine of this name, or without the one that is looked at."""
    kept = tuple(machine for machine in answers.machines if machine.name != name)
    looked_at = answers.looked_at if answers.looked_at and answers.looked_at.name != name else None
    return replace(answers, machines=kept, looked_at=looked_at)


def name_machine(answers: Answers) -> str:
    """A name that no machine has."""
    taken = {machine.name for machine in answers.machines}
    return next(name for number in range(1, len(taken) + 2) if (name := f"machine-{number}") not in taken)


def add_agent(answers: Answers, form: Form) -> Answers:
    """One more agent. Raises `Wrong`."""
    name, kind, key = _read(form, "name"), _read(form, "kind"), _read(form, "key")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", name):
        raise Wrong("An agent's name has letters, digits, '-' and '_'.")
    if name in [agent.name for agent in answers.agents]:
        raise Wrong(f"There is an agent {name} already.")
    try:
        command = tuple(shlex.split(form.get("command", "")))
    except ValueError:
        raise Wrong("The command has a quote that does not end.") from None
    url = _read(form, "gateway_url").rstrip("/") or (GATEWAYS.get(kind, "") if key else "")
    agent = AgentAnswer(name, kind, command, _read(form, "model"), "" if kind == "cursor" else url, key)
    if key and kind != "cursor" and not url:
        raise Wrong("Say where the key is for: the address of the models.")
    gateway = {"url": agent.gateway_url, **({"key": key} if key else {})} if agent.gateway_url else None
    given = {"kind": kind, "command": command or None, "model": agent.model or None, "gateway": gateway}
    _check(AgentTable, given)
    return replace(answers, agents=(*answers.agents, agent))


def drop_agent(answers: Answers, name: str) -> Answers:
    """Without the agent of this name."""
    return replace(answers, agents=tuple(agent for agent in answers.agents if agent.name != name))


def _check(table: type[BaseModel], values: Mapping[str, object]) -> None:
    try:
        table.model_validate(values)
    except ValidationError as error:
        # What is wrong with the table as a whole is no key's: nobody here has seen a file.
        problems = [problem.removeprefix(f"{name_key(())}: ") for problem in describe_problems(error)]
        raise Wrong(". ".join(problems) + ".") from None


def _read(form: Form, name: str) -> str:
    return form.get(name, "").strip()


def _read_number(form: Form, name: str, what: str) -> int:
    text = _read(form, name)
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise Wrong(f"{what} is a number.")
    return int(text)
