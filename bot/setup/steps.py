"""Adds the values of a form to the answers. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from bot.config.contradictions import name_key
from bot.config.policy_tables import UNLIMITED, RepositoryTable
from bot.config.settings import describe_problems
from bot.config.tables import AgentTable, MachineTable, ProxyTable, ServerTable, parse_private_key
from bot.doctor.github_checks import name_label_command
from bot.github.session import is_loopback
from bot.setup.answers import (
    SCRIPT,
    TESTS,
    AgentAnswer,
    Answers,
    App,
    CapsAnswer,
    MachineAnswer,
    Place,
    RepositoryAnswer,
)
from runner.transport.ssh import DEFAULT_PORT, parse_hop

Form = Mapping[str, str]

GATEWAYS: Mapping[str, str] = {"claude": "https://api.anthropic.com", "codex": "https://api.openai.com"}
"""Kind of agent -> the default address of its models."""

IN_THE_CLOUD = re.compile(r"https://(github\.com|[a-z0-9-]+\.ghe\.com)")
MAX_NAME = 34
"""The most characters of an App's name on GitHub."""


class InvalidInput(ValueError):  # noqa: N818 - what is the case
    """The input is not valid. The message is a sentence for people, without secrets."""

    def __init__(self, words: str, field: str = "", *, may_insist: bool = False) -> None:
        """`field` is the name of the field that is wrong; empty if it is not one field.

        `may_insist` says that the person may know better: the form is accepted with `anyway`.
        """
        super().__init__(words)
        self.field = field
        self.may_insist = may_insist


def find_api_url(web_url: str) -> str:
    """The address of GitHub's API: a host of its own on github.com, a path on an Enterprise Server."""
    if IN_THE_CLOUD.fullmatch(web_url):
        return web_url.replace("https://", "https://api.", 1)
    return f"{web_url}/api/v3"


def set_place(answers: Answers, form: Form) -> Answers:
    """Set the addresses of GitHub and of the service. Raises `InvalidInput`."""
    web_url = _read(form, "web_url").rstrip("/")
    public_url = _read(form, "public_url").rstrip("/")
    webhook_url, port = _read(form, "webhook_url").rstrip("/"), _read_number(form, "port", "The port")
    if not re.fullmatch(r"https?://[^\s/?#@]+", web_url):
        raise InvalidInput("Enter GitHub's address like https://github.com, with nothing after the host.", "web_url")
    given = {"public_url": public_url, "port": port, **({"webhook_url": webhook_url} if webhook_url else {})}
    _check(ServerTable, given)
    organization, app_name = _read(form, "organization"), _read(form, "app_name")
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9-]{0,38})?", organization):
        raise InvalidInput("An organization's name has letters, digits and hyphens.", "organization")
    if not 1 <= len(app_name) <= MAX_NAME:
        raise InvalidInput(f"The App's name has 1 to {MAX_NAME} characters, and must be unique on GitHub.", "app_name")
    ca_file = _read(form, "ca_file")
    if ca_file and not Path(ca_file).expanduser().is_absolute():
        raise InvalidInput("Enter the absolute path of the CA bundle.", "ca_file")
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
    if blocked := find_blocked(place):
        raise InvalidInput(blocked, "webhook_url")
    return replace(answers, place=place)


def _read_proxy(known: Place, form: Form) -> dict[str, str]:
    """Read the proxy. Its credentials are never shown, so an empty field keeps them if the proxy is the same."""
    url, credentials = _read(form, "proxy"), _read(form, "proxy_credentials")
    if url == known.proxy:
        credentials = credentials or known.proxy_credentials
    given = {"url": url or None, **({"credentials": credentials} if credentials else {})}
    _check(ProxyTable, given, {"url": "proxy", "credentials": "proxy_credentials"}, "proxy")
    return {"proxy": url, "proxy_credentials": credentials}


def find_blocked(place: Place) -> str:
    """Why GitHub cannot send deliveries to this address, as a sentence. Empty if it can."""
    if _is_here(place.web_url) or not _is_here(place.delivery_url):
        return ""
    return (
        f"GitHub can't reach {place.delivery_url}: only this computer can. Enter a forwarder's address, such as "
        "a channel of https://smee.io, as the webhook URL (docs/setup.md)."
    )


def describe_forwarding(place: Place) -> str:
    """The command that forwards deliveries from a smee.io channel to the service. Empty without such a channel."""
    if not place.webhook_url.startswith("https://smee.io/"):
        return ""
    return f"npx smee-client --url {shlex.quote(place.webhook_url)} --target http://127.0.0.1:{place.port}/webhook"


