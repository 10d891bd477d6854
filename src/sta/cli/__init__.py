"""The `sta` command. Each subcommand lives in its own file here and imports what it needs itself,
so that `sta --help` is quick."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from sta.cli import data
from sta.cli.ablate import ablate
from sta.cli.analyze import analyze
from sta.cli.bench import BenchCommand, bench
from sta.cli.demo import demo
from sta.cli.eval import evaluate
from sta.cli.export import ExportCommand, export
from sta.cli.flops import flops
from sta.cli.models import models
from sta.cli.predict import predict
from sta.cli.several import SeveralValues
from sta.cli.show import show
from sta.cli.train import train
from sta.cli.tune import tune
from sta.cli.ui import ui
from sta.inference.threads import wait_passively
from sta.version import __version__

app = typer.Typer(
    name="sta",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Video transformers about twice as fast, without retraining."""


app.command()(predict)
app.command("eval", cls=SeveralValues)(evaluate)
app.command()(ablate)
app.command()(demo)
app.command(cls=ExportCommand)(export)
app.command()(flops)
app.command(cls=BenchCommand)(bench)
app.command()(tune)
app.command()(models)
app.command(cls=SeveralValues)(show)
app.command(cls=SeveralValues)(analyze)
app.command()(train)
app.command()(ui)
app.add_typer(data.app, name="data")


def _plain_warnings() -> None:
    """Show the package's own warnings without the line of code that they come from."""
    usual, package = warnings.formatwarning, str(Path(__file__).parents[1])

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(package):
            return f"Warning: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = plain


def main() -> None:
    """Run the command line: errors of usage end with one clear line and exit code 2."""
    if sys.argv[1:2] in (["predict"], ["eval"]):
        wait_passively()
    _plain_warnings()
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        typer.echo(f"Error: {getattr(error, 'on_command_line', error)}", err=True)
        sys.exit(2)
