"""`Parser`: command lines of the verbs and of the magics. A bad one is one line, with what was likely meant."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from shadowgraph.common.errors import UsageError
from shadowgraph.common.suggestions import did_you_mean


class Parser(argparse.ArgumentParser):
    """Raises a bad command line as `UsageError`, and takes no abbreviations."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **keywords})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)" if self.add_help else message)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse words that the parser did not take, with the closest flag for the first that looks like one."""
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
        near = did_you_mean(flag, self._option_string_actions) if flag else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but an optional word may also come after options: argparse gives it nothing once an option
        follows the words before it."""
        parsed, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            late = len(unknown) == 1 and not unknown[0].startswith("-")
            if late and action.nargs == "?" and not action.option_strings and getattr(parsed, action.dest, 0) is None:
                setattr(parsed, action.dest, unknown.pop())
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None
