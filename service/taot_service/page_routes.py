"""The live page and the page of the HTTP API: files of this package, served without the internet."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, HTTPException, Request, Response

from taot_service.page_headers import PAGE_POLICY

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load_pages() -> dict[str, PageFile]:
    """Reads all files of the pages by name; what is not among them is not served."""
    files = {}
    for path in resources.files("taot_service").joinpath("pages").iterdir():
        suffix = path.name[path.name.rfind(".") :]
        if suffix in _MEDIA_TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            files[path.name] = PageFile(content=content, media_type=_MEDIA_TYPES[suffix], etag=etag)
    return files


def page_routes() -> APIRouter:
    """The routes of the pages."""
    router, files = APIRouter(include_in_schema=False), load_pages()

    def page(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return _send(files[name], request)

        return answer

    router.get("/")(page("index.html"))
    router.get("/docs")(page("docs.html"))
    router.get("/login")(page("login.html"))

    @router.get("/pages/{name}")
    async def page_file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, "no such file")
        return _send(files[name], request)

    return router


def _send(file: PageFile, request: Request) -> Response:
    # Asked for again each time: a planner of another release may answer next.
    headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache", "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
