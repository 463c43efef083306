"""Configurations of ActiveMQ, Artemis and HornetQ become ours, and the report says what became of each part.

The files in files/ are written after the documentation of these brokers and the pages on A-MQ, Artemis and HornetQ
from which the options of this broker come.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.config import BY_KEY, BrokerConfig
from amq.config.reading import TOML_BYTES_MAX
from amq.core.errors import ConfigError
from amq.store.replica.url import ReplicaUrl
from amq_migrate import foreign
from amq_migrate.foreign import Foreign, Status, activemq, activemq_policies, artemis, convert, load, writing

FILES = Path(__file__).parent / "files"
PROPERTIES = {"activemq.data": "/data", "feeder.password": "feed me"}


def read(data: str | bytes, properties: dict[str, str] | None = None, env: dict[str, str] | None = None) -> Foreign:
    data = data.encode() if isinstance(data, str) else data
    return foreign.read(data, "other.xml", PROPERTIES if properties is None else properties, env or {})


def values(found: Foreign) -> dict[str, Any]:
    """`key` or `pattern:key` → value, without the other broker's defaults."""
    return {
        f"{pattern}:{key}" if pattern else key: carried.value
        for (pattern, key), carried in found.values.items()
        if carried.part is not None
    }


def of_patterns(found: Foreign, key: str) -> dict[str, Any]:
    """The values of one option, defaults too, by pattern."""
    return {pattern: carried.value for (pattern, each), carried in found.values.items() if each == key}


def broker(inside: str, attributes: str = "") -> Foreign:
    return read(f'<broker xmlns="{activemq.NAMESPACE}" {attributes}>{inside}</broker>')


def entry(attributes: str, inside: str = "") -> str:
    return f"<policyEntry {attributes}>{inside}</policyEntry>"


def policies(*entries: str) -> Foreign:
    inside = "".join(entries)
    return broker(
        f"<destinationPolicy><policyMap><policyEntries>{inside}</policyEntries></policyMap></destinationPolicy>"
    )


def core(inside: str) -> Foreign:
    return read(f'<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">{inside}</core></configuration>')


def addresses(*each: str) -> Foreign:
    return core(f"<address-settings>{''.join(each)}</address-settings>")


def told(found: Foreign, near: str) -> tuple[Status, str]:
    """What the report says of one part."""
    lines = [line for line in found.report.lines if line.near == near and (line.told or line.options)]
    assert len(lines) == 1, [line.near for line in found.report.lines]
    return lines[0].status, lines[0].told


# -- whole files -------------------------------------------------------------------------------------------------------


def test_a_master_slave_group_of_activemq() -> None:
    found = read((FILES / "shared-store.xml").read_bytes())
    assert found.format == "activemq"
    assert values(found) == {
        "name": "west",
        "store": "/sharedFileSystem/sharedBrokerData",
        "lockKeepAlivePeriod": 5.0,
        "lockAcquireSleepInterval": 10.0,
        "failIfLocked": False,
        "journalSegmentSize": 16 << 20,
        "transports": ("tcp://0.0.0.0:61616", "stomp://0.0.0.0:61613", "stomp://127.0.0.1:61614"),
        "schedulerSupport": True,
        "pendingMessageLimit": 1000,
        "subscriptionRecoveryCount": 1,
        "prefetchSize": 20,
        "deadLetterStrategy": "individual",
        "deadLetterPrefix": "DLQ.",
        "expiredMessages": "drop",
        "deadLetterNonPersistent": True,
        "groupBuckets": 64,
        "orders.*:prefetchSize": 1,
        "virtualTopics": ">",
        "virtualTopicConsumers": "Reader.*.",
        "old.name:divert": "from queue to new.name exclusive",
        "fan.out:divert": "from queue to a exclusive; from queue to topic://b exclusive",
        "anonymous": "no",
        "producerFlowControl": "fail",
        "orders.eu:redeliveryBackOffMultiplier": 2,
        "orders.eu:redeliveryDelay": 5.0,
        "rejectedMessages": "redeliver",
        "orders.eu:rejectedMessages": "redeliver",
        "orders.eu:maximumRedeliveries": 4,
        "orders.eu:maximumRedeliveryDelay": 60.0,
        "maximumRedeliveries": 3,
        "redeliveryDelay": 2.0,
        "memoryLimit": 64 << 20,
        "storeLimit": 100 << 30,
        "maxConnections": 1500,
    }
    assert [(user.name, user.password) for user in found.users] == [("feeder", "feed me"), ("reader", "read me")]
    assert "feed me" not in repr(found.users), "a password is in no log"
    assert [line.near for line in found.report.unsupported()] == [
        "policyEntries/policyEntry[>]@topicPrefetch",
        "policyEntries/policyEntry",
        "transportConnectors/transportConnector[openwire]@uri?wireFormat.maxFrameSize",
        "transportConnectors/transportConnector[stomp+ssl]@uri",
        "transportConnectors/transportConnector[amqp]@uri",
        "transportConnectors/transportConnector[ws]@uri",
    ]


