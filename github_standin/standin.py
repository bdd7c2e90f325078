"""A local GitHub: it listens on loopback, keeps state, and calls the App's webhook. The package's composition root."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from github_standin.api.calls import Site, name_installation
from github_standin.api.git_http import GitHttp
from github_standin.api.routes_oauth import OAuth
from github_standin.api.server import MAX_BODY_BYTES, ApiServer, Exchange
from github_standin.model.actions import Actions
from github_standin.model.auth import Authority
from github_standin.model.faults import Faults
from github_standin.model.gitstore import GitStore
from github_standin.model.limits import Limits, RateLimits
from github_standin.model.registration import Registration, RegistrationPages
from github_standin.model.render import API_ROOT, GRAPHQL_ADDRESS, Links
from github_standin.model.state import ROLES, App, Comment, Issue, PublicKey, Pull, Repository, User, World
from github_standin.model.webhooks import Delivery, Webhooks
from github_standin.pages.forms import Forms
from github_standin.pages.frame import Frame
from github_standin.pages.pages import Pages

CLIENT_ID = "Iv1.0123456789abcdef"
CLIENT_SECRET = "the client secret of a stand-in's App"  # noqa: S105 - only used on loopback


def _utc_now() -> datetime:
    return datetime.now(UTC)


class StandIn:
    """The stand-in, with one App registered. Everything but `url` and `api_url` can be used before `start`."""

    def __init__(
        self,
        *,
        app_id: str,
        app_slug: str,
        app_public_key: str,
        webhook_secret: str,
        app_permissions: Mapping[str, str],
        app_events: Collection[str],
        client_id: str = CLIENT_ID,
        client_secret: str = CLIENT_SECRET,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.clock = clock
        """Can be replaced at any time. It returns an aware time."""
        self._world = World(lambda: self.clock())
        app = App(
            id=app_id,
            slug=app_slug,
            public_key=app_public_key,
            webhook_secret=webhook_secret,
            client_id=client_id,
            client_secret=client_secret,
            permissions=dict(app_permissions),
            events=frozenset(app_events),
            bot=self._world.add_user(f"{app_slug}[bot]", "Bot"),
            owner=self._world.add_user(f"{app_slug}-owner"),
            created_at=self._world.now(),
        )
        self.faults = Faults()
        self.limits = Limits()
        self._links = Links(app)
        self._webhooks = Webhooks(self._world, app, self.faults)
        self._actions = Actions(self._world, self._links, self._webhooks)
        self._authority = Authority(self._world, app)
        rates = RateLimits(self.limits, lambda: self.clock())
        registration = Registration(self._world, app, self._webhooks)
        self._registration = RegistrationPages(registration)
        self._site = Site(
            self._world, self._links, self._actions, self._webhooks, self._authority, self.limits, rates, registration
        )
        self._server = ApiServer(self._site, self.faults)
        self.frame = Frame(self._world, self._links)
        self.oauth = OAuth(self._world, app, self._authority)
        self.git_http = GitHttp(self._world, self._authority)
        self._runner: web.AppRunner | None = None

    @classmethod
    def without_app(cls) -> StandIn:
        """A stand-in without an App: no credential is valid until somebody creates one from a manifest."""
        return cls(app_id="0", app_slug="", app_public_key="", webhook_secret="", app_permissions={}, app_events=())

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0 means any free port."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self.frame.explain])
        app.router.add_route("*", f"{API_ROOT}{{path:(/.*)?}}", self._server.handle)
        app.router.add_post(GRAPHQL_ADDRESS, self._server.handle)
        self.git_http.add_routes(app)
        self._registration.add_routes(app)
        self.oauth.add_routes(app)
        self.frame.add_routes(app)
        pages = Pages(self._world, self.frame)
        pages.add_routes(app)
        Forms(self.frame, pages, self._actions, self.limits).add_routes(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self._links.web = f"http://{host}:{self._runner.addresses[0][1]}"
        await self._webhooks.start()

    async def stop(self) -> None:
        """Stop listening and sending. The state stays."""
        await self._webhooks.stop()
        if self._runner:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The root of the pages and of `git clone`."""
        return self._links.web

    @property
    def api_url(self) -> str:
        """The root of the REST API."""
        return self._links.api

    @property
    def webhook_url(self) -> str | None:
        """The address for webhooks; None sends none."""
        return self._webhooks.url

    @webhook_url.setter
    def webhook_url(self, url: str | None) -> None:
        self._webhooks.url = url

    @property
    def webhook_timeout_s(self) -> float:
        """How long an answer to a webhook may take, in seconds."""
        return self._webhooks.timeout_s

    @webhook_timeout_s.setter
    def webhook_timeout_s(self, timeout_s: float) -> None:
        self._webhooks.timeout_s = timeout_s

    # State

    def add_user(self, login: str, type: str = "User") -> User:  # noqa: A002 - GitHub's word
        """Add an account: `User`, `Organization` or `Bot`."""
        return self._world.add_user(login, type)

    def add_public_key(self, login: str, key: str) -> None:
        """Add an SSH key to an account. GitHub keeps kind and Base64, and drops the comment."""
        user, kept = self._world.add_user(login), " ".join(key.split()[:2])
        keys = self._world.public_keys.setdefault(user, [])
        keys.append(PublicKey(self._world.next_id(), kept, self._world.now()))

    def add_repository(
        self,
        full_name: str,
        git_dir: Path,
        default_branch: str = "main",
        private: bool = False,
        installed: bool = True,
        fork_of: str | None = None,
    ) -> Repository:
        """Add the bare repository `git_dir` as `full_name`. `installed` says whether the App is installed there.

        A fork's `git_dir` also has the objects of its parent, as on GitHub.
        """
        owner, _, name = full_name.partition("/")
        account, now = self._world.add_user(owner), self._world.now()
        source = self._world.repository(fork_of) if fork_of else None
        repository = Repository(
            self._world.next_id(), account, name, GitStore(git_dir), default_branch, private, installed, now, source
        )
        self._world.repositories[full_name.casefold()] = repository
        self._world.former.pop(full_name.casefold(), None)  # A new repository ends the redirect.
        if installed:
            self._world.installation_on(account)
        return repository

    def is_installed(self, full_name: str) -> bool:
        """Whether the App is installed on this repository."""
        return self._world.repository(full_name).installed

    def rename_repository(self, full_name: str, name: str) -> None:
        """Rename a repository. Requests with the former name are redirected."""
        repository = self._world.repositories.pop(full_name.casefold())
        repository.name = name
        self._world.former[full_name.casefold()] = repository
        self._world.repositories[repository.full_name.casefold()] = repository

    def add_label(self, full_name: str, label: str) -> None:
        """Create a label in a repository."""
        self._world.label(self._world.repository(full_name), label)

    def set_private(self, full_name: str, private: bool) -> None:
        """Make a repository private or public. Apps that do not subscribe to `repository` are not told."""
        self._world.repository(full_name).private = private

    def set_installed(self, full_name: str, installed: bool) -> None:
        """Take a repository into the App's installation, or out of it."""
        self._world.repository(full_name).installed = installed

    def set_permission(self, full_name: str, login: str, role: str) -> None:
        """Set a person's role: none, read, triage, write, maintain or admin."""
        if role not in ROLES:
            raise ValueError(f"{role!r} is not one of {', '.join(ROLES)}")
        self._world.repository(full_name).roles[self._world.add_user(login).login.casefold()] = role

    # Actions of people on the web. Each returns after its webhooks were answered, or held back by a fault.

    async def open_issue(self, full_name: str, title: str, body: str, by: str, labels: Collection[str] = ()) -> int:
        """Open an issue and return its number. Each label is a separate event."""
        repository, user = self._world.repository(full_name), self._world.add_user(by)
        issue = self._actions.open_issue(repository, title, body, user)
        for label in labels:
            self._actions.add_label(repository, issue, label, user)
        await self._webhooks.sent()
        return issue.number

    async def open_pull(self, full_name: str, title: str, body: str, by: str, head: str) -> int:
        """Open a pull request from an existing branch, and return its number."""
        repository, user = self._world.repository(full_name), self._world.add_user(by)
        base = repository.default_branch
        base_sha, head_sha = [await repository.git.read_ref(f"refs/heads/{name}") or "" for name in (base, head)]
        stat = await repository.git.diff_stat(base_sha, head_sha)
        ends = ((head, head_sha), (base, base_sha))
        pull = self._actions.open_pull(
            repository, title, body, user, source=repository, ends=ends, draft=False, stat=stat
        )
        await self._webhooks.sent()
        return pull.number

    async def edit_issue(
        self, full_name: str, number: int, *, by: str, title: str | None = None, body: str | None = None
    ) -> None:
        """Change title, body or both."""
        repository, issue = self._find(full_name, number)
        self._actions.edit_issue(repository, issue, self._world.add_user(by), title, body)
        await self._webhooks.sent()

    async def close_issue(self, full_name: str, number: int, by: str) -> None:
        """Close an issue or pull request."""
        repository, issue = self._find(full_name, number)
        self._actions.set_state(repository, issue, "closed", self._world.add_user(by))
        await self._webhooks.sent()

    async def reopen_issue(self, full_name: str, number: int, by: str) -> None:
        """Reopen an issue or pull request."""
        repository, issue = self._find(full_name, number)
        self._actions.set_state(repository, issue, "open", self._world.add_user(by))
        await self._webhooks.sent()

    async def label_issue(self, full_name: str, number: int, label: str, by: str) -> None:
        """Add a label."""
        repository, issue = self._find(full_name, number)
        self._actions.add_label(repository, issue, label, self._world.add_user(by))
        await self._webhooks.sent()

    async def unlabel_issue(self, full_name: str, number: int, label: str, by: str) -> None:
        """Remove a label. Raises KeyError if the issue does not have it."""
        repository, issue = self._find(full_name, number)
        on = {found.name.casefold(): found for found in issue.labels}
        self._actions.remove_label(repository, issue, on[label.casefold()], self._world.add_user(by))
        await self._webhooks.sent()

    async def comment(self, full_name: str, number: int, body: str, by: str) -> int:
        """Post a comment and return its id."""
        repository, issue = self._find(full_name, number)
        comment = self._actions.add_comment(repository, issue, body, self._world.add_user(by))
        await self._webhooks.sent()
        return comment.id

    async def edit_comment(self, full_name: str, comment_id: int, body: str, by: str) -> None:
        """Replace a comment's body."""
        repository, comment = self._find_comment(full_name, comment_id)
        self._actions.edit_comment(repository, comment, body, self._world.add_user(by))
        await self._webhooks.sent()

    async def delete_comment(self, full_name: str, comment_id: int, by: str) -> None:
        """Delete a comment."""
        repository, comment = self._find_comment(full_name, comment_id)
        self._actions.delete_comment(repository, comment, self._world.add_user(by))
        await self._webhooks.sent()

    # Actions of the App's owner

    def change_app(
        self,
        *,
        permissions: Mapping[str, str] | None = None,
        events: Collection[str] | None = None,
        webhook_secret: str | None = None,
    ) -> None:
        """Change the App's permissions, events and secret. Every installation accepts at once."""
        app = self._links.app
        app.permissions = app.permissions if permissions is None else dict(permissions)
        app.events = app.events if events is None else frozenset(events)
        app.webhook_secret = webhook_secret or app.webhook_secret

    def spend_calls(self, full_name: str, calls: int) -> None:
        """Use up requests of this hour for the installation on a repository."""
        installation = self._world.installation_on(self._world.repository(full_name).owner)
        self._site.rates.spend(name_installation(installation), calls)

    async def ping(self) -> None:
        """Send a ping."""
        self._actions.ping()
        await self._webhooks.sent()

    async def redeliver(self, guid: str) -> None:
        """Send a delivery again with the same id. Raises KeyError if there was none."""
        self._webhooks.redeliver(guid)
        await self._webhooks.sent()

    async def settle(self) -> None:
        """Wait until every webhook was sent, also those that a fault delays or holds back."""
        await self._webhooks.settle()

    def revoke_tokens(self) -> None:
        """Make every installation token invalid."""
        self._authority.revoke_all()

    # Queries

    def issue(self, full_name: str, number: int) -> Issue:
        """The issue or pull request with its thread. Raises KeyError."""
        return self._find(full_name, number)[1]

    def pulls(self, full_name: str) -> list[Pull]:
        """Every pull request, oldest first."""
        return self._world.repository(full_name).pulls()

    @property
    def deliveries(self) -> list[Delivery]:
        """Every attempt to deliver a webhook, in the order of their ends."""
        return self._webhooks.deliveries

    @property
    def exchanges(self) -> list[Exchange]:
        """Every request to the API with its answer."""
        return self._server.exchanges

    @property
    def observers(self) -> list[Callable[[Exchange], None]]:
        """Called with every exchange; what one raises is collected in `complaints`."""
        return self._server.observers

    @property
    def complaints(self) -> list[str]:
        """What observers raised, and internal errors. Tests assert that it is empty."""
        return self._server.complaints

    @property
    def unknown_calls(self) -> list[Exchange]:
        """Requests for endpoints that the stand-in lacks."""
        return [exchange for exchange in self.exchanges if exchange.endpoint is None and not exchange.fault]

    def _find(self, full_name: str, number: int) -> tuple[Repository, Issue]:
        repository = self._world.repository(full_name)
        return repository, repository.issues[number]

    def _find_comment(self, full_name: str, comment_id: int) -> tuple[Repository, Comment]:
        repository = self._world.repository(full_name)
        for comment in repository.all_comments():
            if comment.id == comment_id:
                return repository, comment
        raise KeyError(comment_id)
