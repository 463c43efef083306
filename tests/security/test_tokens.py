"""Tokens: those of our issuer log in, and no bent one ever does, whatever is bent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.core.errors import AccessError, ConfigError
from amq.security import ANONYMOUS, Claim, Login, LoginGate, issuer_keys, tokens
from amq.security.issuer_keys import ASK_AGAIN_S, ASK_S, FRESH_S, KEYS_MAX, STALE_S
from amq.security.login import ROLES_MAX
from amq.security.tokens import TOKEN_CHARS_MAX, Tokens
from tests.fakes import FakeClock
from tests.oidc import AUDIENCE, DISCOVERY_PATH, KEYS_PATH, Issuer, jwk, pem
from tests.patience import DEADLINE_S


@dataclass
class Settings:
    token_issuer: str
    token_audience: str = AUDIENCE
    token_algorithms: str = "RS256, ES256"
    token_keys: str = ""
    token_trust: str = ""
    token_user: str = "sub"
    token_roles: str = "realm_access.roles"


class Clock(FakeClock):
    """Ours for the ages of keys. PyJWT reads the system's for the times in tokens, and so do we."""

    def wall_ms(self) -> int:
        return int(time.time() * 1000)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    with asyncio.Runner() as runner:
        RUNNERS[:] = [runner]
        yield issuer
    issuer.close()


@pytest.fixture(scope="module")
def way(issuer: Issuer) -> Tokens:
    """With the keys that the issuer has at first."""
    return Tokens(Settings(issuer.url, token_keys=issuer.url + KEYS_PATH))


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """The issuer is one for all tests: its answers and what was asked are each test's own."""
    issuer: Issuer = request.getfixturevalue("issuer")
    answers = dict(issuer.answers)
    issuer.asked.clear()
    yield
    issuer.answers = answers


RUNNERS: list[asyncio.Runner] = []  # the event loop on which the keys of an issuer live
STRANGER = rsa.generate_private_key(65537, 2048)


def log_in(way: Tokens, token: str, login: str = "") -> Login:
    return RUNNERS[0].run(way.login(Claim(login, token)))


def refused(way: Tokens, token: str, login: str = "", code: str = "LOGIN_REFUSED") -> str:
    with pytest.raises(AccessError) as raised:
        log_in(way, token, login)
    assert raised.value.code == code
    assert token not in str(raised.value)
    return str(raised.value)


