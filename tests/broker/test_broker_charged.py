"""What a message counts for is at least four fifths of what it takes, by the interpreter's own account."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from amq.broker.memory import cost
from amq.core.message import Message, head, heads, lift
from amq.core.values import Nested
from tests.sampling import sampled
from tests.typed import tiny

COUNT = 100
SHARE_MIN = 0.8


def text(headers: dict[str, str], body: bytes = b"x") -> Callable[[], Message]:
    def make() -> Message:
        own = {name.encode().decode(): value.encode().decode() for name, value in headers.items()}
        envelope = lift(own)
        return Message("queue://a", bytes(bytearray(body)), own or None, envelope=envelope)

    return make


def native(properties: dict[str, Nested]) -> Callable[[], Message]:
    """Read, as for a selector, and at the end of that turn."""

    def make() -> Message:
        message = tiny("queue://a", b"x", properties)
        head(message)
        heads.clear()
        return message

    return make


CASES: dict[str, Callable[[], Message]] = {
    "nothing": text({}),
    "body": text({}, bytes(5000)),
    "few": text({"a": "1", "b": "2"}),
    "eleven": text({f"h{number}": "v" for number in range(11)}),
    "many small": text({f"{number:x}": f"{number}" for number in range(1000)}),
    "long names": text({f"{'n' * 900}{number}": "1" for number in range(8)}),
    "other letters": text({f"ж{number}": "\U0001f600" * 50 for number in range(20)}),
    "lifted": text({"correlation-id": "c" * 300, "reply-to": "/queue/b", "type": "t"}),
    "native, few": native({"a": 1, "b": "x"}),
    "native, some": native({f"name {number:x}": f"value {number}" for number in range(100)}),
    "native, many small": native({f"{number:x}": True for number in range(1000)}),
    "native, other letters": native({f"ж{number}": "\U0001f600" * 50 for number in range(20)}),
}


@pytest.mark.parametrize("name", sampled(CASES, 3))
def test_memory_is_counted_at_the_size_that_it_takes(name: str) -> None:
    make = CASES[name]
    make()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = [make() for _ in range(COUNT)]
        gc.collect()
        taken = (tracemalloc.get_traced_memory()[0] - before) / COUNT
    finally:
        tracemalloc.stop()
    assert cost(made[0]) >= SHARE_MIN * taken
