"""What git may ask of the gateway, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from bot.gateway.fetches import NotFetched, build_git_environment, list_addresses, read_fetch
from bot.gateway.proxy import MAX_BODY

NAME = "octo/widgets"
WEB = "https://github.com"


def read(path: str, method: str = "GET", query: str = "", **headers: str) -> Any:
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return read_fetch(method, path, query, named, (NAME, "octo/parts"))


@pytest.mark.parametrize("name", ["octo/widgets", "Octo/WIDGETS", "octo/widgets.git", "octo/parts"])
def test_a_repository_is_known_by_its_name_in_any_letters(name: str) -> None:
    fetch = read(f"/git/{name}/info/refs", query="service=git-upload-pack")
    assert fetch.repository in (NAME, "octo/parts")
    assert fetch.target == "info/refs?service=git-upload-pack"


@pytest.mark.parametrize(
    ("path", "method", "query", "words"),
    [
        ("/git/octo/widgets.git/info/refs", "GET", "", "older protocol"),
        ("/git/octo/widgets.git/info/refs", "GET", "service=git-upload-pack&x=1", "older protocol"),
        ("/git/octo/widgets.git/info/refs", "GET", "service=git-receive-pack", "pushing"),
        ("/git/octo/widgets.git/git-receive-pack", "POST", "", "pushing"),
        ("/git/octo/widgets.git/git-upload-pack", "GET", "", "GET is not"),
        ("/git/octo/widgets.git/git-upload-pack", "POST", "x=1", "POST is not"),
        ("/git/octo/widgets.git/HEAD", "GET", "", "nothing there"),
        ("/git/octo/widgets.git/objects/info/packs", "GET", "", "nothing there"),
        ("/git/octo/../octo/widgets.git/info/refs", "GET", "service=git-upload-pack", "nothing there"),
        ("/git/octo/%2e%2e/info/refs", "GET", "service=git-upload-pack", "nothing there"),
        ("/git/octo/../info/refs", "GET", "service=git-upload-pack", ".. is not among"),
        ("/git/octo/secrets.git/info/refs", "GET", "service=git-upload-pack", "octo/secrets is not among"),
        ("/git/octo/secrets.git/git-receive-pack", "POST", "", "octo/secrets is not among"),
        ("/git/octo/widgets.git/info/lfs/objects/batch", "POST", "", "Git LFS"),
    ],
)
def test_whatever_else_is_asked_for_is_refused(path: str, method: str, query: str, words: str) -> None:
    with pytest.raises(NotFetched, match=words):
        read(path, method, query)


@pytest.mark.parametrize(("name", "value"), [("git_protocol", "version=2\x01"), ("git_protocol", "x" * 101)])
def test_headers_of_another_form_are_refused(name: str, value: str) -> None:
    with pytest.raises(NotFetched):
        read("/git/octo/widgets.git/info/refs", query="service=git-upload-pack", **{name: value})
    with pytest.raises(NotFetched, match="br"):
        read("/git/octo/widgets.git/git-upload-pack", "POST", content_encoding="br")


def test_what_only_begins_like_a_repository_comes_without_a_token() -> None:
    fetch = read("/git/octo/widgets-docs/info/refs", query="service=git-upload-pack")
    assert (fetch.repository, fetch.is_granted) == ("octo/widgets-docs", False)


def test_git_is_led_by_its_environment_and_the_token_goes_to_the_gateway_alone() -> None:
    addresses = list_addresses([NAME], WEB, f"{WEB}/Octo/Widgets.git")
    environment = build_git_environment("{gateway}", "token", addresses, by_relay=True)
    count = int(environment.pop("GIT_CONFIG_COUNT"))
    pairs = [(environment.pop(f"GIT_CONFIG_KEY_{n}"), environment.pop(f"GIT_CONFIG_VALUE_{n}")) for n in range(count)]
    assert environment == {}
    led = "url.{gateway}/git/octo/widgets.insteadOf"
    assert pairs == [
        ("http.{gateway}/git/.extraHeader", "Authorization: Bearer token"),
        ("http.{gateway}/git/.proxy", ""),
        (led, "https://github.com/octo/widgets"),
        (led, "git@github.com:octo/widgets"),
        (led, "ssh://git@github.com/octo/widgets"),
        (led, "https://github.com/Octo/Widgets"),
    ]


def test_where_machines_come_by_our_address_no_proxy_is_gone_round_and_every_body_has_a_length() -> None:
    environment = build_git_environment("https://ptq.example/gateway", "token", [], by_relay=False)
    assert environment["GIT_CONFIG_COUNT"] == "2"
    assert environment["GIT_CONFIG_KEY_0"] == "http.https://ptq.example/gateway/git/.extraHeader"
    assert environment["GIT_CONFIG_KEY_1"] == "http.https://ptq.example/gateway/git/.postBuffer"
    assert int(environment["GIT_CONFIG_VALUE_1"]) == MAX_BODY
