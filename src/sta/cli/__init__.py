"""The `sta` command. Each subcommand lives in its own file here and imports what it needs itself,
so that `sta --help` is quick."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from inspect import cleandoc, signature
from opcode import opmap
from pathlib import Path
from typing import Annotated

import typer

from sta.cli import data
from sta.cli.ablate import ablate
from sta.cli.analyze import analyze
from sta.cli.bench import BenchCommand, bench
from sta.cli.compare import CompareCommand, compare
from sta.cli.demo import demo
from sta.cli.eval import evaluate
from sta.cli.export import ExportCommand, export
from sta.cli.features import features
from sta.cli.flops import flops
from sta.cli.models import models
from sta.cli.options import MultiValueCommand
from sta.cli.predict import predict
from sta.cli.show import show
from sta.cli.train import train
from sta.cli.tune import tune
from sta.cli.ui import ui
from sta.cli.watch import watch
from sta.inference.threads import wait_passively
from sta.measure.memory import keep_memory
from sta.version import __version__

_PACKAGE = str(Path(__file__).parents[1])
#: Errors of files and connections: the user's to mend, wherever they are raised.
_FILES = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ConnectionError,
)
#: Libraries whose log messages do not concern the user.
_NOISY = ("nncf", "torch.onnx", "torch.utils.cpp_extension", "transformers")
_debug = False

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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
) -> None:
    """Video transformers about twice as fast, without retraining."""
    global _debug
    _debug = debug


def _flowing(text: str) -> str:
    """A docstring whose paragraphs are one line each, for the terminal to wrap."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


app.command()(predict)
app.command()(features)
app.command("eval", cls=MultiValueCommand)(evaluate)
app.command()(ablate)
app.command(cls=CompareCommand)(compare)
app.command()(demo)
app.command(cls=ExportCommand)(export)
app.command()(flops)
app.command(cls=BenchCommand)(bench)
app.command()(tune)
app.command()(models)
app.command(cls=MultiValueCommand)(show)
app.command(cls=MultiValueCommand)(analyze)
app.command()(train)
app.command()(ui)
app.command()(watch)
app.add_typer(data.app, name="data")
for _command in (*app.registered_commands, *data.app.registered_commands):
    _command.help = _flowing(
        _command.help or (_command.callback and _command.callback.__doc__) or ""
    )


def _plain_warnings() -> None:
    """Show the package's own warnings without the line of code, and libraries' with --debug."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(_PACKAGE):
            return f"Warning: {_in_options(str(message))}\n"
        wanted = _debug or sys.warnoptions
        return usual(message, category, filename, lineno, line) if wanted else ""

    for library in _NOISY:
        logging.getLogger(library).setLevel(logging.ERROR)
    warnings.formatwarning = plain


def _is_usage(error: BaseException) -> bool:
    """Whether an error tells the user what to change: one that this package raised itself.

    That is an error whose last frame is a ``raise`` statement of ours. What Python or a library
    raises underneath is a bug of ours, or of theirs, and its traceback is needed.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    raised = code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]
    return raised and code.co_filename.startswith(_PACKAGE)


def _in_options(message: str) -> str:
    """A message that names arguments as Python has them, with the options that they are here.

    ``resume=True`` becomes ``--resume``, ``gemm=False`` ``--no-gemm``, ``device="cpu"`` ``--device
    cpu``. What is no option of any command, such as a field of a config, stays.
    """
    commands = [*app.registered_commands, *data.app.registered_commands]
    options = {name for c in commands if c.callback for name in signature(c.callback).parameters}

    def option(found: re.Match[str]) -> str:
        name, value, _, text = found.groups()
        if name not in options:
            return found[0]
        written = name.replace("_", "-")
        if text is not None:
            return f"--{written} {text}"
        return f"--{written}" if value == "True" else f"--no-{written}"

    return re.sub(r"""\b([a-z_]+)=(True|False|(["'])(.*?)\3)""", option, message)


def main() -> None:
    """Run the command line.

    A wrong call ends with one line and exit code 2: an error that the package itself raises, or a
    file that is not there or may not be read. A result that cannot be written (a full disk) ends
    with one line and exit code 3. Anything else is a bug, and shows its traceback. With --debug
    all of them do.
    """
    if {"predict", "eval", "features", "watch"} & set(sys.argv[1:3]):  # the first may be --debug
        wait_passively()
        keep_memory()  # a batch's for the next one; timing commands do so themselves
    _plain_warnings()
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        from sta.inference.outputs import OutputError

        cannot_write = isinstance(error, OutputError)
        if _debug or not (cannot_write or isinstance(error, _FILES) or _is_usage(error)):
            raise
        message = str(getattr(error, "on_command_line", error))
        typer.echo(f"Error: {_in_options(message)}", err=True)
        sys.exit(3 if cannot_write else 2)
