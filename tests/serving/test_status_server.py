"""The status server over HTTP: pages, refusals, bounds."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import pytest
from commands.verb_makers import worker_dump
from dumps.dump_makers import with_manifest
from reports.page_reading import read_page
from run_folders import COVERAGE, made_folder, with_process

from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.render.text.text import headline
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.dumped import NewestDumps
from shadowgraph.wrap.status.memory import map_page
from shadowgraph.wrap.status.server import StatusServer
from shadowgraph.wrap.status.snapshot import Snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "run", "python", "<b>serve</b>.py", "&\u202e")
    with_process(
        made, Heartbeat(replays=7, checked=7, coverage=COVERAGE), buffer__name="<script>alert(1)</script> & 'so'"
    )
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[StatusServer]:
    made = StatusServer(folder, 0)
    made.start()
    yield made
    made.stop()


def port_of(server: StatusServer) -> int:
    return urlsplit(server.url).port or 0


def token_of(server: StatusServer) -> str:
    return urlsplit(server.url).path.strip("/")


def ask(server: StatusServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of one request, with the token unless other headers are given for it."""
    headers.setdefault("Authorization", f"Bearer {token_of(server)}")
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def raw(server: StatusServer, request: bytes) -> bytes:
    """The whole answer to bytes that need not be a request."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def test_the_page_shows_text_as_text(server: StatusServer) -> None:
    status, page, headers = ask(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<script>alert(1)</script> & 'so'" in read_page(page).words
    assert "<b>serve</b>.py" in read_page(page).words
    assert "<script" not in page
    assert "<b>serve" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not any(word in page for word in ("http://", "https://", "src=", "@import", "url("))  # nothing is loaded
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "75 %" in page


def test_json_is_what_the_report_gives(server: StatusServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, headers = ask(server, "/json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert main(["report", str(folder), "--json"]) == 0
    whole, given = json.loads(capsys.readouterr().out), json.loads(text)
    assert whole["findings"][0].pop("window")["found"]
    assert given["findings"][0].pop("window") is None
    assert given == whole
    assert given["run"]["processes"][0]["pulse"]["replays"] == 7


def test_the_bytes_of_findings_are_given_where_that_was_asked_for(folder: Path) -> None:
    server = StatusServer(folder, 0, memory=True)
    server.start()
    try:
        assert json.loads(ask(server, "/json")[1])["findings"][0]["window"]["found"]
    finally:
        server.stop()


def test_metrics_and_map(server: StatusServer) -> None:
    status, text, headers = ask(server, "/metrics?name[]=x")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "shadowgraph_replays_total 7\n" in text
    status, page, _ = ask(server, "/map")
    assert status == 200
    assert "no dump in the run folder yet" in page


def run_with_a_dump(folder: Path) -> Path:
    """A folder with a dump of this process, and a log with that dump's findings under other numbers."""
    dump = worker_dump(folder / f"dump-{os.getpid()}-1-finding.dump")
    path = with_process(folder, Heartbeat(replays=7, checked=7, coverage=COVERAGE))
    with read_dump(dump) as opened, open(path, "a") as log:
        for number, finding in enumerate(reversed(opened.manifest.facts.findings), 40):
            kept = msgspec.structs.replace(finding, id=number, time=4_000_000_100.0 + number)
            log.write(json.dumps({"kind": "finding", "book": 2, "finding": kept.to_dict()}) + "\n")
    return dump


