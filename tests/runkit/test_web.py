"""The local page around a model, served for real on a free port."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from runkit import web
from runkit.errors import UserError

MAX_BYTES = 1000


@contextmanager
def running(page: Path, actions: dict[str, web.Action]) -> Iterator[str]:
    """The application on a free port; gives its address."""
    config = uvicorn.Config(web.create_app(page, actions), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def send(address: str, body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, dict]:
    request = urllib.request.Request(address, body, {"Content-Type": kind} | headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "demo.html").write_text("<title>A page</title>")
    (folder / "demo.js").write_text("1;")

    def double(body: bytes) -> dict:
        if b"bad" in body:
            raise UserError("this cannot be doubled")
        if b"slow" in body:
            time.sleep(0.2)
        return {"doubled": 2 * len(body)}

    with running(
        folder / "demo.html",
        {
            "/double": web.Action(double, ["application/json"], MAX_BYTES),
            "/hear": web.Action(double, ["audio/"], MAX_BYTES),
        },
    ) as address:
        yield address


def test_page_script_and_style_are_served_with_a_policy(address: str):
    for path, kind, content in (("/", "text/html", "A page"), ("/page.js", "text/javascript", "1;"),
                                ("/page.css", "text/css", "body")):  # fmt: skip
        with urllib.request.urlopen(address + path, timeout=10) as response:
            assert response.headers["content-type"].startswith(kind)
            assert content in response.read().decode()
            assert "default-src 'self'" in response.headers["content-security-policy"]


def test_an_action_answers(address: str):
    assert send(f"{address}/double", b"1234") == (200, {"doubled": 8})
    assert send(f"{address}/hear", b"12", "audio/wav; rate=16000") == (200, {"doubled": 4})


def test_other_content_types_are_refused(address: str):
    status, answer = send(f"{address}/double", b"1", "text/plain")
    assert (status, answer["error"]) == (415, "the content type is text/plain; it must be application/json")
    status, answer = send(f"{address}/hear", b"1", "video/mp4")
    assert (status, answer["error"]) == (415, "the content type is video/mp4; it must be audio/*")


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 30_000_000])
def test_a_body_above_the_limit_gets_its_answer(address: str, size: int):
    assert send(f"{address}/double", bytes(size)) == (413, {"error": "more than 0.001 MB; send less at once"})
    assert send(f"{address}/double", bytes(MAX_BYTES)) == (200, {"doubled": 2 * MAX_BYTES})  # and it is still up


def test_what_a_user_can_fix_is_told(address: str):
    assert send(f"{address}/double", b"bad") == (422, {"error": "this cannot be doubled"})


def test_other_names_of_the_machine_are_refused(address: str):
    request = urllib.request.Request(address, headers={"Host": "page-of-the-web.example"})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    assert error.value.code == 400


def test_too_many_at_once_are_told_to_come_back(address: str):
    statuses = []
    threads = [
        threading.Thread(target=lambda: statuses.append(send(f"{address}/double", b"slow")[0]))
        for _ in range(web.WAITING + 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) == web.WAITING
    assert send(f"{address}/double", b"1") == (200, {"doubled": 2})


def test_a_taken_port_is_named(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*choose another --port"):
            web.serve(tmp_path, {}, "127.0.0.1", port)
