"""Renders the answers as a `ptq.toml` with comments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import tomlkit

from bot.config.policy_tables import UNLIMITED
from bot.setup.answers import AgentAnswer, Answers, App, CapsAnswer, MachineAnswer, Place, RepositoryAnswer

KNOWN_HOSTS = "ptq-known-hosts"
CLIENT_KEY = "ptq-machines-key"
"""Files next to the configuration: confirmed host keys, and the SSH key for machines."""

PI_APIS = {"anthropic": "anthropic-messages", "openai": "openai-responses"}


def render_config(answers: Answers) -> str:
    """The whole file. Raises `ValueError` if there is no App yet."""
    parts = [
        HEAD,
        _render_github(answers),
        _render_server(answers),
        *(_render_agent(agent) for agent in answers.agents),
        *(_render_machine(machine, answers.repositories) for machine in answers.machines),
        *(_render_repository(repository, answers) for repository in answers.repositories),
        _render_caps(answers.caps),
    ]
    return "\n".join(parts)


HEAD = """\
# Written by `ptq-bot setup`. Paths are relative to this file; ptq.example.toml explains every key.
# This file holds secrets: keep it private. SIGHUP makes a running service reload machines and repositories.
"""


def quote(text: str) -> str:
    """A text as a TOML string."""
    return tomlkit.string(text).as_string()


def _quote_all(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _render_github(answers: Answers) -> str:
    app, place = answers.app, answers.place
    if app is None:
        raise ValueError("there is no App yet")
    lines = ["[github]", f"api_url = {quote(place.api_url)}"]
    if place.ca_file:
        lines += ["# Trusted in addition to the system's certificates.", f"ca_file = {quote(place.ca_file)}"]
    if app.html_url:
        lines.append(f"# {_comment(app.html_url)}")
    lines += [
        f"app_id = {quote(app.id)}",
        f"private_key_file = {quote(app.key_file)}",
        "# To change it: add the new one first in the list, restart, change it on GitHub, remove the old one.",
        f"webhook_secrets = {_quote_all([app.webhook_secret])}",
    ]
    return "\n".join([*lines, *_list_proxy(place), *_list_dashboard(app, answers.operators), ""])


PROXY_FILE = "ptq-proxy-credentials"
"""The proxy's credentials, as `user:password`."""


def _list_proxy(place: Place) -> Iterator[str]:
    if place.proxy:
        yield "\n[proxy]"
        yield "# Proxy for requests to GitHub, models and [notify]."
        yield f"url = {quote(place.proxy)}"
        if place.proxy_credentials:
            yield f"credentials_file = {quote(PROXY_FILE)}"
        yield '# no_proxy = ["models.example.org"]   # asked directly, with all subdomains'


CLIENT_FILE = "ptq-app-client-secret"
"""The App's client secret, used to sign people in."""


def _list_dashboard(app: App, operators: Iterable[str]) -> Iterator[str]:
    if app.signs_in:
        yield "\n[dashboard]"
        yield "# People sign in to the pages through the App: docs/dashboard.md."
        yield f"client_id = {quote(app.client_id)}"
        yield f"client_secret_file = {quote(CLIENT_FILE)}"
        yield "# true: everybody sees jobs of public repositories. false: only people who have signed in."
        yield "public = true"
        yield "# People who see deliveries, costs and confidential reports."
        yield f"operators = {_quote_all(operators)}"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _render_server(answers: Answers) -> str:
    place = answers.place
    lines = [
        "[server]",
        "# Put a TLS proxy or a forwarder in front.",
        'host = "127.0.0.1"',
        f"port = {place.port}",
        "# Public address of the pages. Comments link to it.",
        f"public_url = {quote(place.public_url)}",
    ]
    if place.webhook_url:
        lines += ["# The forwarder to which GitHub sends deliveries.", _pair("webhook_url", place)]
    lines += [
        "# Default: ptq.db and var, next to this file. A systemd unit cannot write there: docs/operators.md.",
        '# database_url = "sqlite+aiosqlite:////var/lib/ptq/ptq.db"   # or "postgresql+asyncpg://..."',
        '# data_dir = "/var/lib/ptq/var"',
    ]
    return "\n".join([*lines, ""])


