"""Which of somebody's keys let them in."""

from __future__ import annotations

from handlers.by_comment import choose_keys
from runner.jobd.admission import MAX_KEYS, read_keys
from tests.runner.test_admission import BAD_KEYS, KEY, KEYS, OTHER


def test_what_machines_do_not_take_is_left_out() -> None:
    assert choose_keys([*BAD_KEYS, f"{OTHER} me@home", KEY, OTHER]) == [OTHER, KEY]
    assert choose_keys(BAD_KEYS) == []


def test_of_many_keys_the_first_are_taken_and_a_machine_takes_them_all() -> None:
    many = [f"ssh-ed25519 {KEYS['ed25519'][:-2]}{letter}K" for letter in "AEIMQUYcgkosw"]
    chosen = choose_keys(many)
    assert len(set(chosen)) == MAX_KEYS
    assert read_keys("\n".join(chosen)) == chosen