def part(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def by_hmac(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """PyJWT refuses to sign with a public key as secret; an attacker does not."""
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def test_a_token_is_a_login_until_its_end(issuer: Issuer) -> None:
    way = Tokens(Settings(issuer.url))
    end = int(time.time()) + 77
    login = log_in(way, issuer.token(exp=end, realm_access={"roles": ["shop", "audit", 7]}))
    assert login.user == ("alice", {"shop", "audit"})
    assert (login.shown, login.ends_at_s) == ("token", end)
    assert log_in(way, issuer.token(issuer.ec, "ES256", "e1"), "alice").user.name == "alice"
    assert log_in(way, issuer.token(kid=None)).user.name == "alice", "the issuer has one key of that kind"
    assert log_in(way, issuer.token(aud=["other", AUDIENCE])).user.name == "alice"
    assert issuer.asked == [DISCOVERY_PATH, KEYS_PATH]
    assert "another user" in refused(way, issuer.token(), "bob")


def test_claims_are_chosen(issuer: Issuer) -> None:
    way = Tokens(Settings(issuer.url, token_user="azp", token_roles="https://example.com/roles"))
    login = log_in(way, issuer.token(azp="web", **{"https://example.com/roles": "shop  audit"}))
    assert login.user == ("web", {"shop", "audit"})
    for roles in (None, 5, {"a": 1}, [["x"]]):
        assert log_in(way, issuer.token(azp="web", **{"https://example.com/roles": roles})).user.roles == frozenset()
    many = [str(number) for number in range(ROLES_MAX + 1)]
    assert "more than" in refused(way, issuer.token(azp="web", **{"https://example.com/roles": many}))


BENT: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "expired": (lambda issuer: issuer.token(exp=int(time.time()) - 100), "has expired"),
    "expired a second ago": (lambda issuer: issuer.token(exp=int(time.time()) - 1), "has expired"),
    "without an end": (lambda issuer: issuer.token(exp=None), "has no exp"),
    "end is not a number": (lambda issuer: issuer.token(exp="soon"), "not valid"),
    "end is a list": (lambda issuer: issuer.token(exp=[1]), "not valid"),
    "end is infinite": (lambda issuer: issuer.token(exp=float("inf")), "not valid"),
    "of the future": (lambda issuer: issuer.token(nbf=int(time.time()) + 200), "not valid yet"),
    "issued in the future": (lambda issuer: issuer.token(iat=int(time.time()) + 200), "not valid yet"),
    "for another one": (lambda issuer: issuer.token(aud="other"), "aud"),
    "for nobody": (lambda issuer: issuer.token(aud=None), "has no aud"),
    "of another issuer": (lambda issuer: issuer.token(iss="https://evil.example"), "iss"),
    "of no issuer": (lambda issuer: issuer.token(iss=None), "has no iss"),
    "with an unknown key": (lambda issuer: issuer.token(kid="r2"), "does not have"),
    "signed by a stranger": (lambda issuer: issuer.token(STRANGER), "not valid"),
    "key of another algorithm": (lambda issuer: issuer.token(kid="e1"), "does not have"),
    "another hash": (lambda issuer: issuer.token(algorithm="RS512"), "tokenAlgorithms"),
    "alg none": (lambda issuer: jwt.encode(issuer.claims(), None, "none", {"kid": "r1"}), "tokenAlgorithms"),
    "alg None": (lambda issuer: f"{part({'alg': 'None', 'kid': 'r1'})}.{part(issuer.claims())}.", "tokenAlgorithms"),
    "no alg": (lambda issuer: f"{part({'kid': 'r1'})}.{part(issuer.claims())}.", "tokenAlgorithms"),
    "alg is a list": (lambda issuer: f"{part({'alg': ['RS256']})}.{part(issuer.claims())}.", "tokenAlgorithms"),
    "signature of nothing": (lambda issuer: f"{issuer.token().rpartition('.')[0]}.", "not valid"),
    "a public key as secret": (
        lambda issuer: by_hmac({"alg": "HS256", "kid": "r1"}, issuer.claims(), pem(issuer.rsa)),
        "tokenAlgorithms",
    ),
    "the same, and says RS256": (
        lambda issuer: by_hmac({"alg": "RS256", "kid": "r1"}, issuer.claims(), pem(issuer.rsa)),
        "not valid",
    ),
    "brings its own key": (
        lambda issuer: jwt.encode(
            issuer.claims(), STRANGER, "RS256", {"kid": "r1", "jwk": jwk(STRANGER, "r1"), "jku": "http://127.0.0.1:1/"}
        ),
        "not valid",
    ),
    "wants what we do not know": (
        lambda issuer: jwt.encode(issuer.claims(), issuer.rsa, "RS256", {"kid": "r1", "crit": ["x"], "x": 1}),
        "not valid",
    ),
    "kid is not a text": (lambda issuer: f"{part({'alg': 'RS256', 'kid': 1})}.{part(issuer.claims())}.x", "not valid"),
    "names nobody": (lambda issuer: issuer.token(sub=None), "names no user"),
    "is anonymous": (lambda issuer: issuer.token(sub=ANONYMOUS), "names no user"),
    "name is blank": (lambda issuer: issuer.token(sub=" "), "names no user"),
    "name has a line end": (lambda issuer: issuer.token(sub="a\nb"), "names no user"),
    "name is too long": (lambda issuer: issuer.token(sub="a" * 257), "names no user"),
    "too long": (lambda issuer: issuer.token(more="x" * TOKEN_CHARS_MAX), "at most"),
}


@pytest.mark.parametrize("name", BENT)
def test_a_bent_token_is_refused_and_the_holder_is_told_why(issuer: Issuer, name: str) -> None:
    make, says = BENT[name]
    assert says in refused(Tokens(Settings(issuer.url)), make(issuer))


def test_hostile_json_is_refused(issuer: Issuer) -> None:
    """PyJWT and json raise errors of several kinds."""
    way = Tokens(Settings(issuer.url))
    deep = b'{"alg":"RS256","kid":"r1","x":' + b"[" * 8000 + b"]" * 8000 + b"}"
    assert not way.knows(Claim("", f"{part(deep)}.{part({})}.x")), "no recursion is deep enough to stop the broker"
    head = part({"alg": "RS256", "kid": "r1"})
    for body in (deep[:9000], b"[]", b"null", b"\xff", b'{"exp":1e999}'):
        signed = f"{head}.{part(body)}"
        signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(signed.encode(), issuer.rsa)
        refused(way, f"{signed}.{part(signature)}")


SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@given(data=st.data())
@SLOW
def test_a_token_in_which_anything_is_changed_never_logs_in(issuer: Issuer, way: Tokens, data: st.DataObject) -> None:
    token = issuer.token()
    at = data.draw(st.integers(0, len(token) - 1))
    put = data.draw(st.text(max_size=3) | st.sampled_from([".", "=", "e1", "\0", "A" * 100]))
    bent = token[:at] + put + token[at + data.draw(st.integers(0, 3)) :]
    same = [base64.urlsafe_b64decode(each + "==") for each in token.split(".")]
    try:
        login = log_in(way, bent)
    except AccessError:
        return
    # The last letter of each part has bits that mean nothing.
    assert [base64.urlsafe_b64decode(each + "==") for each in bent.split(".")] == same
    assert login.user.name == "alice"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=5,
)


