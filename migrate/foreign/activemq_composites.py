"""compositeQueue and compositeTopic of activemq.xml → diverts, each for the queue or the topic of its name alone."""

from __future__ import annotations

from amq.config.diverts import Divert, parse_diverts
from amq.config.patterns import parse_pattern
from amq_migrate.foreign.convert import boolean
from amq_migrate.foreign.diverting import Diverts
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import FilePart, Importing, Rule, special
from amq_migrate.foreign.report import Status

_KINDS = {"compositeQueue": "queue", "compositeTopic": "topic"}


class Composites:
    """Gathers them, because a name may have several."""

    def __init__(self) -> None:
        self._diverts = Diverts()

    def rules(self) -> dict[str, Rule]:
        return dict.fromkeys(_KINDS, special(self._composite, whole=True))

    def finish(self, importing: Importing) -> None:
        self._diverts.finish(importing)

    def _composite(self, part: FilePart) -> None:
        attributes, fill = part.element.attributes, part.importing.fill
        try:
            pattern = fill(attributes.get("name", ""), part.element, "name")
            parse_pattern(pattern)
            forward_only = boolean(fill(attributes.get("forwardOnly", "true"), part.element, "forwardOnly"))
            unmatched = boolean(fill(attributes.get("sendWhenNotMatched", "false"), part.element, "sendWhenNotMatched"))
            kind = _KINDS[part.element.name]
            diverts = [self._divert(part, each, kind, forward_only) for each in _targets(part.element)]
        except ValueError as error:
            part.tell(Status.UNSUPPORTED, f"a name or value in it {error}")
            return
        if not diverts:
            part.tell(Status.UNSUPPORTED, "it forwards to nothing: let no producer send to it")
            return
        for divert in diverts:
            self._diverts.add(part, "" if pattern == ">" else pattern, divert)
        if forward_only and not unmatched and all(divert.selector for divert in diverts):
            part.tell(
                Status.UNSUPPORTED,
                f"a message that none of its selectors takes stays in {kind} {pattern}, where ActiveMQ drops it: "
                "divert the rest to a queue with a ringSize",
            )

    def _divert(self, part: FilePart, target: Element, kind: str, exclusive: bool) -> Divert:
        """The divert to an element `queue`, `topic` or `filteredDestination`. Raises ValueError."""
        fill, attributes = part.importing.fill, target.attributes
        selector = ""
        if target.name == "filteredDestination":
            selector = fill(attributes.get("selector", ""), target, "selector")
            found = next((each for each in ("queue", "topic") if each in attributes), "")
            inner = next((each for each in target.below() if each.name in ("queue", "topic")), None)
            name = fill(attributes.get(found, ""), target, found)
            if inner is not None:
                found, name = inner.name, fill(inner.attributes.get("physicalName", ""), inner, "physicalName")
        else:
            found, name = target.name, fill(attributes.get("physicalName", ""), target, "physicalName")
        wanted = Divert(f"{found}://{name}", kind, exclusive or None, selector)
        (divert,) = parse_diverts(str(wanted))
        if divert != wanted:
            raise ValueError(f'is not a name: "{name}"')
        return divert


def _targets(element: Element) -> list[Element]:
    """The elements to which it forwards, without those inside a filtered destination."""
    found = []
    for child in element.children:
        if child.name in ("queue", "topic", "filteredDestination"):
            found.append(child)
        else:
            found += _targets(child)
    return found
