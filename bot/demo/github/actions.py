"""What people and Apps do to issues and pull requests, and the webhooks that follow from it.

Every change of the world's state is made here, without waiting, so that no two of them mix.
It refuses to know how a request or a payload travels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bot.demo.github.render import Json, Links, node_id, render_comment, render_issue, render_label
from bot.demo.github.render import render_repository as render_repo
from bot.demo.github.render import render_user
from bot.demo.github.render_git import render_pull
from bot.demo.github.state import Comment, Issue, Label, Pull, Reaction, Repository, TimelineEvent, User, World
from bot.demo.github.webhooks import Webhooks


@dataclass(frozen=True, slots=True)
class PullDraft:
    """What a pull request is made from, once its branches have been looked at."""

    head_branch: str
    base_branch: str
    head_sha: str
    base_sha: str
    draft: bool


class Actions:
    """Changes to one `World`. `by` is who does it; the App's own bot acts through the API."""

    def __init__(self, world: World, links: Links, webhooks: Webhooks) -> None:
        self._world = world
        self._links = links
        self._webhooks = webhooks
