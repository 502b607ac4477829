"""SARIF and workflow commands: what code hosts are told, by the standard's own schema and the runner's own reading.

`sarif-schema-2.1.0.json` is that of the standard, https://github.com/oasis-tcs/sarif-spec, ``sarif-2.1/schema``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import jsonschema
import pytest
from msgspec.structs import replace
from support.finding_samples import ALLOCATED, FINDING, LAUNCHED, altered, run_of

from shadowgraph.checks.kinds import kinds
from shadowgraph.model.findings import Culprit, Severity, Status, StorePlace
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.model.stacks import Frame
from shadowgraph.model.suppressions import Rule, RuleCount
from shadowgraph.render.annotations import workflow_commands
from shadowgraph.render.sarif import to_sarif
from shadowgraph.render.source_root import source_root

SCHEMA = json.loads(Path(__file__).with_name("sarif-schema-2.1.0.json").read_text("utf-8"))
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA, format_checker=jsonschema.FormatChecker())
ROOT = Path("/srv/app")
HOSTILE = "a\nb\r::error::%0A,:\x1b[2J\u202e"
UNSEEN = Culprit(Status.UNKNOWN)


def run_in(facts: RunFacts, root: Path = ROOT) -> dict[str, Any]:
    """The one run of a document, which fits the schema."""
    document = json.loads(to_sarif(facts, root))
    VALIDATOR.validate(document)
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    made: dict[str, Any] = run
    return made


def file_of(location: dict[str, Any]) -> str:
    return str(location["physicalLocation"]["artifactLocation"]["uri"])


def test_the_line_of_the_store_is_the_one_that_is_annotated() -> None:
    store = StorePlace((3, 0, 0), Frame("/srv/app/kernels.py", 11, "fill"))
    made = altered(culprit=replace(FINDING.culprit, stored_by=store))
    (result,) = run_in(run_of(made))["results"]
    (primary,) = result["locations"]
    assert (file_of(primary), primary["physicalLocation"]["region"]["startLine"]) == ("kernels.py", 11)
    related = {each["message"]["text"]: file_of(each) for each in result["relatedLocations"]}
    assert related["stored here: fill_indices"] == "kernels.py"
    assert related["launched here: fill_indices"] == "draft.py", "the launch is told as well"
    assert next(workflow_commands(run_of(made), ROOT)).startswith("::error file=kernels.py,line=11,")


def test_a_finding_as_a_result() -> None:
    run = run_in(run_of(FINDING))
    (result,) = run["results"]
    (primary,) = result["locations"]
    assert primary["physicalLocation"] == {
        "artifactLocation": {"uri": "draft.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 120},
    }
    assert [each["fullyQualifiedName"] for each in primary["logicalLocations"]] == ["draft.kv_indices", "fill_indices"]
    assert run["originalUriBaseIds"] == {"SRCROOT": {"uri": "file:///srv/app/"}}
    assert (result["ruleId"], result["level"], result["message"]["text"]) == ("SG101", "error", FINDING.message)
    assert result["partialFingerprints"] == {"shadowgraph/v1": "0123456789ab"}
    related = {each["message"]["text"].split(":")[0]: file_of(each) for each in result["relatedLocations"]}
    assert related == {"allocated here": "backend.py", "launched here": "draft.py", "read here": "model.py"}
    launch, allocation = result["stacks"]
    assert [
        (file_of(frame["location"]), frame["location"]["physicalLocation"]["region"]["startLine"])
        for frame in launch["frames"]
    ] == [("draft.py", 120), ("server.py", 9)]
    assert [frame["location"]["logicalLocations"][0]["fullyQualifiedName"] for frame in allocation["frames"]] == [
        "init_state",
        "main",
    ]
    assert "suppressions" not in result, "a run without rules does not say that nothing hides it"
    assert result["properties"]["replay"] == 7


def test_the_schema_refuses_what_is_no_sarif() -> None:
    document = json.loads(to_sarif(run_of(FINDING), ROOT))
    for change in ({"level": "fatal"}, {"message": {}}, {"occurrenceCount": 0}, {"place": "draft.py"}):
        result = {**document["runs"][0]["results"][0], **change}
        assert not VALIDATOR.is_valid({**document, "runs": [{**document["runs"][0], "results": [result]}]})


@pytest.mark.parametrize("code", [kind.code for kind in kinds()])
def test_every_kind_is_a_rule_with_help(code: str) -> None:
    about = {"rule": "indices < 8"} if code == "SG109" else {}
    (rule,) = run_in(run_of(altered(code=code, **about)))["tool"]["driver"]["rules"]
    assert rule["id"] == code
    assert len(rule["help"]["markdown"]) > 100
    assert re.fullmatch(r"([A-Z]\w*)+", rule["name"])


def test_a_run_without_findings() -> None:
    run = run_in(run_of())
    assert run["results"] == []
    assert "63 %" in run["invocations"][0]["toolExecutionNotifications"][-1]["message"]["text"]


def test_notes_and_processes() -> None:
    facts = run_of(
        FINDING, replace(FINDING, pid=4243, id=2, occurrences=4), notes=(altered(severity=Severity.NOTE, id=3),)
    )
    error, note = run_in(facts)["results"]
    assert (error["level"], error["occurrenceCount"], error["properties"]["processes"]) == ("error", 5, 2)
    assert note["level"] == "note"


def test_what_is_suppressed_says_so() -> None:
    rule = Rule("/srv/app/known.txt:3", code="SG101", reason="upstream")
    hidden = altered(suppressed_by=rule.place, id=0)
    facts = run_of(altered(code="SG102"), hidden=(hidden,), suppressions=(RuleCount(rule, 1, 1),))
    shown, quiet = run_in(facts)["results"]
    assert shown["suppressions"] == [], "which says that it is not suppressed"
    (said,) = quiet["suppressions"]
    assert (said["kind"], said["status"], said["justification"]) == ("external", "accepted", "upstream")
    assert file_of(said["location"]) == "known.txt"
    assert said["location"]["physicalLocation"]["region"] == {"startLine": 3}
    assert len(list(workflow_commands(facts, ROOT))) == 1


def test_files_elsewhere_and_cells() -> None:
    package = Frame("/srv/app/.venv/lib/site-packages/sglang/attn.py", 8, "plan")
    far, cell = Frame("/opt/x y/ü.py", 3, "go"), Frame("In[3]", 2, "<module>")
    stack = (cell, package, far, *LAUNCHED)
    (result,) = run_in(run_of(altered(culprit__stack=stack)))["results"]
    assert file_of(result["locations"][0]) == "draft.py", "the innermost line of the repository"
    files = [frame["location"].get("physicalLocation") for frame in result["stacks"][0]["frames"]]
    assert files[0] is None
    uris = [each["artifactLocation"] for each in files[1:]]
    assert [urlparse(each["uri"]).scheme for each in uris] == ["file", "file", "", ""]
    assert [unquote(urlparse(each["uri"]).path) for each in uris][:2] == [package.file, far.file]
    assert ["uriBaseId" in each for each in uris] == [False, False, True, True]
    (outside,) = run_in(run_of(FINDING), Path("/elsewhere"))["results"]
    assert file_of(outside["locations"][0]) == "file:///srv/app/draft.py", "whole paths where none is of the repository"


def test_a_finding_without_any_place() -> None:
    facts = run_of(altered(culprit=UNSEEN, candidates=(), reader=None, buffer__allocated=()))
    (result,) = run_in(facts)["results"]
    assert "physicalLocation" not in result["locations"][0]
    assert list(workflow_commands(facts, ROOT)) == [
        f"::error title=SG101 out-of-bounds write::{facts.findings[0].message.partition(': ')[2]}"
    ]


def test_hostile_names() -> None:
    frame = Frame(f"/srv/app/{HOSTILE}.py", -5, HOSTILE)
    finding = altered(
        buffer__name=HOSTILE, buffer__allocated=(frame,), culprit__name=HOSTILE, culprit__stack=(frame,), graph=HOSTILE
    )
    (result,) = run_in(run_of(finding))["results"]
    assert "region" not in result["locations"][0]["physicalLocation"]
    assert not re.search("[\x00-\x1f\x7f\u202e]", result["message"]["text"] + str(result["stacks"]))
    (line,) = workflow_commands(run_of(finding), ROOT)
    assert not re.search("[\x00-\x1f\x7f\u202e]", line)
    assert read_command(line)["line"] == "1"


def read_command(line: str) -> dict[str, str]:
    """A workflow command as the runner reads it."""
    found = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    assert found is not None
    made = {"level": found[1], "message": _read(found[3])}
    for pair in found[2].split(","):
        key, equals, value = pair.partition("=")
        assert equals
        made[key] = _read(value).replace("%3A", ":").replace("%2C", ",")
    return made


def _read(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_workflow_commands() -> None:
    stack = (Frame("/srv/app/a,b:c%/d.py", 3, "f"),)
    facts = run_of(altered(culprit__stack=stack), notes=(altered(severity=Severity.NOTE, code="SG102", id=2),))
    error, note = map(read_command, workflow_commands(facts, ROOT))
    assert (error["level"], error["file"], error["line"]) == ("error", "a,b:c%/d.py", "3")
    assert error["title"] == "SG101 out-of-bounds write"
    assert f"{error['title']}: {error['message']}" == facts.findings[0].message
    assert (note["level"], note["file"]) == ("notice", "draft.py")
    assert list(workflow_commands(run_of(), ROOT)) == []


def test_an_allocation_stands_for_an_unseen_launch() -> None:
    facts = run_of(altered(culprit=UNSEEN, candidates=()))
    assert read_command(next(workflow_commands(facts, ROOT)))["line"] == str(ALLOCATED[0].line)


def test_the_root_is_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "tests").mkdir()
    monkeypatch.chdir(tmp_path / "repo" / "tests")
    assert source_root() == tmp_path / "repo"
    assert source_root("..") == tmp_path / "repo"
    monkeypatch.chdir(tmp_path)
    assert source_root() == tmp_path
