"""Names and addresses by which the planner may be called."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

_PRIVATE_SUFFIXES = (".local", ".internal", ".svc", ".home.arpa", ".lan")
"""Ends of names that nobody can register in public."""


def host_of(host_header: str) -> str:
    """The name or address of a header `Host`, without the port; empty where there is none."""
    try:
        return (urlsplit(f"//{host_header}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address leads to this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether it is an address: no stranger can make one lead elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_private_name(host: str) -> bool:
    """Whether a name exists inside a network only, so that no stranger can own it and make it lead here."""
    return bool(host) and ("." not in host or host.endswith(_PRIVATE_SUFFIXES))