def describe_labels(answers: Answers) -> str:
    """The commands that create the labels in the chosen repositories."""
    labels = [label for label in (answers.diagnose_label, answers.fix_label) if label]
    pages = [f"{answers.place.web_url}/{repository.name}" for repository in answers.repositories]
    return "\n".join(name_label_command(page, label) for page in pages for label in labels)


def _is_here(url: str) -> bool:
    """Whether only this computer can reach the address."""
    return is_loopback(urlsplit(url).hostname or "")


def set_known_app(answers: Answers, form: Form) -> Answers:
    """Set an App that was registered by hand. Raises `InvalidInput`."""
    app_id, secret = _read(form, "app_id"), _read(form, "webhook_secret")
    if not re.fullmatch(r"[0-9]{1,18}", app_id):
        raise InvalidInput("The App ID is a number. It is on the App's settings page.", "app_id")
    if not secret:
        raise InvalidInput("The webhook secret is required.", "webhook_secret")
    try:
        key = parse_private_key(_read(form, "private_key"))
    except ValueError as error:
        raise InvalidInput(f"{str(error)[0].upper()}{str(error)[1:]}.", "private_key") from None
    client_id, client_secret = _read(form, "client_id"), _read(form, "client_secret")
    return replace(answers, app=App(app_id, "", "", key, secret, client_id, client_secret))


def set_repositories(answers: Answers, form: Form, chosen: Sequence[str], private: Iterable[str]) -> Answers:
    """Set the repositories, and the labels that start jobs. Raises `InvalidInput`."""
    labels = [_read(form, "diagnose_label"), _read(form, "fix_label")]
    if not chosen:
        raise InvalidInput("Choose at least one repository.")
    if not any(labels) or labels[0] == labels[1]:
        raise InvalidInput("Enter two different labels. One of them can be empty.", "diagnose_label")
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
        given = {"agent": "any", "setup": one.setup, "test_command": one.tests}
        _check(RepositoryTable, given, {"setup": f"setup:{one.name}", "test_command": f"tests:{one.name}"})
    return replace(answers, repositories=repositories, diagnose_label=labels[0], fix_label=labels[1])


def connect_machine(answers: Answers, form: Form) -> Answers:
    """Set the machine to connect to. Raises `InvalidInput`."""
    name, workspace = _read(form, "name"), _read(form, "workspace").rstrip("/")
    slots = _read_number(form, "slots", "The number of slots")
    replaces = _read(form, "replaces")
    if name in [machine.name for machine in answers.machines if machine.name != replaces]:
        raise InvalidInput(f"There is already a machine {name}.", "name")
    if form.get("kind") == "local":
        machine = MachineAnswer(name, workspace, "local", slots=slots)
    else:
        machine = _parse_machine(name, workspace, slots, _read(form, "address"), _read(form, "client_key_file"))
    given = {"name": name, "kind": "local", "slots": slots, "workspace": workspace or "/home"}
    _check(MachineTable, given)
    return replace(answers, looked_at=replace(machine, replaces=replaces))


def _parse_machine(name: str, workspace: str, slots: int, address: str, key_file: str) -> MachineAnswer:
    try:
        hop = parse_hop(address)
    except ValueError:
        raise InvalidInput("Enter the address like ptq@gpu-1.example.org or ptq@10.0.0.5:2222.", "address") from None
    if not hop.user:
        raise InvalidInput("Include the user name: ptq@gpu-1.example.org.", "address")
    port = hop.port or DEFAULT_PORT
    return MachineAnswer(name, workspace, "ssh", hop.host, port, hop.user, key_file, slots)


def keep_machine(answers: Answers, machine: MachineAnswer) -> Answers:
    """Add a machine that can run jobs, in place of the one that it replaces."""
    added = replace(machine, replaces="")
    others = [one for one in answers.machines if one.name != machine.replaces]
    at = next((at for at, one in enumerate(answers.machines) if one.name == machine.replaces), len(others))
    return replace(answers, machines=(*others[:at], added, *others[at:]), looked_at=None)


def describe_machine(machine: MachineAnswer) -> dict[str, str]:
    """The form of a machine, as it was filled in."""
    address = f"{machine.user}@{machine.host}" + (f":{machine.port}" if machine.port != DEFAULT_PORT else "")
    return {
        "kind": machine.kind,
        "name": machine.name,
        "replaces": machine.replaces,
        "address": address if machine.kind == "ssh" else "",
        "client_key_file": machine.client_key_file,
        "workspace": machine.workspace,
        "slots": str(machine.slots),
    }


def drop_machine(answers: Answers, name: str) -> Answers:
    """Remove the machine of this name."""
    return replace(answers, machines=tuple(machine for machine in answers.machines if machine.name != name))