def test_a_pair_of_artemis() -> None:
    found = read((FILES / "primary.xml").read_bytes())
    assert found.format == "artemis"
    assert values(found) == {
        "store": "/shared/artemis/journal",
        "journalSegmentSize": 10 << 20,
        "duplicateWindow": 5000,
        "memoryLimit": 200 << 20,
        "storeFreeFloor": 512 << 20,
        "transactionTimeout": 120.0,
        "transports": ("stomp://0.0.0.0:61616", "stomp://0.0.0.0:61613"),
        "maxConnections": 500,
        "priority": 1,
        "failoverOnShutdown": True,
        "waitForActivation": True,
        "deadLetterStrategy": "shared",
        "sharedDeadLetterQueue": "DLQ",
        "expiryQueue": "ExpiryQueue",
        "redeliveryDelay": 1.0,
        "orders.>:maximumRedeliveries": 3,
        "orders.>:redeliveryBackOffMultiplier": 2,
        "orders.>:queueLimit": 100 << 20,
        "orders.>:queueLimitPolicy": "block",
        "orders.eu:queueLimit": 100 << 20,
        "orders.eu:queueLimitPolicy": "fail",
        "orders.cold:queueLimit": 0,
        "ticks:ringSize": 1000,
        "prices:lastValueKey": "share",
        "orders.eu:divert": "audit.orders",
        "prices:divert": "from queue to big where size > 9",
    }
    assert "secret" not in "\n".join(map(found.report.text, found.report.lines))
    backup = read((FILES / "backup.xml").read_bytes())
    assert values(backup) == {
        "store": "/shared/artemis/journal",
        "transports": ("stomp://0.0.0.0:61613",),
        "allowFailback": True,
        "failbackDelay": 2.0,
    }
    assert backup.values["", "failoverOnShutdown"].value is False, "the default of Artemis"
    assert backup.report.unsupported() == []


def test_a_small_file_of_hornetq_is_known_by_its_namespace() -> None:
    found = read(b'<configuration xmlns="urn:hornetq"><shared-store>true</shared-store></configuration>')
    assert found.format == "hornetq"


def test_a_backup_of_hornetq() -> None:
    found = read((FILES / "hornetq.xml").read_bytes(), env={"HORNETQ_HOST": "192.0.2.1"})
    assert found.format == "hornetq"
    assert values(found) == {
        "store": "/shared/hornetq/journal",
        "transports": ("stomp://192.0.2.1:61613",),
        "allowFailback": False,
        "failoverOnShutdown": True,
        "anonymous": "yes",
        "maximumRedeliveries": -1,
        "queueLimit": 10 << 20,
        "queueLimitPolicy": "block",
    }


@pytest.mark.parametrize("name", ["shared-store.xml", "primary.xml", "backup.xml", "hornetq.xml"])
def test_what_is_written_says_what_was_read(name: str, tmp_path: Path) -> None:
    path = FILES / name
    found = foreign.read(path.read_bytes(), str(path), PROPERTIES, {})
    file = tmp_path / "amq.toml"
    file.write_text(writing.toml(found, "/etc/amq/users", str(path) if found.permissions is not None else ""))
    written = load(str(file), host_name="h")
    direct = load(str(path), {}, ["usersFile=/etc/amq/users"], host_name="h", properties=PROPERTIES)
    assert written == direct
    assert written != BrokerConfig(name="h")
    assert direct.sources["store"].startswith(f"{path}:"), "amq config show tells the line"
    for (pattern, key), carried in found.values.items():
        if not pattern:
            assert getattr(written, BY_KEY[key].attribute) == carried.value
    commented = file.read_text().split("\n")
    for number, line in enumerate(commented):
        if " = " in line and not line.startswith("#") and not line.startswith(("usersFile", "permissionsFile")):
            assert commented[number - 1].startswith("# "), f"{line} does not say where it comes from"


@pytest.mark.parametrize(
    ("text", "expected", "unsupported"),
    [
        (
            '<broker><kahaDB directory="/sharedFileSystem/sharedBrokerData" lockKeepAlivePeriod="5000">'
            '<shared-file-locker lockAcquireSleepInterval="10000"/></kahaDB></broker>',
            {
                "store": "/sharedFileSystem/sharedBrokerData",
                "lockKeepAlivePeriod": 5.0,
                "lockAcquireSleepInterval": 10.0,
            },
            [],
        ),
        (
            "<configuration><core><ha-policy><replication><slave><allow-failback>true</allow-failback></slave>"
            "</replication></ha-policy></core></configuration>",
            {"allowFailback": True},
            ["ha-policy/replication"],
        ),
        (
            "<configuration><core><ha-policy><replication><colocated><request-backup>true</request-backup><excludes>"
            "<connector-ref>remote</connector-ref></excludes></colocated></replication></ha-policy></core>"
            "</configuration>",
            {},
            [],
        ),
        (
            "<configuration><core><ha-policy><live-only><scale-down><discovery-group-ref discovery-group-name='g'/>"
            "</scale-down></live-only></ha-policy></core></configuration>",
            {},
            ["live-only/scale-down"],
        ),
        ("<configuration><core><initial-connect-attempts>3</initial-connect-attempts></core></configuration>", {}, []),
        (
            "<configuration><journal-directory>/j</journal-directory><backup-group-name>fish</backup-group-name>"
            "<check-for-live-server>true</check-for-live-server><shared-store>false</shared-store></configuration>",
            {"store": "/j"},
            ["configuration/shared-store"],
        ),
    ],
)
def test_the_excerpts_of_the_manuals(text: str, expected: dict[str, object], unsupported: list[str]) -> None:
    found = read(text)
    assert values(found) == expected
    assert [line.near for line in found.report.unsupported() if line.line] == unsupported


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shared-store.xml", "primary.xml", "backup.xml", "hornetq.xml"])
def test_each_element_and_attribute_has_a_line(name: str) -> None:
    data = (FILES / name).read_bytes()
    found = read(data)
    root = foreign.document.parse(data, name)
    lines = {(line.path, line.line) for line in found.report.lines}
    for element in (root, *root.below()):
        assert (element.path, element.line) in lines
        for attribute in element.attributes:
            assert (f"{element.path}@{attribute}", element.line) in lines
    numbers = [line.line for line in found.report.lines if line.line]
    assert numbers == sorted(numbers)


