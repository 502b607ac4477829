"""What a run asks for: nothing at all, everything, one test; and wrong words, before anything runs."""

from __future__ import annotations

import pytest
from support.projects import Project

NOTHING_LOADED = """
    import sys

    def test_nothing_is_loaded(request):
        ours = {name for name in sys.modules if name.partition(".")[0] == "shadowgraph"}
        common = (
            *("", ".errors", ".html_repr", ".late_adapters", ".late_kinds"),
            *(".option_kinds", ".options", ".suggestions", ".version"),
        )
        facade = {"shadowgraph", *(f"shadowgraph.common{each}" for each in common)}
        ours = {name.removeprefix("shadowgraph.integrations") for name in ours - facade}
        assert ours == {"", ".pytest", ".pytest.plugin"}
        assert not {"torch", "numpy", "triton", "rich", "msgspec"} & set(sys.modules)
        manager = request.config.pluginmanager
        assert manager.hasplugin("shadowgraph")
        assert not any(manager.hasplugin(f"shadowgraph-{part}") for part in ("hooks", "summary"))
"""
HOST = ("--shadowgraph-backend", "host")  # asks for nothing but Triton's interpreter
BAD = """
    from kit import program

    def test_bad():
        program(1)
"""


@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_a_run_that_does_not_ask_loads_nothing(project: Project, words: tuple[str, ...]) -> None:
    project.write("test_it.py", NOTHING_LOADED)
    done = project.run(*words, warm=False)
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*= shadowgraph =*")


def test_only_collecting_does_nothing(project: Project) -> None:
    project.write("test_it.py", "import sys\n\nassert 'torch' not in sys.modules\n\ndef test_it(): pass\n")
    done = project.run("--shadowgraph", "--shadowgraph-backend", "host", "--collect-only", "-q", warm=False)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*test_it*"])
    done.stdout.no_fnmatch_line("*= shadowgraph =*")


def test_the_ini_file_asks(project: Project) -> None:
    project.write("test_it.py", BAD)
    project.run(*HOST).assert_outcomes(passed=1)
    project.write("pytest.ini", "[pytest]\nshadowgraph = true\n")
    project.run().assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["layout=sideways"], "layout must be one of isolate, faithful, not 'sideways'"),
        (["near_guard=wide"], "--shadowgraph-option near_guard must be a number of bytes*'wide'"),
        (["near_guard"], "--shadowgraph-option takes key=value, not 'near_guard'"),
        (["colour=red"], "--shadowgraph-option: no option 'colour'; options are: *near_guard*"),
        (["backend=host"], "the backend is given by --shadowgraph-backend"),
        (["suppressions=nowhere"], "cannot read suppressions nowhere*"),
    ],
)
def test_wrong_options_are_one_line_before_anything_runs(project: Project, words: list[str], said: str) -> None:
    project.write("test_it.py", "raise AssertionError('it was imported')\n")
    options = [part for word in words for part in ("--shadowgraph-option", word)]
    done = project.run("--shadowgraph", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert done.outlines == []
    (line,) = filter(None, done.errlines)
    done.stderr.fnmatch_lines([f"ERROR: shadowgraph: {said}"])
    assert "Traceback" not in line


def test_options_and_variables_are_heard(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        def test_it(shadowgraph):
            settings = shadowgraph.settings
            assert (settings.backend, settings.guard_eager) == ("host", "auto")
            assert (settings.near_guard, settings.every) == (512, 3)

        @pytest.mark.shadowgraph(layout="faithful", guard_eager=False, near_guard=1024)
        def test_its_own(shadowgraph):
            settings = shadowgraph.settings
            assert (settings.layout, settings.near_guard, settings.guard_eager) == ("faithful", 1024, "off")
        """,
    )
    monkeypatch.setenv("SHADOWGRAPH_EVERY", "3")
    project.run("--shadowgraph-option", "near_guard=512").assert_outcomes(passed=2)


def test_a_marker_or_the_fixture_asks_for_one_test(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from kit import captured, program
        import shadowgraph as sg

        def test_unwatched_before():
            assert sg.current() is None
            program(1)

        @pytest.mark.shadowgraph
        def test_marked():
            program(1)

        def test_unwatched_after():
            assert sg.current() is None
            program(1)

        def test_by_fixture(shadowgraph):
            program(1)

        def test_by_name(request):
            request.getfixturevalue("shadowgraph")
            program(1)

        def test_unwatched_at_last():
            assert sg.current() is None

        @pytest.mark.no_shadowgraph
        def test_contradiction(shadowgraph):
            pass
        """,
    )
    done = project.run(*HOST)
    assert project.outcomes() == {
        "test_unwatched_before": "passed",
        "test_marked": "failure",
        "test_unwatched_after": "passed",
        "test_by_fixture": "failure",
        "test_by_name": "failure",
        "test_unwatched_at_last": "passed",
        "test_contradiction": "error",
    }
    done.stdout.fnmatch_lines(["*= shadowgraph =*", "SG101: in 3 tests"])


def test_by_name_in_a_run_that_watches_nothing_else(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        from kit import program

        def test_by_name(request):
            request.getfixturevalue("shadowgraph")
            program(1)

        def test_after():
            program(1)
        """,
    )
    project.run(*HOST)
    assert project.outcomes() == {"test_by_name": "failure", "test_after": "passed"}
    assert project.codes() == {"test_by_name": "SG101"}


def test_a_wrong_marker_fails_its_test_alone(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.shadowgraph(expect=["SG999"])
        def test_code(): pass

        @pytest.mark.shadowgraph(colour="red")
        def test_option(): pass

        @pytest.mark.shadowgraph("SG101")
        def test_positional(): pass

        @pytest.mark.shadowgraph(backend="cuda")
        def test_backend(): pass

        def test_other(): pass
        """,
    )
    project.run("--shadowgraph", "--shadowgraph-backend", "host")
    assert project.outcomes() == {
        "test_code": "error",
        "test_option": "error",
        "test_positional": "error",
        "test_backend": "error",
        "test_other": "passed",
    }
    assert project.said("test_code") == "shadowgraph: expect takes codes of findings (SG101 to SG116), not 'SG999'"
    assert project.said("test_option").startswith("shadowgraph: no option 'colour'; options are: backend")
    assert project.said("test_positional") == "shadowgraph: the marker shadowgraph takes keywords only, not 'SG101'"
    assert "CUDA" in project.said("test_backend")