def test_a_finding_leads_to_its_bytes_and_its_place(server: StatusServer, folder: Path) -> None:
    dump = run_with_a_dump(folder)
    status, page, _ = ask(server, "/")
    links = dict(re.findall(r'<a href="(finding/\d+)">([^<#][^<]*)</a>', page))
    assert len(links) == 4
    overrun = next(link for link, text in links.items() if "12 bytes past the end of worker.table" in text)
    token = token_of(server)
    status, page, headers = ask(server, f"/{token}/{overrun}", Authorization="")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    read = read_page(page)
    assert read.scripts == []
    words = read.words
    assert "SG101 out-of-bounds write: fill wrote 12 bytes past the end of worker.table" in words
    number = overrun.partition("/")[2]
    assert f"#{number} found 09 00 00 00 0a 00 00 00 0b 00 00 00" in words, "the number of the run, not of the dump"
    assert f"bytes and map as of {dump.name}, written at " in words
    assert f'<a href="../finding/{number}">SG101</a> +12 B past the end by fill' in page
    assert '<i class="damage"' in page
    assert '<meta http-equiv="refresh" content="5">' in page
    assert token not in page
    for link in re.findall(r'href="([^"]*)"', page):
        away = urljoin(f"http://127.0.0.1/{token}/{overrun}", link)
        assert away.startswith(f"http://127.0.0.1/{token}/")
        assert ask(server, urlsplit(away).path, Authorization="")[0] == 200


def test_a_finding_in_no_dump_keeps_its_own_bytes(server: StatusServer) -> None:
    status, page, _ = ask(server, "/finding/1")
    assert status == 200
    assert "no dump in the run folder has this finding yet" in page
    assert "bytes as the finding saw them" in page
    for path, said in (("/finding/2", "no finding #2"), ("/finding/0", "there is: "), ("/finding/1/", "there is: ")):
        status, text, _ = ask(server, path)
        assert (status, said in text) == (404, True)
    assert ask(server, "/finding/1", Authorization="")[0] == 401


def test_a_damaged_dump_leaves_the_page_of_a_finding(server: StatusServer, folder: Path) -> None:
    dump = run_with_a_dump(folder)
    dump.write_bytes(dump.read_bytes()[:1000])
    page = ask(server, "/finding/2")[1]
    assert "no dump in the run folder has this finding yet" in page
    assert "is damaged" in ask(server, "/map")[1] or "is truncated" in ask(server, "/map")[1]


def test_the_map_is_a_picture_that_leads_to_findings(server: StatusServer, folder: Path) -> None:
    run_with_a_dump(folder)
    page = ask(server, "/map")[1]
    assert {"static", "guard", "damage"} <= set(re.findall(r'<i class="(\w+)"', page))
    links = re.findall(r'<div class="bad"><a href="(finding/\d+)">SG101</a>', page)
    assert len(links) == 1
    assert "12 bytes past the end of worker.table" in ask(server, f"/{links[0]}")[1]
    boxes = re.findall(r'<i class="\w+" style="left: ([\d.]+)%; width: ([\d.]+)%"', page)
    assert len(boxes) == page.count("<i class") > 5
    assert all(float(left) >= 0 and float(left) + float(width) <= 100.001 for left, width in boxes)


def test_the_headline_is_the_first_finding(server: StatusServer, folder: Path) -> None:
    page = ask(server, "/")[1]
    (head,) = re.findall(r"<h1>(.*?)</h1>", page)
    facts = RunReport(read_run(folder)).facts
    assert html.unescape(head) == headline(facts) == facts.findings[0].message
    assert '<div class="verdict found">' in page


def test_names_in_a_dump_stay_names_on_the_map(server: StatusServer, folder: Path) -> None:
    evil = "\"><script>alert(1)</script><img src=x>'\u202e{{ 7*7 }}"

    def bent(owner: list[Any]) -> list[Any]:
        return [evil + value if isinstance(value, str) and value.startswith("worker") else value for value in owner]

    def hostile(manifest: dict[str, Any]) -> None:
        manifest.update(reason=evil)
        manifest["owners"] = [bent(owner) for owner in manifest["owners"]]

    (folder / "plain.dump").write_bytes(worker_dump(folder.parent / "made.dump").read_bytes())
    plain = read_page(map_page(RunReport(read_run(folder)), NewestDumps()).decode())
    (folder / "plain.dump").write_bytes(with_manifest((folder / "plain.dump").read_bytes(), hostile))
    page = ask(server, "/map")[1]
    read = read_page(page)
    assert (read.tags, read.attributes, read.scripts) == (plain.tags, plain.attributes, [])
    assert read.words.count("<script>alert(1)</script><img src=x>'") > 3
    assert "{{ 7*7 }}" in read.words
    assert "\u202e" not in page


