"""Pack real sglang and flashinfer for one Hopper GPU into an xz tar, for a machine without a package index.

That machine needs Linux on x86-64, CPython 3.12, a compiler for CUDA and ninja (flashinfer compiles its kernels when
they are first used), a CUDA build of torch 2.11 with Triton, cupy and cuda-bindings, and of what a finished run lists
last the packages that are imported: those that the packed ones ask for. There, with the folder first on the path:

    mkdir site && tar -xJf OUT.txz -C site
    export PYTHONPATH=$PWD/site HF_HUB_OFFLINE=1 FLASHINFER_CUDA_ARCH_LIST=9.0a

sglang's kernels also need libnuma.so.1 and every `lib` folder of torch's `nvidia` packages on LD_LIBRARY_PATH. Wheels
are fetched by pip with its own settings; the same wheels give the same archive, byte for byte.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

# By version of sglang: what it pins, in releases that were seen to run together.
PINNED = {
    "0.5.12.post1": ("sglang-kernel==0.4.2.post2", "flashinfer-python==0.6.11.post1", "transformers==5.6.0"),
    "0.5.13": ("sglang-kernel==0.4.3", "flashinfer-python==0.6.12", "transformers==5.8.1"),
}
NEEDED = [
    "annotated-types", "apache-tvm-ffi==0.1.9", "asttokens", "cffi", "compressed-tensors", "cuda-tile", "decorator",
    "dill", "distro", "executing", "fastapi", "gguf", "importlib-metadata", "ipython", "ipython-pygments-lexers",
    "jedi", "jiter", "jsonschema", "jsonschema-specifications", "loguru", "matplotlib-inline", "openai==2.6.1",
    "opentelemetry-api", "orjson", "parso", "partial-json-parser", "pexpect", "prompt-toolkit", "ptyprocess",
    "pure-eval", "pybase64", "pycparser", "pydantic==2.13.3", "pydantic-core==2.46.3", "python-multipart", "pyzmq",
    "referencing", "rpds-py", "setproctitle", "sniffio", "soundfile", "stack-data", "starlette", "tokenizers==0.22.2",
    "traitlets", "typing-inspection", "uvicorn", "wcwidth", "websockets", "watchfiles",
]  # fmt: skip
# What shadowgraph and its tests need.
OURS = [
    "rich", "msgspec", "markdown-it-py", "mdurl", "pygments", "pytest", "pluggy", "iniconfig", "packaging",
]  # fmt: skip

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
KERNELS = {"sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/spatial_ops.abi3.so"}  # what a Hopper GPU imports, of 1 GB
DROPPED = ("sglang/multimodal_gen/", "sgl_kernel/mscclpp", "sgl_kernel/lib", "triton_kernels/")
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
    compiled = name.startswith("sgl_kernel/") and name.endswith(".so")
    if name.endswith("/") or name.startswith(DROPPED) or (compiled and name not in KERNELS):
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


def write(files: dict[str, tuple[Path, str]], out: Path) -> None:
    """Make the archive; owner, time and mode of all files are the same, so that they do not tell two runs apart."""
    with ExitStack() as stack:
        packed = stack.enter_context(lzma.open(out, "wb", preset=6))
        archive = stack.enter_context(tarfile.open(fileobj=packed, mode="w|"))
        sources = {
            wheel: stack.enter_context(zipfile.ZipFile(wheel)) for wheel in {wheel for wheel, _ in files.values()}
        }
        for place, (wheel, member) in files.items():
            info = tarfile.TarInfo(place)
            info.size, info.mode = sources[wheel].getinfo(member).file_size, 0o644
            with sources[wheel].open(member) as data:
                archive.addfile(info, data)


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def not_packed(wheels: Iterable[Path]) -> dict[str, set[str]]:
    """Packages that the wheels ask for on Linux, extras aside, and that no wheel is; each with who asks.

    sglang asks for whatever any of its models may need: what it alone asks for is left out.
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
    return {name: who for name, who in sorted(asked.items()) if name not in packed and who != {"sglang"}}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="archive to write, such as gpu.txz")
    parser.add_argument("--sglang", choices=PINNED, default=next(iter(PINNED)), help="version (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="most MiB (default: %(default)s); exit 1 if larger")
    options = parser.parse_args(arguments)
    requirements = [f"sglang=={options.sglang}", *PINNED[options.sglang], *NEEDED, *OURS]
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(requirements, Path(folder))
        files = contents(wheels)
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
