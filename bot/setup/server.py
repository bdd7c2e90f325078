"""The pages of set-up: each shows what is known, takes a form, and has what follows from it done.

What is decided is in `steps`; this joins it with GitHub, machines and the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from bot.config.settings import ConfigError
from bot.doctor.examination import examine
from bot.setup import steps
from bot.setup.answers import MachineAnswer, find_next
from bot.setup.desk import Desk, now
from bot.setup.door import STATIC, Door, Handler, SetupRefused
from bot.setup.github_app import CREATED, NotMade, complete, convert
from bot.setup.notes import Unusable
from bot.setup.steps import Wrong
from bot.setup.trial import NotLookedAt, look_at_host_key, try_machine
from bot.setup.views import Views
from bot.web.auth.form_fields import MAX_FORM, read_fields
from runner.transport.ssh import SILENCE_S

STYLES = {name: Path(__file__).parents[1] / "web" / "static" / name for name in ("style.css", "setup.css")}
SECRET_FIELDS = frozenset({"key", "private_key", "webhook_secret", "client_secret", "proxy_credentials"})
"""What is not shown again to whoever typed it."""


class Setup:
    """One set-up. `application` serves its pages; `ended` is set when the operator is done."""

    def __init__(self, config: Path, silence_s: float = SILENCE_S) -> None:
        """A machine may be silent for so long. Raises `Unusable` for answers on the disk that cannot be read."""
        self.desk = Desk(config)
        self.door = Door()
        self.ended = asyncio.Event()
        self._silence_s = silence_s
        self._views = Views(self.desk, self.door.word, self.ended.set)
        self._one_at_a_time = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    def application(self) -> web.Application:
        """Every page."""
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_FORM)
        app.on_response_prepare.append(self._views.add_headers)
        app.router.add_get("/", self.show_next)
        app.router.add_get(f"{STATIC}{{name}}", self.send_style)
        app.router.add_get(CREATED, self.take_app)
        for name, show in self._views.pages().items():
            app.router.add_get(f"/{name}", show)
        forms: dict[str, Callable[[web.Request], Awaitable[str]]] = {
            "/app/place": self.set_place,
            "/app/known": self.set_known_app,
            "/app/forget": self.forget_app,
            "/repositories": self.set_repositories,
            "/machines/look": self.look_at_machine,
            "/machines/confirm": self.confirm_machine,
            "/machines/drop": self.drop_machine,
            "/agents/add": self.add_agent,
            "/agents/drop": self.drop_agent,
            "/finish/write": self.write,
            "/finish/look": self.look_again,
            "/finish/end": self.end,
        }
        for path, take in forms.items():
            app.router.add_post(path, self._taking(take))
        return app

    def stand_at(self, port: int) -> str:
        """Where the browser is to go first, once somebody listens at this port."""
        self.desk.our_url = self.door.stand_at(port)
        return f"{self.desk.our_url}/?token={self.door.token}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self.door.check_host(request)
            if entering := self.door.enter(request):
                return entering
            if request.method == "POST":
                await self.door.check_form(request)
            return await handler(request)
        except SetupRefused as error:
            return self._views.refuse(error.status, str(error), inside=self.door.is_inside(request))
        except web.HTTPClientError as error:
            return self._views.refuse(error.status, "There is no such page.", inside=True)

    def _taking(self, take: Callable[[web.Request], Awaitable[str]]) -> Handler:
        """Answer a form by leading to a page, on which stands what was wrong with it."""

        async def handle(request: web.Request) -> web.Response:
            async with self._one_at_a_time:
                self.desk.typed = {}
                try:
                    target = await take(request)
                except (Wrong, NotMade, Unusable) as error:
                    self.desk.complaint = str(error)
                    form = await _read_form(request)
                    self.desk.typed = {name: text for name, text in form.items() if name not in SECRET_FIELDS}
                    target = f"/{request.path.split('/')[1]}"
                except OSError as error:
                    self._complain_of_disk(error)
                    target = f"/{request.path.split('/')[1]}"
            return web.Response(status=303, headers={"Location": target})

        return handle

    def _complain_of_disk(self, error: OSError) -> None:
        self.desk.complaint = (
            f"{self.desk.notes.folder} cannot be written to: {error.strerror}. What you said is kept until set-up ends."
        )

    async def show_next(self, request: web.Request) -> web.Response:
        """Go on where something is missing."""
        return web.Response(status=303, headers={"Location": f"/{find_next(self.desk.answers)}"})

    async def send_style(self, request: web.Request) -> web.StreamResponse:
        """How pages look."""
        if path := STYLES.get(request.match_info["name"]):
            return web.FileResponse(path)
        raise SetupRefused(404, "There is no such page.")

    # The App

    async def set_place(self, request: web.Request) -> str:
        """Keep where GitHub and we are."""
        self.desk.keep(steps.set_place(self.desk.answers, await _read_form(request)))
        return "/app#create"

    async def take_app(self, request: web.Request) -> web.Response:
        """GitHub leads back: have the App's secrets, once."""
        async with self._one_at_a_time:
            if not self.desk.take_state(request.query.get("state", "")):
                raise SetupRefused(403, "This is no answer to a question of ours, or one that was taken already.")
            try:
                app = await convert(self.desk.answers.place, request.query.get("code", ""))
                self.desk.keep(replace(self.desk.answers, app=app))
            except NotMade as error:
                self.desk.complaint = str(error)
            except OSError as error:
                self._complain_of_disk(error)
        return web.Response(status=303, headers={"Location": "/app"})

    async def set_known_app(self, request: web.Request) -> str:
        """Keep an App that was registered by hand, if GitHub knows it."""
        answers = steps.set_known_app(self.desk.answers, await _read_form(request))
        assert answers.app
        self.desk.keep(replace(answers, app=await complete(answers.place, answers.app, now)))
        return "/app"

    async def forget_app(self, request: web.Request) -> str:
        """Take another App. The files of this one stay where they are."""
        self.desk.keep(replace(self.desk.answers, app=None, repositories=()))
        return "/app"

    # Repositories

    async def set_repositories(self, request: web.Request) -> str:
        """Keep the chosen ones."""
        chosen = [text for name, text in await read_fields(request) if name == "repository"]
        known = {repository.name: repository.private for repository in self.desk.installed}
        known |= {repository.name: repository.private for repository in self.desk.answers.repositories}
        if unknown := [name for name in chosen if name not in known]:
            raise Wrong(f"GitHub has not told us of {', '.join(unknown)}: load the page again.")
        hidden = [name for name, private in known.items() if private]
        self.desk.keep(steps.set_repositories(self.desk.answers, await _read_form(request), chosen, hidden))
        return "/machines" if not self.desk.answers.machines else "/repositories"

    # Machines

    async def look_at_machine(self, request: web.Request) -> str:
        """Look at a machine's host key; try one that has none at once."""
        self.desk.trial = None
        answers = steps.look_at_machine(self.desk.answers, await _read_form(request))
        machine = answers.looked_at
        assert machine
        if machine.kind == "ssh":
            machine = replace(machine, host_key=await self._look(machine))
            if not machine.client_key_file:
                self.desk.notes.find_client_key()
            self.desk.keep(replace(answers, looked_at=machine))
        else:
            self.desk.keep(answers)
            await self._try()
        return "/machines"

    async def _look(self, machine: MachineAnswer) -> str:
        try:
            return await look_at_host_key(machine, self._silence_s)
        except NotLookedAt as error:
            raise Wrong(f"{machine.name} cannot be looked at: {error}.") from error

    async def confirm_machine(self, request: web.Request) -> str:
        """Take the host key that was shown, if the machine still has it, and try whether jobs can run there."""
        machine, form = self.desk.answers.looked_at, await _read_form(request)
        if machine is None:
            raise Wrong("There is no machine to confirm: look at it first.")
        if machine.kind == "ssh":
            shown, now = form.get("host_key", ""), await self._look(machine)
            if shown != machine.host_key or now != machine.host_key:
                self.desk.trial = None
                self.desk.keep(replace(self.desk.answers, looked_at=replace(machine, host_key=now)))
                raise Wrong(
                    f"{machine.name} shows another host key now than the one that you confirmed. It may have been set "
                    "up anew, or somebody stands in between: compare the key below. Nothing was sent there."
                )
        await self._try()
        return "/machines"

    async def _try(self) -> None:
        machine = self.desk.answers.looked_at
        assert machine
        self.desk.trial = await try_machine(machine, self.desk.notes.folder)
        if self.desk.trial.passed:
            self.desk.keep(steps.keep_machine(self.desk.answers, self.desk.trial.machine))

    async def drop_machine(self, request: web.Request) -> str:
        """Forget a machine."""
        self.desk.trial = None
        self.desk.keep(steps.drop_machine(self.desk.answers, (await _read_form(request)).get("name", "")))
        return "/machines"

    # Agents

    async def add_agent(self, request: web.Request) -> str:
        """Keep one more agent."""
        self.desk.keep(steps.add_agent(self.desk.answers, await _read_form(request)))
        return "/agents"

    async def drop_agent(self, request: web.Request) -> str:
        """Forget an agent."""
        self.desk.keep(steps.drop_agent(self.desk.answers, (await _read_form(request)).get("name", "")))
        return "/agents"

    # The end

    async def write(self, request: web.Request) -> str:
        """Write the configuration, and let the doctor look at it."""
        form = await _read_form(request)
        if (missing := find_next(self.desk.answers)) != "finish":
            raise Wrong(f"Something is missing yet: see {missing}.")
        try:
            self.desk.notes.write_config(self.desk.answers, replace=form.get("replace") == "yes")
        except FileExistsError:
            raise Wrong(f"{self.desk.notes.config} is there already: say that it may be replaced.") from None
        except ConfigError as error:
            raise Wrong(f"The configuration would have problems: {'; '.join(error.problems)}.") from None
        self.desk.is_written = True
        return await self.look_again(request)

    async def look_again(self, request: web.Request) -> str:
        """Let the doctor look at the configuration as it now is; the page says when it is done."""
        if not self.desk.is_looking:
            self.desk.is_looking = True
            self._looking = asyncio.create_task(self._look_at_everything())
        return "/finish"

    async def _look_at_everything(self) -> None:
        try:
            self.desk.findings = await examine(self.desk.notes.config)
        finally:
            self.desk.is_looking = False

    async def close(self) -> None:
        """End what goes on behind the pages."""
        if self._looking:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def end(self, request: web.Request) -> str:
        """Forget the answers, which the configuration has, and end."""
        if self.desk.is_written:
            self.desk.notes.forget()
        self.desk.has_ended = True
        return "/finish"


async def _read_form(request: web.Request) -> dict[str, Any]:
    return dict(await read_fields(request))
