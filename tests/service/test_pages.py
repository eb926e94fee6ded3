from __future__ import annotations

import re
from importlib import resources

import httpx
import pytest
from planner_client import CALL_SECONDS

from taot_service.page_routes import load_pages


@pytest.fixture
def http(planner):
    with httpx.Client(
        base_url=f"http://127.0.0.1:{planner.http_port}", timeout=CALL_SECONDS, trust_env=False
    ) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/", "/docs", "/pages/main.js", "/pages/page.css", "/pages/icon.svg"])
def test_pages_allow_nothing_from_elsewhere(http, path):
    response = http.get(path)
    assert response.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert response.headers["x-content-type-options"] == "nosniff"
    again = http.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/pages/nothing.js", "/pages/..%2Fplanner.py", "/pages/__init__.py", "/pages/"])
def test_only_the_files_of_the_pages_are_served(http, path):
    assert http.get(path).status_code == 404


def test_pages_name_only_files_that_are_there_and_nothing_inline():
    files = load_pages()
    for name, file in files.items():
        text = file.content.decode()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert set(re.findall(r"/pages/([\w.]+)", text)) <= set(files), name
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), name


def test_every_module_of_the_live_page_is_asked_for_at_once():
    files = load_pages()
    needed, todo = set(), ["main.js"]
    while todo:
        found = set(re.findall(r'from "/pages/([\w.]+)"', files[todo.pop()].content.decode())) - needed
        needed |= found
        todo += found
    preloaded = re.findall(r'rel="modulepreload" href="/pages/([\w.]+)"', files["index.html"].content.decode())
    assert sorted(preloaded) == sorted(needed)


def test_files_of_the_pages_keep_to_the_length_of_all_files():
    for path in resources.files("taot_service").joinpath("pages").iterdir():
        assert len(path.read_text().splitlines()) <= 300, path.name
