"""Suppression files: one rule a line, read before a program starts and written by ``shadowgraph suppress``.

A line and not a TOML table: it is appended, sorted, searched and blamed as a line, an error names its number, and files
of fingerprints alone, one a line, stay what they were. Called by the command line, the plugin for pytest and the
debugger's start, in the caller's thread; no lock but that of the file while a rule is appended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from datetime import UTC, date, datetime

from msgspec.structs import replace

from shadowgraph.common.errors import MissingFileError, UsageError
from shadowgraph.common.suggestions import nearest
from shadowgraph.model.kinds import kinds
from shadowgraph.model.suppressions import SELECTORS, Rule, Suppressions, fits_code, matches_all

KEYS = (*SELECTORS, "expires", "reason")
_FINGERPRINT = re.compile(r"[0-9a-f]{12}(?=\s|#|$)")
_KEY = re.compile(r"([A-Za-z_][\w-]*)=")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')(?=\s|$)""")
_BARE = re.compile(r"\S*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SPACE = re.compile(r"\s*")
_LARGEST = 1 << 20  # bytes
_MOST = 4096  # rules: every report has a row for each


def read_suppressions(path: str | os.PathLike[str]) -> Suppressions:
    """Read the rules of a file; those whose last day is over hide nothing.

    Raises
    ------
    MissingFileError
        When the file cannot be read.
    UsageError
        For a line that is no rule, naming file and line.
    """
    return Suppressions(parsed_rules(_text_of(path), os.fspath(path)), today())


def today() -> str:
    """The day in UTC."""
    return datetime.now(UTC).date().isoformat()


def parsed_rules(text: str, called: str) -> tuple[Rule, ...]:
    """The rules of a file's text, in order; a rule that repeats what an earlier one names is left out.

    Raises
    ------
    UsageError
        For a line that is no rule.
    """
    found: dict[Rule, Rule] = {}
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{called}:{number}"
        try:
            rule = _parsed(line)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from None
        if rule is not None:
            named = replace(rule, reason="", expires="")
            found.setdefault(named if not rule.expires else rule, replace(rule, place=place))
            if len(found) > _MOST:
                raise UsageError(f"{place}: more than {_MOST:,} rules; a pattern hides many findings")
    return tuple(found.values())


def line_of(rule: Rule) -> str:
    """A rule as a line of a file."""
    pairs = [f"{key}={_quoted(getattr(rule, key))}" for key in KEYS if getattr(rule, key)]
    return " ".join(filter(None, (rule.fingerprint, *pairs)))


def append_rule(path: str | os.PathLike[str], rule: Rule, comment: str = "") -> str:
    """Append a rule to a file, which is made if there is none; what is there stays.

    The lines are written with one call at the file's end, under the file's lock, and taken back if only a part of them
    finds room: two processes may append at a time, and a reader sees the rule or not. Links, owner and mode stay.

    Returns
    -------
    str
        The file and line of the rule.

    Raises
    ------
    MissingFileError
        When the file cannot be read or written.
    UsageError
        For a file with a line that is no rule, and for a rule that is no line; nothing is written.
    """
    called, line = os.fspath(path), line_of(rule)
    if [replace(each, place=rule.place) for each in parsed_rules(line, called)] != [rule]:
        raise UsageError(f"no line of {called} can hold such a rule: {line!r}")
    heading = f"# {' '.join(comment.split())}\n" if comment else ""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise MissingFileError(f"cannot write {called}: {error.strerror}") from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        text = _text_of(path)
        parsed_rules(text, called)
        ahead = "\n" if text and not text.endswith(("\n", "\r")) else ""
        made = f"{ahead}{heading}{line}\n"
        _append(number, made.encode("utf-8", "backslashreplace"))
        return f"{called}:{len((text + made).splitlines())}"
    except OSError as error:
        raise MissingFileError(f"cannot write {called}: {error.strerror}") from None
    finally:
        os.close(number)


def _append(number: int, data: bytes) -> None:
    size = os.fstat(number).st_size
    try:
        if os.write(number, data) != len(data):
            raise OSError(28, "no space left on device")
        os.fsync(number)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(number, size)
        raise


def _text_of(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise MissingFileError(f"cannot read suppressions {path}: larger than {_LARGEST >> 20} MiB")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MissingFileError(f"cannot read suppressions {path}: it is no text in UTF-8") from None
    except OSError as error:
        raise MissingFileError(f"cannot read suppressions {path}: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the path
        raise MissingFileError(f"cannot read suppressions {path!r}: {error}") from None


def _parsed(line: str) -> Rule | None:
    """The rule of a line, or None for a blank one or a comment.

    Raises
    ------
    ValueError
        For any other line.
    """
    line = line.strip()
    fingerprint = _FINGERPRINT.match(line)
    if not line or line.startswith("#"):
        return None
    rest = line[fingerprint.end() :] if fingerprint is not None else line
    pairs, text = _pairs(rest)
    if text and fingerprint is None:
        word = text.split()[0]
        raise ValueError(
            f"{word!r} is no fingerprint (12 hexadecimal digits, see a report), and no key=pattern with one of "
            f"the keys {', '.join(KEYS)}"
        )
    if text:
        pairs.setdefault("reason", text)
    rule = Rule(fingerprint=fingerprint[0] if fingerprint is not None else "", **pairs)
    _require(rule)
    return rule


def _pairs(text: str) -> tuple[dict[str, str], str]:
    """The pairs of a key and a value that a text begins with, and what follows them up to a comment."""
    found: dict[str, str] = {}
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while (key := _KEY.match(text, at)) is not None:
        name = key[1]
        if name not in KEYS:
            near = nearest(name, KEYS)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"no key {name!r}{meant} (keys are: {', '.join(KEYS)})")
        if name in found:
            raise ValueError(f"{name} is given twice; two patterns are two rules")
        found[name], at = _value(name, text, key.end())
    rest = text[at:]
    comment = re.search(r"(?:^|\s)#", rest) if at else re.search("#", rest)
    return found, (rest[: comment.start()] if comment is not None else rest).strip()


def _value(key: str, text: str, at: int) -> tuple[str, int]:
    """A value, and where the next word begins."""
    if text[at : at + 1] in ('"', "'"):
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise ValueError(f"the quoted text of {key} does not end, or something follows its quote")
        value = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted[1] is not None else quoted[2]
        end = quoted.end()
    else:
        bare = _BARE.match(text, at)
        assert bare is not None
        value, end = bare[0], bare.end()
    if not value.strip():
        raise ValueError(f"{key} is empty")
    return value, _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _require(rule: Rule) -> None:
    """Refuse a rule that hides everything or nothing.

    Raises
    ------
    ValueError
    """
    codes = [kind.code for kind in kinds()]
    hit = [code for code in codes if fits_code(rule.code, code)] if rule.code else []
    if rule.code and not hit:
        raise ValueError(f"no kind of finding has a code like {rule.code!r}; codes are: {', '.join(codes)}")
    if rule.expires:
        _require_date(rule.expires)
    patterns = [value for key in SELECTORS[1:] if (value := getattr(rule, key))]
    tells = rule.fingerprint or (hit and len(hit) < len(codes)) or not all(map(matches_all, patterns))
    if not tells:
        raise ValueError(
            "the rule would hide every finding; name a fingerprint or a pattern of: " + ", ".join(SELECTORS)
        )


def _require_date(text: str) -> None:
    with contextlib.suppress(ValueError):
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return
    raise ValueError(f"expires must be a date such as 2027-01-31, not {text!r}")


def required_date(text: str) -> str:
    """The last day of a rule, from a command line.

    Raises
    ------
    UsageError
        For a text that is no date, and for a day that is over.
    """
    try:
        _require_date(text)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    if text < today():
        raise UsageError(f"--expires {text} is over: the rule would hide nothing")
    return text


def _quoted(value: str) -> str:
    if re.fullmatch(r"""[^\s"'#][^\s#]*""", value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
