"""The set-up server: it takes the forms of each page and does what follows.

`steps` decides; this module connects it with GitHub, machines and the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from bot.config.settings import ConfigError
from bot.doctor.examination import examine
from bot.doctor.key_files import find_key_problem, find_mode_problem
from bot.operations.context import find_login
from bot.setup import steps
from bot.setup.access import STATIC, Handler, SetupAccess, SetupRefused
from bot.setup.answers import MachineAnswer, find_next
from bot.setup.checks import require_github, require_models, require_program
from bot.setup.documents import FOLDER, find_document
from bot.setup.files import UnusableFile
from bot.setup.github_app import CREATED, GitHubSetupError, complete, convert
from bot.setup.state import Complaint, SetupState, Underway, now
from bot.setup.steps import Form, InvalidInput, describe_machine
from bot.setup.trial import HostKeyUnavailable, Trial, read_host_key, try_machine
from bot.setup.views import Views
from bot.web.auth.form_fields import MAX_FORM, read_fields
from runner.transport.ssh import SILENCE_S

STYLES = {name: Path(__file__).parents[1] / "web" / "static" / name for name in ("style.css", "setup.css")}
SECRET_FIELDS = frozenset({"key", "private_key", "webhook_secret", "client_secret", "proxy_credentials"})
"""Fields that are not shown again after they were typed."""

EXPLAINED = (InvalidInput, GitHubSetupError, UnusableFile, OSError)
"""What the page of a form says about why it failed."""

BUSY = "Nothing was done with this form, because the one before it was still being worked on. Send it again."


class Setup:
    """One set-up. `application` serves its pages; `ended` is set when the operator has finished."""

    def __init__(self, config: Path, silence_s: float = SILENCE_S, caps: Form = MappingProxyType({})) -> None:
        """`silence_s` limits how long a machine may be silent. `caps` are filled in on the last page.

        Raises `UnusableFile` if the answers cannot be read, and `InvalidInput`.
        """
        self.state = SetupState(config)
        self.state.answers = steps.set_caps(self.state.answers, caps)
        self.access = SetupAccess()
        self.ended = asyncio.Event()
        self._silence_s = silence_s
        self._views = Views(self.state, self.access.csrf_token, self.ended.set)
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        """The web application."""
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_FORM)
        app.on_response_prepare.append(self._views.add_headers)
        app.router.add_get("/", self.show_next)
        app.router.add_get(f"{STATIC}{{name}}", self.send_style)
        app.router.add_get(f"{FOLDER}{{name}}", self.send_document)
        app.router.add_get(CREATED, self.receive_app)
        for name, show in self._views.pages().items():
            app.router.add_get(f"/{name}", show)
        forms: dict[str, Callable[[web.Request], Awaitable[str]]] = {
            "/app/place": self.set_place,
            "/app/known": self.set_known_app,
            "/app/forget": self.forget_app,
            "/repositories": self.set_repositories,
            "/machines/look": self.connect_machine,
            "/machines/confirm": self.confirm_machine,
            "/machines/discard": self.discard_machine,
            "/machines/drop": self.drop_machine,
            "/agents/add": self.add_agent,
            "/agents/drop": self.drop_agent,
            "/finish/write": self.write,
            "/finish/look": self.check_again,
            "/finish/end": self.end,
        }
        for path, take in forms.items():
            app.router.add_post(path, self._taking(take))
        return app

    def set_port(self, port: int) -> str:
        """The first address for the browser, when the pages are served at this port."""
        self.state.our_url = self.access.set_port(port)
        return f"{self.state.our_url}/?token={self.access.token}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self.access.check_host(request)
            if response := self.access.authenticate(request):
                return response
            if request.method == "POST":
                await self.access.check_form(request)
            return await handler(request)
        except SetupRefused as error:
            return self._views.refuse(error.status, str(error), inside=self.access.is_signed_in(request))
        except web.HTTPClientError as error:
            return self._views.refuse(error.status, "There is no such page.", inside=True)

    def _taking(self, take: Callable[[web.Request], Awaitable[str]]) -> Handler:
        """Answer a form with a redirect to a page, which also shows why the form failed."""

        async def handle(request: web.Request) -> web.Response:
            page, form = request.path.split("/")[1], await _read_form(request)
            target = f"/{page}"
            async with self._one_at_a_time:
                if underway := self.state.underway.get(page):
                    if (underway.path, underway.form) != (request.path, form):
                        self._complain(page, InvalidInput(BUSY), form)
                else:
                    self.state.complaints.pop(page, None)
                    try:
                        target = await take(request)
                    except EXPLAINED as error:
                        self._complain(page, error, form)
            return web.Response(status=303, headers={"Location": target})

        return handle

    def _complain(self, page: str, error: Exception, form: Form) -> None:
        words, field, may_insist = str(error), "", False
        if isinstance(error, OSError):
            words = f"Cannot write to {self.state.files.folder}: {error.strerror}."
            words += " Your answers are lost when set-up ends."
        if isinstance(error, InvalidInput) and error.field:
            # Two forms are on one page, with the same fields.
            field, may_insist = f"{'local-' * (form.get('kind') == 'local')}{error.field}", error.may_insist
        typed = {name: text for name, text in form.items() if name not in SECRET_FIELDS}
        self.state.complaints[page] = Complaint(words, field, may_insist, typed)

    async def _start(
        self, request: web.Request, words: str, work: Callable[[], Awaitable[None]], typed: Form | None = None
    ) -> str:
        """Do this after the answer, and return the page, which shows these words until it has ended.

        If it fails, the form shows what was `typed`: by default what was sent.
        """
        page, form = request.path.split("/")[1], await _read_form(request)

        async def finish() -> None:
            try:
                await work()
            except EXPLAINED as error:
                self._complain(page, error, form if typed is None else typed)
            finally:
                del self.state.underway[page]

        self.state.underway[page] = Underway(words, request.path, form)
        task = asyncio.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return f"/{page}"

    async def show_next(self, request: web.Request) -> web.Response:
        """Go to the first step that is not complete."""
        return web.Response(status=303, headers={"Location": f"/{find_next(self.state.answers)}"})

    async def send_style(self, request: web.Request) -> web.StreamResponse:
        """A style sheet."""
        if path := STYLES.get(request.match_info["name"]):
            return web.FileResponse(path)
        raise SetupRefused(404, "There is no such page.")

    async def send_document(self, request: web.Request) -> web.StreamResponse:
        """A document, as its text."""
        if path := find_document(request.match_info["name"]):
            return web.Response(text=await asyncio.to_thread(path.read_text))
        raise SetupRefused(404, "There is no such page.")

    # The App

    async def set_place(self, request: web.Request) -> str:
        """Save the addresses."""
        answers = steps.set_place(self.state.answers, await _read_form(request))
        await require_github(answers.place)
        self.state.save(answers)
        return "/app#create"

    async def receive_app(self, request: web.Request) -> web.Response:
        """GitHub has redirected the browser back: fetch the App with its secrets, once."""
        async with self._one_at_a_time:
            if not self.state.accept_oauth_state(request.query.get("state", "")):
                raise SetupRefused(403, "This answer is not for this set-up, or was used already.")
            try:
                app = await convert(self.state.answers.place, request.query.get("code", ""))
                self.state.save(replace(self.state.answers, app=app))
            except (GitHubSetupError, OSError) as error:
                self._complain("app", error, {})
        return web.Response(status=303, headers={"Location": "/app"})

    async def set_known_app(self, request: web.Request) -> str:
        """Save an App that was registered by hand, if GitHub knows it."""
        answers = steps.set_known_app(self.state.answers, await _read_form(request))
        assert answers.app
        self.state.save(replace(answers, app=await complete(answers.place, answers.app, now)))
        return "/app"

    async def forget_app(self, request: web.Request) -> str:
        """Use another App. The files of this one stay."""
        self.state.save(replace(self.state.answers, app=None, repositories=()))
        return "/app"

    # Repositories

    async def set_repositories(self, request: web.Request) -> str:
        """Save the chosen repositories."""
        chosen = [text for name, text in await read_fields(request) if name == "repository"]
        known = {repository.name: repository.private for repository in self.state.installed}
        known |= {repository.name: repository.private for repository in self.state.answers.repositories}
        if unknown := [name for name in chosen if name not in known]:
            raise InvalidInput(f"The App is not installed in {', '.join(unknown)}. Reload the page.")
        hidden = [name for name, private in known.items() if private]
        self.state.save(steps.set_repositories(self.state.answers, await _read_form(request), chosen, hidden))
        return "/machines" if not self.state.answers.machines else "/repositories"

    # Machines

    async def connect_machine(self, request: web.Request) -> str:
        """Fetch a machine's host key. This host has none, so it is tested at once."""
        self.state.trial = None
        answers = steps.connect_machine(self.state.answers, await _read_form(request))
        machine = answers.looked_at
        assert machine
        if machine.kind == "local":
            self.state.save(answers)
            return await self._start(request, f"Testing {machine.name}", lambda: self._test(machine))
        self._check_key(machine)
        words = f"Connecting to {machine.user}@{machine.host}:{machine.port}, to fetch its host key"
        return await self._start(request, words, lambda: self._connect(machine))

    def _check_key(self, machine: MachineAnswer) -> None:
        if machine.client_key_file:
            path = self.state.files.folder / Path(machine.client_key_file).expanduser()
            if problem := find_key_problem(path, find_login()) or find_mode_problem(path):
                words = f"This key cannot be used: {problem.words}. To fix it: {problem.fix}"
                raise InvalidInput(words, "client_key_file")

    async def _connect(self, machine: MachineAnswer) -> None:
        machine = replace(machine, host_key=await self._look(machine))
        if not machine.client_key_file:
            self.state.files.find_client_key()
        await self._save_pending(machine)

    async def _look(self, machine: MachineAnswer) -> str:
        try:
            return await read_host_key(machine, self._silence_s)
        except HostKeyUnavailable as error:
            raise InvalidInput(f"Cannot connect to {machine.name}: {error}.", "address") from error

    async def _save_pending(self, machine: MachineAnswer) -> None:
        async with self._one_at_a_time:
            self.state.save(replace(self.state.answers, looked_at=machine))

    async def confirm_machine(self, request: web.Request) -> str:
        """Accept the host key that was shown, if the machine still has it, and test the machine."""
        machine, shown = self.state.answers.looked_at, (await _read_form(request)).get("host_key", "")
        if machine is None:
            raise InvalidInput("There is no machine to confirm: connect to it first.")
        words, typed = f"Testing {machine.name}", describe_machine(machine)
        return await self._start(request, words, lambda: self._confirm(machine, shown), typed)

    async def _confirm(self, machine: MachineAnswer, shown: str) -> None:
        self.state.trial = Trial(machine)
        if machine.kind == "ssh":
            now = await self._look(machine)
            if shown != machine.host_key or now != machine.host_key:
                self.state.trial = None
                await self._save_pending(replace(machine, host_key=now))
                raise InvalidInput(
                    f"The host key of {machine.name} is no longer the one that you confirmed. It may have been "
                    "reinstalled, or somebody intercepts the connection. Compare the key again. Nothing was sent there."
                )
        await self._test(machine)

    async def _test(self, machine: MachineAnswer) -> None:
        self.state.trial = trial = Trial(machine)
        async for trial in try_machine(machine, self.state.files.folder):
            self.state.trial = trial
        if trial.passed:
            async with self._one_at_a_time:
                self.state.save(steps.keep_machine(self.state.answers, trial.machine))
        elif wrong := trial.wrong_entry:
            field, finding = wrong
            raise InvalidInput(f"The test found: {finding.words}. To fix it: {finding.fix}.", field)

    async def discard_machine(self, request: web.Request) -> str:
        """Forget the machine that is not tested, or that failed its test. One that it was to replace stays."""
        self.state.trial = None
        self.state.save(replace(self.state.answers, looked_at=None))
        return "/machines"

    async def drop_machine(self, request: web.Request) -> str:
        """Remove a machine."""
        self.state.trial = None
        self.state.save(steps.drop_machine(self.state.answers, (await _read_form(request)).get("name", "")))
        return "/machines"

    # Agents

    async def add_agent(self, request: web.Request) -> str:
        """Add an agent, if it is installed on a machine and its models answer, or if the operator insists."""
        form = await _read_form(request)
        answers = steps.add_agent(self.state.answers, form)
        if form.get("anyway") != "yes":
            words = f"Asking machines for the program of {answers.agents[-1].name}, and its models for an answer"
            return await self._start(request, words, lambda: self._add_agent(form))
        self.state.save(answers)
        return "/agents"

    async def _add_agent(self, form: Form) -> None:
        answers = steps.add_agent(self.state.answers, form)
        await require_program(answers.agents[-1], answers.machines, self.state.files.folder)
        await require_models(answers.place, answers.agents[-1])
        async with self._one_at_a_time:
            self.state.save(steps.add_agent(self.state.answers, form))

    async def drop_agent(self, request: web.Request) -> str:
        """Remove an agent."""
        self.state.save(steps.drop_agent(self.state.answers, (await _read_form(request)).get("name", "")))
        return "/agents"

    # The end

    async def write(self, request: web.Request) -> str:
        """Save the caps, write the configuration, and run the doctor on it."""
        form = await _read_form(request)
        self.state.save(steps.set_operators(steps.set_caps(self.state.answers, form), form))
        if (missing := find_next(self.state.answers)) != "finish":
            raise InvalidInput(f"Still missing: {missing}.")
        try:
            self.state.files.write_config(self.state.answers, replace=form.get("replace") == "yes")
        except FileExistsError:
            raise InvalidInput(f'{self.state.files.config} exists. Tick "Replace the existing file".') from None
        except ConfigError as error:
            raise InvalidInput(f"The configuration would have problems: {'; '.join(error.problems)}.") from None
        self.state.is_written = True
        return await self.check_again(request)

    async def check_again(self, request: web.Request) -> str:
        """Run the doctor on the configuration as it is now."""
        return await self._start(request, "Checking GitHub, machines and models", self._look_at_everything)

    async def _look_at_everything(self) -> None:
        self.state.findings = await examine(self.state.files.config)

    async def close(self) -> None:
        """End background work."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end(self, request: web.Request) -> str:
        """Finish, and remove the answers if the configuration has them."""
        if self.state.is_written:
            self.state.files.forget()
        self.state.has_ended = True
        return "/finish"


async def _read_form(request: web.Request) -> dict[str, Any]:
    return dict(await read_fields(request))
