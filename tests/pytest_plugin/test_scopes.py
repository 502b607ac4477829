"""Findings across tests: graphs of shared fixtures, imports, the end of the run, workers, a wrap around all."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.projects import ROOT, Project

SHARED = """
    import pytest
    from kit import captured, program
    import shadowgraph as sg

    @pytest.fixture(scope="module")
    def bad():
        graph, table = captured(1)
        yield graph
        graph.replay()

    @pytest.fixture(scope="module")
    def broken():
        program(1)

    def test_capture(bad): pass
    def test_replay(bad): bad.replay()
    def test_between(): program(0)
    def test_replay_again(bad): bad.replay()

    @pytest.mark.shadowgraph(layout="faithful")
    def test_other_settings(bad): bad.replay()

    @pytest.mark.no_shadowgraph
    def test_unwatched(bad): bad.replay()

    def test_not_any_more(bad): pass
    def test_first_user(broken): pass
    def test_second_user(broken): pass
    def test_last(bad): pass
"""


def test_a_finding_belongs_to_the_test_in_which_it_was_seen(project: Project) -> None:
    project.write("test_it.py", SHARED)
    project.run("--shadowgraph")
    assert project.outcomes() == {
        "test_capture": "passed",
        "test_replay": "failure",
        "test_between": "passed",
        "test_replay_again": "failure",
        "test_other_settings": "failure",
        "test_unwatched": "passed",
        "test_not_any_more": "passed",
        "test_first_user": "failure",
        "test_second_user": "passed",
        "test_last": "error",
    }
    assert "seen       in fixture 'broken' (module scope)" in project.said("test_first_user")
    assert "seen       in tear-down of fixture 'bad' (module scope)" in project.said("test_last")


def test_what_comes_outside_of_tests_is_in_the_summary(project: Project) -> None:
    project.write("test_it.py", "from kit import program\n\nprogram(1)\n\ndef test_it():\n    program(0)\n")
    done = project.run("--shadowgraph")
    assert project.outcomes() == {"test_it": "passed"}
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "*= shadowgraph =*",
            "SG101 out-of-bounds write: fill*",
            "  seen       in the import of test_it.py",
            "SG101: 1 outside of tests' reports",
        ]
    )


def test_what_a_test_found_before_it_ended_the_run_is_in_the_summary(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from kit import program

        def test_it():
            program(1)
            pytest.exit("enough", returncode=0)
        """,
    )
    done = project.run("--shadowgraph")
    done.stdout.fnmatch_lines(["SG101 out-of-bounds write: fill*", "  seen       in test_it.py::test_it, in its call"])
    assert done.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize("dist", ["load", "loadscope"])
def test_workers_tell_the_controller(project: Project, dist: str) -> None:
    for name in "ab":
        project.write(
            f"test_{name}.py",
            f"""
            from kit import program

            def test_{name}_good(): program(0)
            def test_{name}_bad(): program(1)
            def test_{name}_fine(): program(0)
            """,
        )
    project.write("test_c.py", "from kit import program\n\nprogram(1)\n\ndef test_c(): pass\n")
    done = project.run("--shadowgraph", "-n", "2", "--dist", dist, "--shadowgraph-dump", "dumps")
    good = {f"test_{name}_{how}": "passed" for name in "ab" for how in ("good", "fine")}
    assert project.outcomes() == {**good, "test_a_bad": "failure", "test_b_bad": "failure", "test_c": "passed"}
    assert project.codes() == {"test_a_bad": "SG101", "test_b_bad": "SG101"}
    done.stdout.fnmatch_lines(["SG101: in 2 tests, 2 outside of tests' reports"])  # each worker imports every module
    for worker in ("gw0", "gw1"):
        done.stdout.fnmatch_lines([f"{worker}: SG101*"])
        done.stdout.fnmatch_lines([f"{worker}: * checks, slowest * ms *"])
        done.stdout.fnmatch_lines([f"{worker}: coverage: guarded exactly against out-of-bounds writes: *"])
    assert len(list((project.path / "dumps").iterdir())) == 2


