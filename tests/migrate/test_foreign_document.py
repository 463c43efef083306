"""XML of strangers: no entities, no other files, no network, bounded time and memory, one clear error each."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.config.reading import XML_BYTES_MAX, is_xml
from amq.core.errors import ConfigError
from amq_migrate import foreign
from amq_migrate.foreign import document, load
from tests.sampling import examples

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


def refused(data: str | bytes) -> str:
    data = data.encode() if isinstance(data, str) else data
    with pytest.raises(ConfigError) as caught:
        foreign.read(data, "other.xml", {}, {})
    return caught.value.description


def test_lines_paths_and_text() -> None:
    root = document.parse(b'<a>\n <b name="x">\n  hello \n </b><b/></a>', "other.xml")
    first, second = root.children
    assert (first.path, first.near, first.line, first.text) == ("a/b[x]", "a/b[x]", 2, "hello")
    assert (second.path, second.line, second.attributes) == ("a/b", 4, {})
    assert root.below() == [first, second]


def test_namespaces_are_told_apart() -> None:
    text = '<x:broker xmlns:x="urn:x" x:hidden="1" shown="2"><inner/></x:broker>'
    root = document.parse(text.encode(), "other.xml")
    assert (root.name, root.namespace, root.attributes) == ("broker", "urn:x", {"shown": "2"})
    assert root.children[0].namespace == ""


@pytest.mark.parametrize(
    "declaration",
    [
        f'<!DOCTYPE broker [<!ENTITY l0 "ha">{LAUGHS}]>',
        '<!DOCTYPE broker [<!ENTITY secret SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE broker SYSTEM "http://192.0.2.1/broker.dtd">',
        '<!DOCTYPE broker [<!ENTITY % far SYSTEM "http://192.0.2.1/x"> %far;]>',
        "<!DOCTYPE broker>",
    ],
    ids=["billion laughs", "external entity", "external DTD", "parameter entity", "bare"],
)
def test_a_document_type_is_refused_whatever_it_declares(declaration: str) -> None:
    error = refused(f"\n{declaration}<broker>&l9;&secret;</broker>")
    assert error.startswith("other.xml:2: has a document type declaration")
    assert "remove the declaration" in error


def test_an_entity_that_nobody_declares() -> None:
    assert refused("<broker>&secret;</broker>").startswith("other.xml:1: is not valid XML: undefined entity")


def test_depth_and_number_of_elements_are_bounded() -> None:
    depth = document.DEPTH_MAX
    assert document.parse(b"<a>" * depth + b"</a>" * depth, "x").children
    assert refused("<broker>\n" + "<a>" * depth) == f"other.xml:2: elements are nested more than {depth} deep"
    number = document.ELEMENTS_MAX
    assert "elements: split the file" in refused("<broker>" + "<a/>" * number + "</broker>")
    attributes = " ".join(f'a{each}="1"' for each in range(document.ATTRIBUTES_MAX + 1))
    assert "too many attributes" in refused(f"<broker {attributes}/>")


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "activemq.xml"
    path.write_bytes(b"<broker>" + b" " * XML_BYTES_MAX + b"</broker>")
    with pytest.raises(ConfigError, match=f"activemq.xml: is larger than {XML_BYTES_MAX} bytes"):
        load(str(path))


@pytest.mark.deep
@pytest.mark.parametrize(
    "text",
    [
        "<broker>" + "<policyEntry queue='a' x='y'/>" * 9000 + "</broker>",
        "<broker>" + "".join(f"<unknown{n} prefetch='1'/>" for n in range(9900)) + "</broker>",
        "<core><address-settings>"
        + "".join(
            f"<address-setting match='a.{n}.#'><max-size-bytes>1</max-size-bytes></address-setting>"
            for n in range(3000)
        )
        + "</address-settings></core>",
        "<broker><transportConnectors>"
        + "<transportConnector uri='stomp://h:0?"
        + "&amp;".join(f"a{n}=1" for n in range(5000))
        + "'/></transportConnectors></broker>",
        f"<broker><kahaDB directory='{'${a:' * 200_000}'/></broker>",
        f"<{'a' * 1_000_000}/>",
    ],
    ids=["entries", "unknown elements", "settings", "options of a URL", "placeholders", "a name"],
)
def test_a_hostile_file_takes_a_few_seconds_at_most(text: str) -> None:
    began = time.thread_time()
    try:
        found = foreign.read(text.encode(), "other.xml", {}, {})
        told = [found.report.text(line) for line in found.report.lines]
    except ConfigError as error:
        told = [error.description]
    assert max(map(len, told)) < 2000
    assert time.thread_time() - began < 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<broker>", "other.xml:1: is not valid XML: no element found"),
        ("<broker>\n</broken>", "other.xml:2: is not valid XML: mismatched tag"),
        ("<x:broker/>", "other.xml:1: is not valid XML: unbound prefix"),
        ('<?xml version="1.0" encoding="nonsense"?><broker/>', "is not valid XML"),
        ("<broker a='1' a='2'/>", "duplicate attribute"),
        ("<settings/>", "other.xml:1: <settings> is the configuration of no broker that amq knows"),
        ("<configuration/>", "<configuration> is the configuration of no broker"),
        ("<beans><bean/></beans>", "other.xml:1: <beans> holds no <broker>"),
        ("<beans><broker/>\n<broker/></beans>", "other.xml:2: <beans> holds 2 brokers: give a file with one"),
    ],
)
def test_what_is_no_configuration_of_a_broker(text: str, expected: str) -> None:
    assert expected in refused(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"<broker/>", True),
        (b"\n  <broker/>", True),
        (b"\xef\xbb\xbf<broker/>", True),
        ("<broker/>".encode("utf-16"), True),
        (b"", False),
        (b"[broker]", False),
        (b"# <broker/>", False),
    ],
)
def test_xml_is_told_from_toml(data: bytes, expected: bool) -> None:
    assert is_xml(data) is expected


def test_utf_16_is_read() -> None:
    assert foreign.read("<?xml version='1.0'?><broker/>".encode("utf-16"), "x", {}, {}).format == "activemq"


@settings(max_examples=examples(200))
@given(st.binary(max_size=300).map(lambda data: b"<broker" + data))
def test_nothing_else_is_raised(data: bytes) -> None:
    try:
        told = foreign.read(data, "other.xml", {}, {}).report.path
    except ConfigError as error:
        told = error.description
    assert told.startswith("other.xml")
