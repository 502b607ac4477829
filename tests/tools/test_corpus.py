"""`tools/corpus`: what is counted as what, which write is found, what becomes of a worker that dies."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from corpus import driver, judging
from corpus.comparing import compared
from corpus.counting import left_undone, without_numbers
from corpus.driver import Driver, Order, batches_of
from corpus.env import REPLAYS, Env, NotCapturable, Skip
from corpus.images import difference
from corpus.judging import Judged
from corpus.sources import all_ids
from corpus.summing import Runs, counts_of_clean, counts_of_planted, messages

import shadowgraph as sg

Result = dict[str, Any]


def ignored(stage: str) -> None:
    pass


def judged(program: Callable[[Env], None], eager_ok: bool = False, variants: tuple[str, ...] = ("guard",)) -> Result:
    return Judged("patterns/of-a-test", program, "host", eager_ok, ignored).clean(list(variants))


def adding(env: Env) -> None:
    """A clean program."""
    x, y = env.static(torch.arange(8.0)), env.static(torch.zeros(8))
    env.name("of a test", {"x": x, "y": y})

    def body() -> torch.Tensor:
        y.copy_(x * 2)
        return y + 1

    env.warm(body, 1)
    graph = env.capture(body)
    for i in range(REPLAYS):
        with env.prepare(graph):
            x.fill_(float(i))
        env.keep(f"out{i}", graph.replay())
        env.note(f"y{i}", y)


# -- one program -------------------------------------------------------------------------------------------------------


def test_a_clean_program_is_clean_and_counted() -> None:
    result = judged(adding, eager_ok=True, variants=("guard", "wrap", "locate"))
    assert (result["status"], result["compared"]) == ("clean", True)
    assert set(result["problems"]) <= {"slow"}, (
        "a capture of one operator takes as long as names take, on a busy machine"
    )
    for variant, written in {"guard": 96, "wrap": 64, "locate": 96}.items():  # `wrap` uses memory again
        answer = result["variants"][variant]
        assert (answer["replays"], answer["began"], answer["checked"]) == (3, 3, 3)
        assert answer["coverage"] == {"written": written, "exact": written, "inexact": 0}
        # Buffers that tests before this one left in the process are counted too.
        assert answer["buffers"]["static"]["exact"] >= 64
        assert answer["buffers"]["pool"]["exact"] >= 32
        assert answer["aside"] == {}


def test_an_accused_program_is_a_false_alarm() -> None:
    kept = []

    def program(env: Env) -> None:
        adding(env)
        kept.append(env.static(torch.zeros(4)))
        if env.debugger is not None:
            ctypes.memset(kept[-1].data_ptr() + 16, 7, 4)

    result = judged(program)
    assert result["status"] == "false-alarm"
    (told,) = counts_of_clean([result])["failing"]
    assert told["messages"][0].startswith("SG101 ")
    assert "wrote 4 bytes past the end" in told["messages"][0]


def test_a_broken_program_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "TOO_SLOW", 10**9)  # a busy machine adds a message

    def program(env: Env) -> None:
        adding(env)
        if env.debugger is not None:
            raise ValueError("only when it is watched")

    result = judged(program)
    assert result["status"] == "crash"
    assert counts_of_clean([result])["failing"][0]["messages"] == ["ValueError: only when it is watched"]


def test_a_fault_of_the_tools_own_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sg.Debugger, "_faults", lambda debugger: {"check: ValueError": 1})
    assert judged(adding)["status"] == "crash"


def test_other_bits_are_told() -> None:
    def program(env: Env) -> None:
        adding(env)
        env.keep("last", torch.full((2,), 3.0 if env.debugger is None else 4.0))

    result = judged(program)
    assert result["status"] == "outputs differ"
    assert "last[0] torch.float32[2]" in result["variants"]["guard"]["diff"]


def test_other_bits_of_eager_work_are_told() -> None:
    def program(env: Env) -> None:
        adding(env)
        env.keep("last", torch.tensor(float(env.kind == "eager" and env.debugger is not None)))

    assert judged(program, eager_ok=True)["status"] == "watched eager work differs"


def test_a_program_that_differs_by_itself_is_not_compared() -> None:
    runs: list[int] = []

    def program(env: Env) -> None:
        adding(env)
        runs.append(1)
        env.keep("last", torch.tensor(len(runs)))

    result = judged(program)
    assert (result["status"], result["compared"]) == ("clean", False)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Skip("no second sample"), "cannot be made: no second sample"),
        (ValueError("bad"), "fails eagerly: ValueError: bad"),
    ],
)
def test_what_fails_without_shadowgraph_is_skipped(error: Exception, reason: str) -> None:
    def program(env: Env) -> None:
        raise error

    result = judged(program)
    assert (result["status"], result["reason"], result["problems"]) == ("skipped", reason, [])


def test_what_only_the_host_graph_cannot_hold_is_its_crash() -> None:
    def program(env: Env) -> None:
        if env.kind != "eager":
            raise NotCapturable("ValueError: within") from ValueError("within")
        adding(env)

    result = judged(program)
    assert (result["status"], result["where"]) == ("crash", "unwatched HostGraph")


def test_images_differ_by_bytes() -> None:
    env = Env("host", "plain")
    env.keep("a", [torch.tensor([1.0, float("nan")]), 3])
    other = Env("host", "plain")
    other.keep("a", [torch.tensor([1.0, float("nan")]), 3])
    assert difference(env.kept, other.kept) is None
    other.kept[1] = other.kept[1]._replace(value="4")
    assert difference(env.kept, other.kept) == "a[1] value: differ"


# -- planted writes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [f"patterns/of-a-test-{at}" for at in range(8)])
def test_a_planted_write_is_found_by_its_kernel_and_bytes(pid: str) -> None:
    result = Judged(pid, adding, "host", False, ignored).planted(["guard", "wrap"])
    assert result["status"] == "planted"
    for variant in ("guard", "wrap"):
        planted = result["variants"][variant]["planted"]
        assert planted["outcome"] == "found", planted
        assert (planted["code"], planted["culprit"]) == ("SG101", True)


def test_both_places_and_both_kinds_of_buffers_are_chosen() -> None:
    from corpus.planting import Plant

    plants = [Plant(f"ops/{at}", 3) for at in range(64)]
    assert {(plant.where, plant.of) for plant in plants} == {
        (where, of) for where in ("graph", "prepare") for of in ("static", "output")
    }
    assert len({plant.nbytes for plant in plants}) > 20
    assert (Plant("ops/1", 3).where, Plant("ops/1", 3).nbytes) == (plants[1].where, plants[1].nbytes)


def test_a_write_that_no_guard_would_see_is_not_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.model.buffers.Buffer.exact", property(lambda buffer: False))
    planted = Judged("patterns/of-a-test", adding, "host", False, ignored).planted(["guard"])["variants"]["guard"]
    assert planted["planted"]["outcome"] == "not planted"
    assert planted["planted"]["why"] == "no guard right behind the buffer"
    assert planted["findings"] == []


def test_a_write_that_is_overlooked_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.monitor.finding_pipeline.FindingPipeline.take", lambda *args, **kwargs: None)
    result = Judged("patterns/of-a-test", adding, "host", False, ignored).planted(["guard"])
    counted = counts_of_planted([result])["variants"]["guard"]
    assert (counted["ran"], counted["missed"], counted.get("found", 0)) == (1, 1, 0)
    assert counted["not_found"] == {"missed": ["patterns/of-a-test"]}


# -- counting, comparing -----------------------------------------------------------------------------------------------


class Facts(msgspec.Struct):
    guards_dropped: int = 0
    left_alone: dict[str, int] = {}
    limits: tuple[str, ...] = ()
    stepped_aside: dict[str, int] = {}
    findings: tuple[str, ...] = ()


def test_every_way_of_stepping_aside_is_counted_also_those_to_come() -> None:
    facts = Facts(2, {"pool of 0x7f01": 1, "pool of 0x7f02": 2}, ("after 3 s",), {"torch traces": 4}, ("SG101",))
    assert left_undone(facts) == {
        "guards dropped": 2, "left alone: pool of N": 3, "limits: after N s": 1, "stepped aside: torch traces": 4,
    }  # fmt: skip
    assert left_undone(Facts()) == {}


def planted_result(pid: str, outcome: str) -> Result:
    row = {"outcome": outcome, "where": "graph", "culprit": True, "exactly": True}
    answer = {"planted": row, "findings": [], "notes": []}
    return {"id": pid, "status": "planted", "problems": [], "variants": {"guard": answer}}


def summary_of(outcomes: dict[str, str], checked: int = 300, guarded: int = 100) -> Result:
    clean = {
        "ids": "a", "not_run": 0,
        "variants": {
            "guard": {
                "replays": {"share_checked": checked / 300},
                "bytes": {"pool": {"exact": guarded, "share_exact": guarded / 100}},
            }
        },
    }  # fmt: skip
    planted = counts_of_planted([planted_result(pid, outcome) for pid, outcome in outcomes.items()])
    about = {"source": "s", "packages": {}}
    return {**about, "clean": clean, "planted": {"ids": "b", "not_run": 0, **planted}}


def test_a_comparison_with_a_baseline() -> None:
    ids = [f"ops/{at}" for at in range(200)]
    base = summary_of({**dict.fromkeys(ids, "found"), "ops/never": "missed"})
    told, worse = compared(base, base)
    assert worse == []
    assert told["planted"]["guard"] == {"found_before": 200, "found": 200, "share_kept": 1.0, "lost": []}
    two = summary_of({**dict.fromkeys(ids, "found"), "ops/never": "missed", "ops/3": "missed", "ops/4": "missed"})
    assert compared(two, base)[1] == [], "99 % are found"
    three = {**dict.fromkeys(ids, "found"), "ops/never": "found"}
    three |= dict.fromkeys(("ops/3", "ops/4", "ops/5"), "not planted")
    told, worse = compared(summary_of(three), base)
    assert told["planted"]["guard"]["lost"] == ["ops/3", "ops/4", "ops/5"], "what is found now does not make up for it"
    assert worse == ["guard: finds 98.5% of the planted writes that the baseline finds"]


def test_a_comparison_sees_fewer_checks_guards_and_programs() -> None:
    base = summary_of({"ops/1": "found"})
    assert compared(summary_of({"ops/1": "found"}, checked=299), base)[1] == [
        f"guard: share of replays checked {299 / 300}, 1.0 before"
    ]
    less = summary_of({"ops/1": "found"}, guarded=99)
    assert compared(less, base)[1] == ["guard: 99 pool bytes guarded (99.00%), 100 before"]
    less["clean"]["variants"]["guard"]["bytes"]["pool"]["share_exact"] = 1.0
    assert compared(less, base)[1] == [], "all that there are"
    fewer = summary_of({"ops/1": "found"})
    fewer["planted"]["not_run"] = 2
    assert compared(fewer, base)[1] == ["2 planted programs were not run"]
    fewer["planted"]["ids"] = "c"
    assert compared(fewer, base)[1] == ["other planted programs were asked for"]


# -- workers -----------------------------------------------------------------------------------------------------------

WORKER = """
import json, os, sys, time
order = json.load(open(sys.argv[2]))
sink = open(order["out"], "a", buffering=1)
def say(**what): sink.write(json.dumps(what) + "\\n")
say(event="ready")
for pid in order["ids"]:
    say(event="begin", id=pid)
    if "dies" in pid:
        say(event="stage", stage=pid.split("-")[-1] + ":guard")
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if "hangs" in pid:
        say(event="stage", stage="watched:wrap")
        time.sleep(60)
    say(event="result", id=pid, status="clean", problems=[], variants={})
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    monkeypatch.setattr(driver, "TOOL", path)
    return tmp_path