def test_the_line_and_the_cure() -> None:
    found = read(
        '<broker>\n <transportConnectors>\n\n  <transportConnector uri="stomp+ssl://0.0.0.0:61612"/>\n'
        " </transportConnectors>\n <queuePrefetch/></broker>"
    )
    first, second, third = found.report.unsupported()
    assert found.report.text(first).startswith(
        "other.xml:4: unsupported: transportConnectors/transportConnector[stomp+ssl://0.0.0.0:61612]@uri: "
    )
    assert "PEM form" in first.told
    assert "nearest option of amq is prefetchSize in [queues]" in second.told
    assert "no connector is for STOMP or OpenWire" in third.told
    assert found.report.counts() == {"carried": 10, "natural": 0, "unsupported": 3, "ignored": 0, "cluster": 0}


# -- ActiveMQ ----------------------------------------------------------------------------------------------------------


def test_defaults_of_activemq_that_differ_from_ours_are_written() -> None:
    defaults = {key: carried.value for (_, key), carried in broker("").values.items() if carried.part is None}
    assert defaults == {
        "deadLetterStrategy": "shared",
        "expiredMessages": "dead-letter",
        "deadLetterNonPersistent": False,
        "pendingMessageLimit": 0,
        "anonymous": "yes",
        "schedulerSupport": False,
        "stompStrictDestinations": False,
    }


def test_an_entry_inherits_nothing_from_a_wider_one() -> None:
    found = policies(
        entry('queue=">" queuePrefetch="7"'),
        entry('queue="orders.>"'),
        entry('queue="orders.eu" queuePrefetch="3"'),
        entry('topic="orders.>"'),
    )
    config = _config(found)
    own = activemq_policies.DEFAULTS["prefetchSize"]
    assert [config.of(name).prefetch_size for name in ("other", "orders.a", "orders.eu")] == [7, own, 3]
    only_topics = policies(entry('topic=">" topicPrefetch="7"'), entry('queue="orders.>"'))
    assert ("orders.>", "prefetchSize") not in only_topics.values


def _config(found: Foreign) -> Any:
    from amq.config.policies import Policies

    own: dict[str, Any] = {
        BY_KEY[key].attribute: each.value for (pattern, key), each in found.values.items() if not pattern
    }
    return Policies(BrokerConfig(**own, destinations=found.destinations()))


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("", "a", True),
        ("a.>", "a", True),
        ("a.>", "a.b.c", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a.>", False),
        ("a", "a", False),
        ("a.>", "b", False),
        ("*.b", "a.b", True),
        ("a.>", "a.*", True),
        ("*.>", "a.>", True),
    ],
)
def test_which_pattern_is_wider(wide: str, narrow: str, covers: bool) -> None:
    assert convert.covers(wide, narrow) is covers


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("<individualDeadLetterStrategy/>", ("individual", "ActiveMQ.DLQ.Queue.", "ActiveMQ.DLQ")),
        ('<individualDeadLetterStrategy queuePrefix="X."/>', ("individual", "X.", "ActiveMQ.DLQ")),
        (
            '<sharedDeadLetterStrategy><deadLetterQueue><queue physicalName="Z"/></deadLetterQueue>'
            "</sharedDeadLetterStrategy>",
            ("shared", "DLQ.", "Z"),
        ),
        ("<sharedDeadLetterStrategy/>", ("shared", "DLQ.", "ActiveMQ.DLQ")),
        ("<discardingDeadLetterStrategy/>", ("shared", "DLQ.", "ActiveMQ.DLQ")),
    ],
)
def test_dead_letters(strategy: str, expected: tuple[str, str, str]) -> None:
    found = policies(entry('queue=">"', f"<deadLetterStrategy>{strategy}</deadLetterStrategy>"))
    config = _config(found).of("any")
    assert (config.dead_letter_strategy, config.dead_letter_prefix, config.shared_dead_letter_queue) == expected


def test_one_dead_letter_strategy_for_all() -> None:
    individual = "<deadLetterStrategy><individualDeadLetterStrategy processExpired='false'/></deadLetterStrategy>"
    found = policies(entry('queue="a"', individual))
    assert told(found, "deadLetterStrategy/individualDeadLetterStrategy")[0] is Status.UNSUPPORTED
    assert values(found) == {"a:expiredMessages": "drop"}
    assert found.values["", "deadLetterStrategy"].value == "shared"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", {"redeliveryDelay": 1.0}),
        ('redeliveryDelay="50"', {"redeliveryDelay": 0.05}),
        (
            'useExponentialBackOff="true" backOffMultiplier="3"',
            {"redeliveryDelay": 1.0, "redeliveryBackOffMultiplier": 3},
        ),
        (
            'useExponentialBackOff="true" initialRedeliveryDelay="2000"',
            {"redeliveryDelay": 2.0, "redeliveryBackOffMultiplier": 5},
        ),
        (
            'useExponentialBackOff="true" backOffMultiplier="1.5"',
            {"redeliveryDelay": 1.0, "redeliveryBackOffMultiplier": 1.5},
        ),
        ('maximumRedeliveryDelay="-1"', {"redeliveryDelay": 1.0, "maximumRedeliveryDelay": 30 * 86400.0}),
    ],
)
def test_redelivery(policy: str, expected: dict[str, object]) -> None:
    inside = f"<redeliveryPolicyMap><defaultEntry><redeliveryPolicy {policy}/></defaultEntry></redeliveryPolicyMap>"
    found = broker(f"<plugins><redeliveryPlugin>{inside}</redeliveryPlugin></plugins>")
    assert values(found) == {"rejectedMessages": "redeliver", **expected}


