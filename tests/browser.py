"""Headless Chromium for tests of the pages: Debian's browser, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest

WAIT_MS = 30_000
"""Far above anything that a page needs; a hang ends here."""


class WatchedPage:
    """A page, what it complained of and what it asked for."""

    def __init__(self, page, base_url: str) -> None:
        self.page, self.base_url = page, base_url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(WAIT_MS)

    def check(self) -> None:
        """No complaint, and nothing from elsewhere."""
        assert self.complaints == []
        elsewhere = [url for url in self.requests if not url.startswith(self.base_url + "/")]
        assert self.requests
        assert elsewhere == []


@contextlib.contextmanager
def chromium() -> Iterator:
    """A browser. Without Chromium the test is skipped, or fails where `CI` is set."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        message = "the live page is tested in Chromium, which is not installed: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Containers seldom let Chromium make its sandbox; it sees pages of this project only.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()