def drive(folder: Path, ids: list[str], patience: float = 30, limit: float = 0) -> dict[str, Result]:
    found: dict[str, Result] = {}
    order = Order("host", ("guard",), False, 2, 3, limit, patience)
    Driver(order, folder, lambda result: found.__setitem__(result["id"], result)).run(ids)
    return found


def test_a_program_that_kills_its_process_costs_no_other(worker: Path) -> None:
    ids = ["ops/1", "ops/dies-watched", "ops/2", "fuzz/dies-plain", "fuzz/3", "fuzz/4", "fuzz/5"]
    found = drive(worker, ids)
    assert set(found) == set(ids)
    assert {pid for pid, result in found.items() if result["status"] == "clean"} == {p for p in ids if "dies" not in p}
    watched, plain = found["ops/dies-watched"], found["fuzz/dies-plain"]
    assert (watched["status"], plain["status"]) == ("crash", "skipped")
    assert watched["reason"] == "worker ended with -6 in stage watched:guard"
    assert "last words" in watched["trace"]


def test_a_program_that_hangs_is_ended(worker: Path) -> None:
    found = drive(worker, ["ops/1", "ops/hangs", "ops/2"], patience=2)
    assert found["ops/hangs"]["reason"] == "no answer in 2 s in stage watched:wrap"
    assert (found["ops/1"]["status"], found["ops/2"]["status"]) == ("clean", "clean")