@given(claims=st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "iss", "aud", "sub", "realm_access", "jti"]), JSON))
@SLOW
def test_whatever_a_true_issuer_claims_is_a_login_or_a_refusal(
    issuer: Issuer, way: Tokens, claims: dict[str, Any]
) -> None:
    given = {**issuer.claims(), **claims}
    signed = f"{part({'alg': 'ES256', 'kid': 'e1'})}.{part(given)}"
    signature = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256).sign(signed.encode(), issuer.ec)
    try:
        login = log_in(way, f"{signed}.{part(signature)}")
    except AccessError:
        return
    assert (given["iss"], given["sub"]) == (issuer.url, login.user.name)
    assert AUDIENCE in ([given["aud"]] if isinstance(given["aud"], str) else given["aud"])
    assert login.ends_at_s > time.time()


@given(text=st.text() | st.from_regex(r"[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*", fullmatch=True))
@SLOW
def test_a_password_is_no_token(way: Tokens, text: str) -> None:
    """Unless its first part is a JSON object."""
    if way.knows(Claim("", text)):
        assert isinstance(json.loads(base64.urlsafe_b64decode(text.partition(".")[0] + "===")), dict)


# -- the keys of the issuer ------------------------------------------------------------------------------------------


def test_unknown_keys_ask_the_issuer_at_most_once_a_minute(issuer: Issuer) -> None:
    clock = Clock()
    way = Tokens(Settings(issuer.url, token_keys=issuer.url + KEYS_PATH), clock)
    log_in(way, issuer.token())
    newer = ec.generate_private_key(ec.SECP256R1())
    issuer.answers[KEYS_PATH] = {"keys": [jwk(newer, "e2")]}
    for number in range(50):
        refused(way, issuer.token(kid=f"k{number}"))
    assert issuer.asked == [KEYS_PATH]
    clock.advance(ASK_S + 1)
    assert log_in(way, issuer.token(newer, "ES256", "e2")).user.name == "alice"
    assert issuer.asked == [KEYS_PATH] * 2
    assert "does not have" in refused(way, issuer.token()), "a key that the issuer has withdrawn counts no more"


def test_an_issuer_that_is_away_stops_no_login_whose_key_is_known(issuer: Issuer) -> None:
    clock = Clock()
    way = Tokens(Settings(issuer.url, token_keys=issuer.url + KEYS_PATH), clock)
    good, issuer.answers[KEYS_PATH] = issuer.answers[KEYS_PATH], b"<html>we are at lunch</html>"
    assert "try again" in refused(way, issuer.token(), code="LOGIN_UNAVAILABLE")
    refused(way, issuer.token(), code="LOGIN_UNAVAILABLE")
    assert len(issuer.asked) == 1
    issuer.answers[KEYS_PATH] = good
    clock.advance(ASK_AGAIN_S + 1)
    log_in(way, issuer.token())
    issuer.answers[KEYS_PATH] = None  # 404
    clock.advance(FRESH_S + 1)
    log_in(way, issuer.token())
    clock.advance(STALE_S)
    refused(way, issuer.token(), code="LOGIN_UNAVAILABLE")


