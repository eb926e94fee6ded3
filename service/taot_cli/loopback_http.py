"""HTTP between the processes of one machine."""

from __future__ import annotations

import urllib.error
import urllib.request

TIMEOUT_SECONDS = 5


def get_text(url: str) -> str | None:
    """What a URL answers; None where nobody answers, or with an error."""
    # Proxies of the environment must not stand between two processes of one machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
            text: str = response.read().decode("utf-8")
            return text
    except (urllib.error.URLError, OSError):
        return None
