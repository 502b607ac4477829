"""Suppression rules: which findings a rule hides, and what each rule has hidden in a run.

Rules are read from a file by `shadowgraph.model.suppression_file` and applied by the finding store, under the
debugger's lock; everything here is immutable data, for any thread. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from shadowgraph.common.words import plural
from shadowgraph.model.findings import Culprit, Finding, Status
from shadowgraph.model.redaction import Kept, KernelName, OwnerPath

SELECTORS = ("code", "buffer", "kernel", "file", "function")  # keys whose values are patterns


class Rule(msgspec.Struct, frozen=True):
    """One rule: a finding is hidden if everything that the rule names fits. An empty text names nothing.

    Attributes
    ----------
    place
        The file and line of the rule: ``known.txt:3``.
    fingerprint
        The fingerprint of a finding.
    code
        Pattern of a finding's code.
    buffer
        Pattern of any name of the buffer, aliases included: the whole name, or its end after a dot.
    kernel
        Pattern of the culprit's name, or of its demangled kernel's.
    file, function
        Patterns of a line of the culprit's stack; both fit one line. A file fits as a whole, or by its end after a
        slash.
    reason
        Why it is hidden; for the reader.
    expires
        Last day (UTC) on which it hides, as ``YYYY-MM-DD``; without one it hides for ever.
    """

    place: Kept[str] = ""
    fingerprint: Kept[str] = ""
    code: Kept[str] = ""
    buffer: OwnerPath = ""
    kernel: KernelName = ""
    file: Kept[str] = ""
    function: Kept[str] = ""
    reason: str = ""
    expires: Kept[str] = ""

    def words(self) -> str:
        """What the rule names, as its line says it."""
        named = [f"{key}={getattr(self, key)}" for key in SELECTORS if getattr(self, key)]
        return " ".join(filter(None, (self.fingerprint, *named)))

    def fits(self, finding: Finding, marks: Iterable[str] = ()) -> bool:
        """Whether everything that the rule names fits a finding.

        Parameters
        ----------
        marks
            Further fingerprints that the finding may have.
        """
        if self.fingerprint and self.fingerprint not in (finding.fingerprint, *marks):
            return False
        if self.code and not _fits(self.code, finding.code):
            return False
        return self._fits_buffer(finding) and self._fits_launches(finding)

    def _fits_buffer(self, finding: Finding) -> bool:
        names = (finding.buffer.name, *finding.buffer.names, *(alias.name for alias in finding.aliases))
        return not self.buffer or any(_fits(self.buffer, form, ".") for name in names for form in _forms(name))

    def _fits_launches(self, finding: Finding) -> bool:
        """Whether every launch that may have done the damage fits: one that does not may be another bug."""
        if not (self.kernel or self.file or self.function):
            return True
        return all(map(self._fits_launch, possible_culprits(finding)))

    def _fits_launch(self, culprit: Culprit) -> bool:
        if self.kernel and not any(_fits(self.kernel, name) for name in (culprit.name, culprit.kernel) if name):
            return False
        if not (self.file or self.function):
            return True
        lines = [(frame.file, frame.function) for frame in culprit.stack]
        if culprit.file:
            lines.append((culprit.file, ""))
        return any(self._fits_line(file.replace("\\", "/"), function) for file, function in lines)

    def _fits_line(self, file: str, function: str) -> bool:
        named = not self.file or _fits(self.file, file, "/")
        return named and (not self.function or _fits(self.function, function, "."))


class RuleCount(msgspec.Struct, frozen=True):
    """What a rule has hidden.

    Attributes
    ----------
    findings, sightings
        Number of different findings (by fingerprint), and how often they were seen.
    expired
        Whether the rule's last day was over when the program began: it hides nothing.
    shown
        Number of findings that an expired rule would have hidden.
    """

    rule: Rule
    findings: Kept[int] = 0
    sightings: Kept[int] = 0
    expired: Kept[bool] = False
    shown: Kept[int] = 0

    @property
    def is_stale(self) -> bool:
        """Whether the rule hides nothing although it may."""
        return not self.expired and not self.sightings

    def sentence(self) -> str:
        """The rule and what became of it."""
        rule = self.rule
        why = f" ({rule.reason})" if rule.reason else ""
        return f"{self._fate()}: {rule.words()}{why}"

    def _fate(self) -> str:
        if self.expired:
            shown = f", {plural(self.shown, 'finding')} of it shown" if self.shown else ""
            return f"expired on {self.rule.expires}, hides nothing{shown}"
        if not self.sightings:
            return "stale, hid nothing in this run"
        return f"{plural(self.findings, 'finding')}, {plural(self.sightings, 'sighting')}"


class Suppressions:
    """The rules of a file, in its order; the first one that fits a finding hides it.

    Parameters
    ----------
    today
        The day of which rules have expired, as ``YYYY-MM-DD``; decided once, so that a run has one set of rules.
    """

    def __init__(self, rules: Sequence[Rule] = (), today: str = "") -> None:
        self.rules = tuple(rules)
        self.expired = frozenset(rule for rule in rules if rule.expires and rule.expires < today)
        self._active = tuple(rule for rule in rules if rule not in self.expired)

    def hiding(self, finding: Finding, marks: Iterable[str] = ()) -> Rule | None:
        """The rule that hides a finding, or None."""
        return next((rule for rule in self._active if rule.fits(finding, marks)), None)


def possible_culprits(finding: Finding) -> list[Culprit]:
    """The launches that may have done the damage: those confirmed, or, while none is, all that come into question."""
    known = [finding.culprit, *finding.candidates]
    if finding.culprit.status is Status.CONFIRMED:
        return [culprit for culprit in known if culprit.status is Status.CONFIRMED]
    return known


def added_counts(parts: Iterable[Iterable[RuleCount]]) -> tuple[RuleCount, ...]:
    """What each rule hid in several processes, or for several debuggers of one."""
    found: dict[Rule, RuleCount] = {}
    for count in (count for part in parts for count in part):
        before = found.get(count.rule, RuleCount(count.rule))
        found[count.rule] = RuleCount(
            count.rule,
            before.findings + count.findings,
            before.sightings + count.sightings,
            before.expired or count.expired,
            before.shown + count.shown,
        )
    return tuple(found.values())


def matches_all(pattern: str) -> bool:
    """Whether a pattern is made of stars only."""
    return bool(pattern) and not pattern.strip("*")


def fits_code(pattern: str, code: str) -> bool:
    """Whether a pattern fits a code."""
    return _fits(pattern, code)


def _fits(pattern: str, text: str, boundary: str = "") -> bool:
    return _compiled(pattern, boundary).fullmatch(text) is not None


@lru_cache(maxsize=1 << 14)  # those of a file of as many rules as it may have
def _compiled(pattern: str, boundary: str) -> re.Pattern[str]:
    """``*`` is any text, ``?`` any letter, all else is meant literally: names of buffers are full of brackets.

    With a boundary, the end of a text after one fits as well.
    """
    parts = pattern.split("*")
    first, *rest = ("".join("." if letter == "?" else re.escape(letter) for letter in part) for part in parts)
    middle = "".join(f"(?>.*?{part})" for part in rest[:-1])  # the first place is as good as any: no way back
    last = f".*{rest[-1]}" if rest else ""
    ahead = f"(?:.*{re.escape(boundary)})?" if boundary else ""
    return re.compile(ahead + first + middle + last, re.DOTALL)


_KEY = re.compile(r"""\[(["'])([^"'\]]*)\1\]$""")


def _forms(name: str) -> Iterable[str]:
    """A name, and the key at its end: ``attn["kv_indptr"]`` is called ``kv_indptr`` too."""
    key = _KEY.search(name)
    return (name, key[2]) if key is not None else (name,)