def test_head_has_the_length_and_no_body(server: StatusServer) -> None:
    status, body, headers = ask(server, "/metrics", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["content-length"]) > 100


@pytest.mark.parametrize("path", ["/", "/json", "/metrics", "/map", "/nothing"])
@pytest.mark.parametrize("wrong", ["", "x" * 32, "{token}x", "{cut}"])
def test_without_the_token_nothing_is_given(path: str, wrong: str, server: StatusServer) -> None:
    token = token_of(server)
    word = wrong.format(token=token, cut=token[:-1])
    asked = (
        ask(server, path, Authorization=f"Bearer {word}"),
        ask(server, f"/{word}{path}", Authorization=""),
        ask(server, f"{path}?token={word}", Authorization=""),
        ask(server, path, Authorization="", Cookie=f"token={token}", Referer=server.url),
        ask(server, path, Authorization=f"Basic {token}"),
    )
    for status, body, headers in asked:
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert "`shadowgraph wrap --status` printed" in body
        assert "serve" not in body
        assert token not in body


def test_the_token_in_the_path_in_a_header_or_in_the_query(server: StatusServer) -> None:
    token = token_of(server)
    assert len(token) >= 32
    for path, header in (
        (f"/{token}/metrics", ""), ("/metrics", f"bearer {token}"), (f"/metrics?token={token}", ""),
    ):  # fmt: skip
        status, text, headers = ask(server, path, Authorization=header)
        assert (status, "shadowgraph_replays_total 7\n" in text) == (200, True)
        assert headers["referrer-policy"] == "no-referrer"
    assert ask(server, f"/{token}/nothing", Authorization="")[0] == 404
    status, _, headers = ask(server, f"/{token}", Authorization="")
    assert (status, headers["location"]) == (308, f"/{token}/")


def test_links_stay_below_the_token_and_pages_do_not_have_it(server: StatusServer) -> None:
    for path in ("", "map"):
        _, page, _ = ask(server, f"/{token_of(server)}/{path}", Authorization="")
        links = re.findall(r'href="([^"]*)"', page)
        assert not any(link.startswith("/") or ":" in link for link in links)
        assert token_of(server) not in page


def test_each_server_has_a_token_of_its_own(server: StatusServer, folder: Path) -> None:
    other = StatusServer(folder, 0)
    other.stop()
    assert token_of(other) != token_of(server)