def test_values_that_contradict_others_are_given_up() -> None:
    found = broker(
        '<transportConnectors><transportConnector uri="stomp://h:1?wireFormat.maxFrameSize=104857600"/>'
        '</transportConnectors><persistenceAdapter><kahaDB directory="/d" journalMaxFileLength="32mb"/>'
        '</persistenceAdapter><systemUsage><systemUsage><memoryUsage><memoryUsage limit="20 mb"/></memoryUsage>'
        '<storeUsage><storeUsage limit="100 mb"/></storeUsage></systemUsage></systemUsage>'
    )
    assert "maxFrameSize" not in values(found)
    assert "journalSegmentSize" not in values(found)
    problems = [line.told for line in found.report.unsupported()]
    assert [problem for problem in problems if "maxFrameSize" in problem and "memoryLimit = 20MiB" in problem]
    assert [problem for problem in problems if "journalSegmentSize = 32MiB" in problem]


def test_values_out_of_bounds_are_reported() -> None:
    kahadb = '<persistenceAdapter><kahaDB directory="/d" lockKeepAlivePeriod="{}"/></persistenceAdapter>'
    near = "persistenceAdapter/kahaDB@lockKeepAlivePeriod"
    assert told(broker(kahadb.format(50)), near)[0] is Status.UNSUPPORTED
    assert told(broker(kahadb.format("5s")), near)[0] is Status.UNSUPPORTED
    assert told(broker(kahadb.format(0)), near) == (
        Status.NATURAL,
        "the check of the lock cannot be switched off: lockKeepAlivePeriod has its default",
    )


@pytest.mark.parametrize(
    ("uri", "urls"),
    [
        ("stomp://0.0.0.0:61613", ("stomp://0.0.0.0:61613",)),
        ("stomp+nio://[::1]:7", ("stomp://[::1]:7",)),
        ("auto+nio://0.0.0.0:61616?maximumConnections=9", ("auto://0.0.0.0:61616",)),
        ("stomp://h", ("stomp://h:61613",)),
        ("stomp+nio+ssl://0.0.0.0:1", None),
        ("tcp://0.0.0.0:1", ("tcp://0.0.0.0:1",)),
        ("nio://0.0.0.0", ("tcp://0.0.0.0:61616",)),
        ("nio+ssl://0.0.0.0:1", None),
        ("ssl://0.0.0.0:1", None),
        ("mqtt+nio://0.0.0.0:1", None),
        ("wss://0.0.0.0:1", None),
        ("vm://x", None),
        ("stomp://h:x", None),
        ("stomp://:99999", None),
        ("", None),
    ],
)
def test_connectors(uri: str, urls: tuple[str, ...] | None) -> None:
    found = broker(f'<transportConnectors><transportConnector uri="{uri}"/></transportConnectors>')
    assert values(found).get("transports") == urls
    assert bool(found.report.unsupported()) is (urls is None)


def test_the_store_is_where_the_adapter_says() -> None:
    data = 'dataDirectory="/d"'
    assert values(broker("", data))["store"] == "/d"
    inside = "<persistenceAdapter>{}</persistenceAdapter>"
    assert values(broker(inside.format("<kahaDB/>"), data))["store"] == "/d"
    assert values(broker(inside.format('<kahaDB directory="/k"/>'), data))["store"] == "/k"
    assert "store" not in values(broker(inside.format("<jdbcPersistenceAdapter/>"), data))
    patient = broker(inside.format('<kahaDB databaseLockedWaitDelay="1200"/>'))
    assert values(patient)["lockAcquireSleepInterval"] == 1.2


# -- Artemis -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acceptor", "urls"),
    [
        ("tcp://0.0.0.0:61616", ("auto://0.0.0.0:61616",)),
        ("tcp://0.0.0.0:61616?protocols=OPENWIRE", ("tcp://0.0.0.0:61616",)),
        ("tcp://0.0.0.0:61616?protocols=CORE,OPENWIRE,STOMP", ("auto://0.0.0.0:61616",)),
        ("tcp://0.0.0.0:61613?protocols=STOMP;sslEnabled=false", ("stomp://0.0.0.0:61613",)),
        ("tcp://0.0.0.0:61613?useEpoll=true&amp;protocols=CORE,STOMP", ("stomp://0.0.0.0:61613",)),
        ("tcp://0.0.0.0:5672?protocols=AMQP", None),
        ("tcp://0.0.0.0:61614?protocols=STOMP;sslEnabled=true", None),
        ("vm://0", None),
    ],
)
def test_acceptors(acceptor: str, urls: tuple[str, ...] | None) -> None:
    assert values(core(f'<acceptors><acceptor name="a">{acceptor}</acceptor></acceptors>')).get("transports") == urls


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("<shared-store><master/></shared-store>", {"priority": 1}),
        (
            "<shared-store><primary><failback-delay>7000</failback-delay></primary></shared-store>",
            {"priority": 1, "failbackDelay": 7.0},
        ),
        (
            "<shared-store><slave><allow-failback>false</allow-failback></slave></shared-store>",
            {"allowFailback": False},
        ),
        (
            "<shared-store><backup><failover-on-shutdown>true</failover-on-shutdown></backup></shared-store>",
            {"failoverOnShutdown": True},
        ),
        (
            "<shared-store><primary><wait-for-activation>true</wait-for-activation></primary></shared-store>",
            {"priority": 1, "waitForActivation": True},
        ),
        ("<live-only/>", {}),
        ("<replication><master/></replication>", {"priority": 1}),
    ],
)
def test_ha_policies(policy: str, expected: dict[str, object]) -> None:
    found = core(f"<ha-policy>{policy}</ha-policy>")
    assert values(found) == expected
    replicates = "replication" in policy
    assert any("replica:///DIR" in line.told for line in found.report.unsupported()) is replicates


