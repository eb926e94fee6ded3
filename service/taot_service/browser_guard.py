"""Keeps pages of other sites from using the planner through an operator's browser.

A browser on the operator's machine reaches what the machine reaches, and shows pages of strangers too. A page counts as
one of the planner's if its name leads to the planner, and the owner of a name decides where it leads. Where tokens are
needed that gains a stranger nothing: browsers keep a login to the name under which it was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from taot_service.config import ServiceConfig
from taot_service.host_names import host_of, is_address, is_loopback, is_private_name

REQUEST_HEADER = "x-taot-request"
"""What a request that changes something must carry, with any value: browsers send it for our own pages only."""


@dataclass(frozen=True, kw_only=True)
class BrowserGuard:
    """The rules of one planner."""

    listen_host: str
    """Where it listens."""

    allowed_hosts: frozenset[str] = frozenset()
    """Names that its operator vouches for."""

    needs_token: bool = False
    """Whether who reads or changes something must be known."""

    @classmethod
    def of(cls, config: ServiceConfig) -> BrowserGuard:
        """The rules that follow from a configuration."""
        names = (config.allowed_hosts or "").lower().split(",")
        return cls(
            listen_host=config.host,
            allowed_hosts=frozenset(name.strip() for name in names if name.strip()),
            needs_token=config.tokens is not None,
        )

    def why_host_refused(self, host_header: str) -> str | None:
        """Why a request is refused for the name in its header `Host`, or None.

        On the loopback only names of the loopback are answered, elsewhere also addresses and names that strangers
        cannot own.
        """
        host = host_of(host_header)
        if self.needs_token or host in self.allowed_hosts or host == self.listen_host or is_loopback(host):
            return None
        if not is_loopback(self.listen_host) and (is_address(host) or is_private_name(host)):
            return None
        return (
            f"this planner listens on {self.listen_host} and does not answer to the name {host[:64]!r}: if the name is"
            " yours, start the planner with --allowed-hosts NAME, or with --tokens"
        )

    def why_change_refused(
        self, *, origin: str | None, fetch_site: str | None, host_header: str, has_request_header: bool
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
        if origin is None:
            return None
        if urlsplit(origin).netloc.lower() != host_header.lower():
            return "pages of other sites may not change anything here"
        host = host_of(host_header)
        if self.needs_token or host in self.allowed_hosts or is_address(host) or is_loopback(host):
            return None
        return (
            "from a browser change things by the planner's address or a port forwarded to localhost, not by a name:"
            " if the name is yours, start the planner with --allowed-hosts NAME, or with --tokens"
        )
