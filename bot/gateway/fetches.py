"""The rules for git's requests to the gateway: only fetches pass, and only the job's repositories get a token. Pure.

git-scm.com/docs/http-protocol, git-scm.com/docs/git-config (`url.<base>.insteadOf`, `http.<url>.*`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ROOT = "/git/"
"""The prefix of the paths that git requests."""

POST_BUFFER = "33554432"
"""The most bytes of a request that git sends with a length. Git sends a larger one in chunks, which the gateway's own
URL refuses."""
SERVICE = "git-upload-pack"
"""The git service that answers fetches. The one that accepts pushes is `git-receive-pack`."""

REFS, PACK, LFS = "info/refs", SERVICE, "info/lfs/"
PATH = re.compile(
    rf"{ROOT}(?P<name>[A-Za-z0-9_-]+/[A-Za-z0-9._-]+?)(?:\.git)?/(?P<what>{REFS}|{PACK}|git-receive-pack|{LFS}.+)"
)
PROTOCOL = re.compile(r"[a-z0-9=:.-]{1,100}")

PUSHES = "pushing is not possible by the gateway: it only reads, and pull requests are made by the service"
LARGE_FILES = "files of Git LFS do not come by the gateway: see docs/gateway.md"


class NotFetched(Exception):  # noqa: N818 - a refusal, and usually not a fault
    """The request is not passed on. The message says why, and git shows it."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request that may be passed on."""

    repository: str
    target: str
    """Path and query, relative to the repository's address."""
    headers: Mapping[str, str]
    """The headers that are passed on."""
    is_granted: bool
    """Whether a token is added. Without one, GitHub only gives access to public repositories."""

    @property
    def takes_pack(self) -> bool:
        """Whether this is a POST to `git-upload-pack`, which gets objects (or refs, in protocol version 2).

        If not, it is a GET of `info/refs`.
        """
        return self.target == PACK


def read_fetch(method: str, path: str, query: str, headers: Mapping[str, str], repositories: Sequence[str]) -> Fetch:
    """Read an allowed request. Raises `NotFetched` for any other request.

    `repositories` are the repositories that the job may fetch. The first one is the repository that the job works on.
    """
    found = PATH.fullmatch(path)
    if not found:
        raise NotFetched("the gateway has nothing there: git fetches from /git/OWNER/NAME.git")
    name, is_granted = _find_repository(found["name"], repositories)
    what = found["what"]
    if what == "git-receive-pack" or query == "service=git-receive-pack":
        raise NotFetched(PUSHES)
    if what.startswith(LFS):
        raise NotFetched(LARGE_FILES)
    passed = {"accept": headers.get("accept", "*/*")[:200], **_read_protocol(headers)}
    if (method, what) == ("GET", REFS):
        if query != f"service={SERVICE}":
            raise NotFetched("git's older protocol, without a service that answers, is not passed on")
        return Fetch(name, f"{REFS}?{query}", passed, is_granted)
    if (method, what) != ("POST", PACK) or query:
        raise NotFetched(f"{method} is not what git asks with there")
    passed |= {"content-type": f"application/x-{SERVICE}-request", **_read_coding(headers)}
    return Fetch(name, PACK, passed, is_granted)


def _find_repository(asked: str, repositories: Sequence[str]) -> tuple[str, bool]:
    """The name of the repository, and whether the job may use a token for it. GitHub ignores case in names."""
    for name in repositories:
        if name.lower() == asked.lower():
            return name, True
    # `insteadOf` replaces prefixes: the setting for `octo/widgets` also redirects `octo/widgets-docs`, which may be
    # public.
    if any(asked.lower().startswith(name.lower()) for name in repositories):
        return asked, False
    raise NotFetched(explain_unnamed(asked, repositories))


def explain_unnamed(asked: str, repositories: Sequence[str]) -> str:
    """Why a repository is refused, and who can allow it."""
    return (
        f"{asked} is not among the repositories that this job may fetch: its operator can name it in "
        f'`private_repositories` of [repos."{repositories[0]}"]'
    )


def _read_protocol(headers: Mapping[str, str]) -> dict[str, str]:
    asked = headers.get("git-protocol", "")
    if asked and not PROTOCOL.fullmatch(asked):
        raise NotFetched("a Git-Protocol of a form that nobody knows")
    return {"git-protocol": asked} if asked else {}


def _read_coding(headers: Mapping[str, str]) -> dict[str, str]:
    coding = headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", "gzip"):
        raise NotFetched(f"a body in {coding[:20]} is not passed on")
    return {"content-encoding": coding} if coding == "gzip" else {}


def build_git_environment(
    gateway: str, token: str, addresses: Iterable[tuple[str, str]], *, by_relay: bool
) -> dict[str, str]:
    """The environment variables that make git fetch repositories from the gateway.

    `addresses` are pairs of an original address and the repository's name. The token is in no file. It is on no command
    line either, because every user of the machine can read command lines. Git sends the token only to the gateway. Git
    reads these variables since version 2.31.
    """
    root = f"{gateway}{ROOT}"
    settings = [(f"http.{root}.extraHeader", f"Authorization: Bearer {token}")]
    if by_relay:  # The relay is on the machine's loopback interface, which no proxy can reach.
        settings.append((f"http.{root}.proxy", ""))
    else:
        settings.append((f"http.{root}.postBuffer", POST_BUFFER))
    settings += [(f"url.{root}{name}.insteadOf", address) for address, name in addresses]
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def list_addresses(repositories: Iterable[str], web_url: str, clone_url: str) -> list[tuple[str, str]]:
    """The addresses that people use for repositories, each with the repository's name.

    `clone_url` is GitHub's own address of the first repository.
    """
    host = urlsplit(web_url).hostname
    found: dict[str, str] = {}
    for name in repositories:
        forms = [f"{web_url}/{name}", f"git@{host}:{name}", f"ssh://git@{host}/{name}"]
        # GitHub's spelling may differ from the configuration's in case, and `insteadOf` is case-sensitive.
        own = [] if found else [clone_url.removesuffix(".git")]
        found.update(dict.fromkeys([*forms, *own], name))
    return [*found.items()]
