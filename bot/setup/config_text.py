"""Writes answers down as a `ptq.toml` with comments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tomlkit

from bot.setup.answers import AgentAnswer, Answers, App, MachineAnswer, Place, RepositoryAnswer

KNOWN_HOSTS = "ptq-known-hosts"
CLIENT_KEY = "ptq-machines-key"
"""Files beside the configuration: host keys that were confirmed, and the key by which we come to machines."""

PI_APIS = {"anthropic": "anthropic-messages", "openai": "openai-responses"}


def render_config(answers: Answers) -> str:
    """The whole file. Raises `ValueError` while no App is known."""
    parts = [
        HEAD,
        _render_github(answers),
        _render_server(answers),
        *(_render_agent(agent) for agent in answers.agents),
        *(_render_machine(machine, answers.repositories) for machine in answers.machines),
        *(_render_repository(repository, answers) for repository in answers.repositories),
    ]
    return "\n".join(parts)


HEAD = """\
# Written by `ptq-bot setup`. Relative paths start at this file; ptq.example.toml explains every key that there is.
# It holds secrets: nobody else may read it. SIGHUP lets a running service read machines and repositories anew.
"""


def quote(text: str) -> str:
    """A text as TOML writes it."""
    return tomlkit.string(text).as_string()


def _quote_all(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _render_github(answers: Answers) -> str:
    app, place = answers.app, answers.place
    if app is None:
        raise ValueError("no App is known yet")
    lines = ["[github]", f"api_url = {quote(place.api_url)}"]
    if place.ca_file:
        lines += ["# Certificates beside the system's.", f"ca_file = {quote(place.ca_file)}"]
    if app.html_url:
        lines.append(f"# {_comment(app.html_url)}")
    lines += [
        f"app_id = {quote(app.id)}",
        f"private_key_file = {quote(app.key_file)}",
        "# To change it: put the new one in front, restart, change it on GitHub, take the old one away.",
        f"webhook_secrets = {_quote_all([app.webhook_secret])}",
    ]
    return "\n".join([*lines, *_list_proxy(place), *_list_dashboard(app), ""])


PROXY_FILE = "ptq-proxy-credentials"
"""What the proxy wants to know of us, as `user:password`."""


def _list_proxy(place: Place) -> Iterator[str]:
    if place.proxy:
        yield "\n[proxy]"
        yield "# By it the service asks GitHub, models and [notify]."
        yield f"url = {quote(place.proxy)}"
        if place.proxy_credentials:
            yield f"credentials_file = {quote(PROXY_FILE)}"
        yield '# no_proxy = ["models.example.org"]   # hosts that are asked directly, with all names below them'


CLIENT_FILE = "ptq-app-client-secret"
"""The App's client secret, by which people sign in."""


def _list_dashboard(app: App) -> Iterator[str]:
    if app.client_id and app.client_secret:
        yield "\n[dashboard]"
        yield "# People sign in to the pages by the App: docs/dashboard.md."
        yield f"client_id = {quote(app.client_id)}"
        yield f"client_secret_file = {quote(CLIENT_FILE)}"
        yield "# Jobs of public repositories are shown to everybody; false: only to those who have signed in."
        yield "public = true"
        yield '# operators = ["your-login"]   # who sees deliveries, spend, and what is for you alone'


def _comment(text: str) -> str:
    return " ".join(text.split())


def _render_server(answers: Answers) -> str:
    place = answers.place
    lines = [
        "[server]",
        "# Put something that terminates TLS in front, or a forwarder.",
        'host = "127.0.0.1"',
        f"port = {place.port}",
        "# Where people reach it: comments link job pages there.",
        f"public_url = {quote(place.public_url)}",
    ]
    if place.webhook_url:
        lines += ["# Where GitHub sends deliveries, for a forwarder to bring here.", _pair("webhook_url", place)]
    lines += [
        "# Default: ptq.db and var, beside this file. A unit of systemd may not write there: docs/operators.md.",
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
            "# The service asks models for it, so that no machine has the key: docs/gateway.md.",
            f"url = {quote(agent.gateway_url)}",
            *([f"key = {quote(agent.key)}"] if agent.key else []),
        ]
        api = PI_APIS.get(agent.model.partition("/")[0])
        lines += [f"api = {quote(api)}"] if agent.kind == "pi" and api else []
    return "\n".join([*lines, ""])


def _render_machine(machine: MachineAnswer, repositories: Iterable[RepositoryAnswer]) -> str:
    kinds = sorted({"private" if repository.private else "public" for repository in repositories}) or ["public"]
    lines = ["[[machines]]", "# People see this name in comments, and never the address.", _pair("name", machine)]
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
        "# Jobs at once.",
        f"slots = {machine.slots}",
        "# The kinds of repositories whose jobs may share it.",
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
        yield f"agents = {_quote_all(agents[1:])}   # what else `--agent` may ask for"
    labels = {answers.diagnose_label: "diagnose", answers.fix_label: "fix"}
    given = ", ".join(f"{quote(label)} = {quote(preset)}" for label, preset in labels.items() if label)
    yield "# A label that somebody with write access puts on an issue -> what an agent then does."
    yield f"labels = {{ {given} }}"
    if repository.setup:
        yield "# Shell lines in a fresh checkout, with its virtual environment active."
        yield f"setup = {_quote_all(repository.setup)}"
    yield "# How tests are run, by agents and by us; how we run a repro script."
    yield f"test_command = {quote(repository.tests)}"
    yield f"verify = {{ tests = {quote(repository.tests)}, script = {quote(repository.script)} }}"