@pytest.mark.parametrize(
    ("policy", "group", "coordinator", "saved"),
    [
        (
            "<primary><group-name>fish</group-name><manager><class-name>org.apache…CuratorDistributedManager"
            "</class-name><properties><property key='connect-string' value='a:2181,b:2181,c:2181'/>"
            "<property key='session-ms' value='16000'/><property key='connection-ms' value='8000'/>"
            "<property key='retries' value='1'/><property key='retries-ms' value='1000'/>"
            "<property key='session-percent' value='33'/><property key='namespace' value='brokers'/></properties>"
            "</manager><check-for-active-server>true</check-for-active-server>"
            "<vote-on-replication-failure>true</vote-on-replication-failure></primary>",
            "fish",
            "zookeeper://a:2181,b:2181,c:2181?namespace=brokers&sessionTimeout=16000&requestTimeout=8000",
            2,
        ),
        (
            "<backup><max-saved-replicated-journals-size>7</max-saved-replicated-journals-size>"
            "<initial-replication-sync-timeout>30000</initial-replication-sync-timeout><allow-failback>true"
            "</allow-failback><quorum-vote-wait>30</quorum-vote-wait><vote-retries>12</vote-retries></backup>",
            "amq",
            "zookeeper://HOST:2181",
            7,
        ),
        (
            "<primary><coordination-id>peer</coordination-id><manager><properties><property key='locks-folder' "
            "value='/mnt/small'/></properties></manager></primary>",
            "peer",
            "file:///mnt/small",
            2,
        ),
        (
            "<backup><group-name>a&amp;coordinator=x</group-name><manager><properties><property key='connect-string' "
            'value="a\' &amp;&amp; rm"/></properties></manager></backup>',
            "a-coordinator-x",
            "zookeeper://HOST:2181",
            2,
        ),
    ],
)
def test_replication_becomes_a_url(policy: str, group: str, coordinator: str, saved: int) -> None:
    found = core(f"<ha-policy><replication>{policy}</replication></ha-policy>")
    assert {line.near for line in found.report.unsupported()} <= {"ha-policy/replication", "default"}
    url = re.search(r"--store '([^']*)'", found.store_advice)
    assert url is not None
    parsed = ReplicaUrl.parse(url[1].replace("DIR", "var/lib/amq"))
    assert (parsed.group, parsed.coordinator, parsed.saved) == (group, coordinator, saved)
    assert ("takes the place of votes" in found.store_advice) is ("HOST" in coordinator)


def test_a_clean_stop_of_hornetq() -> None:
    stop = "<failover-on-server-shutdown>true</failover-on-server-shutdown>"
    found = read(f'<configuration xmlns="urn:hornetq"><shared-store>true</shared-store>{stop}</configuration>'.encode())
    assert values(found)["failoverOnShutdown"] is True


def test_dead_letter_queues_of_artemis() -> None:
    found = addresses(
        '<address-setting match="#"><auto-create-dead-letter-resources>true</auto-create-dead-letter-resources>'
        "<dead-letter-address>DLA</dead-letter-address><dead-letter-queue-prefix>Dead.</dead-letter-queue-prefix>"
        '</address-setting><address-setting match="a"><dead-letter-address>Other</dead-letter-address>'
        "</address-setting>"
    )
    assert values(found) == {"deadLetterStrategy": "individual", "deadLetterPrefix": "Dead."}
    assert told(found, "address-setting[a]/dead-letter-address")[0] is Status.UNSUPPORTED


def test_a_topic_is_no_dead_letter_queue() -> None:
    """amq keeps dead letters in queues: a name in ActiveMQ.DLQ would be found by nobody."""
    topic = '<deadLetterQueue><topic physicalName="dead.news"/></deadLetterQueue>'
    strategy = f"<deadLetterStrategy><sharedDeadLetterStrategy>{topic}</sharedDeadLetterStrategy></deadLetterStrategy>"
    found = policies(entry('queue=">"', strategy))
    assert told(found, "deadLetterStrategy/sharedDeadLetterStrategy")[0] is Status.UNSUPPORTED
    declared = "<addresses><address name='dead'><multicast/></address></addresses>"
    setting = (
        "<address-settings><address-setting match='#'><dead-letter-address>{0}</dead-letter-address>"
        "<expiry-address>{0}</expiry-address></address-setting></address-settings>"
    )
    for name in ("jms.topic.dead", "dead"):
        found = core(declared + setting.format(name))
        assert values(found) == {}
        for each in ("dead-letter-address", "expiry-address"):
            assert told(found, f"address-setting[#]/{each}")[0] is Status.UNSUPPORTED