def name_machine(answers: Answers) -> str:
    """A free name for the next machine."""
    taken = {machine.name for machine in answers.machines}
    return next(name for number in range(1, len(taken) + 2) if (name := f"machine-{number}") not in taken)


def add_agent(answers: Answers, form: Form) -> Answers:
    """Add an agent. Raises `InvalidInput`."""
    name, kind, key = _read(form, "name"), _read(form, "kind"), _read(form, "key")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", name):
        raise InvalidInput("An agent's name has letters, digits, '-' and '_'.", "name")
    if name in [agent.name for agent in answers.agents]:
        raise InvalidInput(f"There is already an agent {name}.", "name")
    try:
        command = tuple(shlex.split(form.get("command", "")))
    except ValueError:
        raise InvalidInput("The command has an unclosed quote.", "command") from None
    if kind == "command" and not command:
        raise InvalidInput("Enter the program that works on an issue, such as /opt/agent/run.sh.", "command")
    url = _read(form, "gateway_url").rstrip("/") or (GATEWAYS.get(kind, "") if key else "")
    agent = AgentAnswer(name, kind, command, _read(form, "model"), "" if kind == "cursor" else url, key)
    if key and kind != "cursor" and not url:
        raise InvalidInput("Enter the API base URL that this key is for.", "gateway_url")
    if kind == "pi" and url and "/" not in agent.model:
        raise InvalidInput("Enter the model of pi as provider/model, such as anthropic/NAME.", "model")
    gateway = {"url": agent.gateway_url, **({"key": key} if key else {})} if agent.gateway_url else None
    given = {"kind": kind, "command": command or None, "model": agent.model or None, "gateway": gateway}
    _check(AgentTable, given, {"gateway.url": "gateway_url", "gateway.key": "key"})
    return replace(answers, agents=(*answers.agents, agent))


def drop_agent(answers: Answers, name: str) -> Answers:
    """Remove the agent of this name."""
    return replace(answers, agents=tuple(agent for agent in answers.agents if agent.name != name))


def set_caps(answers: Answers, form: Form) -> Answers:
    """Set the caps on money that the form has. Raises `InvalidInput`."""
    given = {scope: form.get(f"{scope}_usd", amount) for scope, amount in asdict(answers.caps).items()}
    return replace(answers, caps=CapsAnswer(**{scope: _parse_amount(scope, text) for scope, text in given.items()}))


def set_operators(answers: Answers, form: Form) -> Answers:
    """Set who sees deliveries, costs and confidential reports on the pages. Raises `InvalidInput`."""
    if answers.app is None or not answers.app.signs_in:
        return answers
    given = form.get("operators", " ".join(answers.operators))
    logins = tuple(dict.fromkeys(login.removeprefix("@") for login in re.split(r"[\s,]+", given) if login))
    if not logins:
        raise InvalidInput("Enter your GitHub login: somebody has to see costs and confidential reports.", "operators")
    for login in logins:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", login):
            raise InvalidInput(f"{login} is not a GitHub login.", "operators")
    return replace(answers, entered_operators=logins)


def _parse_amount(scope: str, text: str) -> str:
    amount = text.strip().removeprefix("$")
    if amount.lower() == UNLIMITED:
        return UNLIMITED
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,2})?", amount) or not float(amount):
        raise InvalidInput(
            f'Enter each cap as an amount in US dollars, such as 10 or 2.50, or as "{UNLIMITED}".', f"{scope}_usd"
        )
    return f"{float(amount):.2f}".removesuffix(".00")


def _check(
    table: type[BaseModel],
    values: Mapping[str, object],
    fields: Mapping[str, str] = MappingProxyType({}),
    otherwise: str = "",
) -> None:
    """Check values as the configuration does. `fields` are the names of fields whose keys have other ones.

    Raises `InvalidInput` with the first problem. `otherwise` is the field for a problem of the whole table.
    """
    try:
        table.model_validate(values)
    except ValidationError as error:
        key, _, words = describe_problems(error)[0].partition(": ")
        key = re.sub(r"\[\d+\]$", "", key)
        if key == name_key(()):
            raise InvalidInput(f"{words[0].upper()}{words[1:]}.", otherwise) from None
        words = words.replace("Input should be", "must be")
        raise InvalidInput(f"This {words}.", fields.get(key, key)) from None


def _read(form: Form, name: str) -> str:
    return form.get(name, "").strip()


def _read_number(form: Form, name: str, what: str) -> int:
    text = _read(form, name)
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise InvalidInput(f"{what} is a number.", name)
    return int(text)
