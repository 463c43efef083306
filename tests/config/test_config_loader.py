"""Sources and their order, and errors that tell the cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.config import BY_KEY, OPTIONS, SECTIONS, BrokerConfig, load, loader
from amq.core.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "amq.toml"


def refused(*args: object, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*args, **options)  # type: ignore[arg-type]
    return caught.value.description


def test_nothing_given() -> None:
    assert load(host_name="here") == BrokerConfig(name="here")
    assert load().name


def test_later_sources_win(file: Path) -> None:
    file.write_text('[broker]\nname = "f"\nstore = "/f"\n[queues]\nprefetchSize = 1\nmaximumRedeliveries = 1\n')
    env = {"AMQ_PREFETCH_SIZE": "2", "AMQ_MAXIMUM_REDELIVERIES": "2", "AMQ_STORE": "/e", "HOME": "/h"}
    config = load(
        str(file), env, ["prefetchSize=3", "queues.prefetchSize = 4", "name=o"], name="n", transports=["stomp://h:1"]
    )
    assert (config.maximum_redeliveries, config.prefetch_size) == (2, 4)
    assert (config.name, config.store, config.transports) == ("n", "/e", ("stomp://h:1",))
    explained = {setting.option.key: (setting.value, setting.source) for setting in config.explain()}
    assert list(explained) == list(BY_KEY)
    assert explained["prefetchSize"] == ("4", "-o prefetchSize")
    assert explained["maximumRedeliveries"] == ("2", "environment AMQ_MAXIMUM_REDELIVERIES")
    assert explained["name"] == ("n", "--name")
    assert explained["transports"] == ("stomp://h:1", "--transport")
    assert explained["lockKeepAlivePeriod"] == ("2s", "default")
    assert load(str(file)).sources["name"] == f"{file}:2"
    assert load(host_name="x").sources["name"] == "host name"


def test_a_store_that_cannot_be_used_was_given_all_the_same() -> None:
    assert refused(store="/\udcff", require_store=True).split("\n") == [
        '--store: store = "/\\udcff" holds a control character or bytes that are not UTF-8'
    ]
    assert "no store directory is given" in refused(overrides=["prefetchSize=x"], require_store=True)


def test_variables_of_the_commands_for_clients_are_known() -> None:
    env = dict.fromkeys(("AMQ_URL", "AMQ_LOGIN", "AMQ_PASSCODE"), "x")
    assert load(None, env).warnings == ()


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ('[lock]\nlockKeepAlivePeriod = "5s"', "lockKeepAlivePeriod", 5.0),
        ("lock.lockKeepAlivePeriod = 5000", "lockKeepAlivePeriod", 5.0),
        ("lock = { lockKeepAlivePeriod = 5000 }", "lockKeepAlivePeriod", 5.0),
        ('\ufeff[store]\r\njournalSegmentSize = "64MiB"\r\n', "journalSegmentSize", 64 << 20),
        ('[broker]\ntransports = [\n "stomp://a:1",\n "stomp://b:2",\n]', "transports", ("stomp://a:1", "stomp://b:2")),
        ('[broker]\ntransports = "stomp://a:1, stomp://b:2"', "transports", ("stomp://a:1", "stomp://b:2")),
        ('[ha]\nadvertisedTransports = ["stomp://a"]', "advertisedTransports", ("stomp://a:61613",)),
        ('[ha]\nadvertisedTransports = "stomp://a:1, stomp://a:1"', "advertisedTransports", ("stomp://a:1",)),
        ("[ha]\nadvertisedTransports = []", "advertisedTransports", ()),
        ('[ha]\nadvertisedTransports = ""', "advertisedTransports", ()),
        ("[queues]\nmaximumRedeliveries = -1", "maximumRedeliveries", -1),
        ("[lock]\nfailIfLocked = true", "failIfLocked", True),
        ('[lock]\nfailIfLocked = "on"', "failIfLocked", True),
        ("[security]\nanonymous = true", "anonymous", "yes"),
        ('[log]\nlogLevel = "DEBUG"', "logLevel", "debug"),
        ("[stomp]\nheartBeatSend = 0", "heartBeatSend", 0.0),
    ],
)
def test_values(file: Path, text: str, key: str, value: object) -> None:
    file.write_bytes(text.encode())
    assert load(str(file)).get(BY_KEY[key]) == value


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("[lock]\n\nlockKeepAlivePeriod = 0", 3, "lockKeepAlivePeriod = 0 is too small, the least is 100ms: without"),
        ("lock.lockKeepAlivePeriod = 0", 1, "two masters can exist"),
        ("lock = { lockKeepAlivePeriod = 0 }", 1, "two masters can exist"),
        ('[lock]\n"lockKeepAlivePeriod" = 0', 2, "two masters can exist"),
        ('[lock]\nlockKeepAlivePeriod = "2MB"', 2, "a duration is wanted"),
        ("[lock]\nlockKeepAlivePeriod = 2.5", 2, "has a fraction"),
        ("[lock]\nlockKeepAlivePeriod = true", 2, "lockKeepAlivePeriod = true is not a duration"),
        ("[lock]\nlockKeepAlivePeriod = 2000-01-01", 2, "is not a duration"),
        ("[lock]\nlockKeepAlivePeriod = [1]", 2, "[1] is not a duration"),
        ("[lock]\nlockKeepAlivePeriod = {a = 1}", 2, "a table is not a duration"),
        ("[lock]\nlock_keep_alive_period = 1", 2, "did you mean lockKeepAlivePeriod in section [lock]?"),
        ("[lock]\nlockKeepAlivPeriode = 1", 2, "did you mean lockKeepAlivePeriod in section [lock]?"),
        ("[store]\njournal-file-size = 1", 2, "did you mean journalSegmentSize in section [store]?"),
        ("[store]\nprefetchSize = 1", 2, "prefetchSize belongs in section [queues], not in [store]"),
        ("[store]\nxyzzy = 1", 2, "xyzzy: there is no such option; `amq config show`"),
        ("# x\nprefetchSize = 1", 2, "prefetchSize belongs in section [queues]: move it there"),
        ("xyzzy = 1", 1, "there is no such option"),
        ("[locks]\na = 1", 1, "did you mean [lock]?"),
        ("[xyzzy.a]\na = 1", 1, "the sections are [broker]"),
        ('[transports]\na = "stomp://a"', 1, "transports is an option of section [broker]"),
        ("[[lock]]\nfailIfLocked = true", 1, "lock must be a section: write [lock]"),
        ("[broker]\ntransports = []", 2, "needs at least one transport"),
        ('[broker]\ntransports = ["ftp://a:1"]', 2, 'holds "ftp://a:1", which has the unknown scheme "ftp"'),
        ('[broker]\ntransports = ["stomp://a", "stomp://a:61613"]', 2, "twice"),
        ("[broker]\ntransports = [1]", 2, "is not text"),
        ('[ha]\nadvertisedTransports = ["stomp://0.0.0.0"]', 2, "which has the host 0.0.0.0, which means any"),
        ('[ha]\nadvertisedTransports = ["stomp://a:0"]', 2, "the port 0"),
        (f"[ha]\nadvertisedTransports = {[f'stomp://a{n}' for n in range(9)]}", 2, "holds 9 URLs, and 8 are"),
        ('[broker]\nname = "a\\u0000"', 2, "control character"),
        ("[broker]\nname = 1", 2, "put it in quotes"),
        ('[queues]\nsharedDeadLetterQueue = "queue://x"', 2, "no queue://"),
        ('[queues]\ndeadLetterPrefix = ""', 2, "a destination needs a name"),
        ('[queues]\nexpiredMessages = "keep"', 2, "is not one of drop, dead-letter"),
        ("[queues]\nexpiredMessages = 1", 2, "is not one of drop, dead-letter"),
        ("[lock]\nfailIfLocked = 1", 2, "neither true nor false"),
        (f"[limits]\nmaxConnections = 0x{'f' * 900}", 2, "a number of 3600 bits is too large"),
    ],
)
def test_errors_name_place_and_cure(file: Path, text: str, where: int, says: str) -> None:
    file.write_text(text)
    message = refused(str(file))
    assert message.startswith(f"{file}:{where}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["store"], "-o store: has no value: write -o KEY=VALUE"),
        (["=x"], "there is no such option"),
        (["lock.prefetchSize=1"], "did you mean prefetchSize in section [queues]?"),
        (["prefetchSize=many"], '-o prefetchSize: prefetchSize = "many" is not a whole number'),
        (["transports=stomp://a:1,b:1"], 'holds "b:1", which has the unknown scheme'),
        (["advertisedTransports=stomp://a:1,b:1"], 'holds "b:1", which has the unknown scheme'),
        (
            ["journalBatchSize=64MiB", "journalSegmentSize=32MiB"],
            "journalBatchSize = 64MiB (-o journalBatchSize) is larger than journalSe",
        ),
        (["journalReserve=65MiB", "storeFreeFloor=1MiB"], "storeFreeFloor = 1MiB (-o storeFreeFloor)"),
        (["memoryLimit=1MiB", "maxFrameSize=2MiB"], "is larger than memoryLimit = 1MiB (-o memoryLimit)"),
        (["maxTransactionSize=1MiB", "maxFrameSize=2MiB"], "could not be sent in a transaction"),
        (["maxTransactionSize=2GiB"], "more memory than there is"),
        (["maxHeaderSize=65KiB", "maxHeaderBlockSize=64KiB"], "would not fit into the header block"),
        (["anonymous=no"], "no client could log in; set usersFile to a file made with `amq user add"),
    ],
)
def test_override_errors(overrides: list[str], says: str) -> None:
    assert says in refused(None, {}, overrides)


@pytest.mark.parametrize(
    ("override", "follows"),
    [
        ("memoryLimit=4MiB", {"maxFrameSize": 4 << 20, "maxTransactionSize": 4 << 20}),
        ("maxTransactionSize=1MiB", {"maxFrameSize": 1 << 20, "memoryLimit": 1 << 30}),
        ("maxFrameSize=300MiB", {"maxTransactionSize": 300 << 20, "memoryLimit": 1 << 30}),
        ("journalSegmentSize=1MiB", {"journalBatchSize": 1 << 20}),
        ("journalBatchSize=64MiB", {"journalSegmentSize": 64 << 20}),
        ("journalReserve=65MiB", {"storeFreeFloor": 65 << 20}),
        ("storeFreeFloor=1MiB", {"journalReserve": 1 << 20}),
        ("storeLimit=16MiB", {"journalSegmentSize": 2 << 20, "journalBatchSize": 2 << 20}),
        ("maxHeaderSize=65KiB", {"maxHeaderBlockSize": 65 << 10}),
        ("maxHeaderBlockSize=1KiB", {"maxHeaderSize": 1 << 10}),
    ],
)
def test_defaults_follow_what_is_set(override: str, follows: dict[str, int]) -> None:
    config = load(overrides=[override])
    assert {key: config.get(BY_KEY[key]) for key in follows} == follows
    sources = {setting.option.key: setting.source for setting in config.explain()}
    for key in follows:
        changed = config.get(BY_KEY[key]) != BrokerConfig().get(BY_KEY[key])
        assert sources[key].startswith("default, adapted to " if changed else "default")


def test_what_is_set_is_never_adapted() -> None:
    config = load(overrides=["memoryLimit=4MiB", "maxTransactionSize=2MiB"])
    assert (config.memory_limit_bytes, config.max_transaction_size_bytes) == (4 << 20, 2 << 20)
    assert config.max_frame_size_bytes == 2 << 20


def test_all_problems_are_told_at_once(file: Path) -> None:
    file.write_text("[lock]\nlockKeepAlivePeriod = 0\n[log]\nlogLevel = 3\n")
    lines = refused(str(file), {"AMQ_PREFETCH_SIZE": "x"}, ["y=1"], name="a\0").split("\n")
    assert [line.split(" ")[0] for line in lines] == [f"{file}:2:", f"{file}:4:", "environment", "-o", "--name:"]


def test_a_file_of_nonsense_is_told_briefly(file: Path) -> None:
    file.write_text("\n".join(f"a{number} = 1" for number in range(4000)))
    assert len(refused(str(file)).split("\n")) == loader.PROBLEMS_MAX


def test_environment() -> None:
    assert load(None, {"AMQ_LOCK_KEEP_ALIVE_PERIOD": "3s"}).lock_keep_alive_period_s == 3.0
    slip = refused(None, {"AMQ_LOCK_KEEPALIVE_PERIOD": "3s"})
    assert "environment AMQ_LOCK_KEEPALIVE_PERIOD: no such option; did you mean AMQ_LOCK_KEEP_ALIVE_PERIOD?" in slip
    kubernetes = ("AMQ_SERVICE_HOST", "AMQ_SERVICE_PORT", "AMQ_PORT", "AMQ_PORT_61613_TCP_ADDR")
    assert load(None, dict.fromkeys(kubernetes, "x")).warnings == ()
    (warning,) = load(None, {"AMQ_FLAVOUR": "x"}).warnings
    assert warning == "environment AMQ_FLAVOUR: no such option, ignored"


def test_the_store_is_required_to_start() -> None:
    assert "use --store DIR, AMQ_STORE or store in section [broker]" in refused(require_store=True)
    assert load(store="/s", require_store=True).store == "/s"
    assert load().store == ""


def test_paths(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    file.write_text('[broker]\nstore = "data"\n[security]\nusersFile = "~/users"\n')
    config = load(str(file))
    assert (config.store, config.users_file) == (str(file.parent / "data"), "/home/me/users")
    assert load(store="data").store == "data"
    file.write_text('[security]\nusersFile = ""\n')
    assert load(str(file)).users_file == ""


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["transports=stomp://0.0.0.0"], "no client can log in from there"),
        (["transports=stomp://127.0.0.1,stomp://10.0.0.1"], "stomp://10.0.0.1:61613 can be reached"),
        (["transports=stomp://0.0.0.0", "anonymous=yes", "usersFile=u"], "usersFile protects nothing"),
    ],
)
def test_doubtful_settings_are_warned_of(overrides: list[str], says: str) -> None:
    (warning,) = load(None, {}, overrides).warnings
    assert says in warning


@pytest.mark.parametrize(
    "overrides",
    [["transports=stomp://[::1]"], ["transports=stomp://h", "usersFile=u"], ["transports=stomp://h", "anonymous=yes"]],
)
def test_good_settings_are_not(overrides: list[str]) -> None:
    assert load(None, {}, overrides).warnings == ()


def test_files_that_are_no_configuration(file: Path) -> None:
    assert "No such file" in refused(str(file))
    assert "Is a directory" in refused(str(file.parent))
    assert "cannot be read" in refused("a\0b")
    for data, says in (
        (b"\xff\xfe", "is not UTF-8 text (byte 0)"),
        (b"[lock", "is not valid TOML"),
        (b"[lock]\na = 1\na = 2\n", "(at line 3"),
        (b"x = " + b"[" * 900 + b"\n[" * 900, "nested too deeply"),
        (b"a." * 600 + b"b = 1", ":1: is longer than 1000 characters"),
        (b"#\n" * 33_000, "is larger than 65536 bytes"),
    ):
        file.write_bytes(data)
        assert says in refused(str(file)), data[:20]


SCALARS = st.integers() | st.booleans() | st.floats() | st.text(max_size=20).map(repr) | st.sampled_from(['"2s"', "1M"])
KEYS = st.sampled_from([*BY_KEY, "x", "lock.lockKeepAlivePeriod"])
VARIABLES = st.sampled_from([option.variable for option in OPTIONS]) | st.text().map("AMQ_".__add__)
LINES = st.one_of(
    st.text(max_size=40),
    st.sampled_from([*SECTIONS, "x"]).map("[{}]".format),
    st.tuples(KEYS, SCALARS).map(lambda pair: f"{pair[0]} = {pair[1]}"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=12), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_file_loads_or_is_a_config_error(file: Path, lines: list[str], end: str) -> None:
    file.write_bytes(end.join(lines).encode("utf-8", "surrogatepass"))
    loads_or_refuses(str(file), {}, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_load_or_are_a_config_error(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    loads_or_refuses(str(file), {}, [])


@given(
    env=st.dictionaries(VARIABLES, st.text()),
    overrides=st.lists(st.text() | st.tuples(st.sampled_from(list(BY_KEY)), st.text()).map("=".join), max_size=5),
)
def test_any_environment_and_override_loads_or_is_a_config_error(env: dict[str, str], overrides: list[str]) -> None:
    loads_or_refuses(None, env, overrides)


def loads_or_refuses(path: str | None, env: dict[str, str], overrides: list[str]) -> None:
    try:
        config = load(path, env, overrides, host_name="here")
    except ConfigError as error:
        refusal = error.description
    else:
        for option in OPTIONS:
            assert option.parse(option.format(config.get(option))) == config.get(option)
        return
    assert refusal.replace("\n", "").isprintable()
