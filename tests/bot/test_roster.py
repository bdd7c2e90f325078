from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.config.roster import Roster, compare, find_unknown_agents
from bot.config.settings import Settings, load_settings
from tests.bot.test_cli import configure
from tests.support.lesser_kernel import write_interpreter

SECOND_MACHINE = '\n[[machines]]\nname = "there"\nkind = "local"\nworkspace = "/srv/ptq"\n'
SECOND_REPOSITORY = '\n[repos."octo/gadgets"]\nagent = "mine"\n'


class File:
    """A `ptq.toml` that is changed while a roster holds what it said."""

    def __init__(self, folder: Path) -> None:
        self.path = configure(folder, 0)
        self.roster = Roster(self.read(), 15.0)

    def read(self) -> Settings:
        return load_settings(self.path, {})

    def reload(self, change: Callable[[str], str]) -> list[dict[str, object]]:
        """What the log says of it."""
        self.path.write_text(change(self.path.read_text()))
        with capture_logs() as logs:
            self.roster.reload(self.read)
        return [dict(line) for line in logs]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def test_what_is_new_in_the_file_is_there_and_said(file: File) -> None:
    before = file.roster.clients["here"]
    (line,) = file.reload(lambda text: text + SECOND_MACHINE + SECOND_REPOSITORY)
    assert line["event"] == "config.reloaded"
    assert line["added"] == ("machines.there", 'repos."octo/gadgets"')
    assert (line["removed"], line["changed"]) == ((), ())
    assert dict(file.roster.slots) == {"here": 1, "there": 1}
    assert {*file.roster.clients} == {*file.roster.machines} == {"here", "there"}
    assert {*file.roster.repositories} == {*file.roster.profiles}
    assert file.roster.clients["here"] is before, "a connection that is as before stays"


def test_what_is_gone_takes_nothing_new_and_stays_known_to_its_jobs(file: File) -> None:
    file.reload(lambda text: text + SECOND_MACHINE + SECOND_REPOSITORY)
    (line,) = file.reload(lambda text: text.replace(SECOND_MACHINE, "").replace(SECOND_REPOSITORY, ""))
    assert line["removed"] == ("machines.there", 'repos."octo/gadgets"')
    assert [*file.roster.machines] == [*file.roster.slots] == ["here"]
    assert [*file.roster.repositories] == ["octo/widgets"]
    assert "there" in file.roster.clients
    assert "octo/gadgets" in file.roster.profiles


def test_more_slots_are_there_at_once_over_the_same_connection(file: File) -> None:
    before = file.roster.clients["here"]
    (line,) = file.reload(lambda text: text.replace('kind = "local"', 'kind = "local"\nslots = 5'))
    assert line["changed"] == ("machines.here",)
    assert file.roster.slots["here"] == 5
    assert file.roster.clients["here"] is before


def test_a_machine_that_is_reached_in_another_way_gets_another_connection(file: File) -> None:
    before = file.roster.clients["here"]
    file.reload(lambda text: text.replace("/workspace", "/elsewhere"))
    assert file.roster.clients["here"] is not before


def test_a_changed_repository_has_its_new_rules(file: File) -> None:
    (line,) = file.reload(lambda text: text + 'test_command = "make test"\nlimits = { timeout_s = 7 }\n')
    assert line["changed"] == ('repos."octo/widgets"',)
    assert file.roster.repositories["octo/widgets"].test_command == "make test"
    assert file.roster.profiles["octo/widgets"].limits.timeout_s == 7


def test_a_broken_file_changes_nothing_and_every_problem_is_said(file: File) -> None:
    before = dict(file.roster.repositories)
    (line,) = file.reload(lambda text: text.replace('kind = "local"', "slots = 0") + 'agnt = "mine"\n')
    assert (line["event"], line["log_level"]) == ("config.not_reloaded", "error")
    problems = "\n".join(line["problems"])  # type: ignore[arg-type]
    assert "machines[0].slots" in problems
    assert "did you mean agent" in problems
    assert dict(file.roster.repositories) == before


def test_a_file_that_is_gone_changes_nothing(file: File) -> None:
    file.path.unlink()
    with capture_logs() as logs:
        file.roster.reload(file.read)
    assert logs[0]["problems"] == ("cannot be read: No such file or directory",)


def test_what_needs_a_restart_is_named_and_not_taken_over(file: File) -> None:
    lines = file.reload(lambda text: text.replace("port = 0", "port = 1") + "\n[limits]\ntimeout_s = 7\n")
    assert lines[-1]["event"] == "config.needs_a_restart"
    assert lines[-1]["tables"] == ("server", "limits")
    assert file.roster.profiles["octo/widgets"].limits.timeout_s == 3600
    assert file.reload(str)[-1]["tables"] == ("server", "limits"), "until there was one"


def test_a_repository_with_an_agent_that_is_not_running_is_refused(file: File) -> None:
    def change(text: str) -> str:
        return text.replace('agent = "mine"', 'agent = "new"') + '\n[agents.new]\nkind = "command"\ncommand = ["x"]\n'

    (line,) = file.reload(change)
    assert line["event"] == "config.not_reloaded"
    assert line["problems"] == ('repos."octo/widgets": [agents.new] is new, which needs a restart',)
    assert file.roster.repositories["octo/widgets"].agent == "mine"


def test_a_repository_with_a_skill_that_is_not_loaded_is_refused(file: File) -> None:
    def change(text: str) -> str:
        return (
            text.replace('agent = "mine"', 'agent = "mine"\nskills = ["new"]') + '\n[skills.new]\nin_repository = "x"\n'
        )

    (line,) = file.reload(change)
    assert line["problems"] == ('repos."octo/widgets": [skills.new] is new, which needs a restart',)


def test_a_repository_keeps_the_spelling_that_its_jobs_have(file: File) -> None:
    (line,) = file.reload(lambda text: text.replace('"octo/widgets"', '"Octo/Widgets"'))
    assert line["event"] == "config.not_reloaded"
    assert "its jobs have the name octo/widgets: keep that" in str(line["problems"])
    assert file.roster.repositories["octo/widgets"].name == "octo/widgets"


def test_the_same_file_is_no_change(file: File) -> None:
    same = file.read()
    changes = compare(same, file.read())
    assert (changes.added, changes.removed, changes.changed, changes.needs_restart) == ((), (), (), ())
    assert find_unknown_agents(same, same) == ()


@pytest.mark.slow
async def test_a_machine_that_is_this_host_and_seals_no_jobs_is_named_in_the_log(file: File, tmp_path: Path) -> None:
    python = write_interpreter(tmp_path)
    file.reload(lambda text: text.replace('kind = "local"', f'kind = "local"\npython = "{python}"'))
    with capture_logs() as logs:
        await file.roster.warn_of_open_machines()
    await file.roster.close()
    (line,) = (line for line in logs if line["event"] == "machine.jobs_can_read_our_files")
    assert (line["log_level"], line["machine"]) == ("warning", "here")
    assert "not sealed" in line["reason"]