def _pair(name: str, owner: object) -> str:
    return f"{name} = {quote(getattr(owner, name))}"


def _render_agent(agent: AgentAnswer) -> str:
    lines = [f"[agents.{quote(agent.name)}]", f"kind = {quote(agent.kind)}"]
    if agent.command:
        lines.append(f"command = {_quote_all(agent.command)}")
    if agent.model:
        lines.append(f"model = {quote(agent.model)}")
    if agent.key and not agent.gateway_url:
        lines += ["# On the machine, where every job can read it.", f"env = {{ CURSOR_API_KEY = {quote(agent.key)} }}"]
    if agent.gateway_url:
        lines += [
            f"\n[agents.{quote(agent.name)}.gateway]",
            "# The service asks models for the agent, so no machine has the key: docs/gateway.md.",
            f"url = {quote(agent.gateway_url)}",
            *([f"key = {quote(agent.key)}"] if agent.key else []),
        ]
        api = PI_APIS.get(agent.model.partition("/")[0])
        lines += [f"api = {quote(api)}"] if agent.kind == "pi" and api else []
    return "\n".join([*lines, ""])


def _render_machine(machine: MachineAnswer, repositories: Iterable[RepositoryAnswer]) -> str:
    kinds = sorted({"private" if repository.private else "public" for repository in repositories}) or ["public"]
    lines = ["[[machines]]", "# Comments show this name, never the address.", _pair("name", machine)]
    if machine.kind == "local":
        lines.append('kind = "local"')
    else:
        lines += [
            _pair("host", machine),
            f"port = {machine.port}",
            _pair("user", machine),
            f"client_key_file = {quote(machine.client_key_file or CLIENT_KEY)}",
            f"known_hosts_file = {quote(KNOWN_HOSTS)}",
        ]
    lines += [
        _pair("workspace", machine),
        "# Jobs at the same time.",
        f"slots = {machine.slots}",
        "# The kinds of repositories whose jobs run here.",
        f"serves = {_quote_all(kinds)}",
    ]
    return "\n".join([*lines, ""])


def _render_repository(repository: RepositoryAnswer, answers: Answers) -> str:
    names = [agent.name for agent in answers.agents]
    return "\n".join([f"[repos.{quote(repository.name)}]", *_list_repository(repository, answers, names), ""])


def _list_repository(repository: RepositoryAnswer, answers: Answers, agents: list[str]) -> Iterator[str]:
    if agents:
        yield f"agent = {quote(agents[0])}"
    if agents[1:]:
        yield f"agents = {_quote_all(agents[1:])}   # also allowed with `--agent`"
    labels = {answers.diagnose_label: "diagnose", answers.fix_label: "fix"}
    given = ", ".join(f"{quote(label)} = {quote(preset)}" for label, preset in labels.items() if label)
    yield "# Label on an issue -> preset. Only labels from people with write access count."
    yield f"labels = {{ {given} }}"
    if repository.setup:
        yield "# Shell commands in a fresh checkout, with its virtual environment active."
        yield f"setup = {_quote_all(repository.setup)}"
    yield "# The commands that run tests, and a repro script."
    yield f"test_command = {quote(repository.tests)}"
    yield f"verify = {{ tests = {quote(repository.tests)}, script = {quote(repository.script)} }}"


def _render_caps(caps: CapsAnswer) -> str:
    """The caps. A default is only a comment: where a cost is unknown, it limits turns and time instead."""
    lines = ['# Caps in US dollars; "unlimited" switches one off. docs/costs.md has more.']
    for scope, amount in asdict(caps).items():
        is_default = amount == getattr(CapsAnswer(), scope)
        value = quote(amount) if amount == UNLIMITED else str(float(amount))
        lines += [f"[caps.{scope}]", f"# cost_usd = {value}   # the default" if is_default else f"cost_usd = {value}"]
    return "\n".join([*lines, ""])
