"""Registers and installs an App in a browser, with GitHub's manifest flow.

https://docs.github.com/en/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jinja2 import DictLoader, Environment, StrictUndefined
from yarl import URL

from github_standin.model.state import App, Repository, World
from github_standin.model.webhooks import Webhooks

MAX_NAME = 34
"""The most characters of an App's name."""

KNOWN = frozenset(
    (
        *("name", "url", "hook_attributes", "redirect_url", "callback_urls", "setup_url", "description", "public"),
        *("default_events", "default_permissions", "request_oauth_on_install", "setup_on_update"),
    )
)
"""The keys of a manifest."""


class BadManifest(ValueError):  # noqa: N818 - what is the case
    """The manifest is not valid. The message is a sentence for GitHub's page."""


def make_key() -> tuple[str, str]:
    """A private key for an App, and its public key, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def parse_manifest(text: str) -> Mapping[str, Any]:
    """The manifest in a form. Raises `BadManifest`."""
    try:
        manifest = json.loads(text)
    except ValueError:
        raise BadManifest("The manifest is not valid JSON.") from None
    if not isinstance(manifest, dict):
        raise BadManifest("The manifest is not a JSON object.")
    if unknown := manifest.keys() - KNOWN:
        raise BadManifest(f"Unknown keys: {', '.join(sorted(unknown))}.")
    for name, value in (("url", manifest.get("url")), ("redirect_url", manifest.get("redirect_url"))):
        if not _is_address(value):
            raise BadManifest(f"{name} is missing, or is not a URL.")
    hook = manifest.get("hook_attributes")
    if not isinstance(hook, dict) or not _is_address(hook.get("url")):
        raise BadManifest("hook_attributes has no url.")
    return manifest


def _is_address(value: object) -> bool:
    return isinstance(value, str) and urlsplit(value).scheme in ("http", "https")


class Registration:
    """The one App, and the codes that return its secrets."""

    def __init__(self, world: World, app: App, webhooks: Webhooks) -> None:
        self.world = world
        self.app = app
        self.private_key = ""
        """PEM; empty if the App was not registered here."""
        self._webhooks = webhooks
        self._codes: set[str] = set()

    def create(self, manifest: Mapping[str, Any], name: str, owner: str) -> str:
        """Register the App from the manifest, and return a code that returns its secrets once."""
        if not name.strip() or len(name) > MAX_NAME:
            raise BadManifest(f"An App's name has 1 to {MAX_NAME} characters.")
        app, slug = self.app, re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.private_key, app.public_key = make_key()
        app.id, app.slug, app.created_at = str(self.world.next_id()), slug, self.world.now()
        app.bot, app.owner = self.world.add_user(f"{slug}[bot]", "Bot"), self.world.add_user(owner)
        app.webhook_secret, app.client_secret = secrets.token_hex(20), secrets.token_hex(20)
        app.permissions = {"metadata": "read", **manifest.get("default_permissions", {})}
        app.events = frozenset(manifest.get("default_events", ()))
        self._webhooks.url = manifest["hook_attributes"]["url"]
        code = secrets.token_hex(20)
        self._codes.add(code)
        return code

    def redeem(self, code: str) -> bool:
        """Whether a code is valid. It can be used only once."""
        is_good = code in self._codes
        self._codes.discard(code)
        return is_good

    def install(self, names: Collection[str]) -> None:
        """Install the App on exactly these repositories."""
        for repository in self.world.repositories.values():
            repository.installed = repository.full_name in names
            if repository.installed:
                self.world.installation_on(repository.owner)


_LAYOUT = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem }
label { display: block; margin: .8rem 0 } code { overflow-wrap: anywhere }
input[type=text] { font: inherit; width: 100%; box-sizing: border-box; padding: .4rem }
button { font: inherit; font-weight: 600; color: #fff; background: #1a7f37; border: 0; border-radius: 6px;
  padding: .5rem 1rem }
</style></head><body><main><h1>{{ title }}</h1>{% block main %}{% endblock %}</main></body></html>"""

