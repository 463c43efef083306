"""Forms: the fields of commands as values of `amq.core.values`, and back with the same types.

Invariant: `take` gives what `put` was given, or raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from amq.core.destination import Pattern, Source
from amq.core.errors import (
    AccessError,
    AmqError,
    CommandError,
    ConfigError,
    OwnershipLostError,
    ProtocolError,
    SelectorError,
    StoreError,
    StoreFullError,
    TransactionRolledBackError,
    TransportError,
)
from amq.core.values import Nested
from amq.core.xid import Xid, Xids
from amq.link.messages import column_of, numbers_at

_INT64: Final = 1 << 63
_DIGITS_MAX: Final = 40
_ERRORS: Final[dict[str, type[AmqError]]] = {
    kind.__name__: kind
    for kind in (
        AmqError,
        ConfigError,
        StoreError,
        OwnershipLostError,
        StoreFullError,
        TransportError,
        ProtocolError,
        AccessError,
        CommandError,
        TransactionRolledBackError,
        SelectorError,
    )
}


class Form(NamedTuple):
    """How a field becomes a value, and a value the field."""

    put: Callable[[Any], Nested]
    take: Callable[[Nested], Any]


def _is(kind: type) -> Callable[[Nested], Any]:
    def take(found: Nested) -> Nested:
        if found.__class__ is not kind:
            raise ValueError(f"{found!r:.50} is not a {kind.__name__}")
        return found

    return take


def _put_number(value: int) -> Nested:
    return int(value) if -_INT64 <= value < _INT64 else str(int(value))


def _take_number(found: Nested) -> int:
    if found.__class__ is int:
        return found
    if found.__class__ is not str or len(found) > _DIGITS_MAX:
        raise ValueError(f"{found!r:.50} is not a whole number")
    return int(found)


TEXT: Final = Form(str, _is(str))
TRUTH: Final = Form(bool, _is(bool))
NUMBER: Final = Form(_put_number, _take_number)
BYTES: Final = Form(bytes, _is(bytes))


def many(form: Form) -> Form:
    """A tuple of any length."""
    put, take = form

    def take_all(found: Nested) -> tuple[Any, ...]:
        return tuple(map(take, _is(list)(found)))

    return Form(lambda values: [*map(put, values)], take_all)


def optional(form: Form) -> Form:
    """The same, or None."""
    put, take = form
    return Form(
        lambda value: None if value is None else [put(value)],
        lambda found: None if found is None else take(*_sized(found, 1)),
    )


def row(make: Callable[..., Any], *forms: Form) -> Form:
    """A tuple of a fixed length, of which `make` makes a named one."""

    def put(value: tuple[Any, ...]) -> Nested:
        return [form.put(part) for form, part in zip(forms, value, strict=True)]

    def take(found: Nested) -> Any:
        parts = _sized(found, len(forms))
        return make(*[form.take(part) for form, part in zip(forms, parts, strict=True)])

    return Form(put, take)


def pair(*parts: Any) -> tuple[Any, ...]:
    """A tuple without names, for `row`."""
    return parts


def choice(kind: type[Enum]) -> Form:
    """A member of an enumeration, by its place there."""
    members = list(kind)

    def take(found: Nested) -> Enum:
        at = _take_number(found)
        if not 0 <= at < len(members):
            raise ValueError(f"there is no {kind.__name__} {at}")
        return members[at]

    return Form(members.index, take)


def _sized(found: Nested, size: int) -> list[Nested]:
    if found.__class__ is not list or len(found) != size:
        raise ValueError(f"{found!r:.50} is not a list of {size}")
    return found


def _put_source(source: Source) -> Nested:
    return [source.scheme, *source.words] if isinstance(source, Pattern) else str(source)


def _take_source(found: Nested) -> Source:
    if isinstance(found, str):
        return found
    words = many(TEXT).take(found)
    if not words:
        raise ValueError("a pattern has no kind")
    return Pattern(words[0], words[1:])


SOURCES: Final = many(Form(_put_source, _take_source))
_BINARY: Final = row(Xid, NUMBER, BYTES, BYTES)


def _take_xid(found: Nested) -> Any:
    return found if isinstance(found, str) else _BINARY.take(found)  # the broker says whether it is one


XID: Final = Form(lambda xid: _BINARY.put(xid) if isinstance(xid, Xid) else str(xid), _take_xid)
_LISTED: Final = many(XID)
_SERIES: Final = row(Xids, many(TEXT), many(row(pair, TEXT, NUMBER)))


def _put_xids(xids: Any) -> Nested:
    if isinstance(xids, Xids):
        return _SERIES.put((xids.listed, xids.series))
    return [_LISTED.put(xids)]


def _take_xids(found: Nested) -> Any:
    parts = _is(list)(found)
    return _SERIES.take(found) if len(parts) == 2 else _LISTED.take(*_sized(found, 1))


XIDS: Final = Form(_put_xids, _take_xids)


def _put_numbers(numbers: Sequence[int]) -> Nested:
    return column_of("Q", numbers)


NUMBERS: Final = Form(_put_numbers, lambda found: numbers_at(_is(bytes)(found), 0))


def _put_error(error: Exception) -> Nested:
    if not isinstance(error, AmqError):
        return ["", "", f"{type(error).__name__}: {error}", 0]
    kind = next(each for each in type(error).__mro__ if each.__name__ in _ERRORS)
    return [kind.__name__, error.code, error.description, error.column if isinstance(error, SelectorError) else 0]


def _take_error(found: Nested) -> Exception:
    name, code, description, column = _sized(found, 4)
    text = TEXT.take(description)
    if not name:
        return RuntimeError(text)
    kind = _ERRORS.get(TEXT.take(name))
    if kind is None:
        raise ValueError(f"errors of kind {name!r:.50} are unknown")
    if kind is SelectorError:
        return SelectorError(text, column=_take_number(column), code=TEXT.take(code))
    return kind(text, code=TEXT.take(code))


ERROR: Final = Form(_put_error, _take_error)
