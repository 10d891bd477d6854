"""Options that take several values: ``--r 0 32 64`` as well as ``--r 0 --r 32 --r 64``.

Click, and typer on top of it, know options of a fixed number of values only: an option with
``nargs=-1`` is refused when it is made. So the option is repeated before each of its values, and
the parser sees the second form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from typer.core import TyperCommand

from sta.methods import METHODS

#: The options, and which words are values of them. A path after ``--r 0 32`` is an argument again.
MULTI_VALUE: dict[str, Callable[[str], bool]] = {
    "--r": lambda word: word.lstrip("-").isdigit(),
    "--method": lambda word: word in ("stock", *METHODS),
    "--compare": lambda word: word in METHODS,
}


class MultiValueCommand(TyperCommand):
    """A command whose repeatable options take all the values that follow them."""

    multi_value: ClassVar[Mapping[str, Callable[[str], bool]]] = MULTI_VALUE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, as the parser knows it."""
        return super().parse_args(ctx, list(_repeat_flags(args, self.multi_value)))


def _repeat_flags(
    args: Sequence[str], multi_value: Mapping[str, Callable[[str], bool]]
) -> Iterator[str]:
    flag = None
    first = False  # the word right after the flag is the parser's business, right or wrong
    for word in args:
        if word in multi_value:
            flag, first = word, True
        elif flag is not None:
            if first:
                first = False
            elif multi_value[flag](word):
                yield flag
            else:
                flag = None
        yield word