_CREATE = """{% extends "layout" %}{% block main %}
<p>The stand-in for GitHub asks what GitHub asks. Owner: <b>{{ owner }}</b>.</p>
<form method="post" action="/settings/apps/manifest">
<label>GitHub App name
<input type="text" name="name" value="{{ manifest.name }}" maxlength="{{ longest }}" required></label>
<p>Homepage <code>{{ manifest.url }}</code><br>Webhook <code>{{ manifest.hook_attributes.url }}</code></p>
<p>Permissions</p><ul>
{% for name, level in manifest.default_permissions.items() %}<li>{{ name }}: {{ level }}</li>{% endfor %}</ul>
<p>Events: {{ manifest.default_events | join(", ") }}</p>
<input type="hidden" name="manifest" value="{{ text }}"><input type="hidden" name="state" value="{{ state }}">
<input type="hidden" name="owner" value="{{ owner }}">
<button>Create GitHub App</button></form>{% endblock %}"""

_INSTALL = """{% extends "layout" %}{% block main %}
<form method="post"><p>Only select repositories:</p>
{% for repository in repositories %}<label><input type="checkbox" name="repository" value="{{ repository.full_name }}"
{%- if repository.installed %} checked{% endif %}> {{ repository.full_name }}</label>{% endfor %}
<button>Install</button></form>{% endblock %}"""

_SAY = """{% extends "layout" %}{% block main %}<p>{{ words }}</p>{% endblock %}"""

_TEMPLATES = Environment(
    loader=DictLoader({"layout": _LAYOUT, "create": _CREATE, "install": _INSTALL, "say": _SAY}),
    autoescape=True,
    undefined=StrictUndefined,
)
_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Frame-Options": "DENY"}


class RegistrationPages:
    """The pages of an App's owner. There is no sign-in: everybody is the owner."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration

    def add_routes(self, app: web.Application) -> None:
        """Add the pages to `app`, before pages with more general paths."""
        app.router.add_post("/settings/apps/new", self.show_manifest)
        app.router.add_post("/organizations/{owner}/settings/apps/new", self.show_manifest)
        app.router.add_post("/settings/apps/manifest", self.create)
        app.router.add_get("/apps/{slug}", self.show_installation)
        app.router.add_get("/apps/{slug}/installations/new", self.show_installation)
        app.router.add_post("/apps/{slug}/installations/new", self.install)

    async def show_manifest(self, request: web.Request) -> web.Response:
        """Ask for confirmation to create an App from the manifest."""
        form = await request.post()
        text, owner = str(form.get("manifest", "")), request.match_info.get("owner", "maintainer")
        try:
            manifest = parse_manifest(text)
        except BadManifest as error:
            return _page("say", 422, title="Invalid GitHub App configuration", words=str(error))
        return _page(
            "create",
            title="Create GitHub App",
            manifest={"name": "", "default_permissions": {}, "default_events": [], **manifest},
            text=text,
            state=request.query.get("state", ""),
            owner=owner,
            longest=MAX_NAME,
        )

    async def create(self, request: web.Request) -> web.Response:
        """Create the App, and redirect back with a code."""
        form = await request.post()
        try:
            manifest = parse_manifest(str(form.get("manifest", "")))
            code = self._registration.create(manifest, str(form.get("name", "")), str(form.get("owner", "")))
        except BadManifest as error:
            return _page("say", 422, title="Invalid GitHub App configuration", words=str(error))
        back = URL(manifest["redirect_url"]).update_query(code=code, state=str(form.get("state", "")))
        raise web.HTTPFound(back)

    async def show_installation(self, request: web.Request) -> web.Response:
        """Ask on which repositories to install the App."""
        self._require(request)
        return _page("install", title=f"Install {request.match_info['slug']}", repositories=self._list())

    async def install(self, request: web.Request) -> web.Response:
        """Install the App on the chosen repositories."""
        self._require(request)
        names = {str(name) for name in (await request.post()).getall("repository", [])}
        self._registration.install(names)
        words = f"Installed on: {', '.join(sorted(names)) or 'nothing'}. Go back to the page that sent you here."
        return _page("say", title="Installed", words=words)

    def _list(self) -> list[Repository]:
        return list(self._registration.world.repositories.values())

    def _require(self, request: web.Request) -> None:
        if request.match_info["slug"] != self._registration.app.slug:
            raise web.HTTPNotFound


def _page(template: str, status: int = 200, **values: object) -> web.Response:
    html = _TEMPLATES.get_template(template).render(values)
    return web.Response(text=html, status=status, content_type="text/html", headers=_POLICY)