def test_a_storm_of_tokens_is_one_question_and_the_loop_does_not_wait(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    good, issuer.answers[KEYS_PATH] = issuer.answers[KEYS_PATH], held
    monkeypatch.setattr(issuer_keys, "ANSWER_S", 0.05)
    way = Tokens(Settings(issuer.url, token_keys=issuer.url + KEYS_PATH))
    token = issuer.token()

    async def storm() -> None:
        found = await asyncio.gather(*(way.login(Claim("", token)) for _ in range(200)), return_exceptions=True)
        assert {getattr(each, "code", "") for each in found} == {"LOGIN_UNAVAILABLE"}
        assert [thread.name for thread in threading.enumerate()].count("amq-issuer-keys") == 1
        waiting = asyncio.gather(*(way.login(Claim("", token)) for _ in range(200)), return_exceptions=True)
        issuer.answers[KEYS_PATH] = good
        held.set()
        await waiting

    RUNNERS[0].run(asyncio.wait_for(storm(), DEADLINE_S))
    assert issuer.asked == [KEYS_PATH]


def endless(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """An answer that begins with `head` and never ends: pieces, as fast as they are taken."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(0.002)

    return talk


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"", b"x"),
        endless(OK + b"X: ", b"y"),
        endless(OK + b"\r\n", b" "),
        endless(OK + b"Content-Length: 99999999\r\n\r\n", b" "),
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["status", "header", "body", "length", "chunks"],
)
@pytest.mark.parametrize("path", [KEYS_PATH, DISCOVERY_PATH])
def test_an_issuer_that_drips_is_cut_off_and_asked_again(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None], path: str
) -> None:
    """No single read takes long, so no time-out of the socket ends it."""
    monkeypatch.setattr(issuer_keys, "CUT_S", 0.05)
    clock = Clock()
    way = Tokens(Settings(issuer.url), clock)
    good, issuer.answers[path] = issuer.answers[path], answer

    async def cut_off() -> None:
        with pytest.raises(AccessError) as caught:
            await way.login(Claim("", issuer.token()))
        assert caught.value.code == "LOGIN_UNAVAILABLE"
        while way._keys._fetching is not None:  # its thread ends, because its connection does
            await asyncio.sleep(0.001)

    RUNNERS[0].run(asyncio.wait_for(cut_off(), DEADLINE_S))
    assert "no whole answer within 0.05 s" in way._keys._trouble
    issuer.answers[path] = good
    monkeypatch.setattr(issuer_keys, "CUT_S", 15.0)
    clock.advance(ASK_AGAIN_S + 1)
    assert log_in(way, issuer.token()).user.name == "alice"


def test_an_endless_answer_is_read_to_a_limit(issuer: Issuer) -> None:
    issuer.answers[KEYS_PATH] = endless(OK + b"\r\n", b" " * (1 << 20))
    assert "more than 262144 bytes" in refused(Tokens(Settings(issuer.url)), issuer.token(), code="LOGIN_UNAVAILABLE")
    issuer.answers[KEYS_PATH] = endless(OK, b"X: y\r\n" * 1000)
    assert "headers" in refused(Tokens(Settings(issuer.url)), issuer.token(), code="LOGIN_UNAVAILABLE")


@pytest.mark.parametrize("to", ["file:///etc/passwd", "http://127.0.0.1:1/", "https://169.254.169.254/", "/other"])
def test_no_redirect_is_followed(issuer: Issuer, to: str) -> None:
    moved = f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
    issuer.answers[KEYS_PATH] = lambda connection: connection.sendall(moved)
    assert "HTTP 302" in refused(Tokens(Settings(issuer.url)), issuer.token(), code="LOGIN_UNAVAILABLE")
    assert issuer.asked == [DISCOVERY_PATH, KEYS_PATH]


def test_no_token_is_checked_with_a_key_of_absurd_size(issuer: Issuer) -> None:
    """OpenSSL refuses moduli of more than 16,384 bits before it computes; up to there a check takes 1 to 4 ms."""
    for bits in (16_384, 65_536, 1 << 20):
        number = base64.urlsafe_b64encode(((1 << bits) - 1).to_bytes(bits // 8, "big")).rstrip(b"=").decode()
        issuer.answers[KEYS_PATH] = {"keys": [{"kty": "RSA", "n": number, "e": "AQAB", "kid": "r1"}]}
        way = Tokens(Settings(issuer.url))
        assert "not valid" in refused(way, issuer.token())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"keys": []}, "no key for"),
        ({"keys": "x"}, "no key for"),
        ([], "JSON object"),
        (b"{" * 300_000, "more than"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "r1"}]}, "no key for"),
        (b"\xff", "decode"),
        ({"keys": [None, {"kty": "RSA", "kid": 7}, {"kty": "RSA", "kid": "x", "n": "", "e": ""}]}, "no key for"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_keys_that_cannot_be_used_let_nobody_in(issuer: Issuer, answer: Any, says: str) -> None:
    issuer.answers[KEYS_PATH] = answer
    way = Tokens(Settings(issuer.url))
    assert says in refused(way, issuer.token(), code="LOGIN_UNAVAILABLE")


def test_keys_are_bounded_and_only_those_for_signatures(issuer: Issuer) -> None:
    many = [jwk(issuer.ec, f"k{number}") for number in range(KEYS_MAX)]
    issuer.answers[KEYS_PATH] = {"keys": [*many, jwk(issuer.rsa, "r1")]}
    assert "does not have" in refused(Tokens(Settings(issuer.url)), issuer.token())
    issuer.answers[KEYS_PATH] = {"keys": [jwk(issuer.rsa, "r1", use="enc"), many[0]]}
    assert "does not have" in refused(Tokens(Settings(issuer.url)), issuer.token())
    issuer.answers[KEYS_PATH] = {"keys": [jwk(issuer.rsa, "r1", alg="RS512"), many[0]]}
    assert "does not have" in refused(Tokens(Settings(issuer.url)), issuer.token())


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"issuer": "https://evil.example"}, "another issuer"),
        ({}, "another issuer"),
        ({"jwks_uri": "file:///etc/passwd"}, "not an https address"),
        ({"jwks_uri": "http://example.com/keys"}, "not an https address"),
    ],
)
def test_an_issuer_is_believed_only_about_itself(issuer: Issuer, about: dict[str, str], says: str) -> None:
    issuer.answers[DISCOVERY_PATH] = {"issuer": issuer.url, **about} if "jwks_uri" in about else about
    assert says in refused(Tokens(Settings(issuer.url)), issuer.token(), code="LOGIN_UNAVAILABLE")


# -- the gate --------------------------------------------------------------------------------------------------------


def test_a_bent_token_is_refused_also_where_nobody_needs_a_login(issuer: Issuer) -> None:
    """Without tokens, and without users, the broker cannot check a login and lets clients of this host in as nobody."""
    gate = LoginGate("", "loopback")
    token = issuer.token()

    async def scenario() -> None:
        assert (await gate.authenticate(Claim("", token, True))).user.name == ANONYMOUS
        gate.use([Tokens(Settings(issuer.url))])
        assert (await gate.authenticate(Claim("", token, True))).user.name == "alice"
        assert (await gate.authenticate(Claim("", "", True))).user.name == ANONYMOUS
        for wrong in (token + "x", token[5:], token[:-300], "password"):
            with pytest.raises(AccessError) as raised:
                await gate.authenticate(Claim("alice", wrong, True))
            assert raised.value.code == "LOGIN_REFUSED"
        gate.use([])
        assert (await gate.authenticate(Claim("", token, True))).user.name == ANONYMOUS

    try:
        RUNNERS[0].run(scenario())
    finally:
        gate.close()


def test_a_file_of_cas_that_cannot_be_used(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="trusted CAs"):
        Tokens(Settings("https://issuer.example", token_trust=str(tmp_path / "absent.pem")))


def test_only_public_keys_can_be_pinned(issuer: Issuer) -> None:
    for algorithms in ("HS256", "none"):
        with pytest.raises(AssertionError):
            tokens.Tokens(Settings(issuer.url, token_algorithms=algorithms))
