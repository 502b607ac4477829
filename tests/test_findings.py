from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from support.finding_samples import ALLOCATED, BUFFER, FINDING, LAUNCHED, altered

from shadowgraph.checks.kinds import kind_of, titles
from shadowgraph.checks.out_of_bounds.facts import overrun_of
from shadowgraph.model.findings import SCHEMA, Culprit, Finding, Severity, Status, fingerprint, json_schema
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.stacks import Frame

DOCUMENTED = {
    "": "schema id revision code kind severity phase graph replay detected_at time pid rank device stream buffer bytes "
    "culprit candidates aliases neighbour confidence occurrences message",
    "buffer": "name names shape dtype nbytes",
    "bytes": "first last count ranges ranges_total side distance truncated",
    "culprit": "status kind name node file line stack",
}
EXTRA = {
    "": "reader window fingerprint batch continues caused_by detail step widest suppressed_by",
    "buffer": "address serial role allocated allocated_source view",
    "bytes": "",
    "culprit": "source grid block kernel arguments led_by seen_in search learnt_from launched_source bounds stored_by",
}
SPARSE = Finding(
    code="SG109",
    severity=Severity.NOTE,
    phase=FINDING.phase,
    graph=None,
    replay=None,
    detected_at="check",
    buffer=BUFFER,
    culprit=Culprit(Status.UNKNOWN),
)


# -- the document ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", DOCUMENTED)
def test_the_fields_are_the_documented_ones(part: str) -> None:
    document = FINDING.to_dict()
    fields = document[part] if part else document
    assert set(fields) == set(f"{DOCUMENTED[part]} {EXTRA[part]}".split())


@pytest.mark.parametrize("finding", [FINDING, SPARSE], ids=["full", "sparse"])
def test_the_document_is_plain_json_and_reads_back(finding: Finding) -> None:
    document = finding.to_dict()
    text = json.dumps(document)
    assert json.loads(text) == document
    assert msgspec.convert(json.loads(text), Finding, strict=True, dec_hook=decode_detail) == finding
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding, dec_hook=decode_detail) == finding


def test_words_in_the_document() -> None:
    document = FINDING.to_dict()
    assert (document["schema"], document["code"], document["kind"]) == (SCHEMA, "SG101", "out-of-bounds write")
    assert (document["severity"], document["phase"], document["bytes"]["side"]) == ("error", "prepare", "after")
    assert document["culprit"]["status"] == "confirmed"
    assert document["culprit"]["stack"][0] == {"file": "/srv/app/draft.py", "line": 120, "function": "prepare"}
    assert {type(document[key]) for key in ("kind", "severity", "phase", "code")} == {str}


def test_the_kind_belongs_to_the_code() -> None:
    assert list(titles()) == [f"SG{number}" for number in range(101, 117)]
    assert titles()["SG102"] == kind_of("SG102").title == "in-graph mutation"


def test_a_finding_with_the_facts_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="the facts of another kind"):
        Finding(**{**msgspec.structs.asdict(FINDING), "code": "SG103"})
    with pytest.raises(ValueError, match="no kind of finding has the code 'SG999'"):
        Finding(**{**msgspec.structs.asdict(FINDING), "code": "SG999"})


@pytest.mark.parametrize("finding", [FINDING, SPARSE], ids=["full", "sparse"])
def test_a_finding_is_valid_by_the_schema(finding: Finding) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(finding.to_dict())), schema)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("", "severity", "fatal"),
        ("", "phase", "launch"),
        ("", "replay", "seven"),
        ("", "buffer", None),
        ("bytes", "side", "left"),
        ("bytes", "ranges", [[1]]),
        ("culprit", "status", "sure"),
        ("buffer", "shape", "3x128"),
    ],
)
def test_what_is_no_finding_is_invalid_by_the_schema(part: str, field: str, value: Any) -> None:
    document = FINDING.to_dict()
    (document[part] if part else document)[field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(json.dumps(document)), json_schema())


