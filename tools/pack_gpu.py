"""Pack a real server (sglang with flashinfer, or vLLM) for one Hopper GPU as an xz tar, for machines without an index.

That machine needs Linux on x86-64, CPython 3.12, a CUDA build of torch 2.11 with Triton, cupy and cuda-bindings, and of
what a finished run lists last the packages that are imported: those that the packed ones ask for. There, with the
folder first on the path:

    mkdir site && tar -xJf OUT.txz -C site
    export PYTHONPATH=$PWD/site HF_HUB_OFFLINE=1 FLASHINFER_CUDA_ARCH_LIST=9.0a

sglang also needs a compiler for CUDA and ninja (flashinfer compiles its kernels when they are first used), libnuma.so.1
and every `lib` folder of torch's `nvidia` packages on LD_LIBRARY_PATH. vLLM (`--server vllm`) needs transformers and a
C compiler (Triton's launcher) instead; its libraries are packed with device code for sm_90 only, and the grammar
libraries, which only structured output uses, are not. Wheels are fetched by pip with its own settings; the same wheels
give the same archive, byte for byte.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import fatbins

# By version of sglang: what it pins, in releases that were seen to run together.
PINNED = {
    "0.5.12.post1": ("sglang-kernel==0.4.2.post2", "flashinfer-python==0.6.11.post1", "transformers==5.6.0"),
    "0.5.13": ("sglang-kernel==0.4.3", "flashinfer-python==0.6.12", "transformers==5.8.1"),
}
SGLANG_NEEDS = [
    "annotated-types", "apache-tvm-ffi==0.1.9", "asttokens", "cffi", "compressed-tensors", "cuda-tile", "decorator",
    "dill", "distro", "executing", "fastapi", "gguf", "importlib-metadata", "ipython", "ipython-pygments-lexers",
    "jedi", "jiter", "jsonschema", "jsonschema-specifications", "loguru", "matplotlib-inline", "openai==2.6.1",
    "opentelemetry-api", "orjson", "parso", "partial-json-parser", "pexpect", "prompt-toolkit", "ptyprocess",
    "pure-eval", "pybase64", "pycparser", "pydantic==2.13.3", "pydantic-core==2.46.3", "python-multipart", "pyzmq",
    "referencing", "rpds-py", "setproctitle", "sniffio", "soundfile", "stack-data", "starlette", "tokenizers==0.22.2",
    "traitlets", "typing-inspection", "uvicorn", "wcwidth", "websockets", "watchfiles",
]  # fmt: skip
VLLM = ("0.21.0",)
# What `from vllm import LLM` imports; pinned where later releases need packages that are not there, such as
# opentelemetry.
VLLM_NEEDS = [
    "annotated-doc", "annotated-types", "cachetools", "cbor2", "distro", "fastapi==0.121.0", "gguf", "jiter",
    "openai==2.6.1", "openai-harmony", "partial-json-parser", "pybase64", "pydantic==2.13.3", "pydantic-core==2.46.3",
    "python-multipart", "pyzmq", "sniffio", "starlette==0.49.3", "typing-inspection",
]  # fmt: skip
# What shadowgraph and its tests need.
OURS = [
    "rich", "msgspec", "markdown-it-py", "mdurl", "pygments", "pytest", "pluggy", "iniconfig", "packaging",
]  # fmt: skip

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
ARCHITECTURE = 90
# What a Hopper GPU imports, of 1 GB of sglang's and of 0.5 GB of vLLM's libraries.
KERNELS = {"sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/spatial_ops.abi3.so"}
CUT = {  # libraries for many architectures
    "vllm/_C.abi3.so",
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/cumem_allocator.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
}
COMPILED = ("sgl_kernel/", "vllm/")  # packages of which no other library is packed
DROPPED = (
    *("sglang/multimodal_gen/", "sgl_kernel/mscclpp", "sgl_kernel/lib", "triton_kernels/"),
    *("vllm/third_party/deep_gemm/", "vllm/third_party/flashmla/", "vllm/benchmarks/"),
    *("vllm/model_executor/layers/fused_moe/configs/", "vllm/model_executor/layers/quantization/utils/configs/"),
    "vllm/entrypoints/serve/instrumentator/static/",
)
# vLLM names classes of these in annotations, and uses them for structured output alone.
ABSENT = ("llguidance", "xgrammar")
STAND_IN = '''"""Not packed: every name is an empty class, for annotations."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''
LIMIT = 55  # MiB


def download(requirements: Iterable[str], folder: Path) -> list[Path]:
    """Fetch exactly these wheels, without what they depend on, for the machine and not for this one."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--dest", str(folder)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*command, *requirements], check=True)
    return sorted(folder.glob("*.whl"))


def place_of(name: str) -> str | None:
    """Where a wheel's member belongs below the site folder, or None where it is not wanted there."""
    inside = re.fullmatch(r"[^/]+\.data/([^/]+)/(.+)", name)
    if inside is not None:
        if inside[1] not in ("purelib", "platlib"):
            return None  # scripts and headers
        name = inside[2]
    compiled = name.startswith(COMPILED) and name.endswith(".so")
    if name.endswith("/") or name.startswith(DROPPED) or (compiled and name not in KERNELS | CUT):
        return None
    return name


