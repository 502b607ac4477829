"""Which tests fail, in which phase, and with what."""

from __future__ import annotations

from support.projects import Project

TESTS = """
    import unittest

    import pytest
    import torch
    from kit import captured, fill, program
    import shadowgraph as sg

    def test_good():
        program(0, 12)

    def test_bad():
        program(1)

    def test_eager():
        table = torch.zeros(8, dtype=torch.int32)
        fill[(1,)](table, 0, 9, 1, BLOCK=256)

    def test_fails_itself():
        program(1)
        raise ValueError("its own")

    @pytest.mark.xfail
    def test_xfail():
        program(1)

    @pytest.mark.xfail(raises=ValueError)
    def test_xfail_for_another_reason():
        program(1)

    @pytest.mark.xfail(strict=True)
    def test_xfail_without():
        program(0)

    def test_skips_itself():
        program(1)
        pytest.skip("too late")

    @pytest.mark.skip
    def test_skipped():
        program(1)

    @pytest.mark.no_shadowgraph
    def test_unwatched():
        program(1)

    @pytest.mark.shadowgraph(allow=["SG101"])
    def test_allowed():
        program(1)

    @pytest.mark.shadowgraph(expect=["SG101"])
    def test_expected():
        program(1)

    @pytest.mark.shadowgraph(expect=["SG101"])
    def test_expected_and_missing():
        program(0)

    @pytest.mark.shadowgraph(expect="SG104")
    def test_expected_another():
        program(1)

    @pytest.mark.shadowgraph(expect=["SG101"], sync=True)
    def test_expected_in_sync():
        program(1)

    @pytest.mark.shadowgraph(sync=True)
    def test_in_sync():
        program(1)

    @pytest.mark.shadowgraph
    def test_handle(shadowgraph):
        with shadowgraph.guard():
            table = torch.arange(4)
        shadowgraph.name("kept", {"table": table})
        shadowgraph.protect(table)
        assert shadowgraph.findings == () == shadowgraph.notes
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
        graph.replay()
        (found,) = shadowgraph.check()
        assert (found.code, found.buffer.name) == ("SG102", "kept.table")

    def test_own_debugger():
        with sg.debug(guard_eager="auto") as debugger:
            program(1)
        (found,) = debugger.findings
        assert found.code == "SG101"

    def test_good_after_all():
        program(0)

    class TestUnit(unittest.TestCase):
        def test_unit_good(self):
            program(0)

        def test_unit_bad(self):
            program(1)

        def test_unit_fails_itself(self):
            program(1)
            self.fail("its own")

    @pytest.fixture(params=["asyncio"])
    def anyio_backend(request):
        return request.param

    @pytest.mark.anyio
    async def test_async_bad(anyio_backend):
        program(1)

    @pytest.mark.anyio
    async def test_async_good(anyio_backend):
        program(0)

    def test_thread():
        import threading
        thread = threading.Thread(target=program, args=(1,))
        thread.start()
        thread.join()

    def documented():
        '''
        >>> program(1)
        '''

    def documented_well():
        '''
        >>> program(0)
        '''
"""
BECOMES = {
    "test_good": "passed",
    "test_bad": "failure",
    "test_eager": "failure",
    "test_fails_itself": "failure",
    "test_xfail": "skipped",
    "test_xfail_for_another_reason": "failure",
    "test_xfail_without": "failure",
    "test_skips_itself": "failure",
    "test_skipped": "skipped",
    "test_unwatched": "passed",
    "test_allowed": "passed",
    "test_expected": "passed",
    "test_expected_and_missing": "failure",
    "test_expected_another": "failure",
    "test_expected_in_sync": "passed",
    "test_in_sync": "failure",
    "test_handle": "failure",
    "test_own_debugger": "passed",
    "test_good_after_all": "passed",
    "test_unit_good": "passed",
    "test_unit_bad": "failure",
    "test_unit_fails_itself": "failure",
    "test_async_bad[asyncio]": "failure",
    "test_async_good[asyncio]": "passed",
    "test_thread": "failure",
    "test_it.documented": "failure",
    "test_it.documented_well": "passed",
}
CLEAN = {"test_xfail_without", "test_skipped", "test_unwatched", "test_expected_and_missing", "test_own_debugger"}


