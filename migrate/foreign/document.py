"""The XML of another broker as a tree of elements with line numbers, read without trust.

Invariant: reading takes time and memory in proportion to the file, which `amq.config.reading` bounds; it opens no other
file and no connection. A document type declaration is refused as a whole, so there are no entities to expand or to
fetch. The result is a tree, or one `ConfigError` with file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from xml.sax import SAXException, SAXParseException, handler
from xml.sax.xmlreader import AttributesNSImpl, Locator

import defusedxml.expatreader
from defusedxml.common import DefusedXmlException

from amq.config import names
from amq.core.errors import ConfigError

DEPTH_MAX = 64
ELEMENTS_MAX = 10_000
ATTRIBUTES_MAX = 256  # of one element
PATH_CHARS_MAX = 400  # of the elements around one
_LABELS = ("name", "id", "match", "queue", "topic", "username", "uri", "key")


@dataclass(eq=False, slots=True)
class Element:
    """One element: its local name, what it holds, and where it stands.

    namespace   the URI of its namespace, "" = none
    attributes  without namespaces: those of others (`xsi:schemaLocation`) are left out
    text        what stands directly in it, without blanks at the ends
    path        from the root: `broker/transportConnectors/transportConnector[stomp]`
    near        its end, for people: `transportConnectors/transportConnector[stomp]`
    """

    name: str
    namespace: str
    attributes: dict[str, str]
    line: int
    path: str
    near: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def child(self, *names: str) -> Element | None:
        """The first child with one of these names."""
        return next((each for each in self.children if each.name in names), None)

    def below(self) -> list[Element]:
        """All elements in it, in the order of the file."""
        found: list[Element] = []
        left = self.children[::-1]
        while left:
            element = left.pop()
            found.append(element)
            left += element.children[::-1]
        return found


def parse(data: bytes, path: str) -> Element:
    """The root element of `data`, the content of the file `path`. Raises ConfigError."""
    builder = _Builder(path)
    parser = defusedxml.expatreader.create_parser(forbid_dtd=True, forbid_entities=True, forbid_external=True)
    parser.setFeature(handler.feature_namespaces, True)
    parser.setContentHandler(builder)
    try:
        parser.parse(BytesIO(data))
    except DefusedXmlException as error:
        raise ConfigError(
            f"{path}:{builder.line}: has a document type declaration (<!DOCTYPE …>) or entities, which amq does not "
            "read because they can name other files or fill the memory: remove the declaration, and write what its "
            "entities stand for"
        ) from error
    except SAXParseException as error:
        raise ConfigError(f"{path}:{error.getLineNumber()}: is not valid XML: {error.getMessage()}") from error
    except (SAXException, ValueError, LookupError) as error:
        raise ConfigError(f"{path}:{builder.line}: is not valid XML: {error}") from error
    assert builder.root is not None
    return builder.root


class _Builder(handler.ContentHandler):
    """Makes elements of what the parser tells."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.root: Element | None = None
        self._path = path
        self._open: list[Element] = []
        self._labels: list[str] = []
        self._texts: list[list[str]] = []
        self._count = 0
        self._locator: Locator | None = None

    @property
    def line(self) -> int:
        """The line at which the parser is."""
        return (self._locator.getLineNumber() or 1) if self._locator is not None else 1

    def setDocumentLocator(self, locator: Locator) -> None:
        self._locator = locator

    def startElementNS(self, name: tuple[str | None, str], _qname: str | None, attributes: AttributesNSImpl) -> None:
        namespace, local = name
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise ConfigError(f"{self._path}:{self.line}: has more than {ELEMENTS_MAX} elements: split the file")
        if len(self._open) >= DEPTH_MAX:
            raise ConfigError(f"{self._path}:{self.line}: elements are nested more than {DEPTH_MAX} deep")
        if len(attributes) > ATTRIBUTES_MAX:
            raise ConfigError(f"{self._path}:{self.line}: <{names.shorten(local)}> has too many attributes")
        own = {key: str(value) for (space, key), value in attributes.items() if not space}
        parent = self._open[-1] if self._open else None
        label = next((own[key] for key in _LABELS if own.get(key)), "")
        label = names.shorten(local) + (f"[{names.shorten(label)}]" if label else "")
        path, near = (f"{_tail(parent.path)}/{label}", f"{self._labels[-1]}/{label}") if parent else (label, label)
        element = Element(local, namespace or "", own, self.line, path, near)
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self._open.append(element)
        self._labels.append(label)
        self._texts.append([])

    def characters(self, content: str) -> None:
        self._texts[-1].append(content)

    def endElementNS(self, _name: tuple[str | None, str], _qname: str | None) -> None:
        self._labels.pop()
        self._open.pop().text = "".join(self._texts.pop()).strip()


def _tail(path: str) -> str:
    return path if len(path) <= PATH_CHARS_MAX else f"…{path[-PATH_CHARS_MAX:]}"
