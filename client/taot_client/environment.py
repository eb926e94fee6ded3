"""The only reader of environment variables in the client."""

from __future__ import annotations

import os


def is_disabled() -> bool:
    """Whether `TAOT_DISABLE` asks for plain expert parallelism, whatever the options say."""
    return os.environ.get("TAOT_DISABLE", "") not in ("", "0")


def proxy_variables() -> list[str]:
    """Names of the proxy variables that are set: worth a hint when a planner cannot be reached."""
    return [name for name in ("http_proxy", "https_proxy", "grpc_proxy") if os.environ.get(name)]
