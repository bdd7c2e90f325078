"""The live log of a job, from a real server over real files and a real database: who follows misses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest

from bot.web.live_channel import BEHIND, KEPT, encode
from runner.model.job import Job, JobState
from runner.rows import job_rows
from tests.support.jobs import NOON, store_report
from tests.support.site import SECRET, Site, make_report, open_site

PATIENCE_S = 20.0
ID = "0123456789"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as site:
        yield site


@dataclass(frozen=True)
class Event:
    name: str
    data: str
    id: str | None

    @property
    def text(self) -> str:
        """What a reader sees of it."""
        parser = _Text()
        parser.feed(self.data)
        return "".join(parser.seen)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_data(self, data: str) -> None:
        self.seen.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


class Follower:
    """A browser's end of a stream, read as the standard says."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply
        self.last_id = ""
        self.log = ""

    async def next(self) -> Event | None:
        """The next event; None once the stream has ended."""
        fields: dict[str, str] = {}
        data: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while raw := await self.reply.content.readline():
                line = raw.decode().removesuffix("\n")
                if not line and (fields or data):
                    if "event" not in fields:
                        fields, data = {}, []
                        continue
                    self.last_id = fields.get("id", self.last_id)
                    event = Event(fields["event"], "\n".join(data), fields.get("id"))
                    self.log += event.text if event.name == "log" else ""
                    return event
                name, _, value = line.partition(": ")
                if name == "data":
                    data.append(value)
                elif name:
                    fields[name] = value
        return None

    async def until(self, name: str) -> Event:
        while event := await self.next():
            if event.name == name:
                return event
        raise AssertionError(f"the stream has ended without {name}")

    async def until_log(self, words: str) -> None:
        while words not in self.log:
            assert await self.next(), f"the stream has ended without {words!r}: {self.log!r}"

    async def drain(self) -> list[str]:
        """The names of all that is left."""
        names = []
        while event := await self.next():
            names.append(event.name)
        return names