def test_a_dump_for_each_failing_test(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from kit import program

        def test_good(): program(0)
        @pytest.mark.parametrize("n", [1, 2])
        def test_bad(n): program(n)
        def test_wrong():
            program(0)
            raise ValueError
        """,
    )
    project.run("--shadowgraph", "--shadowgraph-dump", "deep/dumps")
    dumps = sorted((project.path / "deep" / "dumps").iterdir())
    names = [path.name.rsplit("-", 2)[0] for path in dumps]
    assert names == ["test_it.py-test_bad-1", "test_it.py-test_bad-2", "test_it.py-test_wrong"]
    assert f"  dump       {dumps[0]}" in project.said("test_bad[1]")
    words = [sys.executable, "-m", "shadowgraph", "report", str(dumps[1]), "--json"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    (found,) = json.loads(shown.stdout)["findings"][-1:]
    assert "wrote 8 bytes past the end" in found["message"]


@pytest.mark.slow
def test_inside_of_a_wrap_its_debugger_is_used(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from kit import program
        import shadowgraph as sg

        def test_bad(): program(1)
        def test_good(): program(0)
        def test_fixture(shadowgraph):
            assert shadowgraph.debugger is sg.current()
            assert shadowgraph.settings.layout == "faithful"  # the wrap's own default
        """,
    )
    inner = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--shadowgraph", "--junitxml", "junit.xml"]
    words = [sys.executable, "-m", "shadowgraph", "wrap", "--run-dir", "run", "--error-exitcode", "9", "--", *inner]
    done = subprocess.run(words, cwd=project.path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr  # pytest's own
    assert project.outcomes() == {"test_bad": "failure", "test_good": "passed", "test_fixture": "passed"}
    assert "SG101 out-of-bounds write" in project.said("test_bad")
    assert done.stderr.count("SUMMARY: shadowgraph: SG101") == 1
    assert "internal error" not in done.stdout + done.stderr


def test_a_debugger_of_the_conftest_is_used(project: Project) -> None:
    project.write(
        "conftest.py", "import shadowgraph as sg\n\ndebugger = sg.install(guard_eager='all', near_guard=64)\n"
    )
    project.write(
        "test_it.py",
        """
        from kit import program
        import shadowgraph as sg

        def test_bad(): program(1)
        def test_fixture(shadowgraph):
            assert shadowgraph.debugger is sg.current()
            assert shadowgraph.settings.near_guard == 64
        """,
    )
    project.run("--shadowgraph")
    assert project.outcomes() == {"test_bad": "failure", "test_fixture": "passed"}


def test_a_fault_of_ours_fails_no_test(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        from kit import program
        from shadowgraph.engines.numpy_engine import NumpyEngine

        def broken(*_, **__):
            raise ZeroDivisionError("ours")

        def test_it(monkeypatch, caplog):
            program(0)
            monkeypatch.setattr(NumpyEngine, "check", broken)
            program(0)
            assert not caplog.records

        def test_after():
            program(0)
        """,
    )
    done = project.run("--shadowgraph", "-v")
    assert project.outcomes() == {"test_it": "passed", "test_after": "passed"}
    done.stdout.fnmatch_lines(["internal error, * times (tests go on): *ZeroDivisionError: ours", "*Traceback *"])
    assert done.ret == 0


@pytest.mark.slow
def test_the_founding_cases_in_one_process(project: Project) -> None:
    """Every acceptance case as a test that knows of no debugger: each bug fails with its code, each fix passes."""
    project.write(
        "test_it.py",
        """
        import pytest
        from shadowgraph.demos.device import HostDevice, Unwatched
        from shadowgraph.demos.runner import ACCEPTANCE

        BUGS = {case.id: case for case in ACCEPTANCE if not case.control}

        @pytest.mark.parametrize("id", BUGS)
        @pytest.mark.parametrize("fixed", [False, True], ids=["buggy", "fixed"])
        def test_case(id, fixed):
            case = BUGS[id]
            case.program(HostDevice(), Unwatched(), fixed, 1 << 12 if case.carved else 0)
        """,
    )
    project.run("--shadowgraph")
    from shadowgraph.demos.runner import ACCEPTANCE

    bugs = [case for case in ACCEPTANCE if not case.control]
    expected = {case.id: {e.code for e in case.expected} for case in bugs}
    assert any(expected.values())
    codes = {name: set(text.split()) for name, text in project.codes().items()}
    outcomes = project.outcomes()
    assert len(outcomes) == 2 * len(expected)
    for id, wanted in expected.items():
        assert codes.get(f"test_case[buggy-{id}]", set()) >= wanted
        assert outcomes[f"test_case[buggy-{id}]"] == ("failure" if wanted else "passed")
        assert outcomes[f"test_case[fixed-{id}]"] == "passed"


def test_the_source_is_the_one_beside_these_tests(project: Project) -> None:
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    project.write(
        "test_it.py", f"import shadowgraph\n\ndef test_it():\n    assert {str(ROOT)!r} in shadowgraph.__file__\n"
    )
    project.run().assert_outcomes(passed=1)
