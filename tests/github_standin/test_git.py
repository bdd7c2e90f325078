"""The stand-in's Git Data API and pull requests: what it makes is real git."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.visitor import NAME, REPO, Reply, Visitor, open_visitor

GIT = f"{REPO}/git"
BRANCH = "ptq/issue-1-abc"


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    async with open_visitor(tmp_path) as visitor:
        yield visitor


def text(path: str, content: str = "new\n", mode: str = "100644") -> dict[str, object]:
    return {"path": path, "mode": mode, "type": "blob", "content": content}


async def make_tree(visitor: Visitor, *entries: dict[str, object]) -> Reply:
    return await visitor.ask("POST", f"{GIT}/trees", {"base_tree": visitor.base, "tree": list(entries)})


async def make_commit(visitor: Visitor, *entries: dict[str, object], parent: str = "", **more: object) -> Reply:
    tree = (await make_tree(visitor, *(entries or (text("new.py"),)))).body["sha"]
    facts = {"message": "Fix it", "tree": tree, "parents": [parent or visitor.base], **more}
    return await visitor.ask("POST", f"{GIT}/commits", facts)


async def make_branch(visitor: Visitor, name: str = BRANCH, **more: object) -> str:
    sha: str = (await make_commit(visitor, **more)).body["sha"]  # type: ignore[arg-type]
    assert (await visitor.ask("POST", f"{GIT}/refs", {"ref": f"refs/heads/{name}", "sha": sha})).status == 201
    return sha


async def open_pull(visitor: Visitor, **more: object) -> Reply:
    pull = {"title": "Fix it", "head": BRANCH, "base": "main", "body": "A note.", "draft": True, **more}
    return await visitor.ask("POST", f"{REPO}/pulls", pull)


async def test_a_branch_made_by_the_api_can_be_cloned(visitor: Visitor, tmp_path: Path) -> None:
    blob = await visitor.ask("POST", f"{GIT}/blobs", {"content": "AP8=", "encoding": "base64"})
    await make_branch(visitor)
    sha = await make_commit(
        visitor,
        text("bin/run", "#!/bin/sh\n", "100755"),
        text("deep/er/link", "../../README.md", "120000"),
        {"path": "data.bin", "mode": "100644", "type": "blob", "sha": blob.body["sha"]},
        {"path": "tests/test_chunks.py", "mode": "100644", "type": "blob", "sha": None},
        parent=visitor.base,
    )
    await visitor.ask("POST", f"{GIT}/refs", {"ref": "refs/heads/made", "sha": sha.body["sha"]})
    clone = tmp_path / "clone"
    url = f"{visitor.github.url}/{NAME}.git"
    await asyncio.to_thread(visitor.git, "clone", "--quiet", "--branch=made", url, str(clone))
    assert (clone / "data.bin").read_bytes() == b"\0\xff"
    assert (clone / "bin/run").stat().st_mode & 0o111
    assert (clone / "deep/er/link").read_text() == (clone / "README.md").read_text()
    assert not (clone / "tests/test_chunks.py").exists()
    assert visitor.git("status", "--porcelain", cwd=clone) == visitor.git("fsck", cwd=clone) == ""


async def test_a_private_repository_is_cloned_with_a_token_only(visitor: Visitor, tmp_path: Path) -> None:
    visitor.github.add_repository("octo/private", visitor.git_dir, private=True)
    address = f"{visitor.github.url}/octo/private.git/info/refs?service=git-upload-pack"
    token = await visitor.sign_in(repositories=["private"], permissions={"contents": "read"})
    for secret, status in (
        (token, 200),
        (visitor.token, 200),
        ("ghs_wrong", 401),
        (await visitor.sign_in(repositories=["widgets"]), 401),
    ):
        basic = base64.b64encode(f"x-access-token:{secret}".encode()).decode()
        assert (await visitor.ask("GET", address, Authorization=f"Basic {basic}")).status == status
    assert (await visitor.ask("GET", address.replace("upload", "receive"))).status == 401


async def test_a_blob_comes_back_to_the_byte(visitor: Visitor) -> None:
    made = await visitor.ask("POST", f"{GIT}/blobs", {"content": "gr\u00fc\u00df\n", "encoding": "utf-8"})
    found = await visitor.ask("GET", f"{GIT}/blobs/{made.body['sha']}")
    assert base64.b64decode(found.body["content"]).decode() == "gr\u00fc\u00df\n"


async def test_a_blob_that_is_no_base64_or_too_large_is_refused(visitor: Visitor) -> None:
    visitor.github.observers.clear()  # no refusal of a blob fits the description: one of its two shapes fits anything
    visitor.github.limits.blob_bytes = 4
    for content in ("%%%", base64.b64encode(b"12345").decode()):
        assert (await visitor.ask("POST", f"{GIT}/blobs", {"content": content, "encoding": "base64"})).status == 422


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (text(""), "malformed path"),
        (text("/etc/passwd"), "malformed path"),
        (text("a//b"), "malformed path"),
        (text("../up"), "malformed path"),
        (text(".GIT/config"), "malformed path"),
        (text("nul\0"), "malformed path"),
        (text("a", mode="100600"), "tree.mode"),
        ({"path": "a", "mode": "100644"}, "either tree.sha or tree.content"),
        (text("a") | {"sha": "0" * 40}, "either tree.sha or tree.content"),
        ({"path": "a", "mode": "100644", "sha": "0" * 40}, "is not a valid blob"),
        ({"path": "not/there", "mode": "100644", "sha": None}, "BadObjectState"),
    ],
)
async def test_a_tree_that_cannot_be_is_refused(visitor: Visitor, entry: dict[str, object], words: str) -> None:
    visitor.github.observers.clear()  # which would refuse some of these itself
    reply = await make_tree(visitor, entry)
    assert reply.status == 422
    assert words in reply.message


async def test_workflows_need_a_permission_of_their_own(visitor: Visitor) -> None:
    reply = await make_tree(visitor, text(".github/workflows/ci.yml"))
    assert (reply.status, reply.message) == (403, "Resource not accessible by integration")
    assert (await make_tree(visitor, text(".github/labels.yml"))).status == 201


async def test_trees_are_read_whole_or_flat(visitor: Visitor) -> None:
    flat = (await visitor.ask("GET", f"{GIT}/trees/main")).body
    assert {"README.md", "widgets"} <= {entry["path"] for entry in flat["tree"]}
    whole = (await visitor.ask("GET", f"{GIT}/trees/{visitor.base}?recursive=1")).body
    assert "widgets/chunks.py" in {entry["path"] for entry in whole["tree"]}


async def test_a_commit_without_an_author_is_the_apps_and_verified(visitor: Visitor) -> None:
    commit = (await make_commit(visitor)).body
    assert (commit["author"]["name"], commit["committer"]["name"]) == ("ptq-bot[bot]", "GitHub")
    assert commit["verification"]["verified"]
    assert commit["message"] == "Fix it"
    found = await visitor.ask("GET", f"{GIT}/commits/{commit['sha']}")
    assert found.body == commit


async def test_a_commit_with_an_author_is_not_signed(visitor: Visitor) -> None:
    author = {"name": "Ann", "email": "ann@example.org", "date": "2026-01-01T00:00:00Z"}
    commit = (await make_commit(visitor, author=author)).body
    assert commit["author"] == author
    assert not commit["verification"]["verified"]


@pytest.mark.parametrize("change", [{"tree": "0" * 40}, {"parents": ["0" * 40]}, {"message": ""}])
async def test_a_commit_on_nothing_is_refused(visitor: Visitor, change: dict[str, object]) -> None:
    tree = (await make_tree(visitor, text("a"))).body["sha"]
    commit = {"message": "m", "tree": tree, "parents": [visitor.base], **change}
    assert (await visitor.ask("POST", f"{GIT}/commits", commit)).status == 422


async def test_of_many_who_create_a_branch_one_succeeds(visitor: Visitor) -> None:
    ref = {"ref": f"refs/heads/{BRANCH}", "sha": visitor.base}
    replies = await asyncio.gather(*(visitor.ask("POST", f"{GIT}/refs", ref) for _ in range(8)))
    assert sorted(reply.status for reply in replies) == [201] + [422] * 7
    assert {reply.message for reply in replies if reply.status == 422} == {"Reference already exists"}


@pytest.mark.parametrize(
    ("ref", "sha"),
    [
        ("main", None),
        ("refs/heads", None),
        ("refs/heads/a..b", None),
        ("refs/heads/main/below", None),
        ("refs/pull/1/head", None),
        ("refs/heads/nul\0", None),
        ("refs/heads/" + "x" * 200_000, None),
        ("refs/heads/new", "0" * 40),
        ("refs/heads/new", "HEAD"),
    ],
)
async def test_a_ref_that_cannot_be_is_refused(visitor: Visitor, ref: str, sha: str | None) -> None:
    assert (await visitor.ask("POST", f"{GIT}/refs", {"ref": ref, "sha": sha or visitor.base})).status == 422


async def test_a_branch_is_read_moved_and_deleted(visitor: Visitor) -> None:
    sha = await make_branch(visitor)
    for path in (BRANCH, BRANCH.replace("/", "%2F")):
        assert (await visitor.ask("GET", f"{GIT}/ref/heads/{path}")).body["object"]["sha"] == sha
        assert (await visitor.ask("GET", f"{REPO}/branches/{path}")).body["commit"]["sha"] == sha
    refused = await visitor.ask("PATCH", f"{GIT}/refs/heads/{BRANCH}", {"sha": visitor.base})
    assert refused.message == "Update is not a fast forward"
    moved = await visitor.ask("PATCH", f"{GIT}/refs/heads/{BRANCH}", {"sha": visitor.base, "force": True})
    assert moved.body["object"]["sha"] == visitor.git("rev-parse", BRANCH) == visitor.base
    assert (await visitor.ask("DELETE", f"{GIT}/refs/heads/{BRANCH}")).status == 204
    assert (await visitor.ask("GET", f"{GIT}/ref/heads/{BRANCH}")).status == 404
    assert (await visitor.ask("GET", f"{REPO}/branches/{BRANCH}")).status == 404


async def test_a_file_is_read_at_a_branch(visitor: Visitor) -> None:
    await make_branch(visitor)
    assert (await visitor.ask("GET", f"{REPO}/contents/new.py")).status == 404
    found = await visitor.ask("GET", f"{REPO}/contents/new.py?ref={BRANCH}")
    assert base64.b64decode(found.body["content"]) == b"new\n"
    assert (await visitor.ask("GET", f"{REPO}/contents/new.py?ref=nowhere")).status == 404


async def test_a_draft_pull_request_shows_what_it_changes(visitor: Visitor) -> None:
    sha = await make_branch(visitor)
    opened = await open_pull(visitor)
    assert opened.status == 201
    facts = [opened.body[name] for name in ("draft", "commits", "additions", "deletions", "changed_files")]
    assert facts == [True, 1, 1, 0, 1]
    (pull,) = visitor.github.pulls(NAME)
    assert (pull.head, pull.head_sha, pull.base, pull.draft, pull.body) == (BRANCH, sha, "main", True, "A note.")
    files = await visitor.ask("GET", f"{REPO}/pulls/1/files")
    assert [(file["filename"], file["status"]) for file in files.body] == [("new.py", "added")]
    page = await visitor.ask("GET", f"{visitor.github.url}/{NAME}/pull/1")
    assert "<td>+new</td>" in page.body
    assert "+new" in (await visitor.ask("GET", f"{visitor.github.url}/{NAME}/pull/1.diff")).body


async def test_a_branch_has_one_open_pull_request(visitor: Visitor) -> None:
    await make_branch(visitor)
    await open_pull(visitor)
    refused = await open_pull(visitor)
    assert refused.body["errors"][0]["message"] == f"A pull request already exists for octo:{BRANCH}."
    await visitor.ask("PATCH", f"{REPO}/pulls/1", {"state": "closed"})
    assert (await open_pull(visitor, head=f"octo:{BRANCH}")).status == 201


async def test_of_many_who_open_a_pull_request_one_succeeds(visitor: Visitor) -> None:
    await make_branch(visitor)
    replies = await asyncio.gather(*(open_pull(visitor) for _ in range(6)))
    assert sorted(reply.status for reply in replies) == [201] + [422] * 5
    assert len(visitor.github.pulls(NAME)) == 1


@pytest.mark.parametrize("ends", [{"head": "none"}, {"base": "none"}, {"head": "main"}, {"head": f"someone:{BRANCH}"}])
async def test_a_pull_request_between_nothing_is_refused(visitor: Visitor, ends: dict[str, str]) -> None:
    await make_branch(visitor)
    assert (await open_pull(visitor, **ends)).status == 422


async def test_pull_requests_are_found_by_head_and_state(visitor: Visitor) -> None:
    await make_branch(visitor)
    await open_pull(visitor)
    await visitor.github.close_issue(NAME, 1, by="alice")
    for query, count in (
        (f"head=octo:{BRANCH}", 0),
        (f"head=octo:{BRANCH}&state=all", 1),
        ("head=octo:main&state=all", 0),
        (f"head=else:{BRANCH}&state=all", 0),
        ("state=closed&base=main", 1),
    ):
        assert len((await visitor.ask("GET", f"{REPO}/pulls?{query}")).body) == count, query


async def test_a_pull_request_follows_its_branch(visitor: Visitor) -> None:
    first = await make_branch(visitor)
    await open_pull(visitor)
    second = (await make_commit(visitor, parent=first)).body["sha"]
    await visitor.ask("PATCH", f"{GIT}/refs/heads/{BRANCH}", {"sha": second})
    pull = (await visitor.ask("GET", f"{REPO}/pulls/1")).body
    assert (pull["head"]["sha"], pull["commits"]) == (second, 2)
    await visitor.ask("DELETE", f"{GIT}/refs/heads/{BRANCH}")
    assert visitor.github.pulls(NAME)[0].state == "closed"


async def test_on_a_pull_request_either_permission_allows_a_comment(visitor: Visitor) -> None:
    await make_branch(visitor)
    await open_pull(visitor)
    await visitor.github.open_issue(NAME, "Issue", "", by="bob")
    token = await visitor.sign_in(permissions={"pull_requests": "write"})
    for number, status in ((1, 201), (2, 403)):
        path = f"{REPO}/issues/{number}/comments"
        assert (await visitor.ask("POST", path, {"body": "hello"}, token=token)).status == status
    assert "pull_request" in (await visitor.ask("GET", f"{REPO}/issues/1")).body