def test_time_that_is_up_ends_a_run(worker: Path) -> None:
    assert drive(worker, ["ops/hangs", "fuzz/hangs"], limit=0.5) == {}


def test_batches_are_of_one_source_and_take_turns() -> None:
    ids = [f"ops/{at}" for at in range(5)] + [f"fuzz/{at}" for at in range(3)]
    batches = batches_of(ids, 2)
    assert sorted(pid for batch in batches for pid in batch) == sorted(ids)
    assert [batch[0].split("/")[0] for batch in batches] == ["ops", "fuzz", "ops", "fuzz", "ops"]
    assert all(len({pid.split("/")[0] for pid in batch}) == 1 for batch in batches)


def test_a_sample_is_the_same_each_time_and_has_all_patterns() -> None:
    whole, part = (all_ids(("patterns", "fuzz", "optim"), sample=sample) for sample in (1, 8))
    assert part == all_ids(("patterns", "fuzz", "optim"), sample=8)
    of = {name: sum(pid.startswith(f"{name}/") for pid in part) for name in ("patterns", "fuzz", "optim")}
    assert of["patterns"] == sum(pid.startswith("patterns/") for pid in whole) > 150
    assert 10 < of["fuzz"] < 50
    assert 8 < of["optim"] < 40


def test_children_import_what_pythonpath_names_before_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/another/checkout")
    tools, given, own = driver.paths()
    assert (Path(tools).name, given, own) == ("tools", "/another/checkout", str(driver.ROOT))


def test_runs_that_do_not_belong_together_are_no_result(tmp_path: Path) -> None:
    about = {"backend": "host", "card": "host", "packages": {}, "source": "a", "command": "c", "asked": ["ops/1"]}
    for name, source in (("clean", "a"), ("planted", "b")):
        (tmp_path / f"{name}.about.json").write_text(json.dumps({**about, "source": source}))
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(planted_result("ops/1", "found")) + "\n")
    with pytest.raises(SystemExit, match="differ in source"):
        Runs(tmp_path).summary()


def test_no_module_that_a_parent_imports_brings_torch() -> None:
    """A parent with torch would be slow to start children."""
    import subprocess

    code = "import sys; sys.path.insert(0, sys.argv[1]); import clean_programs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(driver.TOOL.parent)], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_like_messages_are_counted_together_and_name_no_folder() -> None:
    result = planted_result("ops/1", "found")
    result["variants"]["guard"] |= {"error": "fails at /home/me/env/lib/site-packages/torch/a.py:31", "faults": {}}
    assert messages(result) == ["fails at site-packages/torch/a.py:31"]
    assert without_numbers("SG101 of 0x7f3a at line 1,024") == "SG101 of N at line N"
