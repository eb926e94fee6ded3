"""A trace's header as JSON: the file `meta.json` of a trace folder."""

from __future__ import annotations

from typing import Any, TypeVar

from taot_api.session_spec import LayerSpec
from taot_api.trace import TraceHeader
from taot_planning import Level, Topology
from taot_planning.arrays import frozen_ints

FORMAT = "taot-trace"
VERSION = 1
"""Raised by every change that an older reader would misunderstand; fields that may be ignored are no such change."""

T = TypeVar("T")


def header_to_json(header: TraceHeader) -> dict[str, Any]:
    """The header as JSON values."""
    topology = header.topology
    costs_RR = topology.cost_matrix_milli
    return {
        "format": FORMAT,
        "version": VERSION,
        "training_job": header.training_job,
        "topology": {
            "levels": [
                {"name": level.name, "transfer_cost_milli": level.transfer_cost_milli} for level in topology.levels
            ],
            "domains": topology.domains_RV.tolist(),
            "slots": topology.slots_R.tolist(),
            "cost_matrix_milli": None if costs_RR is None else costs_RR.tolist(),
        },
        "layers": [
            {
                "name": layer.name,
                "top_k": layer.top_k,
                "expert_size_bytes": layer.expert_size_bytes,
                "homes": layer.home_E.tolist(),
            }
            for layer in header.layers
        ],
    }


def header_from_json(document: Any) -> TraceHeader:
    """Reads a header and checks all of it.

    Raises:
        ValueError: naming the field that is missing, of another type or out of range.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"this is not the header of a trace: it must say format {FORMAT!r}")
    version = _field(document, "version", int)
    if version != VERSION:
        raise ValueError(f"the trace has version {version}, this release reads version {VERSION}")
    return TraceHeader(
        training_job=_field(document, "training_job", str),
        topology=_topology(_field(document, "topology", dict)),
        layers=tuple(
            _layer(entry, where=f"layers[{index}].") for index, entry in enumerate(_field(document, "layers", list))
        ),
    )


def _topology(entry: dict[str, Any]) -> Topology:
    where = "topology."
    matrix = entry.get("cost_matrix_milli")
    try:
        return Topology(
            levels=tuple(
                Level(
                    name=_field(level, "name", str, where=f"{where}levels[{index}]."),
                    transfer_cost_milli=_field(level, "transfer_cost_milli", int, where=f"{where}levels[{index}]."),
                )
                for index, level in enumerate(_field(entry, "levels", list, where=where))
            ),
            domains_RV=frozen_ints(_field(entry, "domains", list, where=where), name="domains", num_axes=2),
            slots_R=frozen_ints(_field(entry, "slots", list, where=where), name="slots", num_axes=1),
            cost_matrix_milli=None if matrix is None else frozen_ints(matrix, name="cost matrix", num_axes=2),
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"topology: {error}") from error


def _layer(entry: Any, *, where: str) -> LayerSpec:
    name = _field(entry, "name", str, where=where)
    top_k = _field(entry, "top_k", int, where=where)
    size = _field(entry, "expert_size_bytes", int, where=where)
    homes = _field(entry, "homes", list, where=where)
    try:
        home_E = frozen_ints(homes, name="homes", num_axes=1)
        return LayerSpec(name=name, top_k=top_k, expert_size_bytes=size, home_E=home_E)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}{error}") from error


def _field(entry: Any, name: str, kind: type[T], *, where: str = "") -> T:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}{name} must be {kind.__name__}, got {value!r}"[:200])
    return value
