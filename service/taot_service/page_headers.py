"""Headers by which browsers keep our answers to themselves. Every answer of the HTTP port carries them."""

from __future__ import annotations

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere, nothing inline, and no other page around this one."""

_DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_HEADERS = {
    "content-security-policy": _DATA_POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # What is told to one who may read it is kept for nobody else.
    "cache-control": "no-store",
}

_YEAR_SECONDS = 365 * 24 * 3600


def add_headers(headers: list[tuple[bytes, bytes]], *, keeps_https: bool) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those that it lacks.

    Args:
        headers: as ASGI has them, names in lower case.
        keeps_https: whether browsers should never ask this name without TLS again. Never for the loopback, whose name
            other programs of its machine share.
    """
    present = {name for name, _ in headers}
    wanted = dict(_HEADERS)
    if keeps_https:
        wanted["strict-transport-security"] = f"max-age={_YEAR_SECONDS}"
    return headers + [(name.encode(), value.encode()) for name, value in wanted.items() if name.encode() not in present]