def composites(*each: str) -> Foreign:
    return broker(
        "<destinationInterceptors><virtualDestinationInterceptor><virtualDestinations>"
        f"{''.join(each)}</virtualDestinations></virtualDestinationInterceptor></destinationInterceptors>"
    )


def composite(kind: str, name: str, inside: str, attributes: str = "") -> str:
    return f'<composite{kind} name="{name}" {attributes}><forwardTo>{inside}</forwardTo></composite{kind}>'


QUEUE, TOPIC = '<queue physicalName="q"/>', '<topic physicalName="t"/>'


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (composites(composite("Queue", "a", QUEUE)), {"a:divert": "from queue to q exclusive"}),
        (composites(composite("Topic", "a", QUEUE, 'forwardOnly="false"')), {"a:divert": "from topic to q"}),
        (composites(composite("Topic", ">", TOPIC)), {"divert": "from topic to topic://t exclusive"}),
        (
            composites(composite("Queue", "a", QUEUE), composite("Topic", "a", TOPIC, 'forwardOnly="false"')),
            {"a:divert": "from queue to q exclusive; from topic to topic://t"},
        ),
        (
            composites(composite("Queue", "a.>", QUEUE), composite("Queue", "a.b", TOPIC)),
            {
                "a.>:divert": "from queue to q exclusive",
                "a.b:divert": "from queue to topic://t exclusive; from queue to q exclusive",
            },
        ),
        (
            composites(composite("Queue", "a", '<filteredDestination selector="x > 1" queue="q"/>' + TOPIC)),
            {"a:divert": "from queue to q exclusive where x > 1; from queue to topic://t exclusive"},
        ),
        (
            composites(
                composite(
                    "Queue",
                    "a",
                    f'<filteredDestination selector="x > 1"><destination>{TOPIC}</destination></filteredDestination>',
                    'sendWhenNotMatched="true"',
                )
            ),
            {"a:divert": "from queue to topic://t exclusive where x > 1"},
        ),
    ],
)
def test_composites(found: Foreign, expected: dict[str, str]) -> None:
    assert values(found) == expected
    assert [line for line in found.report.unsupported() if line.line] == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (composites(composite("Queue", "a", '<queue physicalName="b.>"/>')), "names no single queue or topic"),
        (composites(composite("Queue", "a", '<filteredDestination selector="x >" queue="q"/>')), "the selector"),
        (composites(composite("Queue", "a", "")), "forwards to nothing"),
        (composites(composite("Queue", "a", '<filteredDestination selector="x > 1" queue="q"/>')), "ActiveMQ drops it"),
        (composites(composite("Queue", "a", QUEUE), composite("Queue", "q", TOPIC)), "diverts a message once"),
        (composites(composite("Queue", "*.b", QUEUE), composite("Queue", "a.*", QUEUE)), "both"),
    ],
)
def test_composites_that_are_not_carried_whole(found: Foreign, complaint: str) -> None:
    assert any(complaint in line.told for line in found.report.unsupported())


def divert(address: str, target: str, more: str = "") -> str:
    inside = f"<address>{address}</address><forwarding-address>{target}</forwarding-address>{more}"
    return f'<divert name="d">{inside}</divert>'


DECLARED = (
    '<addresses><address name="spy"><multicast/></address><address name="work"><anycast/></address>'
    '<address name="both"><anycast/><multicast/></address></addresses>'
)


@pytest.mark.parametrize(
    ("diverts", "expected"),
    [
        (divert("orders", "spy"), {"orders:divert": "topic://spy"}),
        (
            divert("jms.topic.prices", "jms.topic.ticker", "<exclusive>true</exclusive>"),
            {"prices:divert": "from topic to topic://ticker exclusive"},
        ),
        (
            divert("jms.queue.a", "jms.queue.b") + divert("jms.topic.a", "jms.queue.c"),
            {"a:divert": "from queue to b; from topic to c"},
        ),
        (divert("spy", "work"), {"spy:divert": "from topic to work"}),
        (divert("orders", "both"), {"orders:divert": "both; topic://both"}),
        (divert("spy", "new", "<routing-type>PASS</routing-type>"), {"spy:divert": "from topic to topic://new"}),
        (divert("orders", "new", "<routing-type>MULTICAST</routing-type>"), {"orders:divert": "topic://new"}),
        (divert("orders", "new"), {"orders:divert": "new"}),
        (
            divert("orders", "new", "<filter string=\"color = 'AMQPriority' AND AMQPriority > 3\"/>"),
            {"orders:divert": "new where color = 'AMQPriority' AND JMSPriority > 3"},
        ),
        (
            divert("orders.#", "new") + divert("orders.eu", "work", "<exclusive>true</exclusive>"),
            {"orders.>:divert": "new", "orders.eu:divert": "work exclusive; new"},
        ),
    ],
)
def test_diverts_of_artemis(diverts: str, expected: dict[str, str]) -> None:
    found = core(f"{DECLARED}<diverts>{diverts}</diverts>")
    assert values(found) == expected
    assert [line for line in found.report.unsupported() if line.line] == []
    assert all(line.status is Status.CARRIED for line in found.report.lines if line.near.startswith("diverts"))


