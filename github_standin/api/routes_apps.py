"""Endpoints of the App (JWT), and of a token about itself. Each handler returns an `Answer` or raises `Refusal`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from github_standin.api.calls import Call
from github_standin.model.answers import Answer, Refusal, not_found
from github_standin.model.auth import LEVELS
from github_standin.model.render import (
    Json,
    render_account,
    render_app,
    render_installation,
    render_repository,
    render_time,
)
from github_standin.model.state import Installation, PublicKey, Repository, User
from github_standin.model.webhooks import Delivery


async def get_app(call: Call) -> Answer:
    """The authenticated App."""
    return Answer(200, render_app(call.site.links, len(call.site.world.installations)))


async def convert_manifest(call: Call) -> Answer:
    """The App that was created from a manifest, with its secrets: once for each code."""
    if not call.site.registration.redeem(call.params["code"]):
        raise not_found()
    app = call.site.links.app
    secrets = {
        "client_id": app.client_id,
        "client_secret": app.client_secret,
        "webhook_secret": app.webhook_secret,
        "pem": call.site.registration.private_key,
    }
    return Answer(201, render_app(call.site.links) | secrets)


async def list_installations(call: Call) -> Answer:
    """The App's installations."""
    installations = list(call.site.world.installations.values())
    return call.page_of(installations, lambda installation: _render_listed_installation(call, installation))


def _render_listed_installation(call: Call, installation: Installation) -> Json:
    """In GitHub's description of this list, an account has the fields of a user and of an enterprise."""
    rendered, since = render_installation(call.site.links, installation), render_time(installation.created_at)
    login = installation.account.login
    rendered["account"] |= {"name": login, "slug": login, "created_at": since, "updated_at": since}
    return rendered


async def get_repository_installation(call: Call) -> Answer:
    """The installation that covers a repository."""
    if not call.repository.installed:
        raise not_found()
    installation = call.site.world.installation_on(call.repository.owner)
    return Answer(200, render_installation(call.site.links, installation))


async def create_token(call: Call) -> Answer:
    """Create an installation token with the requested repositories and permissions."""
    installation = call.site.world.installations.get(call.number("installation_id"))
    if installation is None:
        raise not_found()
    chosen = _choose_repositories(call, installation)
    permissions = _choose_permissions(call)
    ids = None if chosen is None else frozenset(repository.id for repository in chosen)
    token = call.site.authority.mint(installation, ids, permissions)
    body: Json = {
        "token": token.value,
        "expires_at": render_time(token.expires_at),
        "permissions": dict(permissions),
        "repository_selection": "selected",
    }
    if chosen is not None:
        body["repositories"] = [render_repository(call.site.links, repository) for repository in chosen]
    return Answer(201, body)


def _choose_repositories(call: Call, installation: Installation) -> list[Repository] | None:
    names, ids = call.items("repositories", str), call.items("repository_ids", int)
    if not names and not ids:
        return None
    covered = call.site.world.repositories_of(installation)
    by_name = {repository.name.casefold(): repository for repository in covered}
    by_id = {repository.id: repository for repository in covered}
    try:
        chosen = [by_name[name.casefold()] for name in names] + [by_id[number] for number in ids]
    except KeyError as error:
        message = (
            "There is at least one repository that does not exist or is not accessible to the parent installation."
        )
        raise Refusal(422, message) from error
    return list({repository.id: repository for repository in chosen}.values())


def _choose_permissions(call: Call) -> Mapping[str, str]:
    granted = {"metadata": "read", **call.site.links.app.permissions}
    asked = call.fields.get("permissions")
    if asked is None:
        return granted
    if not isinstance(asked, dict) or not all(level in LEVELS for level in asked.values()):
        raise Refusal(422, "Invalid request.\n\nFor 'properties/permissions', that is not what it must be.")
    if any(LEVELS.index(granted.get(name, "none")) < LEVELS.index(level) for name, level in asked.items()):
        raise Refusal(422, "The permissions requested are not granted to this installation.")
    return {"metadata": "read", **asked}


