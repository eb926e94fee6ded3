"""The `taot` command: thin, it ties the other packages together.

Every command lives in a module of its own and imports what it needs when it runs, so that `taot plan` works
without the server extra and `taot serve` without torch.
"""

from __future__ import annotations

import typer

from taot_cli.config_command import config_app
from taot_cli.demo import demo
from taot_cli.observe import observe
from taot_cli.plan import plan
from taot_cli.replay import replay
from taot_cli.serve import serve
from taot_cli.token_command import token_app

app = typer.Typer(
    help="Placement planning for mixture-of-experts training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(plan)
app.command()(replay)
app.command()(demo)
app.command()(observe)
app.add_typer(config_app, name="config")
app.add_typer(token_app, name="token")


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
