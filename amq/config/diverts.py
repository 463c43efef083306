"""Diverts: where the messages of a destination go as well, as the option `divert` writes it.

    divert  = [ "from" ( "queue" | "topic" ) ] [ "to" ] target [ "exclusive" | "copy" ] [ "where" selector ]
    target  = name | "queue://" name | "topic://" name

Several are separated by `;`, or are the items of a list. A bare name is that of a queue. Without `from` a divert holds
for queue and topic of the name that the option is set for; without `exclusive` or `copy`, `divertExclusive` decides
whether messages that it takes reach their own destination.
Invariant: `str` of a divert is read again as the same divert.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from amq.config.patterns import parse_pattern
from amq.core.destination import ANY_REST, ANY_WORD, QUEUE_SCHEME, TOPIC_SCHEME
from amq.core.errors import SelectorError
from amq.selectors import Selector

DIVERTS_MAX = 32  # of one destination: each costs every message to it a look at its selector
TERMS_MAX = 100  # of one selector
_PIECE = re.compile(r"""(?:[^;'"]|'[^']*'|"[^"]*")*""")  # texts of a selector may hold a semicolon
_DIVERT = re.compile(
    r"(?:from\s+(?P<source>queue|topic)\s+)?(?:to\s+)?(?P<target>\S+)(?:\s+(?P<mode>exclusive|copy))?"
    r"(?:\s+where\s+(?P<selector>.+))?"
)
_CURE = 'write for example "audit", "from queue to topic://news exclusive" or "audit where price > 100"'


@dataclass(frozen=True, slots=True)
class Divert:
    """One divert.

    target     full name of a queue or topic
    source     "queue" or "topic": it diverts only messages sent to one of these; "" = both
    exclusive  messages that it takes do not reach their own destination; None = `divertExclusive` decides
    selector   it takes only messages for which this is true; "" = all
    """

    target: str
    source: str = ""
    exclusive: bool | None = None
    selector: str = ""

    def __str__(self) -> str:
        words = [f"from {self.source} to" if self.source else "", self.target.removeprefix(QUEUE_SCHEME)]
        words.append({None: "", True: "exclusive", False: "copy"}[self.exclusive])
        words.append(f"where {self.selector}" if self.selector else "")
        return " ".join(filter(None, words))


def parse_diverts(text: str) -> tuple[Divert, ...]:
    """The diverts of a value of the option, "" = none. Raises ValueError with the rest of a sentence."""
    if not text.strip():
        return ()
    pieces = [piece.strip() for piece in _pieces(text)]
    if not all(pieces):
        raise ValueError("has nothing before or after a semicolon: leave that semicolon out")
    if len(pieces) > DIVERTS_MAX:
        raise ValueError(f"holds {len(pieces)} diverts, and {DIVERTS_MAX} are the most")
    return tuple(map(_divert, pieces))


def diverts_text(diverts: tuple[Divert, ...]) -> str:
    """The value of the option, as `parse_diverts` reads it."""
    return "; ".join(map(str, diverts))


def _pieces(text: str) -> list[str]:
    """`text` at its semicolons, but for those in quotation marks."""
    if ";" not in text:
        return [text]
    pieces, at = [], 0
    while True:
        match = _PIECE.match(text, at)
        assert match is not None
        pieces.append(match[0])
        if match.end() == len(text):
            return pieces
        if text[match.end()] != ";":
            raise ValueError("has a quotation mark that is not closed")
        at = match.end() + 1


def _divert(text: str) -> Divert:
    match = _DIVERT.fullmatch(text)
    if match is None:
        raise ValueError(f'holds "{text}", which is not a divert: {_CURE}')
    mode, selector = match["mode"], match["selector"] or ""
    if selector:
        try:
            Selector(selector, None, TERMS_MAX)
        except SelectorError as error:
            raise ValueError(f'has the selector "{selector}", which is wrong: {error.description}') from error
    exclusive = None if mode is None else mode == "exclusive"
    return Divert(_target(match["target"]), match["source"] or "", exclusive, selector)


def _target(text: str) -> str:
    scheme = next((each for each in (QUEUE_SCHEME, TOPIC_SCHEME) if text.startswith(each)), "")
    name = text.removeprefix(scheme)
    try:
        words = parse_pattern(name)
    except ValueError as error:
        raise ValueError(f'names "{text}", which {error}') from error
    if "," in name or {ANY_WORD, ANY_REST} & set(words):
        raise ValueError(f'names no single queue or topic: "{text}"; give the name of one, without *, > and commas')
    return (scheme or QUEUE_SCHEME) + name
