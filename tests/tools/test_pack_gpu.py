"""`tools/pack_gpu.py`: what it keeps of wheels, and that an archive depends on nothing else. No test needs an index."""

from __future__ import annotations

import importlib.util
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import fatbins
import pytest
from elf_libraries import CUBIN, fat_binary, image, library

TOOL = Path(__file__).resolve().parents[2] / "tools" / "pack_gpu.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pack_gpu_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pack_gpu = load_tool()


def wheel(folder: Path, name: str, members: dict[str, str | bytes], asks: tuple[str, ...] = ()) -> Path:
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
        ("vllm/_C.abi3.so", "vllm/_C.abi3.so"),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", None),
        ("vllm/vllm_flash_attn/__init__.py", "vllm/vllm_flash_attn/__init__.py"),
        ("vllm/third_party/deep_gemm/__init__.py", None),
        ("vllm/model_executor/layers/quantization/utils/configs/one.json", None),
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


def packed(out: Path) -> dict[str, bytes]:
    with tarfile.open(out) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]


def test_vllm_is_packed_with_code_for_one_card_and_without_grammars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, other = image(CUBIN, 90, b"here"), image(CUBIN, 100, b"other")
    native, stranger = library(fat_binary(other, here)), library(fat_binary(other, here))
    asked: list[str] = []

    def download(requirements: list[str], folder: Path) -> list[Path]:
        asked.extend(requirements)
        members = {"vllm/_C.abi3.so": native, "vllm/_moe_C.abi3.so": native, "vllm/__init__.py": "x"}
        return [
            wheel(folder, "other", {"other/native.so": stranger}),
            wheel(folder, "vllm", members, ("numba", "tqdm")),
        ]

    monkeypatch.setattr(pack_gpu, "download", download)
    for out in ("one.txz", "two.txz"):
        assert pack_gpu.main([str(tmp_path / out), "--server", "vllm"]) == 0
    assert (tmp_path / "one.txz").read_bytes() == (tmp_path / "two.txz").read_bytes()
    assert {"vllm==0.21.0", "openai==2.6.1", "msgspec"} <= set(asked)
    assert not [name for name in asked if name.startswith(("sglang", "flashinfer", "llguidance", "xgrammar"))]
    files = packed(tmp_path / "one.txz")
    assert list(files) == sorted(files)
    assert files["vllm/_C.abi3.so"] == fatbins.cut(native, 90) != native
    assert files["other/native.so"] == stranger, "only libraries that are known for it are cut"
    assert "vllm/_moe_C.abi3.so" not in files
    captured = capsys.readouterr().out
    assert "vllm/_C.abi3.so: 1 of 2 images are for sm_90" in captured
    assert captured.splitlines()[-1].split(":")[1].strip() == "", "vLLM alone asks for whatever a model may need"
    standing_in: dict[str, object] = {}
    exec(files["xgrammar/__init__.py"], standing_in)
    lookup = standing_in["__getattr__"]
    assert callable(lookup)
    assert isinstance(lookup("GrammarMatcher"), type)
    with pytest.raises(AttributeError):
        lookup("__path__")


def test_sglang_is_packed_without_what_is_vllms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_gpu, "download", lambda _, folder: [wheel(folder, "a", {"a.py": "1"})])
    assert pack_gpu.main([str(tmp_path / "default.txz")]) == 0
    assert pack_gpu.main([str(tmp_path / "named.txz"), "--server", "sglang"]) == 0
    assert (tmp_path / "default.txz").read_bytes() == (tmp_path / "named.txz").read_bytes()
    assert list(packed(tmp_path / "default.txz")) == ["a-1.0.dist-info/METADATA", "a.py"]
