"""What an error says of a word that is close to a known one. Pure; called where the error is made."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 2  # suggested at once
_LIKENESS = 0.6  # of the first that is suggested
_NEARLY = 0.9  # of that likeness, for a second one


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known words that are closest to a word, the closest first, without regard to case; few words are compared."""
    import difflib  # where an error is made: the command line and the pytest plugin start without it

    matcher = difflib.SequenceMatcher(b=word.casefold())
    scored = []
    for each in known:
        matcher.set_seq1(each.casefold())
        scored.append((matcher.ratio(), each))
    best = max((score for score, _ in scored), default=0.0)
    close = [(score, each) for score, each in scored if score >= max(_LIKENESS, _NEARLY * best)]
    return [each for _, each in sorted(close, key=lambda pair: -pair[0])][:_MOST]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """``" (did you mean X?)"``, or with ``X or Y``; empty where no known word is close. A prefix that all words share
    does not make them alike."""
    found = [prefix + each for each in nearest(word.removeprefix(prefix), (k.removeprefix(prefix) for k in known))]
    return f" (did you mean {' or '.join(found)}?)" if found else ""
