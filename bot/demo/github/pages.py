"""What a person sees in a browser: threads, and the diff of a pull request.

Everything shown was written by somebody: it is escaped, and of HTML inside Markdown only the folding tags survive.
It refuses to know the API.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web
from jinja2 import DictLoader, Environment, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from bot.demo.github.gitstore import GitFailed
from bot.demo.github.state import Issue, Pull, Repository, World

_TAGS = re.compile(r"(<!--.*?-->)|(</?(?:details|summary|br|sub|sup)>)", re.DOTALL)


class _Renderer(RendererHTML):
    """Markdown to HTML. Comments vanish, as on GitHub; a few harmless tags stay; all other HTML is shown as text."""

    def html_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """HTML between paragraphs."""
        return _keep_harmless(tokens[idx].content)

    def html_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """HTML within a paragraph."""
        return _keep_harmless(tokens[idx].content)


def _keep_harmless(html: str) -> str:
    parts, end = [], 0
    for match in _TAGS.finditer(html):
        parts += [str(escape(html[end : match.start()])), match[2] or ""]
        end = match.end()
    return "".join([*parts, str(escape(html[end:]))])


_MARKDOWN = MarkdownIt("commonmark", {"html": True}, renderer_cls=_Renderer).enable(["table", "strikethrough"])


def render_markdown(text: str) -> Markup:
    """Somebody's Markdown as HTML that can do nothing."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 - the renderer above escapes


_LAYOUT = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
article { border: 1px solid #d1d9e0; border-radius: 6px; margin: 1rem 0; padding: 0 1rem; overflow-x: auto }
article header { background: #f6f8fa; margin: 0 -1rem; padding: .4rem 1rem; color: #59636e }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto } .state { color: #59636e }
.label { border: 1px solid #d1d9e0; border-radius: 1rem; padding: 0 .5rem }
ins, del { text-decoration: none } ins { background: #dafbe1 } del { background: #ffebe9 }
</style></head><body>{% block main %}{% endblock %}</body></html>"""

_LIST = """{% extends "layout" %}{% block main %}<h1>{{ title }}</h1><ul>
{% for link, text in items %}<li><a href="{{ link }}">{{ text }}</a></li>{% else %}<li>Nothing yet.</li>{% endfor %}
</ul>{% endblock %}"""

_THREAD = """{% extends "layout" %}{% block main %}
<p><a href="/{{ repository.full_name }}">{{ repository.full_name }}</a></p>
<h1>{{ issue.title }} <span class="state">#{{ issue.number }}</span></h1>
<p class="state">{{ "Draft pull request" if pull and pull.draft else "Pull request" if pull else "Issue" }},
{{ issue.state }}{% if pull %}, from <code>{{ pull.head }}</code> into <code>{{ pull.base }}</code>{% endif %}
{% for label in issue.labels %}<span class="label">{{ label.name }}</span> {% endfor %}</p>
{% for post in [issue] + issue.comments %}
<article id="{{ "issue" if loop.first else "issuecomment-%s" % post.id }}">
<header><b>{{ post.user.login }}</b> on {{ post.created_at }}
{% if post.updated_at != post.created_at and not loop.first %}(edited){% endif %}
{% for reaction in post.reactions %}<span class="label">{{ reaction.content }}</span> {% endfor %}</header>
{{ post.body | markdown }}</article>{% endfor %}
{% if diff is not none %}<h2>Changes</h2><pre>{% for line in diff.splitlines() %}
{%- if line.startswith("+") %}<ins>{{ line }}</ins>{% elif line.startswith("-") %}<del>{{ line }}</del>
{%- else %}{{ line }}{% endif %}
{% endfor %}</pre>{% endif %}{% endblock %}"""

_TEMPLATES = Environment(
    loader=DictLoader({"layout": _LAYOUT, "list": _LIST, "thread": _THREAD}),
    autoescape=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters["markdown"] = render_markdown

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Frame-Options": "DENY"}


class Pages:
    """The pages of the public repositories of a `World`; nobody can sign in, so private ones are not found."""

    def __init__(self, world: World) -> None:
        self._world = world

    def add_routes(self, app: web.Application) -> None:
        """Put the pages into `app`."""
        app.router.add_get("/", self.show_repositories)
        app.router.add_get("/{owner}/{repo}", self.show_issues)
        app.router.add_get("/{owner}/{repo}/issues", self.show_issues)
        app.router.add_get("/{owner}/{repo}/{kind:issues|pull}/{number:[0-9]{1,9}}", self.show_thread)
        app.router.add_get("/{owner}/{repo}/pull/{number:[0-9]{1,9}}.diff", self.show_diff)

    async def show_repositories(self, request: web.Request) -> web.Response:
        """The way in."""
        names = [repository.full_name for repository in self._world.repositories.values() if not repository.private]
        return _page("list", title="Repositories", items=[(f"/{name}", name) for name in names])

    async def show_issues(self, request: web.Request) -> web.Response:
        """Every issue and pull request of a repository, newest first."""
        repository = self._find(request)
        issues = [(_path(repository, issue), f"#{issue.number} {issue.title}") for issue in repository.issues.values()]
        return _page("list", title=repository.full_name, items=issues[::-1])

    async def show_thread(self, request: web.Request) -> web.Response:
        """One issue or pull request; the other kind's address leads to it, as on GitHub."""
        repository = self._find(request)
        issue = repository.issues.get(int(request.match_info["number"]))
        if issue is None:
            raise web.HTTPNotFound
        if (request.match_info["kind"] == "pull") != isinstance(issue, Pull):
            raise web.HTTPFound(_path(repository, issue))
        pull = issue if isinstance(issue, Pull) else None
        diff = await _diff(repository, pull) if pull else None
        return _page("thread", title=issue.title, repository=repository, issue=issue, pull=pull, diff=diff)

    async def show_diff(self, request: web.Request) -> web.Response:
        """The patch of a pull request, as text."""
        repository = self._find(request)
        pull = repository.issues.get(int(request.match_info["number"]))
        if not isinstance(pull, Pull):
            raise web.HTTPNotFound
        return web.Response(text=await _diff(repository, pull), headers={"X-Content-Type-Options": "nosniff"})

    def _find(self, request: web.Request) -> Repository:
        name = f"{request.match_info['owner']}/{request.match_info['repo']}"
        repository = self._world.repositories.get(name.casefold())
        if repository is None or repository.private:
            raise web.HTTPNotFound
        return repository


def _path(repository: Repository, issue: Issue) -> str:
    kind = "pull" if isinstance(issue, Pull) else "issues"
    return f"/{repository.full_name}/{kind}/{issue.number}"


async def _diff(repository: Repository, pull: Pull) -> str:
    try:
        return await repository.git.diff(pull.base_sha, pull.head_sha)
    except GitFailed as error:
        return f"git cannot show it: {error}"


def _page(template: str, **values: object) -> web.Response:
    html = _TEMPLATES.get_template(template).render(values)
    return web.Response(text=html, content_type="text/html", headers=_POLICY)
