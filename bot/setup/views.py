"""How the pages of set-up look. What they show may be a stranger's, such as a machine's words: it is escaped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bot.config.manifest import load_manifest, read_manifest, read_reasons
from bot.setup.answers import SCRIPT, STEPS, TESTS, list_done
from bot.setup.config_text import render_config
from bot.setup.desk import Desk
from bot.setup.notes import Unusable
from bot.setup.steps import describe_forwarding, describe_labels, find_trouble, name_machine
from bot.setup.trial import PROGRAMS, describe_host_key
from handlers.text.sanitize import redact
from runner.agents import BACKENDS
from runner.characters import show_invisible


class Views:
    """Renders the pages of one set-up."""

    def __init__(self, desk: Desk, word: str, leave: Callable[[], None]) -> None:
        """`word` makes forms ours; `leave` is called once the last page is made."""
        self._desk, self._word, self._leave = desk, word, leave
        loader = FileSystemLoader(Path(__file__).parent / "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=self._clean)

    def pages(self) -> Mapping[str, Callable[[web.Request], Awaitable[web.Response]]]:
        """Each step's page, by its name."""
        return {
            "app": self.show_app,
            "repositories": self.show_repositories,
            "machines": self.show_machines,
            "agents": self.show_agents,
            "finish": self.show_finish,
        }

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let pages load nothing but our style sheets, and send forms to us and to GitHub alone."""
        parts = urlsplit(self._desk.answers.place.web_url)
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; style-src 'self'; form-action 'self' {parts.scheme}://{parts.netloc}; "
            "base-uri 'none'; frame-ancestors 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"  # With none at all, browsers hide a form's origin from us.
        response.headers["Cache-Control"] = "no-store"

    async def show_app(self, request: web.Request) -> web.Response:
        """Where GitHub is, what the App may do, and the way to create it."""
        return self._page(
            "app",
            creation=self._desk.describe_creation(),
            trouble=find_trouble(self._desk.answers.place),
            manifest=load_manifest(),
            reasons=read_reasons(),
            manifest_text=read_manifest(),
        )

    async def show_repositories(self, request: web.Request) -> web.Response:
        """Where the App is installed, as GitHub says now."""
        await self._desk.find_installed()
        chosen = {repository.name: repository for repository in self._desk.answers.repositories}
        names = [repository.name for repository in self._desk.installed]
        return self._page("repositories", chosen=chosen, gone=[name for name in chosen if name not in names])

    async def show_machines(self, request: web.Request) -> web.Response:
        """The machines, and the one that is being added."""
        machine, key = self._desk.answers.looked_at, ""
        if machine and machine.kind == "ssh" and not machine.client_key_file:
            try:
                key = self._desk.notes.find_client_key()
            except Unusable as error:
                self._desk.complaint = str(error)
        host_key = describe_host_key(machine.host_key) if machine and machine.host_key else ("", "")
        return self._page("machines", host_key=host_key, public_key=key, free_name=name_machine(self._desk.answers))

    async def show_agents(self, request: web.Request) -> web.Response:
        """The agents, and what was found on the machines."""
        machines = self._desk.answers.machines
        found = {
            kind: [machine.name for machine in machines if program in machine.programs]
            for kind, program in PROGRAMS.items()
        }
        suggested = next((kind for kind, names in found.items() if names), "command")
        return self._page("agents", found=found, kinds=sorted(BACKENDS), suggested=suggested)

    async def show_finish(self, request: web.Request) -> web.Response:
        """The configuration, and what the doctor says of it; the last page that is shown, where it is to be."""
        answers, config = self._desk.answers, self._desk.notes.config
        done = list_done(answers)
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
        if self._desk.has_ended:
            self._leave()
        return page

    def refuse(self, status: int, sentence: str, *, inside: bool) -> web.Response:
        """A page in place of another one; whoever is `inside` is led back to where they were."""
        html = self._templates.get_template("refused.html").render(sentence=sentence, inside=inside)
        return web.Response(text=html, status=status, content_type="text/html")

    def _page(self, name: str, **values: Any) -> web.Response:
        desk = self._desk
        complaint, typed, desk.complaint, desk.typed = desk.complaint, desk.typed, "", {}
        html = self._templates.get_template(f"{name}.html").render(
            desk=desk,
            answers=desk.answers,
            word=self._word,
            steps=STEPS,
            done=list_done(desk.answers),
            here=name,
            complaint=complaint,
            typed=typed,
            defaults={"tests": TESTS, "script": SCRIPT},
            **values,
        )
        return web.Response(text=html, content_type="text/html")

    def _clean(self, value: object) -> object:
        """What goes into a page: without secrets, and without characters that nobody sees."""
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return show_invisible(redact(value, self._desk.answers.secrets()))
