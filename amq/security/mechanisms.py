"""Mechanisms: what a login in steps (SASL, RFC 4422) means for the ways to log in."""

from __future__ import annotations

from dataclasses import replace

from amq.security.login import Claim, refusal


async def claim_of(claim: Claim) -> Claim:
    """The claim that the client of `claim.exchange` makes. Raises AmqError."""
    exchange = claim.exchange
    if exchange is None:
        return claim
    if exchange.mechanism != "PLAIN":
        raise refusal(f"this broker has no mechanism {exchange.mechanism[:40]!r}; use PLAIN")
    response = exchange.response or await exchange.ask(b"")
    try:
        other, login, passcode = response.decode().split("\0")
    except ValueError as error:
        raise refusal("the response to PLAIN is not three texts with a NUL between them") from error
    exchange.login = login
    if other not in ("", login):
        raise refusal("a client cannot act for another user; leave the authorization identity out")
    return replace(claim, login=login, passcode=passcode, exchange=None)
