"""`replication` of HornetQ and Artemis: `store` is the URL of a replicated store here, whose coordinator decides what
votes, or their lock manager, decide there."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

from amq_migrate.foreign.importing import CONTAINER, FilePart, Rule, each_of, natural, special
from amq_migrate.foreign.report import Status

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SERVERS = re.compile(r"([A-Za-z0-9_.:,\[\]-]+)(?:/([A-Za-z0-9_./-]+))?")
_MILLISECONDS = re.compile(r"[0-9]{3,6}")
_PLACEHOLDER = "zookeeper://HOST:2181"
_SAVED_MAX = 1000
_IN_URL = "it is in the URL of the store"
_DECIDED = "the coordinator decides, and no copy can become master that lacks something: there are no votes"


def rules() -> dict[str, Rule]:
    """The table for `ha-policy/replication`, and what HornetQ has of it at the root of the file."""
    return {
        "replication": special(advise),
        **each_of(special(_preferred), "replication/master replication/primary"),
        **each_of(natural("members are alike: this one has no priority"), "replication/slave replication/backup"),
        **each_of(natural(_IN_URL), "group-name coordination-id max-saved-replicated-journals-size"),
        **each_of(natural(_DECIDED), "vote-on-replication-failure quorum-size quorum-vote-wait vote-retries"),
        **each_of(natural(_DECIDED), "vote-retry-wait vote-retries-wait retry-replication-wait"),
        "initial-replication-sync-timeout": natural(
            "a copy that lacks something gets it beside the traffic, and nothing stands still at its end"
        ),
        **each_of(
            natural("a member that starts asks the coordinator whether there is a master"),
            "check-for-live-server check-for-active-server",
        ),
        "replication-clustername": natural("members find each other at the coordinator"),
        **each_of(CONTAINER, "manager manager/properties"),
        "manager/class-name": natural("the URL of the coordinator says which kind it is"),
        "properties/property": natural(_IN_URL),
        **each_of(natural(_IN_URL), "property@key property@value"),
    }


def advise(part: FilePart) -> None:
    """Name the store that says the same."""
    importing = part.importing
    texts, properties = {}, {}
    for each in part.element.below():
        if each.name == "property":
            value = each.attributes.get("value", each.text)
            properties[each.attributes.get("key", "")] = importing.fill(value, each, "value")
        else:
            texts[each.name] = importing.fill(each.text, each, each.name)
    group = next((each for each in (texts.get("group-name"), texts.get("coordination-id")) if each), "")
    group = re.sub(r"[^A-Za-z0-9_.-]", "-", group)[:64]  # two groups of other names stay two
    said = {"group": group if group.strip(".") else "amq", "coordinator": _coordinator(properties)}
    saved = texts.get("max-saved-replicated-journals-size", "")
    if saved in ("-1", "0") or (_NAME.fullmatch(saved) and saved.isdecimal()):
        said["savedReplicas"] = str(_SAVED_MAX if saved == "-1" else min(int(saved), _SAVED_MAX))
    store = f"replica:///DIR?{urlencode(said, safe=':/,?=', quote_via=quote)}"
    if any(each.name == "colocated" for each in part.element.below()):
        importing.coordinator = said["coordinator"]
        part.tell(Status.CLUSTER, "the stores of the cluster are replicated ones (docs/replication.md)")
        return
    told = (
        f"give --store '{store}' at every member, each with a directory of its own, or set store: see "
        "docs/replication.md, also for the option that lets one of a pair go on alone"
    )
    if said["coordinator"] == _PLACEHOLDER:
        told += "; the coordinator takes the place of votes: three servers of ZooKeeper or etcd, or a database"
    importing.store_advice = told
    part.tell(Status.UNSUPPORTED, told)


def _coordinator(properties: dict[str, str]) -> str:
    folder = properties.get("locks-folder", "")
    if folder.startswith("/"):
        return f"file://{folder}"
    servers = _SERVERS.fullmatch(properties.get("connect-string", ""))
    if servers is None:
        return _PLACEHOLDER
    words = [each.strip("/") for each in (servers[2] or "", properties.get("namespace", "")) if each.strip("/")]
    options = {"namespace": "/".join(words)} if words else {}
    for key, option in (("session-ms", "sessionTimeout"), ("connection-ms", "requestTimeout")):
        if _MILLISECONDS.fullmatch(properties.get(key, "")):
            options[option] = properties[key]
    query = urlencode(options, safe="/")
    return f"zookeeper://{servers[1]}?{query}" if query else f"zookeeper://{servers[1]}"


def _preferred(part: FilePart) -> None:
    part.importing.set(part, "priority", 1, "the preferred master; others have priority 0")
