"""The only reader of environment variables in the client."""

from __future__ import annotations

import os

from taot_api.tracing import VARIABLE_PREFIX

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""Read by gloo itself: the network interfaces over which it is reached."""


def is_disabled() -> bool:
    """Whether `TAOT_DISABLE` asks for plain expert parallelism, whatever the options say."""
    return os.environ.get("TAOT_DISABLE", "") not in ("", "0")


def proxy_variables() -> list[str]:
    """Names of the proxy variables that are set: worth a hint when a planner cannot be reached."""
    return [name for name in ("http_proxy", "https_proxy", "grpc_proxy") if os.environ.get(name)]


def planner_access() -> dict[str, str]:
    """What the environment says of the access to the planner, by field of `PlannerAccess`."""
    variables = {
        "ca": "TAOT_PLANNER_CA",
        "client_cert": "TAOT_PLANNER_CLIENT_CERT",
        "client_key": "TAOT_PLANNER_CLIENT_KEY",
        "token": "TAOT_TOKEN",
        "token_file": "TAOT_TOKEN_FILE",
    }
    return {field: value for field, name in variables.items() if (value := os.environ.get(name))}


def gloo_interfaces() -> str | None:
    """What `GLOO_SOCKET_IFNAME` says, for errors; None where it is not set."""
    return os.environ.get(INTERFACE_VARIABLE)


def tracing_variables() -> dict[str, str]:
    """The standard variables of OpenTelemetry."""
    return {name: value for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX)}
