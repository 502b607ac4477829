"""The same on a GPU: evidence comes late there, and must not be laid on the next test."""

from __future__ import annotations

import pytest
from support.projects import Project

TESTS = """
    import pytest
    import torch
    from shadowgraph.demos.kernels import fill

    def captured(extra):
        table = torch.zeros(8, dtype=torch.int32, device="cuda")
        fill[(1,)](table, 0, 8, 1, BLOCK=256)  # compiled before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fill[(1,)](table, 0, 8 + extra, 1, BLOCK=256)
        return graph, table

    def program(extra):
        graph, table = captured(extra)
        graph.replay()
        assert table.tolist() == list(range(1, 9))

    @pytest.fixture(scope="module")
    def shared():
        return captured(1)

    def test_good():
        program(0)

    def test_bad():
        program(1)

    def test_good_again():
        program(0)

    def test_capture(shared): pass
    def test_replay(shared): shared[0].replay()
    def test_nothing(shared): pass
    def test_replay_again(shared): shared[0].replay()

    @pytest.mark.shadowgraph(expect=["SG101"], layout="faithful")
    def test_expected():
        program(3)
"""


@pytest.mark.gpu
def test_a_finding_belongs_to_its_test(project: Project) -> None:
    project.write("test_it.py", TESTS)
    done = project.run("--shadowgraph", "--shadowgraph-backend", "cuda", warm=False)
    assert project.outcomes() == {
        "test_good": "passed",
        "test_bad": "failure",
        "test_good_again": "passed",
        "test_capture": "passed",
        "test_replay": "failure",
        "test_nothing": "passed",
        "test_replay_again": "failure",
        "test_expected": "passed",
    }
    assert set(project.codes().values()) == {"SG101"}
    done.stdout.no_fnmatch_line("*internal error*")


def test_without_a_gpu_the_backend_is_a_usage_error(project: Project) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    project.write("test_it.py", "raise AssertionError('it was imported')\n")
    done = project.run("--shadowgraph", "--shadowgraph-backend", "cuda", warm=False)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, done.errlines)
    assert line.startswith("ERROR: shadowgraph: ")
    assert "CUDA" in line
