"""No error about a broker URL repeats a passcode, also where what should have been percent-encoded was not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client.errors import UriError
from amq.client.uri import parse

SPECIAL = [
    "/",
    "?",
    "#",
    "&",
    "=",
    ",",
    "(",
    ")",
    "@",
    ":",
    "//",
    "[",
    "]",
    "%",
    "%zz",
    " ",
    "\n",
    "?a=",
    "&b=1&",
    "ß",
    "",
]
FORMS = [
    "stomp://{login}@host:61613",
    "tcp://{login}@host",
    "stomp://{login}@host:99999",
    "stomp://{login}@host?nonsense=1",
    "stomp://{login}@",
    "failover:(stomp://{login}@a,stomp://b)?nonsense=1",
    "failover:(stomp://{login}@a",
    "failover:stomp://{login}@a",
    "stomp:{login}@host",
    "failover:(stomp://a,stomp://{login}@b)x",
]


def check(form: str, special: str) -> None:
    try:
        url = parse(form.format(login=f"user:ALPHA{special}OMEGA"))
    except UriError as error:
        text = str(error) + error.description
    else:
        text = str(url) + repr(url)
    assert "ALPHA" not in text
    assert "OMEGA" not in text


@pytest.mark.parametrize("form", FORMS)
def test_no_error_shows_a_passcode(form: str) -> None:
    for special in SPECIAL:
        check(form, special)


@given(st.sampled_from(FORMS), st.lists(st.sampled_from(SPECIAL) | st.characters(), max_size=4).map("".join))
def test_no_error_shows_any_passcode(form: str, special: str) -> None:
    check(form, special)


def test_harmless_parts_are_shown() -> None:
    for text, part in itertools.product(["stomp://host:70000", "tcp://host:61616"], ["host"]):
        with pytest.raises(UriError, match=part):
            parse(text)
