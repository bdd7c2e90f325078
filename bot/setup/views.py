"""Renders the set-up pages. Untrusted text, such as a machine's output, is escaped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bot.config.manifest import load_manifest, read_manifest, read_reasons
from bot.setup.answers import SCRIPT, STEPS, TESTS, list_completed
from bot.setup.config_text import render_config
from bot.setup.documents import link_documents
from bot.setup.files import UnusableFile
from bot.setup.state import Complaint, SetupState
from bot.setup.steps import describe_forwarding, describe_labels, describe_machine, find_blocked, name_machine
from bot.setup.trial import PROGRAMS, describe_host_key
from handlers.text.sanitize import redact
from runner.agents import BACKENDS
from runner.characters import show_invisible

REFRESH_S = "2"
"""How long a page waits before it reloads itself, in seconds. https://html.spec.whatwg.org/#the-refresh-header"""


class Views:
    """Renders the pages of one set-up."""

    def __init__(self, state: SetupState, csrf_token: str, leave: Callable[[], None]) -> None:
        """`csrf_token` goes into forms; `leave` is called after the last page is rendered."""
        self._state, self._csrf_token, self._leave = state, csrf_token, leave
        loader = FileSystemLoader(Path(__file__).parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self._clean)
        self._templates.filters["documents"] = lambda text: link_documents(str(self._clean(text)))

    def pages(self) -> Mapping[str, Callable[[web.Request], Awaitable[web.Response]]]:
        """Step -> the handler of its page."""
        return {
            "app": self.show_app,
            "repositories": self.show_repositories,
            "machines": self.show_machines,
            "agents": self.show_agents,
            "finish": self.show_finish,
        }

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Pages load only our style sheets, and send forms only to us and to GitHub."""
        parts = urlsplit(self._state.answers.place.web_url)
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; style-src 'self'; form-action 'self' {parts.scheme}://{parts.netloc}; "
            "base-uri 'none'; frame-ancestors 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = (
            "same-origin"  # With "no-referrer", browsers send forms without an origin.
        )
        response.headers["Cache-Control"] = "no-store"

    async def show_app(self, request: web.Request) -> web.Response:
        """Addresses, the App's permissions, and the form that creates it."""
        return self._page(
            "app",
            creation=self._state.describe_app_form(),
            blocked=find_blocked(self._state.answers.place),
            manifest=load_manifest(),
            reasons=read_reasons(),
            manifest_text=read_manifest(),
        )

    async def show_repositories(self, request: web.Request) -> web.Response:
        """The repositories where the App is installed now."""
        await self._state.find_installed()
        chosen = {repository.name: repository for repository in self._state.answers.repositories}
        names = [repository.name for repository in self._state.installed]
        return self._page("repositories", chosen=chosen, gone=[name for name in chosen if name not in names])

    async def show_machines(self, request: web.Request) -> web.Response:
        """The machines, and the one that is being added."""
        machine, key = self._state.answers.looked_at, ""
        wanted = request.query.get("change")
        entries = describe_machine(machine) if machine else {}
        if changed := next((one for one in self._state.answers.machines if one.name == wanted), None):
            entries = describe_machine(replace(changed, replaces=changed.name))
        if machine and machine.kind == "ssh" and not machine.client_key_file:
            try:
                key = self._state.files.find_client_key()
            except UnusableFile as error:
                self._state.complaints.setdefault("machines", Complaint(str(error)))
        host_key = describe_host_key(machine.host_key) if machine and machine.host_key else ("", "")
        return self._page(
            "machines",
            host_key=host_key,
            public_key=key,
            free_name=name_machine(self._state.answers),
            entries=entries,
            is_changing=changed is not None,
        )

    async def show_agents(self, request: web.Request) -> web.Response:
        """The agents, and the programs found on the machines."""
        machines = self._state.answers.machines
        found = {
            kind: [machine.name for machine in machines if program in machine.programs]
            for kind, program in PROGRAMS.items()
        }
        suggested = next((kind for kind, names in found.items() if names), "command")
        return self._page("agents", found=found, kinds=sorted(BACKENDS), suggested=suggested)

    async def show_finish(self, request: web.Request) -> web.Response:
        """The configuration, and the doctor's findings. After set-up has ended, this is the last page."""
        answers, config = self._state.answers, self._state.files.config
        done = list_completed(answers)
        missing = {name: title for name, title in STEPS.items() if name not in done and name != "finish"}
        text = render_config(answers) if answers.app else ""
        forwarding = describe_forwarding(answers.place)
        commands = describe_labels(answers)
        page = self._page(
            "finish",
            config=config,
            text=text,
            exists=config.exists(),
            missing=missing,
            forwarding=forwarding,
            label_commands=commands,
        )
        if self._state.has_ended:
            self._leave()
        return page

    def refuse(self, status: int, sentence: str, *, inside: bool) -> web.Response:
        """A page that says why a request was refused. `inside` adds a link back to set-up."""
        html = self._templates.get_template("refused.html").render(sentence=sentence, inside=inside)
        return web.Response(text=html, status=status, content_type="text/html")

    def _page(self, name: str, **values: Any) -> web.Response:
        state = self._state
        complaint, underway = state.complaints.get(name, Complaint()), state.underway.get(name)
        if not underway:
            state.complaints.pop(name, None)
        html = self._templates.get_template(f"{name}.html").render(
            state=state,
            answers=state.answers,
            csrf_token=self._csrf_token,
            steps=STEPS,
            done=list_completed(state.answers),
            here=name,
            failure=complaint.words,
            failed_field=complaint.about,
            may_insist=complaint.may_insist,
            typed=complaint.typed,
            underway=underway,
            defaults={"tests": TESTS, "script": SCRIPT},
            **values,
        )
        headers = {"Refresh": REFRESH_S} if underway else {}
        return web.Response(text=html, content_type="text/html", headers=headers)

    def _clean(self, value: object) -> object:
        """Remove secrets from a value, and make invisible characters visible."""
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return show_invisible(redact(value, self._state.answers.secrets()))