@asynccontextmanager
async def follow(
    site: Site, stage: str = "agent", start: int = 0, last_id: str = "", job_id: str = ID
) -> AsyncIterator[Follower]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    url = f"{site.url}/jobs/{job_id}/log/{stage}/events?from={start}"
    async with site.session.get(url, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        yield Follower(reply)


def squeeze(text: str) -> str:
    """Without the line end that is behind the mark, and those between marks."""
    return "".join(line for line in text.split("\n") if line)


async def move(site: Site, job: Job, *states: JobState) -> Job:
    for state in states:
        async with site.database.write() as connection:
            job = await job_rows.move_job(connection, job, state, job.changed_at)
    return job


def say(text: str) -> bytes:
    content = [{"type": "text", "text": text}]
    return json.dumps({"type": "assistant", "message": {"id": "1", "content": content}}).encode() + b"\n"


async def test_a_log_is_followed_line_by_line_as_people_read_it(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING, agent="claude")
    site.spool.append(job.id, "agent", say("One."))
    async with follow(site) as reader:
        assert reader.reply.headers["Content-Type"] == "text/event-stream"
        assert reader.reply.headers["X-Accel-Buffering"] == "no"
        assert reader.reply.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in reader.reply.headers["Content-Security-Policy"]
        await reader.until_log("One.")
        half, rest = say("Two.")[:20], say("Two.")[20:]
        site.spool.append(job.id, "agent", half)
        await asyncio.sleep(0.2)
        site.spool.append(job.id, "agent", rest)
        event = await reader.until("log")
        assert event.data.strip() == '<pre class="said">\nTwo.</pre>'
        assert event.id == str(len(say("One.") + say("Two.")))
        assert "assistant" not in reader.log


async def test_the_page_shows_a_log_up_to_where_its_events_go_on(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "agent", f"one\ntwo\nhalf of {SECRET[:8]}".encode())
    page = await site.get(f"/jobs/{job.id}")
    assert "two\n" in page.text
    assert "half of" not in page.text, "it may become a secret"
    (section,) = [attrs for tag, attrs in page.tags if attrs.get("id") == "log-agent"]
    assert section["sse-connect"] == f"/jobs/{job.id}/log/agent/events?from=8"
    assert section["sse-close"] == "over"
    async with follow(site, start=8) as reader:
        site.spool.append(job.id, "agent", f"{SECRET[8:]}\nmore\n".encode())
        await reader.until_log("more")
        assert squeeze(reader.log) == "half of [redacted]more"


@pytest.mark.parametrize("service", ["same", "restarted", "another"])
async def test_whoever_comes_back_misses_nothing_and_gets_nothing_twice(tmp_path: Path, service: str) -> None:
    lines = [f"line {number}" for number in range(60)]
    seen, last_id = "", ""
    async with open_site(tmp_path) as site:
        job = await site.add(state=JobState.RUNNING)
        for start in range(0, 30, 10):
            site.spool.append(job.id, "agent", "".join(f"{line}\n" for line in lines[start : start + 10]).encode())
            async with follow(site, last_id=last_id) as reader:
                await reader.until_log(lines[start + 9])
                seen, last_id = seen + reader.log, reader.last_id
        if service == "same":
            site.spool.append(job.id, "agent", "".join(f"{line}\n" for line in lines[30:]).encode())
            async with follow(site, last_id=last_id) as reader:
                await reader.until_log(lines[-1])
                seen += reader.log
    if service != "same":
        async with open_site(tmp_path) as site:
            if service == "another":
                site.spool.drop(job.id)
            async with follow(site, last_id=last_id) as reader:
                # Another replica reads the log from its beginning: what the reader has, it does not get again.
                again = lines if service == "another" else lines[30:]
                for line in again:
                    site.spool.append(job.id, "agent", f"{line}\n".encode())
                await reader.until_log(lines[-1])
                seen += reader.log
    assert squeeze(seen) == "".join(lines)


async def test_state_cost_and_history_come_with_the_log_and_its_end_leads_to_the_next_one(site: Site) -> None:
    job = await site.add(state=JobState.PREPARING)
    async with follow(site, "prepare") as reader:
        assert "preparing" in (await reader.until("state")).text
        assert "queued by @maintainer" in (await reader.until("history")).text
        site.spool.append(job.id, "prepare", b"half a line")
        job = await move(site, job, JobState.RUNNING)
        await site.take(job, turns=3, input_tokens=1000, cost_usd=0.5)
        state = (await reader.until("state")).text
        assert "running" in state
        assert "$0.50" in state
        section = await reader.until("next")
        assert reader.log.strip() == "half a line", "what is over is shown to its end"
        assert f'sse-connect="/jobs/{job.id}/log/agent/events?from=0"' in section.data
        assert await reader.drain() == ["over"]


async def test_every_changing_part_of_the_page_is_sent_with_the_title_of_its_tab(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    page = await site.get(f"/jobs/{job.id}")
    swapped = {
        attrs["hx-target"]: attrs["sse-swap"] for _, attrs in page.tags if "sse-swap" in attrs and "hx-target" in attrs
    }
    assert {f"#{part}" for part in ("state", "facts", "steps", "history")} <= swapped.keys()
    (asks,) = [attrs for _, attrs in page.tags if attrs.get("hx-get") == f"/jobs/{job.id}/actions"]
    assert (asks["hx-trigger"], asks["hx-target"]) == ("sse:standing delay:500ms", "#offers")
    async with follow(site) as reader:
        before = (await reader.until("standing")).data
        assert "<title>octo/widgets#7 · fix · running</title>" in (await reader.until("state")).data
        assert "queued" in (await reader.until("steps")).text
        async with site.database.write() as connection:
            await job_rows.request_cancel(connection, job.id, "alice", NOON)
        after = await reader.until("standing")
        assert after.data != before
        assert "alice" not in after.data


@pytest.mark.parametrize("where", ["spool", "database"])
async def test_the_end_of_a_job_is_said_with_a_link_once_its_log_is_whole(site: Site, where: str) -> None:
    job = await site.add(state=JobState.COLLECTING)
    site.spool.append(job.id, "collect", b"one\n")
    async with follow(site, "collect") as reader:
        await reader.until_log("one")
        if where == "database":
            await site.keep_log(job, "collect", b"one\ntwo\nthree")
            site.spool.drop(job.id)
        else:
            site.spool.append(job.id, "collect", b"two\nthree")
        await move(site, job, JobState.SUCCEEDED)
        end = await reader.until("end")
        assert squeeze(reader.log) == "onetwothree"
        assert end.text.strip() == "Job finished: succeeded. View result"
        assert f'href="/jobs/{job.id}"' in end.data
        assert "#logs" not in end.data, "the log that is being read stays"
        assert f'hx-get="/jobs/{job.id}"' in end.data, "each reader asks for what came out, and what they can do"
        assert await reader.drain() == ["over"]


async def test_the_stream_of_an_ended_job_says_so_and_leaves_its_log_to_the_page(site: Site) -> None:
    job = await site.add(state=JobState.SUCCEEDED)
    await site.keep_log(job, "agent", b"one\ntwo\n")
    async with follow(site, start=4) as reader:
        end = await reader.until("end")
        assert end.text.strip() == "Job finished: succeeded. View result"
        assert 'hx-select-oob="#logs:innerHTML,' in end.data, (
            "a page that has missed the end of the log takes all of it"
        )
        assert await reader.drain() == ["over"]
        assert not reader.log


async def test_a_long_rest_of_an_ended_log_is_left_to_the_page(site: Site) -> None:
    job = await site.add(state=JobState.COLLECTING)
    site.spool.append(job.id, "collect", b"one\n")
    async with follow(site, "collect") as reader:
        await reader.until_log("one")
        await site.keep_log(job, "collect", b"one\n" + b"more\n" * BEHIND)
        await move(site, job, JobState.SUCCEEDED)
        end = await reader.until("end")
        assert 'hx-select-oob="#logs:innerHTML,' in end.data
        assert reader.log.strip() == "one"


async def test_of_a_run_that_is_withheld_nothing_is_sent_any_more(site: Site) -> None:
    job = await site.add(state=JobState.COLLECTING, agent="claude")
    site.spool.append(job.id, "collect", b"One.\n")
    async with follow(site, "collect") as reader, follow(site, "collect") as other:
        await reader.until_log("One.")
        async with site.database.write() as connection:
            await store_report(connection, make_report(body="security concern\n\nHere is how."))
            await job_rows.move_job(connection, job, JobState.VERIFYING, NOON)
        gone = await reader.until("gone")
        assert "Only the operator can see this result" in gone.text
        assert await reader.drain() == ["over"]
        await other.until("gone")
    async with follow(site, "collect") as reader:
        assert await reader.drain() == ["gone", "over"]


async def test_a_confidential_report_withholds_the_log_of_an_ended_job(site: Site) -> None:
    report = make_report(body="**Outcome:** security concern\n\nHow.")
    job = await site.add(report, state=JobState.FAILED)
    await site.keep_log(job, "agent", b"how\n")
    async with follow(site) as reader:
        gone = await reader.until("gone")
        assert "Only the operator" in gone.text
        assert await reader.drain() == ["over"]


HOSTILE = (
    "x\rdata: forged\revent: over\rid: 999999\r\r",
    "event: gone\ndata: <main>forged</main>\n\n: comment\nretry: 1",
    "<script>alert(1)</script><img src=x onerror=alert(1)></pre>",
    '<div hx-get="/jobs" hx-trigger="load" sse-swap="log" hx-on:load="alert(1)">',
    "{{ 7 * 7 }} \u2028\u2029\x85\x0b\x0c\x1c a\u202eb\0c",
)


@pytest.mark.parametrize("agent", ["mine", "claude"])
async def test_whatever_an_agent_says_stays_within_the_text_of_its_event(site: Site, agent: str) -> None:
    job = await site.add(state=JobState.RUNNING, agent=agent)
    said = b"".join(say(text) if agent == "claude" else f"{text}\n".encode() for text in HOSTILE)
    async with follow(site) as reader:
        site.spool.append(job.id, "agent", said + (say("done") if agent == "claude" else b"done\n"))
        names = []
        while "done" not in reader.log:
            event = await reader.next()
            assert event
            names.append(event.name)
            parser = _Text()
            parser.feed(event.data if event.name == "log" else "")
            assert {tag for tag, _ in parser.tags} <= {"pre"}
            assert {name for _, attrs in parser.tags for name in attrs} <= {"class"}
        assert set(names) <= {"log", "state", "facts", "steps", "history", "standing"}
        assert int(reader.last_id) <= len(said) + 200
        for words in ("data: forged", "<script>alert(1)</script>", "hx-get", "{{ 7 * 7 }}", "a⟨U+202E⟩b⟨U+0000⟩c"):
            assert words in reader.log


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb\rc", "\n", "", " x", "a\n\nevent: b", "data: x\n:\n"])
def test_an_event_says_in_a_browser_what_it_was_made_of(text: str) -> None:
    lines = encode("log", text, 7).decode().split("\n")
    assert lines[:2] == ["event: log", "id: 7"]
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[2:-2])
    assert "\n".join(line[6:] for line in lines[2:-2]) == text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.slow
async def test_five_hundred_readers_cost_one_reading_and_one_rendering(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "agent", b"before\n")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        site.session, plain = session, site.session
        async with asyncio.timeout(60):
            streams = [follow(site) for _ in range(500)]
            readers = await asyncio.gather(*(stream.__aenter__() for stream in streams))
            assert site.spool.is_watched(job.id)
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == f"live log of {job.id}"]
            assert len(tasks) == 1
            for number in range(5):
                site.spool.append(job.id, "agent", f"line {number}\n".encode())
                await asyncio.sleep(0.02)
            await asyncio.gather(*(reader.until_log("line 4") for reader in readers))
        assert {squeeze(reader.log) for reader in readers} == {"beforeline 0line 1line 2line 3line 4"}
    site.session = plain
    await wait_until_nobody_watches(site, job)