def contents(wheels: Iterable[Path]) -> dict[str, tuple[Path, str]]:
    """Wheel and member by path below the site folder, in order; of two wheels with one path the first counts."""
    found: dict[str, tuple[Path, str]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                place = place_of(member)
                if place is not None:
                    found.setdefault(place, (wheel, member))
    return dict(sorted(found.items()))


def write(files: Mapping[str, tuple[Path, str] | str], out: Path) -> None:
    """Make the archive; owner, time and mode of all files are the same, so that they do not tell two runs apart.

    Parameters
    ----------
    files
        By path below the site folder, in order: a wheel with its member, or a text.
    out
        The archive.
    """
    with ExitStack() as stack:
        packed = stack.enter_context(lzma.open(out, "wb", preset=6))
        archive = stack.enter_context(tarfile.open(fileobj=packed, mode="w|"))
        wheels = {source[0] for source in files.values() if not isinstance(source, str)}
        opened = {wheel: stack.enter_context(zipfile.ZipFile(wheel)) for wheel in wheels}
        for place, source in files.items():
            info = tarfile.TarInfo(place)
            info.mode = 0o644
            if isinstance(source, str) or place in CUT:
                data = source.encode() if isinstance(source, str) else cut(opened[source[0]].read(source[1]), place)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
                continue
            info.size = opened[source[0]].getinfo(source[1]).file_size
            with opened[source[0]].open(source[1]) as member:
                archive.addfile(info, member)


def cut(library: bytes, place: str) -> bytes:
    """A library without device code for other GPUs; says what stays."""
    made = fatbins.cut(library, ARCHITECTURE)
    before, after = (fatbins.architectures(each) for each in (library, made))
    stays = f"{after.get(ARCHITECTURE, 0)} of {sum(before.values())} images are for sm_{ARCHITECTURE}"
    print(f"{place}: {stays if before else 'no device code'}")
    return made


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def not_packed(wheels: Iterable[Path]) -> dict[str, set[str]]:
    """Packages that the wheels ask for on Linux, extras aside, and that no wheel is; each with who asks.

    A server asks for whatever any of its models may need: what it alone asks for is left out.
    """
    packed: set[str] = set()
    asked: dict[str, set[str]] = {}
    for wheel in wheels:
        owner = normal(wheel.name.split("-")[0])
        packed.add(owner)
        with zipfile.ZipFile(wheel) as archive:
            metadata = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            text = archive.read(metadata).decode()
        for line in re.findall(r"^Requires-Dist: *([^\n]+)", text.split("\n\n", 1)[0], re.MULTILINE):
            requirement, _, marker = line.partition(";")
            if not re.search(r"extra *==|win32|Windows|aarch64|PyPy|python_version *<=? *['\"]3", marker):
                name = re.match(r"[\w.-]+", requirement)
                assert name is not None
                asked.setdefault(normal(name[0]), set()).add(owner)
    alone = ({"sglang"}, {"vllm"})
    return {name: who for name, who in sorted(asked.items()) if name not in packed and who not in alone}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="archive to write, such as gpu.txz")
    parser.add_argument("--server", choices=("sglang", "vllm"), default="sglang", help="(default: %(default)s)")
    parser.add_argument("--sglang", choices=PINNED, default=next(iter(PINNED)), help="version (default: %(default)s)")
    parser.add_argument("--vllm", choices=VLLM, default=VLLM[0], help="version (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="most MiB (default: %(default)s); exit 1 if larger")
    options = parser.parse_args(arguments)
    added: dict[str, str] = {}
    if options.server == "sglang":
        requirements = [f"sglang=={options.sglang}", *PINNED[options.sglang], *SGLANG_NEEDS, *OURS]
    else:
        requirements = [f"vllm=={options.vllm}", *VLLM_NEEDS, *OURS]
        added = {f"{name}/__init__.py": STAND_IN for name in ABSENT}
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(requirements, Path(folder))
        files: dict[str, tuple[Path, str] | str] = {**contents(wheels), **added}
        files = dict(sorted(files.items()))
        write(files, options.out)
        outside = not_packed(wheels)
    print("\n".join(wheel.name for wheel in wheels))
    size = options.out.stat().st_size / 2**20
    print(f"{options.out}: {len(files):,} files of {len(wheels)} wheels in {size:.1f} MiB")
    print("asked for and not packed:", ", ".join(f"{name} ({'/'.join(sorted(w))})" for name, w in outside.items()))
    if size > options.limit:
        print(f"larger than {options.limit} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