def test_a_socket_for_this_user_alone_wants_no_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "status.sock"
    server = StatusServer(folder, str(path))
    server.start()
    try:
        assert (server.url, path.stat().st_mode & 0o777) == (f"unix:{path}", 0o600)
        assert main(["report", server.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run"]["processes"][0]["pulse"]["replays"] == 7
        with pytest.raises(OSError, match="in use"):
            StatusServer(folder, str(path))
        assert path.exists(), "that of the other one"
    finally:
        server.stop()
    assert not path.exists()


def test_verbs_take_the_address_and_do_not_print_the_token(
    server: StatusServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = token_of(server)
    bare = server.url.replace(f"{token}/", "")
    for url in (server.url, f"{server.url}json", f"{bare}?token={token}", f"{bare}json?token={token}"):
        assert main(["report", url]) == 0
        assert "alert(1)" in capsys.readouterr().out
    assert main(["report", server.url, "--html", str(tmp_path / "page.html")]) == 0
    assert token not in (tmp_path / "page.html").read_text() + capsys.readouterr().out
    for url, code in ((bare, 3), (f"{bare}{'x' * 32}/", 3), (f"{server.url}map", 2), (f"{bare}?name={token}", 2)):
        assert main(["report", url]) == code
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert code == 2 or "401 this needs the token" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9999", "LocalHost:1", "[::1]:8080"])
def test_our_own_names(host: str, server: StatusServer) -> None:
    assert ask(server, "/metrics", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "127.0.0.1:80:80", "127.0.0.2", ""],
)
def test_other_names_are_refused(host: str, server: StatusServer) -> None:
    status, body, _ = ask(server, "/json", Host=host)
    assert (status, len(body) < 100) == (403, True)


@pytest.mark.parametrize(
    "request_line",
    [b"GET /json HTTP/1.1\r\n\r\n", b"GET /json HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"],
)
def test_no_name_and_two_names_are_refused(request_line: bytes, server: StatusServer) -> None:
    assert raw(server, request_line).startswith(b"HTTP/1.0 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(method: str, server: StatusServer) -> None:
    request = f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd".encode()
    head, _, body = raw(server, request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 405 ")
    assert b"Allow: GET, HEAD" in head
    assert body == b"method not allowed\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"a" * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"401"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"401"),
        (b"GET /run.json HTTP/1.1\r\nHost: localhost\r\n\r\n", b"401"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"505"),
        (b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_hostile_requests_get_short_answers(request_bytes: bytes, status: bytes, server: StatusServer) -> None:
    try:
        answer = raw(server, request_bytes)
    except ConnectionResetError:  # it did not read all that was sent, and had answered
        answer = b""
    assert len(answer) < 1000
    assert b"aaaa" not in answer
    assert answer == b"" or answer.startswith(b"HTTP/1.0 " + status)
    assert ask(server, "/metrics")[0] == 200


def test_a_crowd_is_told_to_come_again(server: StatusServer) -> None:
    ask(server, "/metrics")
    idle = [socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) for _ in range(8)]
    try:
        for connection in idle:
            connection.sendall(b"GET ")  # and nothing more
        assert raw(server, b"").startswith(b"HTTP/1.0 503 ")
    finally:
        for connection in idle:
            connection.close()


def test_who_takes_too_long_is_cut_off(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.wrap.status.server._PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert b"200" not in connection.recv(1 << 16)


def test_a_run_that_cannot_be_read_is_said_and_may_come_back(server: StatusServer, folder: Path) -> None:
    away = folder.rename(folder.with_name("away"))
    status, body, _ = ask(server, "/")
    assert status == 503
    assert "is no run folder" in body
    away.rename(folder)
    deadline = time.monotonic() + 30
    while ask(server, "/")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_port_in_use(server: StatusServer, folder: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        StatusServer(folder, port_of(server))


def test_after_the_end_nobody_answers(folder: Path) -> None:
    server = StatusServer(folder, 0)
    server.start()
    assert ask(server, "/metrics")[0] == 200
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/metrics")
    StatusServer(folder, 0).stop()  # one that never began to answer


def test_it_listens_on_loopback_alone(server: StatusServer) -> None:
    assert server._server.socket.getsockname()[0] == "127.0.0.1"
    assert not server._server.socket.get_inheritable()


def test_a_thousand_requests_leave_nothing_behind(server: StatusServer) -> None:
    paths = ("/", "/json", "/metrics", "/map", "/nothing")

    def ask_many(times: int) -> None:
        for number in range(times):
            ask(server, paths[number % len(paths)], Host="localhost" if number % 3 else "evil.example")

    ask_many(50)
    tracemalloc.start()
    try:
        ask_many(50)
        before = tracemalloc.get_traced_memory()[0]
        ask_many(1000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000  # a reading and its pages; 200 bytes a request would already be seen
    for _ in range(100):  # the last answer is there before its connection is given up
        if not server._server._open:
            break
        time.sleep(0.05)
    assert not server._server._open


def test_a_reading_is_kept_for_a_while(folder: Path) -> None:
    now = [0.0]
    snapshot = Snapshot(folder, lambda: now[0])
    made: list[int] = []

    def make(report: object) -> bytes:
        made.append(len(made))
        now[0] += 0.5  # it takes that long
        return b"page"

    for _ in range(3):
        assert snapshot.page("/", make) == b"page"
    assert len(made) == 1
    now[0] = 5.0  # ten times as long as it took are not over
    snapshot.page("/", make)
    assert len(made) == 1
    now[0] = 5.6
    snapshot.page("/", make)
    assert len(made) == 2