def test_each_kind_of_test(project: Project) -> None:
    project.write("test_it.py", TESTS)
    done = project.run("--shadowgraph", "--doctest-modules", "-rPf", "test_it.py")
    assert project.outcomes() == BECOMES
    assert done.ret == 1
    found = {name for name, ended in BECOMES.items() if ended == "failure"} | {"test_xfail", "test_allowed"}
    found |= {"test_expected", "test_expected_in_sync"}
    codes = project.codes()
    assert codes.pop("test_handle") == "SG102"
    assert codes == dict.fromkeys(found - CLEAN - {"test_handle"}, "SG101")
    _check_texts(project)
    done.stdout.fnmatch_lines(
        ["*= shadowgraph =*", f"SG101: in {len(codes)} tests", "SG102: in 1 test", "*coverage: *"]
    )
    done.stdout.fnmatch_lines(["FAILED test_it.py::test_bad - SG101 out-of-bounds write: fill *"])
    done.stdout.no_fnmatch_line("*internal error*")
    done.stdout.no_fnmatch_line("*INTERNAL*")


def _check_texts(project: Project) -> None:
    bad = project.said("test_bad")
    assert bad.startswith("SG101 out-of-bounds write: fill (node 0) wrote 4 bytes past the end of table")
    assert "  launched   kit.py:" in bad
    assert "_pytest" not in bad
    assert "while preparing" not in project.said("test_eager")  # no graph of another test is part of it
    for name, own in (("test_fails_itself", "ValueError: its own"), ("test_unit_fails_itself", "its own")):
        said = project.said(name)
        assert own in said
        assert said.index(own) < said.index("SG101 out-of-bounds write")
    assert project.said("test_expected_and_missing") == "DID NOT FIND SG101"
    assert project.said("test_expected_another").startswith("DID NOT FIND SG104; found SG101\nSG101 out-of-bounds")
    assert "XPASS" in project.said("test_xfail_without")
    assert "FindingsError" in project.said("test_in_sync")


def test_a_set_up_and_a_tear_down(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        from kit import captured, program

        @pytest.fixture
        def early():
            program(1)

        @pytest.fixture
        def late():
            yield
            program(1)

        @pytest.fixture
        def early_and_broken():
            program(1)
            raise ValueError("its own")

        def test_early(early): pass
        def test_late(late): pass
        def test_broken(early_and_broken): pass

        @pytest.mark.shadowgraph(expect=["SG101"])
        def test_expected(early): pass

        @pytest.mark.shadowgraph(allow=["SG101"])
        def test_allowed(late): pass
        """,
    )
    project.run("--shadowgraph")
    assert project.outcomes() == {
        "test_early": "failure",
        "test_late": "error",
        "test_broken": "error",
        "test_expected": "passed",
        "test_allowed": "passed",
    }
    assert "seen       in fixture 'early' (function scope)" in project.said("test_early")
    assert "seen       in tear-down of fixture 'late' (function scope)" in project.said("test_late")
    assert "ValueError: its own" in project.said("test_broken")
    assert "SG101 out-of-bounds write" in project.said("test_broken")
    assert set(project.codes().values()) == {"SG101"}


def test_the_first_failure_ends_the_run(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        from kit import program

        def test_1(): program(0)
        def test_2(): program(1)
        def test_3(): program(1)
        def test_4(): program(1)
        """,
    )
    project.run("--shadowgraph", "-x")
    assert project.outcomes() == {"test_1": "passed", "test_2": "failure"}
    project.run("--shadowgraph", "--maxfail", "2")
    assert project.outcomes() == {"test_1": "passed", "test_2": "failure", "test_3": "failure"}


def test_suppressed_findings_fail_no_test(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        from kit import program

        def test_bad():
            program(1)

        def test_good():
            program(0)
        """,
    )
    project.write("known.txt", "kernel=fill reason=upstream\nkernel=another\n")
    words = ("--shadowgraph", "--shadowgraph-backend", "host", "--shadowgraph-option", "suppressions=known.txt")
    done = project.run(*words)
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(
        [
            "suppressed: 1 finding, * sighting*",
            "suppression known.txt:1: 1 finding, * sighting*: kernel=fill (upstream)",
            "suppression known.txt:2: stale, hid nothing in this run: kernel=another",
        ]
    )
    project.write("known.txt", "kernel=another\n")
    project.run(*words).assert_outcomes(passed=1, failed=1)
    project.write("known.txt", "kernel=fill\nkernal=fill\n")
    done = project.run(*words)
    assert done.ret == 4
    assert "known.txt:2: no key 'kernal'; did you mean kernel?" in done.stderr.str()
