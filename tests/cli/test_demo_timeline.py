"""The time line of each store around a kill: what the events of nodes and clients make of it, and both drawings."""

from __future__ import annotations

from xml.etree import ElementTree

from amq.cli.demo_timeline import COLUMNS, KILL, NO_MASTER, NodeSpan, StoreLine, TimeLine, as_svg, as_text, time_line

SVG = "{http://www.w3.org/2000/svg}"
# node-2 is killed at 100 s. s1 is not its store; s2 is, and node-1 takes it over; s3 has come to node-2 before.
MASTERS = [
    (10.0, "s1", "node-1"),
    (10.5, "s2", "node-2"),
    (10.6, "s3", "node-3"),
    (99.9, "s3", "node-2"),
    (100.4, "s2", "node-1"),
    (100.6, "s3", "node-3"),
]
WAITS = {"s1": [(50.0, 50.2)], "s2": [(99.98, 100.5)], "s3": [(100.01, 100.75), (101.9, 102.5)]}


def made() -> TimeLine:
    return time_line("node-2", 100.0, 102.0, 0.5, MASTERS, WAITS)


def rounded(line: StoreLine) -> list[NodeSpan]:
    return [NodeSpan(span.node, round(span.from_s, 3), round(span.to_s, 3)) for span in line.served]


def test_a_store_has_the_node_that_serves_it_until_that_dies() -> None:
    first, second, third = made().stores
    assert rounded(first) == [NodeSpan("node-1", -0.5, 2.0)]
    assert first.waits == ()
    assert rounded(second) == [NodeSpan("node-2", -0.5, 0.0), NodeSpan("node-1", 0.4, 2.0)]
    assert second.node_at(-0.1) == "node-2"
    assert second.node_at(0.1) == ""
    assert second.node_at(0.5) == "node-1"
    assert rounded(third)[1:] == [NodeSpan("node-2", -0.1, 0.0), NodeSpan("node-3", 0.6, 2.0)]
    assert [round(to_s, 3) for _, to_s in third.waits] == [0.75, 2.0], "what lies outside is cut off"


def test_a_node_that_comes_back_within_the_time_line_serves_again() -> None:
    line = time_line("node-1", 10.0, 14.0, 0.5, [(1.0, "s1", "node-1"), (12.0, "s1", "node-1")], {"s1": []})
    assert rounded(line.stores[0]) == [NodeSpan("node-1", -0.5, 0.0), NodeSpan("node-1", 2.0, 4.0)]


def test_the_text_has_a_row_for_each_store() -> None:
    head, first, second, third = as_text(made())
    assert "node-2 is killed" in head
    assert first == f"s1  {'1' * COLUMNS}  its client did not wait"
    assert second == f"s2  {'2' * 8}{KILL}{NO_MASTER * 5}{'1' * 26}  node-1 after 400 ms; its client waited 520 ms"
    assert third.endswith("node-3 after 600 ms; its client waited 740 ms")


def test_the_svg_shows_each_node_each_wait_and_each_kill() -> None:
    drawn = ElementTree.fromstring(as_svg([made(), made()]))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    assert texts.count("kill -9 of node-2 with all its processes") == 2
    assert texts.count("s3") == 2
    assert texts.count("node-3") == 4
    assert "node-1 after 400 ms; its client waited 520 ms" in texts
    width, height = map(int, drawn.attrib["viewBox"].split()[2:])
    for each in drawn.iter(f"{SVG}rect"):
        left, top = float(each.get("x", 0)), float(each.get("y", 0))
        assert 0 <= left <= left + float(each.attrib["width"]) <= width
        assert 0 <= top <= top + float(each.attrib["height"]) <= height


def test_names_that_people_choose_are_text() -> None:
    line = TimeLine("<b>", -1.0, 1.0, (StoreLine("a&b", (NodeSpan("<b>", -1.0, 0.0),), ()),))
    ElementTree.fromstring(as_svg([line]))
    assert as_text(line)[1].startswith("a&b  ")