def test_the_narrower_of_two_settings_counts() -> None:
    text = (
        "<address-setting match='#'><redelivery-delay>0</redelivery-delay><max-delivery-attempts>10"
        "</max-delivery-attempts><retroactive-message-count>5</retroactive-message-count></address-setting>"
        "<address-setting match='jms.queue.#'><redelivery-delay>60000</redelivery-delay>"
        "<redelivery-delay-multiplier>1.5</redelivery-delay-multiplier><max-delivery-attempts>3</max-delivery-attempts>"
        "</address-setting><address-setting match='jms.topic.#'><redelivery-delay>9</redelivery-delay>"
        "<retroactive-message-count>7</retroactive-message-count></address-setting>"
    )
    for found in (addresses(text), core(f"<address-settings>{text}</address-settings>")):
        assert values(found) == {
            "redeliveryDelay": 60.0,
            "redeliveryBackOffMultiplier": 1.5,
            "maximumRedeliveries": 2,
            "subscriptionRecoveryCount": 7,
        }


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("element", "wide", "narrow", "key", "value"),
    [
        ("default-ring-size", "2", "-1", "ringSize", 0),
        ("default-group-buckets", "1", "-1", "groupBuckets", 1024),
        ("default-last-value-queue", "true", "false", "lastValueKey", ""),
        ("slow-consumer-policy", "KILL", "NOTIFY", "slowConsumerPolicy", "discard-oldest"),
    ],
)
def test_a_narrow_setting_that_says_none_counts_against_a_wider_one(
    element: str, wide: str, narrow: str, key: str, value: object, order: int
) -> None:
    settings = [
        f'<address-setting match="{match}"><{element}>{text}</{element}></address-setting>'
        for match, text in (("a.#", wide), ("a.b.#", narrow), ("c.#", narrow))
    ]
    found = addresses(*settings[::order])
    assert found.values[("a.b.>", key)].value == value
    assert found.values[("a.>", key)].value != value
    assert ("c.>", key) not in found.values
    statuses = [line.status.value for line in found.report.told() if line.path.endswith(element)]
    assert sorted(statuses) == ["carried", "carried", "natural"]


def test_slow_consumers_of_artemis_miss_nothing_but_where_they_are_cut_off() -> None:
    found = addresses(
        '<address-setting match="a.#"><slow-consumer-policy>KILL</slow-consumer-policy></address-setting>',
        '<address-setting match="a.b.#"><slow-consumer-policy>NOTIFY</slow-consumer-policy></address-setting>',
    )
    assert of_patterns(found, "pendingMessageLimit") == {"": 0, "a.>": 10_000, "a.b.>": 0}


@pytest.mark.parametrize(
    ("wide", "expected"),
    [("", {"a.>": 10.0}), ("<max-redelivery-delay>70000</max-redelivery-delay>", {"": 70.0})],
)
def test_delays_of_artemis_grow_to_ten_times_the_first(wide: str, expected: dict[str, float]) -> None:
    found = addresses(
        f'<address-setting match="#">{wide}</address-setting>',
        '<address-setting match="a.#"><redelivery-delay>1000</redelivery-delay></address-setting>',
        '<address-setting match="b.#"><redelivery-delay>0</redelivery-delay></address-setting>',
    )
    assert of_patterns(found, "maximumRedeliveryDelay") == expected


def test_a_policy_and_its_limit_may_stand_in_two_settings() -> None:
    found = addresses(
        '<address-setting match="a.b"><address-full-policy>BLOCK</address-full-policy></address-setting>',
        '<address-setting match="a.#"><max-size-bytes>1M</max-size-bytes></address-setting>',
    )
    assert values(found) == {"a.b:queueLimit": 1 << 20, "a.b:queueLimitPolicy": "block"}
    dropping = addresses(
        '<address-setting match="#"><max-size-bytes>1M</max-size-bytes>'
        "<address-full-policy>DROP</address-full-policy></address-setting>"
    )
    assert values(dropping) == {}


def test_the_tables_name_options_that_exist() -> None:
    keys = {*activemq_policies.DEFAULTS, *activemq_policies.REDELIVERY_DEFAULTS}
    assert keys <= BY_KEY.keys()
    assert all(BY_KEY[key].destination for key in keys)


# -- placeholders ------------------------------------------------------------------------------------------------------


def test_the_preferred_master_of_hornetq() -> None:
    text = "<configuration><acceptors/><shared-store>true</shared-store><backup>{}</backup></configuration>"
    assert values(read(text.format("false"))) == {"priority": 1}
    assert values(read(text.format("true"))) == {}


def test_clients_beside_a_broker_mean_nothing() -> None:
    found = read('<beans><queue id="q" physicalName="a"/><connectionFactory brokerURL="vm:x"/><broker/></beans>')
    assert [told(found, f"beans/{near}")[0] for near in ("queue[q]", "connectionFactory")] == [Status.IGNORED] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a}/x", "/p/x"),
        ("${b}", "/e"),
        ("${c.d}", "/u"),
        ("${none:/z}", "/z"),
        ("${none:${b}}", "/e"),
        ("${a}${b}", "/p/e"),
        ("${ a }", "/p"),
        ("${none:${no:${a}}}", "/p"),
        ("${self}", "${self}"),
    ],
)
def test_placeholders(text: str, expected: str) -> None:
    inside = f'<persistenceAdapter><kahaDB directory="{text}"/></persistenceAdapter>'
    found = read(f"<broker>{inside}</broker>", {"a": "/p", "self": "${self}"}, {"a": "/no", "b": "/e", "C_D": "/u"})
    assert values(found)["store"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${x}", "directory needs a value for ${x}: give it with --property x=VALUE"),
        ("${x", "without its end"),
        ("#{1+1}", "only Java can evaluate"),
        ("${a:" * 20 + "}" * 20, "nested too deeply"),
        ("x" * 5000, "is longer than 4096 characters"),
    ],
)
def test_placeholders_that_cannot_be_filled(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f'<broker>\n<persistenceAdapter>\n<kahaDB directory="{text}"/></persistenceAdapter></broker>')
    assert caught.value.description.startswith("other.xml:3: ")
    assert expected in caught.value.description


