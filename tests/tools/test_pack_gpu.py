"""`tools/pack_gpu.py`: what it keeps of wheels, and that an archive depends on nothing else. No test needs an index."""

from __future__ import annotations

import importlib.util
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "pack_gpu.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pack_gpu_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pack_gpu = load_tool()


def wheel(folder: Path, name: str, members: dict[str, str], asks: tuple[str, ...] = ()) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    requirements = "".join(f"Requires-Dist: {line}\n" for line in asks)
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Name: {name}\n{requirements}\nRequires-Dist: in-its-text\n"
        )
    return path


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ("sglang/srt/utils.py", "sglang/srt/utils.py"),
        ("sglang/multimodal_gen/big.py", None),
        ("sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/sm90/common_ops.abi3.so"),
        ("sgl_kernel/sm100/common_ops.abi3.so", None),
        ("sgl_kernel/__init__.py", "sgl_kernel/__init__.py"),
        ("thing/native.so", "thing/native.so"),
        ("thing-1.0.data/purelib/thing/a.py", "thing/a.py"),
        ("thing-1.0.data/scripts/thing", None),
        ("thing/", None),
    ],
)
def test_what_is_kept_of_a_wheel(member: str, place: str | None) -> None:
    assert pack_gpu.place_of(member) == place


def test_an_archive_depends_on_the_wheels_alone(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "a", {"a/x.py": "1", "both.py": "a"}), wheel(tmp_path, "b", {"both.py": "b"})]
    for out in ("one.txz", "two.txz"):
        pack_gpu.write(pack_gpu.contents(wheels), tmp_path / out)
    assert (tmp_path / "one.txz").read_bytes() == (tmp_path / "two.txz").read_bytes()
    with tarfile.open(tmp_path / "one.txz") as archive:
        names = ["a-1.0.dist-info/METADATA", "a/x.py", "b-1.0.dist-info/METADATA", "both.py"]
        assert archive.getnames() == names
        assert archive.extractfile("both.py").read() == b"a"  # type: ignore[union-attr]
        assert {(m.mtime, m.uid, m.mode) for m in archive} == {(0, 0, 0o644)}


def test_what_is_asked_for_and_not_packed(tmp_path: Path) -> None:
    asks = (
        "B_b>=1",
        "numpy (>=2)",
        "win; sys_platform == 'win32'",
        "more ; extra == 'all'",
        "old; python_version < '3.9'",
    )
    wheels = [
        wheel(tmp_path, "a", {}, asks),
        wheel(tmp_path, "b.b", {}),
        wheel(tmp_path, "sglang", {}, ("datasets", "numpy")),
    ]
    assert pack_gpu.not_packed(wheels) == {"numpy": {"a", "sglang"}}


@pytest.mark.parametrize(("limit", "code"), [("1", 0), ("0", 1)])
def test_too_large_an_archive_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str, code: int
) -> None:
    asked: list[str] = []

    def download(requirements: list[str], folder: Path) -> list[Path]:
        asked.extend(requirements)
        return [wheel(folder, "a", {"a.py": ""}, ("numpy",))]

    monkeypatch.setattr(pack_gpu, "download", download)
    out = tmp_path / "gpu.txz"
    assert pack_gpu.main([str(out), "--sglang", "0.5.13", "--limit", limit]) == code
    assert {"sglang==0.5.13", "flashinfer-python==0.6.12", "msgspec"} <= set(asked)
    captured = capsys.readouterr()
    assert "2 files of 1 wheels" in captured.out
    assert "asked for and not packed: numpy (a)" in captured.out
    assert ("larger than" in captured.err) == bool(code)
