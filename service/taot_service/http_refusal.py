"""What a refused request of the HTTP side is answered, as the API document says it of every route."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "No token, or one that is not known."},
    403: {
        "model": Refusal,
        "description": "A change that may come from a page of another site, or that the token does not allow.",
    },
    421: {"model": Refusal, "description": "The request was sent to a name that this planner does not have."},
    429: {"model": Refusal, "description": "Refused too often: come again later."},
}
"""By status, as FastAPI takes them."""
