"""Tokens, a `Way`: a passcode that is a JSON web token of an OIDC issuer, as RabbitMQ's clients send it.

Invariants: the issuer, the audience and the algorithms are those of the configuration, whatever the token says; a token
without an end is refused, and its login ends when it does. The signature is checked before anything that the token
claims is told or believed. See RFC 8725.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final, Protocol

import jwt

from amq.core.errors import AccessError
from amq.doors.clock import Clock, SystemClock
from amq.security.issuer_keys import IssuerKeys
from amq.security.login import ROLES_CHARS_MAX, ROLES_MAX, Claim, Login, User, is_name, refusal
from amq.security.trust import trusting

TOKEN_CHARS_MAX: Final = 16 << 10
LEEWAY_S: Final = 30.0  # that the issuer's clock may be ahead of ours
_REQUIRED: Final = ("exp", "iss", "aud")
_WRONG: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "the token has expired; get a new one"),
    (jwt.ImmatureSignatureError, "the token is not valid yet: look at the clocks of its issuer and of this host"),
    (jwt.InvalidAudienceError, "the token is for somebody else (aud); ask the issuer for one for this broker"),
    (jwt.InvalidIssuerError, "the token is of another issuer (iss)"),
)


class TokenSettings(Protocol):
    """The options; see `amq.config.schema`."""

    @property
    def token_issuer(self) -> str: ...
    @property
    def token_audience(self) -> str: ...
    @property
    def token_algorithms(self) -> str: ...
    @property
    def token_keys(self) -> str: ...
    @property
    def token_trust(self) -> str: ...
    @property
    def token_user(self) -> str: ...
    @property
    def token_roles(self) -> str: ...


class Tokens:
    """Logins by tokens of one issuer."""

    def __init__(self, settings: TokenSettings, clock: Clock | None = None) -> None:
        """Raises ConfigError where the file of CAs cannot be used."""
        self._clock = clock or SystemClock()
        self._issuer = settings.token_issuer
        self._audience = settings.token_audience
        self._algorithms = tuple(settings.token_algorithms.replace(",", " ").split())
        self._user_claim = settings.token_user
        self._roles_claim = settings.token_roles
        context = trusting(settings.token_trust)
        self._keys = IssuerKeys(self._issuer, settings.token_keys, self._algorithms, context, self._clock)

    def knows(self, claim: Claim) -> bool:
        """By its looks: three parts, of which the first is JSON in base64. No password is so by accident."""
        return _header(claim.passcode) is not None

    async def login(self, claim: Claim) -> Login:
        """The client sends no login, or that of the token. Raises AccessError."""
        header = _header(claim.passcode)
        if header is None or len(claim.passcode) > TOKEN_CHARS_MAX:
            raise refusal(f"a token has at most {TOKEN_CHARS_MAX} characters")
        algorithm, id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise refusal("the token is signed in a way that this broker does not accept (tokenAlgorithms)")
        if not (id is None or isinstance(id, str)):
            raise refusal("the token is not valid")
        claims = self._checked(claim.passcode, await self._keys.find(id, algorithm), algorithm)
        name = claims.get(self._user_claim)
        if not is_name(name):
            raise refusal(f"the claim {self._user_claim} of the token names no user (tokenUser)")
        if claim.login not in ("", name):
            raise refusal("the token is of another user; leave the login out")
        ends_at_s = float(claims["exp"])
        if ends_at_s <= self._clock.wall_ms() / 1000:
            raise refusal(_WRONG[0][1])
        return Login(User(str(name), self._roles(claims)), "token", ends_at_s)

    def close(self) -> None:
        """The thread that may fetch keys ends by itself."""

    def _checked(self, token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        """The claims. Raises AccessError."""
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": list(_REQUIRED), "enforce_minimum_key_length": True},
            )
        except jwt.MissingRequiredClaimError as error:
            raise refusal(f"the token has no {error.claim}") from error
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise self._wrong(error) from error

    @staticmethod
    def _wrong(error: Exception) -> AccessError:
        return refusal(next((why for kind, why in _WRONG if isinstance(error, kind)), "the token is not valid"))

    def _roles(self, claims: dict[str, Any]) -> frozenset[str]:
        """The values of the claim: a list, or words with blanks between, as `scope` has them. Raises AccessError."""
        found: Any = claims.get(self._roles_claim) if self._roles_claim else None
        if found is None:
            found = claims
            for word in self._roles_claim.split("."):
                found = found.get(word) if isinstance(found, dict) else None
        values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        roles = frozenset(value for value in values if isinstance(value, str))
        if len(roles) > ROLES_MAX or sum(map(len, roles)) > ROLES_CHARS_MAX:
            raise refusal(f"the token has more than {ROLES_MAX} roles, or {ROLES_CHARS_MAX} characters of them")
        return roles


def _header(text: str) -> dict[str, Any] | None:
    """The header of the token that `text` is, None = it is none. It is not checked yet."""
    head, *others = text.split(".", 3)
    if len(others) != 2 or len(text) > 2 * TOKEN_CHARS_MAX:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) else None
