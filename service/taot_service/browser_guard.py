"""Keeps pages of other sites from using the planner through an operator's browser.

The planner has no login of its own yet: whoever reaches the port may ask and pause. A browser on the operator's machine
reaches the loopback, and shows pages of strangers too; these rules keep those out.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

REQUEST_HEADER = "x-taot-request"
"""What a request that changes something must carry, with any value: browsers send it for our own pages only."""


def why_host_refused(*, host_header: str, listen_host: str) -> str | None:
    """Why a request is refused for the name that it was sent to, or None.

    A planner that listens on the loopback answers to names of the loopback only: a stranger's name that was made to
    lead here would let his page count as one of the planner's.

    Args:
        host_header: the header `Host`.
        listen_host: where the planner listens.
    """
    if not _is_loopback(listen_host):
        return None
    name = _host_name(host_header)
    if _is_loopback(name) or name == listen_host:
        return None
    return f"this planner listens on {listen_host} and does not answer to the name {name[:64]!r}"


def why_change_refused(
    *, origin: str | None, fetch_site: str | None, host_header: str, has_request_header: bool
) -> str | None:
    """Why a request that changes something is refused, or None.

    Args:
        origin: the header `Origin`, which browsers send with every POST.
        fetch_site: the header `Sec-Fetch-Site`, which newer browsers send.
        host_header: the header `Host`.
        has_request_header: whether REQUEST_HEADER is there.
    """
    if not has_request_header:
        return f"a request that changes something needs the header {REQUEST_HEADER}: 1"
    if fetch_site not in (None, "same-origin", "none"):
        return "pages of other sites may not change anything here"
    if origin is not None and urlsplit(origin).netloc.lower() != host_header.lower():
        return "pages of other sites may not change anything here"
    # A stranger's name may be made to lead here, wherever the planner listens; addresses and loopback names cannot.
    if origin is not None and not _is_own_kind(_host_name(host_header)):
        return "from a browser change things by the planner's address or a port forwarded to localhost, not by a name"
    return None


def _host_name(host_header: str) -> str:
    try:
        return (urlsplit(f"//{host_header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_own_kind(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _is_loopback(host)
    return True


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