async def list_installation_repositories(call: Call) -> Answer:
    """The token's repositories."""
    assert call.token
    covered = call.site.world.repositories_of(call.token.installation)
    reached = [repository for repository in covered if call.token.reaches(repository)]
    page = call.page_of(reached, lambda repository: render_repository(call.site.links, repository))
    return Answer(200, {"total_count": len(reached), "repositories": page.body}, page.headers)


async def get_user(call: Call) -> Answer:
    """The public profile of an account."""
    return Answer(200, render_account(call.site.links, _find_user(call)))


async def list_public_keys(call: Call) -> Answer:
    """The public SSH keys of an account, oldest first."""
    return call.page_of(call.site.world.public_keys.get(_find_user(call), []), _render_public_key)


def _find_user(call: Call) -> User:
    user = call.site.world.users.get(call.params["username"].casefold())
    if user is None:
        raise not_found()
    return user


def _render_public_key(key: PublicKey) -> Json:
    """Schema `key-simple`."""
    return {"id": key.id, "key": key.key, "created_at": render_time(key.created_at), "last_used": None}


async def get_hook(call: Call) -> Answer:
    """The webhook's configuration. GitHub never shows the secret, only that there is one."""
    config = {"content_type": "json", "insecure_ssl": "0", "secret": "********"}
    return Answer(200, config | ({"url": call.site.webhooks.url} if call.site.webhooks.url else {}))


async def list_deliveries(call: Call) -> Answer:
    """The webhook's deliveries, newest first, with a cursor to the next page."""
    wanted = {"success": True, "failure": False}.get(call.query.get("status", ""))
    newest_first = list(reversed(call.site.webhooks.deliveries))
    matching = [delivery for delivery in newest_first if wanted is None or delivery.ok == wanted]
    cursor = call.query.get("cursor")
    if cursor is not None:
        start = next((place for place, delivery in enumerate(matching) if str(delivery.id) == cursor), None)
        if start is None:
            raise Refusal(422, "Invalid cursor.")
        matching = matching[start:]
    shown, rest = matching[: call.per_page()], matching[call.per_page() :]
    headers = call.link_to("next", cursor=str(rest[0].id)) if rest else {}
    return Answer(200, [_render_delivery(delivery) for delivery in shown], headers)


async def get_delivery(call: Call) -> Answer:
    """One delivery with its payload."""
    delivery = _find_delivery(call)
    request = {"headers": dict(delivery.request_headers) or None, "payload": json.loads(delivery.payload)}
    response = {"headers": dict(delivery.response_headers) or None, "payload": delivery.response_body}
    return Answer(200, _render_delivery(delivery) | {"request": request, "response": response})


async def redeliver(call: Call) -> Answer:
    """Send a delivery again with the same guid."""
    call.site.webhooks.redeliver(_find_delivery(call).guid)
    return Answer(202, {})


async def get_rate_limit(call: Call) -> Answer:
    """The remaining requests of this hour. This request does not count."""
    rate = call.site.rates.describe(call.caller)
    if not rate:
        raise Refusal(404, "Rate limiting is not enabled.")
    return Answer(200, {"resources": {"core": rate, "search": rate, "graphql": rate}, "rate": rate})


def _find_delivery(call: Call) -> Delivery:
    for delivery in call.site.webhooks.deliveries:
        if delivery.id == call.number("delivery_id"):
            return delivery
    raise not_found()


def _render_delivery(delivery: Delivery) -> Json:
    return {
        "id": delivery.id,
        "guid": delivery.guid,
        "delivered_at": render_time(delivery.delivered_at),
        "redelivery": delivery.redelivery,
        "duration": delivery.duration_s,
        "status": delivery.status,
        "status_code": delivery.status_code,
        "event": delivery.event,
        "action": delivery.action,
        "installation_id": delivery.installation_id,
        "repository_id": delivery.repository_id,
        "throttled_at": None,
    }
