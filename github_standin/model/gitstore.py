"""One bare git repository, used through git's plumbing commands.

The objects of the Git Data API are real ones here, so the repository can be cloned.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_NOTHING: Mapping[str, str] = {}
ZERO = "0" * 40
MAX_ARGUMENT = 4096
SHA = re.compile(r"[0-9a-f]{40}")


class GitFailed(Exception):  # noqa: N818
    """A git command failed. The text is its stderr."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree. `size` is in bytes, None if it is not a blob."""

    path: str
    mode: str
    kind: str
    sha: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path of a tree; without a `sha` the path is removed."""

    path: str
    mode: str
    sha: str | None


@dataclass(frozen=True, slots=True)
class Signature:
    """Who made a commit, and when."""

    name: str
    email: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Commit:
    """A stored commit."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author: Signature
    committer: Signature
    message: str


@dataclass(frozen=True, slots=True)
class FileStat:
    """Lines added and deleted in one path; both 0 for a binary file."""

    path: str
    status: str
    additions: int
    deletions: int


@dataclass(frozen=True, slots=True)
class DiffStat:
    """The difference between two commits."""

    commits: int
    files: tuple[FileStat, ...]

    @property
    def additions(self) -> int:
        """Lines added in all files."""
        return sum(file.additions for file in self.files)

    @property
    def deletions(self) -> int:
        """Lines deleted in all files."""
        return sum(file.deletions for file in self.files)


