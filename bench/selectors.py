"""Time of selectors for one message: `python -m bench.selectors`, one line a case.

First one selector at a time; then 10,000 of them that differ, asked one by one and through the index. Each case is the
best of several runs, so that other work on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from amq.core.message import Message
from amq.selectors import Selector, SelectorIndex

ROUNDS = 7
CALLS = 20_000
SUBSCRIPTIONS = 10_000
PROPERTIES = {
    "type": "t17",
    "color": "red",
    "price": "17",
    "weight": "1.5",
    "region": "north",
    "customer": "c-17",
    "flag": "true",
}
MESSAGE = Message("topic://prices", b"x" * 1024, PROPERTIES)
SINGLE = (
    "type = 't17'",
    "price > 10",
    "weight > 1",
    "price BETWEEN 10 AND 20",
    "color IN ('red', 'blue')",
    "customer LIKE 'c-%'",
    "customer LIKE 'c_1%7'",
    "JMSPriority >= 4",
    "price * 2 + 1 > 30",
    "type = 't17' AND price > 10 AND region IN ('north', 'south')",
    "NOT (flag AND (price < 10 OR color IS NULL))",
)
MANY = (
    "type = 't{i}'",
    "type IN ('t{i}', 'u{i}')",
    "price = {i}",
    "region = 'north' AND type = 't{i}' AND price > 10",
    "type = 't{i}' OR customer = 'c-{i}'",
    "price > {i}",
)


def best_ns(run: Callable[[Message], object], calls: int) -> float:
    """Nanoseconds per call of the fastest of ROUNDS runs."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run(MESSAGE)
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best


def compiling(text: str) -> float:
    """Nanoseconds to compile one of many selectors of the same shape, each with its own values."""
    best = float("inf")
    for round_ in range(ROUNDS):
        texts = [text.format(i=f"{round_}{i}") for i in range(1000)]
        start = time.perf_counter_ns()
        kept = [Selector(each) for each in texts]
        best = min(best, (time.perf_counter_ns() - start) / len(kept))
    return best


def main() -> None:
    print("one selector")
    for text in SINGLE:
        spent = best_ns(Selector(text).matches, CALLS)
        print(f"  {text:64} {spent:8,.0f} ns {1e9 / spent:12,.0f} /s")
    print("compiling one")
    for text in MANY[0], MANY[3]:
        print(f"  {text:64} {compiling(text) / 1000:8,.0f} µs")
    print(f"{SUBSCRIPTIONS:,} selectors: one by one, through the index, matches")
    for text in MANY:
        selectors = [Selector(text.format(i=i)) for i in range(SUBSCRIPTIONS)]
        index: SelectorIndex[int] = SelectorIndex()
        for key, selector in enumerate(selectors):
            index.add(key, selector)
        plain = best_ns(lambda message, kept=selectors: [key for key in kept if key.matches(message)], 3)  # type: ignore[misc]
        found = len(index.matching(MESSAGE))
        spent = best_ns(index.matching, 3 if found > 10 else CALLS)
        print(f"  {text:64} {plain / 1000:8,.0f} µs {spent / 1000:8,.1f} µs {found:6,}")


if __name__ == "__main__":
    main()
