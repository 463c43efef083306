"""config.properties of Sun MQ and Open MQ → our options: above all what makes brokers a cluster (`imq.cluster.*`).

To teach amq one more property, add a line to the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from amq.config import names
from amq.core.errors import ConfigError
from amq_migrate.foreign.clustering import told, told_list
from amq_migrate.foreign.convert import size
from amq_migrate.foreign.document import ELEMENTS_MAX, Element
from amq_migrate.foreign.importing import (
    CONTAINER,
    FilePart,
    Importing,
    carry,
    each_of,
    ignored,
    natural,
    special,
    table,
    unsupported,
)
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.report import Status

_ANY_STORE = "set store to a directory that all brokers see, or to postgresql://… (docs/postgresql.md)"
_LINKS = "each member listens for gateways at a port of its own: see linkListen"
_ALIVE = "the lock and the heartbeat in each store say who is alive: see lockKeepAlivePeriod and hungMasterTimeout"
_KEY = re.compile(r"((?:\\.|[^\\\s=:])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

RULES = table(
    {
        "properties": CONTAINER,
        "imq.brokerid": carry("name", told="each broker of a cluster has another name"),
        "imq.instancename": ignored("see imq.brokerid, or --name"),
        "imq.cluster.ha": special(lambda part: _ha(part)),
        "imq.cluster.clusterid": special(
            lambda part: told(
                part, "the directory or database of a cluster is its name: give all nodes the same --cluster"
            )
        ),
        "imq.cluster.brokerlist imq.cluster.brokerlist.manual": special(told_list),
        "imq.cluster.url": unsupported(
            "the file there is not read: put its properties into this one, and import it again"
        ),
        **each_of(
            natural("nodes change the tables of the cluster in its directory: none is special"),
            "imq.cluster.masterbroker imq.cluster.nowaitForMasterBroker imq.cluster.dynamicChangeMasterBrokerEnabled "
            "imq.cluster.nomasterbroker imq.cluster.sharecc.persist.jdbc.dbVendor imq.cluster.sharecc.persistCreate",
        ),
        "imq.cluster.hostname imq.cluster.port imq.cluster.transport": natural(_LINKS),
        **each_of(
            natural(_ALIVE),
            "imq.cluster.heartbeat.hostname imq.cluster.heartbeat.port imq.cluster.heartbeat.interval "
            "imq.cluster.heartbeat.threshold imq.cluster.monitor.interval imq.cluster.monitor.threshold",
        ),
        "imq.cluster.ha.takeoverWaitTimeout": natural(
            "open transactions end with the master, prepared ones after preparedTransactionTimeout"
        ),
        "imq.persist.store": special(lambda part: _persist(part)),
        "imq.persist.file.sync.enabled": natural("a message is on disk before it is confirmed"),
        "imq.persist.jdbc.dbVendor imq.persist.jdbc.connection.limit": ignored("see the URL of the database"),
        "imq.portmapper.port imq.portmapper.hostname imq.hostname imq.service.activelist imq.jms.tcp.port "
        "imq.ssljms.tls.port": unsupported("clients speak STOMP or OpenWire here: set transports"),
        "imq.message.max_size": carry("maxFrameSize", size),
        "imq.system.max_size": carry("memoryLimit", size, "messages beyond it wait in the journal"),
        "imq.message.expiration.interval": natural("expired messages go within about a second"),
    },
)
_DATABASE = re.compile(r"imq\.persist\.jdbc\.[^.]+\.(opendburl|createdburl|user|driver|property\..*|needpassword)")


def read(data: bytes, path: str, placeholders: Placeholders) -> Importing:
    """Raises ConfigError."""
    root = _parse(data, path)
    rules = dict(RULES)
    for each in root.children:
        if _DATABASE.fullmatch(each.name):
            rules[each.name] = special(_database)
    importing = Importing(path, root, rules, placeholders)
    importing.visit(root)
    return importing


def _parse(data: bytes, path: str) -> Element:
    """The properties as elements of one root. Raises ConfigError where the file holds no property of a broker."""
    root = Element("properties", "", {}, 1, "", "")
    for line, text in _lines(data.decode("latin-1")):
        found = _KEY.fullmatch(text)
        if found is None:
            continue
        key, value = (_ESCAPE.sub(_escaped, part) for part in found.groups())
        root.children.append(Element(key, "", {}, line, names.shorten(key), names.shorten(key), value.strip()))
        if len(root.children) > ELEMENTS_MAX:
            raise ConfigError(f"{path}:{line}: holds more than {ELEMENTS_MAX} properties: not a configuration file")
    if not any(each.name.startswith("imq.") for each in root.children):
        raise ConfigError(
            f"{path}: is neither XML nor a file of properties of Sun MQ (imq.…): `amq config check` reads our own "
            "configuration"
        )
    return root


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their number, those that go on after a backslash joined; no comments."""
    whole, began = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip()
        if not whole and (not line or line[0] in "#!"):
            continue
        began = began if whole else number
        slashes = len(line) - len(line.rstrip("\\"))
        whole += line[: -1 if slashes % 2 else None]
        if slashes % 2 == 0:
            yield began, whole
            whole = ""
    if whole:
        yield began, whole


def _escaped(found: re.Match[str]) -> str:
    text = found[1]
    return chr(int(text[1:], 16)) if len(text) == 5 else _CONTROLS.get(text, text)


def _ha(part: FilePart) -> None:
    if part.value.lower() == "true":
        told(part, "each node is master of its share of the stores, and takes over what others served")
    else:
        told(part, "nodes share the messages as these brokers did; here they also take over from each other")


def _persist(part: FilePart) -> None:
    if part.value.lower() != "jdbc":
        part.tell(Status.UNSUPPORTED, f"the files of the old broker are not read: {_ANY_STORE}")
        return
    part.importing.cluster_place = "postgresql://USER@HOST/DATABASE"
    part.tell(
        Status.UNSUPPORTED,
        "the tables of the old broker are not read: give the cluster a database of its own (docs/postgresql.md)",
    )


def _database(part: FilePart) -> None:
    found = re.match(r"jdbc:postgresql://([^?]+)", part.value) if part.element.name.endswith("opendburl") else None
    if found is None or "@" in found[1]:
        part.tell(Status.IGNORED, "see imq.persist.store; no password belongs into a URL of amq")
        return
    part.importing.cluster_place = f"postgresql://{found[1]}"
    part.tell(Status.IGNORED, f"give --cluster postgresql://{found[1]}: amq makes its own tables there")