@pytest.mark.parametrize(
    "part",
    [
        FINDING,
        *(FINDING.buffer, FINDING.culprit, FINDING.bytes, FINDING.neighbour, FINDING.reader, FINDING.window),
        *(FINDING.aliases[0], FINDING.detail, overrun_of(FINDING).rows[0], FINDING.culprit.stack[0]),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_finding_is_frozen(part: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(part, part.__struct_fields__[0], "changed")


def test_a_new_finding_was_seen_once() -> None:
    assert (SPARSE.occurrences, SPARSE.revision, SPARSE.id, SPARSE.confidence) == (1, 1, 0, "high")


@pytest.mark.parametrize(("last", "past_end"), [(1583, 48), (1536, 1), (1535, 0), (100, 0), (-1, 0)], ids=str)
def test_bytes_past_the_end(last: int, past_end: int) -> None:
    assert altered(bytes__last=last).past_end == past_end
    assert altered(bytes=None).past_end == 0


# -- the fingerprint -------------------------------------------------------------------------------------------------

PRINT = fingerprint(FINDING)
MOVED = (Frame("/elsewhere/app/draft.py", 999, "prepare"), *LAUNCHED[1:])
OTHER_OWNER = {"buffer__name": "runners[3].draft#2.kv_indices", "buffer__names": ("a", "b")}
UNNAMED = {"buffer__names": (), "buffer__name": "int32[3, 128] from backend.py:41"}


def test_a_fingerprint_is_twelve_hexadecimal_digits() -> None:
    assert len(PRINT) == 12
    assert set(PRINT) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "facts",
    [
        {"buffer__address": 0x7F9999999000, "buffer__serial": 999, "pid": 1, "time": 2.0, "id": 9, "revision": 3},
        {
            "buffer__nbytes": 4096,
            "buffer__shape": (8, 128),
            "bytes__last": 9000,
            "bytes__count": 7,
            "bytes__first": 1540,
        },
        OTHER_OWNER,
        {"culprit__line": 999, "culprit__file": "/elsewhere/app/draft.py", "culprit__stack": MOVED},
        {"culprit__stack": (LAUNCHED[0], Frame("another.py", 1, "caller"))},
        {"culprit__source": "kernels.py:99", "culprit__grid": (9,), "culprit__node": 3},
        {"replay": 900, "graph": "graph#5", "occurrences": 40, "detected_at": "check", "rank": 3, "device": "cuda:1"},
        {"window": None, "neighbour": None, "aliases": (), "candidates": (), "rows": (), "reader": None},
        {
            "fingerprint": "",
            "severity": Severity.NOTE,
            "confidence": "low",
        },
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_a_fingerprint_is_the_same_in_every_run(facts: dict[str, Any]) -> None:
    assert fingerprint(altered(**facts)) == PRINT


@pytest.mark.parametrize(
    "facts",
    [
        {"code": "SG102"},
        {"bytes__side": Side.BEFORE},
        {"buffer__name": "draft.seq_lens"},
        {"culprit__name": "another_kernel"},
        {"culprit__stack": (Frame("/srv/app/draft.py", 120, "another_function"),)},
        {"culprit__stack": (Frame("/srv/app/other.py", 120, "prepare"),)},
        {"rule": "nondecreasing: [3] = 1 after [2] = 5"},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_another_cause_has_another_fingerprint(facts: dict[str, Any]) -> None:
    assert fingerprint(altered(**facts)) != PRINT


def test_without_a_name_the_place_of_the_allocation_counts() -> None:
    here = fingerprint(altered(**UNNAMED))
    resized = altered(**UNNAMED | {"buffer__name": "int32[9, 512] from backend.py:77"})
    moved = (Frame("/elsewhere/backend.py", 77, "init_state"), *ALLOCATED[1:])
    assert fingerprint(resized) == here
    assert fingerprint(altered(**UNNAMED, buffer__allocated=moved)) == here
    assert fingerprint(altered(**UNNAMED, buffer__allocated=ALLOCATED[1:])) != here
    assert here != PRINT


def test_without_name_and_allocation_no_address_takes_their_place() -> None:
    """What nobody named and nobody was seen to allocate is called by its form and address."""
    nowhere = UNNAMED | {"buffer__allocated": ()}
    one = altered(**nowhere | {"buffer__name": "int32[3, 128] at 0x7f0000001000"})
    other = altered(**nowhere | {"buffer__name": "int32[4, 128] at 0x7fffffff1000", "buffer__address": 0x7FFFFFFF1000})
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("nondecreasing: [3] = 1 after [2] = 5", "nondecreasing: [7] = 0 after [6] = 90"),
        ("index_range(0, 4096): [3] = 5000", "index_range(0, 128): [9] = 200"),
        ("even: even(values) is false", "even: even(values) is false"),
    ],
)
def test_the_values_that_break_a_rule_do_not_count(one: str, other: str) -> None:
    assert fingerprint(altered(rule=one)) == fingerprint(altered(rule=other))


def test_another_rule_is_another_cause() -> None:
    rules = ["nondecreasing: [3] = 1 after [2] = 5", "index_range(0, 4): [3] = 5", "even: even(values) is false"]
    assert len({fingerprint(altered(rule=rule)) for rule in rules}) == 3


def test_paths_of_either_system_are_one_place() -> None:
    windows = (Frame("C:\\srv\\app\\draft.py", 3, "prepare"),)
    assert fingerprint(altered(culprit__stack=windows)) == PRINT


def test_the_number_of_a_notebooks_cell_does_not_count() -> None:
    prints = {
        fingerprint(altered(culprit__stack=(Frame(file, 3, function),)))
        for file, function in (("In[3]", "plan"), ("In[17]", "plan"), ("In[3]", "fill"))
    }
    assert len(prints) == 2


def test_without_bytes_or_culprit_there_is_a_fingerprint_too() -> None:
    assert len(fingerprint(SPARSE)) == 12
    assert fingerprint(SPARSE) != PRINT
