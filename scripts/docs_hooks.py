"""Hooks of mkdocs: the page of commands, from what `--help` shows, and the registered methods."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


def on_files(files: Any, config: Any) -> Any:
    """Add the page to those in docs/."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "commands.md", content=page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put every registered method where a page asks for them."""
    return markdown.replace("<!-- methods -->", method_entries())


def method_entries() -> str:
    """The configs of all methods, as mkdocstrings takes them."""
    from sta.methods import METHODS

    return "\n\n".join(
        f"::: {config.__module__}.{config.__name__}\n"
        f"    options:\n      heading: sta.{config.__name__}"
        for config in METHODS.values()
    )


def page() -> str:
    """All commands with their options, as Markdown."""
    from typer.main import get_command

    from sta.cli import app

    root: Any = get_command(app)
    parts = [
        "# Commands\n\nWhat `--help` shows. Exit codes: 0 all went well, 1 some inputs failed, "
        "2 wrong usage, 3 a file could not be written.\n"
    ]
    for name, command in sorted(root.commands.items()):
        if hasattr(command, "commands"):
            inner = sorted(command.commands.items())
            parts += [section(f"sta {name} {word}", child) for word, child in inner]
        else:
            parts.append(section(f"sta {name}", command))
    return "\n".join(parts)


def section(title: str, command: Any) -> str:
    """One command."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    lines = [f"## `{title}`\n", "```", " ".join([title, *words, "[OPTIONS]"]), "```\n"]
    lines += [inspect.cleandoc(command.help or ""), "", "| | |", "|---|---|"]
    lines += [f"| `{p.name.upper()}` | {cell(p)} |" for p in arguments]
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        lines.append(f"| {names} | {cell(option)} |")
    return "\n".join(lines) + "\n"


def cell(parameter: Any) -> str:
    """What a parameter is for, and its default."""
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    if default in (None, (), [], "") or callable(default) or isinstance(default, bool):
        return text
    shown = ", ".join(map(str, default)) if isinstance(default, (list, tuple)) else default
    return f"{text} Default: `{shown}`."