async def wait_until_nobody_watches(site: Site, job: Job) -> None:
    """A reader that has gone is noticed when something is sent to it."""
    async with asyncio.timeout(PATIENCE_S):
        while site.spool.is_watched(job.id):
            site.spool.append(job.id, "agent", b"more\n")
            await asyncio.sleep(0.2)


async def test_more_readers_than_there_may_be_are_asked_to_come_back_later(tmp_path: Path) -> None:
    async with open_site(tmp_path, max_streams=1) as site:
        job = await site.add(state=JobState.RUNNING)
        async with follow(site) as reader:
            await reader.until("state")
            async with site.session.get(f"{site.url}/jobs/{job.id}/log/agent/events") as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (503, "30")
                assert await reply.text() == "too many live logs are open: try again soon\n"
        await wait_until_nobody_watches(site, job)
        async with follow(site) as reader:
            await reader.until("state")


@pytest.mark.slow
async def test_a_slow_reader_holds_up_nobody_and_is_told_what_it_has_missed(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "agent", b"first\n")
    async with follow(site) as reader:
        await reader.until_log("first")
        line = b"x" * 999 + b"\n"
        async with follow(site) as slow:
            for _ in range(8):
                site.spool.append(job.id, "agent", line * (KEPT // 2000))
                await reader.until("log")
            site.spool.append(job.id, "agent", b"last\n")
            await reader.until_log("last")
            await slow.until_log("last")
            assert slow.log.count("x") <= reader.log.count("x")
    async with follow(site, start=6) as late:
        await late.until_log("last")
        assert "Part of the log is not shown here. See the raw log." in late.log
        assert KEPT / 2 < late.log.count("x") <= KEPT


async def test_streams_end_at_once_when_the_service_stops(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with open_site(tmp_path) as site:
            await site.add(state=JobState.RUNNING)
            url = f"{site.url}/jobs/{ID}/log/agent/events"
            reply = await session.get(url)
            reader = Follower(reply)
            await reader.until("history")
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 5, "nobody waits for them as for other requests"
        with suppress(aiohttp.ClientError):
            assert await reader.drain() == []


@pytest.mark.parametrize("path", [f"{ID}/log/nothing/events", "nobody/log/agent/events", f"{ID}/log/agent/events/x"])
async def test_what_is_not_there_is_404(site: Site, path: str) -> None:
    await site.add(state=JobState.RUNNING)
    assert (await site.get(f"/jobs/{path}")).status == 404


@pytest.mark.parametrize("told", ["-5", "abc", "9" * 30, "1e3", "\u0663"])
async def test_an_offset_that_is_none_counts_as_the_beginning(site: Site, told: str) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "agent", b"one\n")
    async with site.session.get(f"{site.url}/jobs/{ID}/log/agent/events", params={"from": told}) as reply:
        reader = Follower(reply)
        await reader.until_log("one")
        assert squeeze(reader.log) == "one"