def test_placeholders_in_parts_that_mean_nothing_here_need_no_value() -> None:
    found = read("<broker><managementContext><managementContext connectorHost='${host}'/></managementContext></broker>")
    assert told(found, "broker/managementContext")[0] is Status.IGNORED


# -- any tree ----------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(
        sorted(
            {
                key.partition("@")[0].rpartition("/")[2]
                for table in (
                    activemq.BROKER,
                    activemq.PERSISTENCE,
                    activemq.LIMITS,
                    activemq.SECURITY,
                    artemis.CORE,
                    artemis.HA,
                    activemq_policies.PolicyEntries().rules(),
                    artemis.Addresses().rules(),
                )
                for key in table
            }
            - {""}
        )
    ),
    st.sampled_from(["unknown", "transportConnector", "transportConnectors", "acceptor", "queue", "topic"]),
)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        sorted(
            {
                key.partition("@")[2]
                for table in (
                    activemq.BROKER,
                    activemq.PERSISTENCE,
                    activemq.LIMITS,
                    activemq_policies.PolicyEntries().rules(),
                )
                for key in table
                if "@" in key
            }
            | {"uri", "name", "match", "queue", "topic", "username", "password"}
        )
    ),
    st.one_of(
        st.sampled_from(
            [
                "",
                "true",
                "false",
                "-1",
                "0",
                "7",
                "64 mb",
                ">",
                "orders.>",
                "a..b",
                "*",
                "#",
                "a.#.b",
                "${a}",
                "stomp://0.0.0.0:61613?maximumConnections=5",
                "tcp://h:1?protocols=STOMP",
                "PAGE",
                "BLOCK",
            ]
        ),
        st.text(
            st.characters(codec="utf-8", exclude_characters='<&"\x00$#\ufffe\uffff', exclude_categories=["Cc", "Cs"])
        ),
    ),
    max_size=4,
)
TEXTS = st.sampled_from(["", "true", "false", "7", "-1", "10M", "BLOCK", "DLQ", "tcp://h:1", "x y", "${a}"])
TREES = st.recursive(
    st.tuples(NAMES, ATTRIBUTES, TEXTS, st.just([])),
    lambda inner: st.tuples(NAMES, ATTRIBUTES, TEXTS, st.lists(inner, max_size=4)),
    max_leaves=25,
)


def _xml(tree: Any) -> str:
    name, attributes, text, children = tree
    inside = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{name}{inside}>{text}{''.join(map(_xml, children))}</{name}>"


@pytest.mark.deep
@settings(max_examples=150)
@given(kind=st.sampled_from(["broker", "core"]), trees=st.lists(TREES, max_size=6))
def test_any_tree_is_read_and_each_part_reported(
    tmp_path_factory: pytest.TempPathFactory, kind: str, trees: list[Any]
) -> None:
    text = f"<{kind}>{''.join(map(_xml, trees))}</{kind}>"
    found = read(text, {"a": "7"})
    reported = {line.path for line in found.report.lines}
    root = foreign.document.parse(text.encode(), "x")
    for element in (root, *root.below()):
        assert element.path in reported
        assert all(f"{element.path}@{name}" in reported for name in element.attributes)
    assert all(found.report.text(line).isprintable() for line in found.report.lines)
    toml = writing.toml(found, "users" if found.needs_users else "")
    assert len(toml.encode()) <= TOML_BYTES_MAX
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(toml)
    config = load(str(file), host_name="h")
    for (pattern, key), carried in found.values.items():
        if not pattern and key != "store":
            assert config.get(BY_KEY[key]) == carried.value


@pytest.mark.deep
def test_thousands_of_settings() -> None:
    entries = [entry(f'queue="q{number}" queuePrefetch="{number + 1}"') for number in range(1200)]
    found = policies(entry('queue=">" queuePrefetch="9"'), *entries)
    assert sum("more than 500" in line.told for line in found.report.unsupported()) >= 700
    assert len(found.destinations()) < 500
    assert len(writing.toml(found).encode()) <= TOML_BYTES_MAX


def test_what_clients_are_told_of_the_group() -> None:
    connector = '<transportConnector name="{}" uri="stomp://0.0.0.0:{}" updateClusterClients="false"/>'
    found = broker(f"<transportConnectors>{connector.format('a', 1)}{connector.format('b', 2)}</transportConnectors>")
    assert values(found)["updateClusterClients"] is False
    moving = broker(
        '<transportConnectors><transportConnector uri="tcp://0.0.0.0:1" rebalanceClusterClients="true"/>'
        "</transportConnectors>"
    )
    assert values(moving)["rebalanceClusterClients"] is True
    policy = "<publishedAddressPolicy><publishedAddressPolicy/></publishedAddressPolicy>"
    told = broker(
        f'<transportConnectors><transportConnector name="a" uri="stomp://0.0.0.0:1">{policy}</transportConnector>'
        "</transportConnectors>"
    )
    assert "updateClusterClients" not in values(told)
    assert any("advertisedTransports" in line.told for line in told.report.lines)
