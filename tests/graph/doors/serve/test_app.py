"""The server of pages: who may ask it, what it shows, what it takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'foundry[serve]'")

from starlette.testclient import TestClient
from tests.graph.finished import HOSTILE
from tests.graph.show.page.page_parts import PageParts

from foundry.graph.doors.serve.app import make_app
from foundry.graph.doors.serve.guard import Access
from foundry.graph.run.run_directory import RunDirectory

ACCESS = Access(8765, "secret")
HOME = "http://127.0.0.1:8765"
OURS = {"origin": HOME}


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A folder with one finished run."""
    shutil.copytree(finished, tmp_path / "runs" / finished.name)
    return tmp_path / "runs"


@contextmanager
def asked(runs: Path, *, writing: bool = True, known: bool = True) -> Iterator[Any]:
    """A client of the application; `known` has opened the printed address."""
    with TestClient(make_app(runs, ACCESS, writing=writing), base_url=HOME, follow_redirects=False) as client:
        if known:
            assert client.get("/?token=secret").status_code == 303
        yield client


def test_only_who_has_the_token_is_answered(runs: Path) -> None:
    with asked(runs, known=False) as client:
        for path in ("/", "/data", "/news", f"/runs/{next(runs.iterdir()).name}", "/?token=guess"):
            answer = client.get(path)
            assert answer.status_code == 401 and "token" in answer.text, path
        opened = client.get("/?token=secret")
        assert opened.status_code == 303 and opened.headers["location"] == "/", "the token leaves the address"
        cookie = opened.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/").status_code == 200
        assert client.get("/data", headers={"host": "evil.example:8765"}).status_code == 421, "DNS rebinding"
    with asked(runs, known=False) as client:
        assert client.get("/data", headers={"authorization": "Bearer secret"}).status_code == 200


def test_the_list_and_a_page_are_live_pages_of_the_runs(runs: Path, finished: Path) -> None:
    with asked(runs) as client:
        listed = client.get("/")
        found = PageParts(listed.text)
        assert [run["id"] for run in found.data["runs"]] == [finished.name]
        assert listed.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert listed.headers["cache-control"] == "no-store"
        page = PageParts(client.get(f"/runs/{finished.name}").text)
        assert page.data["summary"]["verdict"] == "accepted" and "connect-src 'self'" in page.policy
        assert any("EventSource" in text for _, text in page.scripts)
        assert client.get(f"/runs/{finished.name}/data").json()["id"] == finished.name
        for nothing in ("nothing", "%2e%2e%2fruns", f"{finished.name}%2fblobs"):
            assert client.get(f"/runs/{nothing}").status_code == 404, nothing


def test_what_a_person_says_reaches_the_experts(runs: Path, finished: Path) -> None:
    say = f"/runs/{finished.name}/say"
    with asked(runs) as client:
        told = client.post(say, json={"words": "best"}, headers=OURS).json()["text"]
        assert "faster" in told or "x" in told
        assert "d2" in client.post(say, json={"words": "pause"}, headers=OURS).json()["text"]
        for refused in ({}, {"origin": "http://evil.example"}, {"origin": "null"}):
            assert client.post(say, json={"words": "stop"}, headers=refused).status_code == 403
        assert client.post(say, content=b"words=stop", headers=OURS).status_code == 400
        assert client.get(say).status_code == 405
    run = RunDirectory.inspect(runs / finished.name)
    assert [said.text for said in run.inbox.read()][1:] == ["pause"], "nothing that was refused left a trace"
    run.close()


def test_a_server_that_only_shows_takes_nothing(runs: Path, finished: Path) -> None:
    with asked(runs, writing=False) as client:
        page = PageParts(client.get(f"/runs/{finished.name}").text)
        assert not any("/say" in text for _, text in page.scripts), "there is no box"
        assert client.post(f"/runs/{finished.name}/say", json={"words": "stop"}, headers=OURS).status_code == 403


def test_hostile_text_stays_text_in_a_live_page_too(hostile: Path) -> None:
    with asked(hostile.parent) as client:
        found = PageParts(client.get(f"/runs/{hostile.name}").text)
        assert found.data["summary"]["task"] == HOSTILE
        assert not [tag for tag, _ in found.tags if tag == "img"]
        assert PageParts(client.get("/").text).data["runs"][0]["task"] == HOSTILE
