"""`taot token`: makes tokens for a planner that asks who is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

token_app = typer.Typer(help="Tokens of callers of a planner that runs with --tokens.", no_args_is_help=True)


@token_app.callback()
def _token() -> None:
    """Keeps `new` a word of its own: typer leaves out the name of an only command."""


@token_app.command()
def new(
    job: Annotated[
        list[str] | None, typer.Option(help="Training job that its agents may use; again for more, * for all.")
    ] = None,
    read: Annotated[bool, typer.Option("--read", help="May read pages, metrics and sessions over HTTP.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="May pause and resume sessions too.")] = False,
    file: Annotated[Path | None, typer.Option(help="Add the lines to this file, and print the token alone.")] = None,
) -> None:
    """Make a token, and the lines that grant it something in the file of `taot serve --tokens`."""
    from taot_service.tokens import format_line, make_token, parse_tokens  # noqa: PLC0415 - only where it is used

    token = make_token()
    grants = [f"job={name}" for name in job or ()] + ["read"] * read + ["admin"] * admin
    if not grants:
        _complain("say what the token is for: --job NAME, --read or --admin")
    lines = "".join(format_line(grant, token) + "\n" for grant in grants)
    try:
        before = file.read_text(encoding="utf-8") if file is not None and file.exists() else ""
        lines = lines if not before or before.endswith("\n") else f"\n{lines}"
        parse_tokens(before + lines)
        if file is not None:
            with file.open("a", encoding="utf-8") as opened:
                opened.write(lines)
    except (OSError, ValueError) as error:
        _complain(str(error))
    print(token)
    if file is None:
        print(lines, end="")


def _complain(line: str) -> NoReturn:
    print(f"taot token: {line}", file=sys.stderr)
    raise typer.Exit(2)
