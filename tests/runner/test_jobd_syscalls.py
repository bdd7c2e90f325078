"""What the filter for a job's system calls answers, for each kind of program; a machine here can only run some."""

from __future__ import annotations

import errno

import pytest

from runner.jobd.sandbox import syscalls

ALLOWED, REFUSED, UNKNOWN = syscalls.ALLOW, syscalls.ERROR | errno.EPERM, syscalls.ERROR | errno.ENOSYS

X86_64, AARCH64, I386, ARM = (kind.architecture for kind in syscalls.KINDS)


def judge(architecture: int, number: int, second: int = 0, first: int = 0, *, network: bool = True) -> int:
    """Run the filter as a kernel does."""
    words = {syscalls.NUMBER: number, syscalls.ARCHITECTURE: architecture}
    words |= {syscalls.FIRST_ARGUMENT: first, syscalls.SECOND_ARGUMENT: second}
    program, place, word = [*syscalls.make_filter(syscalls.KINDS, network=network)], 0, 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        if code == syscalls.ANSWER:
            return value
        if code == syscalls.LOAD:
            word = words[value]
        else:
            holds = word == value if code == syscalls.EQUALS else word & value
            place += if_true if holds else if_false


@pytest.mark.parametrize(
    ("architecture", "keys", "fcntl"),
    [
        (X86_64, (248, 249, 250), (72,)),
        (AARCH64, (217, 218, 219), (25,)),
        (I386, (286, 287, 288), (55, 221)),
        (ARM, (309, 310, 311), (55, 221)),
    ],
)
def test_keys_and_leases_are_refused(architecture: int, keys: tuple[int, ...], fcntl: tuple[int, ...]) -> None:
    assert {judge(architecture, number) for number in keys} == {REFUSED}
    for number in fcntl:
        commands = range(1100)
        refused = [command for command in commands if judge(architecture, number, command) == REFUSED]
        assert refused == [syscalls.F_SETLEASE, syscalls.F_SETDELEG]
    others = {*range(1000)} - {*keys, *fcntl}
    assert {judge(architecture, number, syscalls.F_SETLEASE) for number in others} == {ALLOWED}


@pytest.mark.parametrize(("architecture", "ioctl"), [(X86_64, 16), (AARCH64, 29), (I386, 54), (ARM, 54)])
def test_snapshots_and_subvolumes_are_refused_and_copies_by_reference_are_not(architecture: int, ioctl: int) -> None:
    clone, fionread = 0x40049409, 0x541B
    assert {judge(architecture, ioctl, request) for request in syscalls.SUBVOLUMES} == {REFUSED}
    assert {judge(architecture, ioctl, request) for request in (clone, fionread, 0)} == {ALLOWED}


@pytest.mark.parametrize(
    ("architecture", "sockets"), [(X86_64, (41, 53)), (AARCH64, (198, 199)), (I386, (359, 360)), (ARM, (281, 288))]
)
def test_without_a_network_only_sockets_that_it_contains_are_made(architecture: int, sockets: tuple[int, ...]) -> None:
    unix, inet, netlink, inet6 = 1, 2, 16, 10
    for number in sockets:
        made = [family for family in range(50) if judge(architecture, number, first=family, network=False) == ALLOWED]
        assert made == [unix, inet, inet6, netlink]
        assert {judge(architecture, number, first=family) for family in range(50)} == {ALLOWED}
    io_uring_setup = 425
    assert judge(architecture, io_uring_setup, network=False) == REFUSED
    assert judge(architecture, io_uring_setup) == ALLOWED


def test_without_a_network_socketcall_makes_no_sockets() -> None:
    refused = [call for call in range(25) if judge(I386, 102, first=call, network=False) == REFUSED]
    assert refused == [1, 8]
    assert {judge(I386, 102, first=call) for call in range(25)} == {ALLOWED}


@pytest.mark.parametrize("number", [39, 72, 250, 512])
def test_calls_of_x32_do_not_exist(number: int) -> None:
    assert judge(X86_64, syscalls.X32 | number) == UNKNOWN


@pytest.mark.parametrize("architecture", [X86_64, AARCH64, I386, ARM])
def test_a_call_that_a_debugger_has_cancelled_is_left_to_it(architecture: int) -> None:
    assert judge(architecture, 2**32 - 1) == ALLOWED


def test_programs_of_another_kind_are_not_filtered() -> None:
    assert {judge(0xC00000F3, number, syscalls.F_SETLEASE) for number in range(500)} == {ALLOWED}
