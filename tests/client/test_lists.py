"""Lists of brokers on disk and on the web: read beside everything else, bounded, and written as a whole."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from amq.client.lists import BYTES_MAX, Found, Lists
from tests.patience import DEADLINE_S


def fetch(source: str) -> Found:
    found: queue.Queue[Found] = queue.Queue()
    Lists().fetch(source, found.put)
    return found.get(timeout=DEADLINE_S)


@contextmanager
def web(answer: bytes, code: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/brokers"
        finally:
            server.shutdown()
            thread.join()


def test_a_list_is_a_file_or_on_the_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "the list"
    file.write_text("\ufeffstomp://b:2\n")
    assert fetch(str(file)) == "stomp://b:2\n"
    assert fetch(f"file://{tmp_path}/the%20list") == "stomp://b:2\n"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch("~/the list") == "stomp://b:2\n"
    with web(b"stomp://c:3") as url:
        assert fetch(url) == "stomp://c:3"


def test_what_cannot_be_read_is_an_answer_too(tmp_path: Path) -> None:
    assert isinstance(fetch(str(tmp_path / "none")), FileNotFoundError)
    assert isinstance(fetch(str(tmp_path)), OSError)
    assert isinstance(fetch("\0"), ValueError)
    assert isinstance(fetch("http://[::1"), ValueError)
    (tmp_path / "noise").write_bytes(b"\xff\xfe\xfd")
    assert isinstance(fetch(str(tmp_path / "noise")), ValueError)
    with web(b"gone", 410) as url:
        assert "410" in str(fetch(url))


def test_a_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * BYTES_MAX)
    assert len(str(fetch(str(tmp_path / "long")))) == BYTES_MAX
    (tmp_path / "long").write_bytes(b"x" * (BYTES_MAX + 1))
    assert "more than 65536 bytes" in str(fetch(str(tmp_path / "long")))
    assert "more than 65536 bytes" in str(fetch("/dev/zero"))


def test_a_file_is_replaced_as_a_whole_and_the_last_one_stays(tmp_path: Path) -> None:
    lists, path = Lists(), tmp_path / "brokers"
    texts = {f"{number} " * 2000 for number in range(50)}
    seen: set[str] = set()
    for text in sorted(texts):
        lists.keep(str(path), text)
        if path.exists():
            seen.add(path.read_text())
    lists.keep(str(path), "the end")
    assert lists.finish(DEADLINE_S)
    assert path.read_text() == "the end"
    assert seen <= texts
    assert os.listdir(tmp_path) == ["brokers"]


def test_a_link_that_waits_at_the_name_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    lists, path, victim = Lists(), tmp_path / "brokers", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"brokers.{os.getpid()}.new").symlink_to(victim)
    lists.keep(str(path), "stomp://b:2")
    assert lists.finish(DEADLINE_S)
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("precious", "stomp://b:2", False)


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lists, path = Lists(), tmp_path / "absent" / "brokers"
    with caplog.at_level(logging.WARNING, "amq.client"):
        for _ in range(3):
            lists.keep(str(path), "x")
            assert lists.finish(DEADLINE_S)
    assert len(caplog.records) == 1
    assert "cannot keep the list of brokers" in caplog.text
    path.parent.mkdir()
    lists.keep(str(path), "x")
    assert lists.finish(DEADLINE_S)
    assert path.read_text() == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_what_another_user_has_put_there_is_neither_read_nor_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The attack: a name in a directory like /tmp is taken before the client comes."""
    stranger, path, victim = 12_345, tmp_path / "shared" / "brokers", tmp_path / "victim"
    path.parent.mkdir()
    path.parent.chmod(0o1777)
    victim.write_text("precious")
    path.write_text("stomp://evil:1")
    os.chown(path, stranger, stranger)
    assert "another user" in str(fetch(str(path)))
    path.unlink()
    path.symlink_to(victim)
    os.lchown(path, stranger, stranger)
    assert "another user" in str(fetch(f"file://{path}"))
    lists = Lists()
    with caplog.at_level(logging.WARNING, "amq.client"):
        lists.keep(str(path), "stomp://b:2")
        assert lists.finish(DEADLINE_S)
    assert "another user" in caplog.text
    assert victim.read_text() == "precious"
    path.parent.chmod(0o755)  # the operator has let that user make lists for us
    assert fetch(str(path)) == "precious"


def test_a_list_to_which_everybody_can_write_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "brokers"
    path.write_text("stomp://evil:1")
    path.chmod(0o666)
    assert "chmod o-w" in str(fetch(str(path)))
    path.chmod(0o664)
    assert fetch(str(path)) == "stomp://evil:1"
    before = os.umask(0)
    try:
        lists = Lists()
        lists.keep(str(path), "stomp://b:2")
        assert lists.finish(DEADLINE_S)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o664
