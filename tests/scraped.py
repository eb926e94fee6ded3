"""What a planner's /metrics says."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families


def samples_of(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and sorted labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