class GitStore:
    """The objects and refs in `git_dir`. What an object is, which its SHA decides, is asked of git only once."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir
        self._kinds: dict[str, str] = {}
        self._commits: dict[str, Commit] = {}
        self._trees: dict[tuple[str, str, bool], list[Entry]] = {}

    async def run(self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] = _NOTHING) -> bytes:
        """Run one git command and return its output; raises `GitFailed`."""
        if any("\0" in argument or len(argument) > MAX_ARGUMENT for argument in arguments):
            raise GitFailed("an argument that no program accepts")
        git = await asyncio.create_subprocess_exec(
            "git",
            f"--git-dir={self.git_dir}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**GIT_ENVIRONMENT, **environment},
        )
        output, complaint = await git.communicate(stdin)
        if git.returncode:
            raise GitFailed(complaint.decode(errors="replace").strip())
        return output

    async def kind_of(self, sha: str) -> str | None:
        """`blob`, `tree`, `commit` or `tag`; None when there is no object with this full SHA."""
        if not SHA.fullmatch(sha):
            return None
        if sha not in self._kinds:
            answer = await self.run("cat-file", "--batch-check=%(objecttype)", stdin=f"{sha}\n".encode())
            kind = answer.decode().strip()
            if kind.endswith("missing"):
                return None
            self._kinds[sha] = kind
        return self._kinds[sha]

    async def write_blob(self, content: bytes) -> str:
        """Store a blob and return its SHA."""
        return (await self.run("hash-object", "-w", "--stdin", stdin=content)).decode().strip()

    async def read_blob(self, sha: str) -> bytes:
        """The content of a blob."""
        return await self.run("cat-file", "blob", sha)

    async def write_tree(self, base: str | None, changes: Sequence[Change]) -> str:
        """Store the tree of `base` (a tree or commit) with `changes`. Raises `GitFailed` if they do not apply."""
        with tempfile.TemporaryDirectory(prefix="standin-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            await self.run("read-tree", base or "--empty", environment=index)
            lines = [f"{change.mode if change.sha else 0} {change.sha or ZERO}\t{change.path}" for change in changes]
            stdin = "".join(f"{line}\0" for line in lines).encode()
            await self.run("update-index", "-z", "--replace", "--index-info", stdin=stdin, environment=index)
            return (await self.run("write-tree", environment=index)).decode().strip()

    async def list_tree(self, tree: str, path: str = "", recursive: bool = False) -> list[Entry]:
        """The entries of a tree (or of a commit's tree), or only the one at `path`."""
        if (known := self._trees.get((tree, path, recursive))) is not None:
            return [*known]
        options = ["-z", "-l", "--full-tree", *(["-r", "-t"] if recursive else [])]
        output = await self.run("ls-tree", *options, tree, *(["--", path] if path else []))
        entries = [_parse_entry(line) for line in output.decode(errors="surrogateescape").split("\0") if line]
        if SHA.fullmatch(tree):
            self._trees[tree, path, recursive] = entries
        return [*entries]

    async def write_commit(
        self, tree: str, parents: Sequence[str], author: Signature, committer: Signature, message: str
    ) -> str:
        """Store a commit and return its SHA. The message stays unchanged, unlike with `commit-tree`."""
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"author {_stamp(author)}", f"committer {_stamp(committer)}", "", message]
        stdin = "\n".join(lines).encode()
        return (await self.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=stdin)).decode().strip()

    async def write_merge(self, base: str, head: str, by: Signature, message: str) -> str:
        """Store the commit that merges `head` into `base`. Raises `GitFailed` if they conflict, or git is too old."""
        tree = (await self.run("merge-tree", "--write-tree", base, head)).decode().split()[0]
        return await self.write_commit(tree, [base, head], by, by, message)

    async def read_commit(self, sha: str) -> Commit:
        """The commit with this SHA."""
        if known := self._commits.get(sha):
            return known
        shape = "%x00".join(("%H", "%T", "%P", "%an", "%ae", "%at", "%cn", "%ce", "%ct", "%B"))
        output = await self.run("log", "-1", "--no-show-signature", f"--format={shape}", sha)
        full, tree, parents, an, ae, at, cn, ce, ct, message = output.decode(errors="replace").split("\0", 9)
        author, committer = Signature(an, ae, _parse_time(at)), Signature(cn, ce, _parse_time(ct))
        commit = Commit(full, tree, tuple(parents.split()), author, committer, message.rstrip("\n"))
        self._commits[full] = commit
        return commit

    async def list_commits(self, base: str, head: str) -> list[Commit]:
        """The commits of a pull request from `head` to `base`, oldest first."""
        found = await self.run("rev-list", "--reverse", f"{base}..{head}")
        return [await self.read_commit(sha) for sha in found.decode().split()]

    async def read_ref(self, ref: str) -> str | None:
        """The SHA of the ref with this full name; None if there is none."""
        try:
            return (await self.run("show-ref", "--verify", "--hash", ref)).decode().strip()
        except GitFailed:
            return None

    async def valid_ref(self, ref: str) -> bool:
        """Whether git accepts `ref` as a full name."""
        try:
            await self.run("check-ref-format", ref)
        except GitFailed:
            return False
        return True

    async def move_ref(self, ref: str, sha: str, was: str) -> None:
        """Point `ref` at `sha` if it points at `was` now (`ZERO`: if it does not exist); raises `GitFailed` if not."""
        await self.run("update-ref", ref, sha, was)

    async def delete_ref(self, ref: str, was: str) -> None:
        """Delete `ref` if it points at `was` now; raises `GitFailed` if not."""
        await self.run("update-ref", "-d", ref, was)

    async def contains(self, descendant: str, ancestor: str) -> bool:
        """Whether `ancestor` is an ancestor of `descendant`, so that moving a ref to it is a fast-forward."""
        try:
            await self.run("merge-base", "--is-ancestor", ancestor, descendant)
        except GitFailed:
            return False
        return True

    async def diff(self, base: str, head: str) -> str:
        """The patch from the merge base to `head`, as a pull request shows it."""
        output = await self.run("diff", "--no-ext-diff", "--no-renames", f"{base}...{head}", "--")
        return output.decode(errors="replace")

    async def diff_stat(self, base: str, head: str) -> DiffStat:
        """How many commits and lines the pull request from `head` to `base` would have."""
        commits = await self.run("rev-list", "--count", f"{base}..{head}")
        ends = ("-z", "--no-renames", f"{base}...{head}", "--")
        counts = (await self.run("diff", "--numstat", *ends)).decode(errors="replace").split("\0")
        states = (await self.run("diff", "--name-status", *ends)).decode(errors="replace").split("\0")
        status = dict(zip(states[1::2], states[::2], strict=False))
        files = [_parse_numstat(line, status) for line in counts if line]
        return DiffStat(int(commits), tuple(files))


GIT_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "uploadpack.allowFilter",
    "GIT_CONFIG_VALUE_1": "true",
    "GIT_CONFIG_KEY_2": "uploadpack.allowAnySHA1InWant",
    "GIT_CONFIG_VALUE_2": "true",
}
"""Git's environment, independent of the host's configuration."""


def _parse_entry(line: str) -> Entry:
    facts, path = line.split("\t", 1)
    mode, kind, sha, size = facts.split()
    return Entry(path, mode, kind, sha, None if size == "-" else int(size))


def _parse_numstat(line: str, status: dict[str, str]) -> FileStat:
    additions, deletions, path = line.split("\t", 2)
    word = {"A": "added", "D": "removed"}.get(status.get(path, "M"), "modified")
    return FileStat(path, word, _count(additions), _count(deletions))


def _count(number: str) -> int:
    return 0 if number == "-" else int(number)


def _stamp(signature: Signature) -> str:
    return f"{signature.name} <{signature.email}> {int(signature.at.timestamp())} +0000"


def _parse_time(seconds: str) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
