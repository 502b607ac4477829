"""Make a virtual environment with shadowgraph and real sglang code, then run the demo or the tests in it.

Needs Linux, Python 3.11 or newer and nothing else: what is missing is installed by pip into the environment, about
2 GB on disk. A finished environment is used again until Python, pyproject.toml or the list of steps changes.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from subprocess import STDOUT
from typing import IO, NamedTuple

if sys.version_info < (3, 11):  # noqa: UP036  whoever starts this by hand may have any Python 3: nothing newer above
    sys.stderr.write("bootstrap: error: needs Python 3.11 or newer, this is %s\n" % sys.version.split()[0])  # noqa: UP031
    sys.exit(3)

import tomllib

ROOT = Path(__file__).resolve().parent.parent
# The one torch of the demo and the tests, so that a CPU build stays what was tested. Triton is not left to torch: its
# CUDA builds demand a newer one, and pip would refuse both together, so Triton comes last and without dependencies.
TORCH = "torch==2.13.0"
NUMPY = "numpy<2.4"  # Triton 3.6 fails with 2.4
UNBOUND = ("triton==3.6.0", "sglang==0.5.12.post1")  # sglang demands a CUDA build of torch: no dependencies either
EXTRAS = {"demo": ("sglang", "plot"), "test": ("sglang", "dev")}
PYTEST = ("-q", "-n", "logical", "--dist", "worksteal", "--durations", "30")
FOLDERS = {"demo": ".venv-sglang", "test": ".venv-test"}
STAMP = "shadowgraph-bootstrap.stamp"  # there: made by this tool; holds the digest only once all is installed
LOG, CONSTRAINTS, TAIL = "bootstrap.log", "constraints.txt", 15
BYTES_NEEDED = 2_500_000_000  # the environment and what pip unpacks beside it
DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
USAGE, UNFIT, FAILED, INTERRUPTED = 2, 3, 4, 130
HINTS = {  # what pip says, and what it means
    "No space left on device|Errno 28": "the disk is full",
    "ConnectionError|name resolution|timed out|Connection refused": "the package index was not reached",
}
PROBE = "import importlib.util as u; assert all(map(u.find_spec, 'torch triton sglang shadowgraph'.split()))"
NOTE = """\
Each step says how long it took; the download decides.
Where pip is not set up to find a CPU build of torch, it fetches the CUDA build, several GB more. pip's own settings
are honoured: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS and all others."""


class Failure(Exception):
    """Ends the run: `code` is the exit code, the text the one line that says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Step(NamedTuple):
    title: str
    command: tuple[str, ...]


def requirements(pyproject: str, extras: tuple[str, ...]) -> list[str]:
    """What extras of a pyproject.toml ask for, also through other extras, but neither torch nor Triton."""
    project = tomllib.loads(pyproject)["project"]
    found: set[str] = set()
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            nested = re.fullmatch(re.escape(project["name"]) + r"\[(.+)\]", requirement)
            found |= set(requirements(pyproject, tuple(re.split(r"\s*,\s*", nested[1])))) if nested else {requirement}
    return sorted(line for line in found if not re.match(r"(torch|triton)\b", line))


def install_steps(command: str, venv: Path, pyproject: str) -> list[Step]:
    """How a bare environment becomes the one for `command`; each step is a pip run."""
    pip = (f"{venv}/bin/python", "-m", "pip", "install")
    bound = (*pip, "--progress-bar", "raw", "--constraint", str(venv / CONSTRAINTS))
    wanted = requirements(pyproject, EXTRAS[command])
    return [
        Step("update pip", (*pip, "--upgrade", "pip>=24.1")),  # the first with --progress-bar raw
        Step(f"install {TORCH}", (*bound, TORCH, NUMPY)),
        Step("install shadowgraph and what sglang needs", (*bound, "--editable", str(ROOT), *wanted)),
        Step(f"install {' and '.join(UNBOUND)}", (*bound, "--no-deps", *UNBOUND)),
    ]


def run_steps(command: str, venv: Path, args: list[str] | None, slow: bool = False) -> list[Step]:
    """What runs in the finished environment; `args` are the user's own for the last of them, None for the defaults."""
    python = f"{venv}/bin/python"
    if command == "demo":
        picture = os.path.relpath(ROOT / "out" / "memory_map.png")
        words = ["--reports", "--picture", picture] if args is None else args
        return [Step("demo", (f"{venv}/bin/shadowgraph", "demo", *words))]
    if slow:
        return [Step("pytest --slow", (python, "-m", "pytest", "--slow", *(PYTEST if args is None else args)))]
    return [
        Step("ruff check", (python, "-m", "ruff", "check", ".")),
        Step("ruff format", (python, "-m", "ruff", "format", "--check", ".")),
        Step("mypy", (python, "-m", "mypy")),
        Step("imports", (f"{venv}/bin/lint-imports", "--no-cache")),
        Step("docs", (python, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-n", "docs", "build/docs")),
        Step("pytest", (python, "-m", "pytest", *(PYTEST if args is None else args))),
    ]


def digest_of(steps: list[Step], pyproject: str) -> str:
    """Changes with the Python, the project's metadata and the steps, and so with the place of both folders."""
    words = [sys.version, pyproject, *(shlex.join(step.command) for step in steps)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def is_complete(venv: Path, digest: str) -> bool:
    """Whether the environment was finished with just these steps and its Python still finds the packages."""
    try:
        probe, quiet = [f"{venv}/bin/python", "-c", PROBE], subprocess.DEVNULL
        return (venv / STAMP).read_text() == digest and not subprocess.call(probe, env=environment(), stderr=quiet)
    except OSError:
        return False


def check_place(venv: Path) -> None:
    """Raise `Failure` for a folder that is not ours to delete, and for a Python that cannot make an environment."""
    ours = not venv.exists() or (venv / STAMP).exists() or venv in [ROOT / name for name in FOLDERS.values()]
    if not ours and not (venv.is_dir() and not any(venv.iterdir())):
        raise Failure(USAGE, f"{venv} was not made by this tool: delete it or name another folder with --venv")
    if venv.exists() and Path(sys.prefix).resolve() == venv.resolve():
        raise Failure(USAGE, f"{venv} must be made anew: start this with a Python outside it")
    if not sys.platform.startswith("linux"):
        raise Failure(UNFIT, f"needs Linux: Triton has no build for {sys.platform}")
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        raise Failure(UNFIT, "this Python has no venv module; on Debian and Ubuntu the package python3-venv has it")


def install(venv: Path, steps: list[Step], digest: str) -> None:
    """Make the environment from nothing; its stamp gets the digest only when every step has succeeded."""
    if venv.exists():
        shutil.rmtree(venv)
    venv.mkdir(parents=True)
    free = shutil.disk_usage(venv).free
    if free < BYTES_NEEDED:
        raise Failure(FAILED, f"{venv} needs {BYTES_NEEDED / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free")
    (venv / STAMP).write_text("")
    (venv / CONSTRAINTS).write_text(f"{TORCH}\n{NUMPY}\n")
    for number, step in enumerate(steps, 1):
        follow(step, f"[{number}/{len(steps)}] {step.title}", venv / LOG)
    fresh = venv / (STAMP + ".new")
    fresh.write_text(digest)
    fresh.replace(venv / STAMP)


def follow(step: Step, label: str, log: Path) -> None:
    """Run a step with its output in the log: one line with its seconds, on a terminal pip's progress until then.

    Raises `Failure` when the command fails; the last lines of its output have been printed by then.
    """
    start, tail, live = time.monotonic(), deque[str](maxlen=TAIL), sys.stdout.isatty()
    print(label, end="", flush=True)
    env = environment(PYTHONUNBUFFERED="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    pipe, both = subprocess.PIPE, STDOUT
    with subprocess.Popen(step.command, env=env, stdout=pipe, stderr=both, text=True, errors="replace") as process:
        try:
            for line in process.stdout or ():
                progress = re.match(r"Progress (\d+) of ([1-9]\d*)\s*$", line)
                if progress is None:
                    tail.append(line.rstrip())
                    with log.open("a") as file:
                        file.write(line)
                if live:
                    percent = f" {100 * int(progress[1]) // int(progress[2])}%" if progress else ""
                    text = f"{label}{percent}: {tail[-1].strip() if tail else ''}"
                    print("\r\033[K" + text[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        except BaseException:  # the disk of the log is full, or Ctrl-C came to this process alone
            process.terminate()
            process.wait()
            print(flush=True)
            raise
    print(f"\r\033[K{label}" if live else "", f"{time.monotonic() - start:.1f} s", flush=True)
    if process.returncode:
        print(f"last lines of {log}:", *tail, sep="\n  ", file=sys.stderr)
        cause = next((f": {meaning}" for pattern, meaning in HINTS.items() if re.search(pattern, "\n".join(tail))), "")
        raise Failure(FAILED, f"'{step.title}' failed{cause} (exit code {process.returncode}, log: {log})")


def perform(steps: list[Step], folder: Path) -> int:
    """Run all steps, also after one has failed: the checks side by side, then the last, with its output as it comes.

    Returns the code of the last if that failed, 1 if only others did.
    """
    *checks, last = steps
    failed = failed_checks(checks, folder)
    if checks:
        print(heading(last, failed), flush=True)
    with subprocess.Popen(last.command, env=environment(), cwd=folder) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C went to the child as well: let it say what it has to
            raise
    return exit_code(code) or int(bool(failed))


def failed_checks(steps: list[Step], folder: Path) -> list[str]:
    """Start all steps at once; print the whole output of each in their order. The titles of those that failed."""
    failed, started = list[str](), list[tuple[Step, IO[str], subprocess.Popen[bytes]]]()
    with ExitStack() as stack:  # its end waits for all of them
        for step in steps:
            output = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            process = subprocess.Popen(step.command, env=environment(), cwd=folder, stdout=output, stderr=STDOUT)
            started.append((step, output, stack.enter_context(process)))
        for step, output, process in started:
            print(heading(step, failed), flush=True)
            code = exit_code(process.wait())
            output.seek(0)
            print(output.read(), end="", flush=True)
            if code:
                print(f"{step.title} failed with exit code {code}", flush=True)
                failed.append(step.title)
    return failed


def heading(step: Step, failed: list[str]) -> str:
    return f"== {step.title}" + (f" (failed so far: {', '.join(failed)})" if failed else "")


def exit_code(code: int) -> int:
    """The code of a shell for a process that a signal has ended."""
    return 128 - code if code < 0 else code


def environment(**more: str) -> dict[str, str]:
    """The variables for all that runs in the environment: none may lead to modules outside it, or keep Python from
    storing compiled modules: each worker and each program of the tests would compile hundreds again."""
    return {name: text for name, text in os.environ.items() if name not in DROPPED} | more


def parser() -> argparse.ArgumentParser:
    usage = "%(prog)s {demo,test} [--slow] [--venv PATH] [--fresh] [--dry-run] [-- ARGUMENT ...]"
    epilog = f"What follows -- goes to `shadowgraph demo` or to pytest in place of the defaults.\n\n{NOTE}"
    top = argparse.ArgumentParser("bootstrap.py", usage, __doc__, epilog)
    top.formatter_class = argparse.RawTextHelpFormatter
    top.add_argument(
        "command", choices=("demo", "test"), help="demo: run the demo; test: run ruff, mypy, sphinx and pytest"
    )
    top.add_argument("--slow", action="store_true", help="test: run the slow tests, which it leaves out, and no others")
    top.add_argument("--venv", metavar="PATH", help=f"the environment (default: {' or '.join(FOLDERS.values())} here)")
    top.add_argument("--fresh", action="store_true", help="delete the environment and make it anew")
    top.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    return top


def run(argv: list[str]) -> int:
    """Make what is missing and run the command; its exit code."""
    cut = argv.index("--") if "--" in argv else len(argv)
    options, rest = parser().parse_args(argv[:cut]), argv[cut + 1 :] if cut < len(argv) else None
    venv = Path(options.venv or ROOT / FOLDERS[options.command]).absolute()
    pyproject = (ROOT / "pyproject.toml").read_text()
    if options.slow and options.command != "test":
        raise Failure(USAGE, f"--slow is for test, not for {options.command}")
    steps = install_steps(options.command, venv, pyproject)
    runs = run_steps(options.command, venv, rest, options.slow)
    digest = digest_of(steps, pyproject)
    steps = [Step("make the environment", (sys.executable, "-m", "venv", str(venv))), *steps]
    complete = is_complete(venv, digest) and not options.fresh
    if options.dry_run:
        print(*(shlex.join(step.command) for step in ([] if complete else steps) + runs), sep="\n")
        return 0
    if not complete:
        check_place(venv)
        print(f"{venv} gets about 2 GB of packages: torch, what sglang needs, sglang.", NOTE, sep="\n", flush=True)
        install(venv, steps, digest)
    return perform(runs, ROOT if options.command == "test" else Path.cwd())


def main(argv: list[str] | None = None) -> int:
    """The exit code of what ran, or 2 wrong use, 3 unfit Python or system, 4 failed installation, 130 interrupted."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except Failure as error:
        code, text = error.code, str(error)
    except OSError as error:
        code, text = FAILED, str(error)
    except KeyboardInterrupt:
        code, text = INTERRUPTED, "interrupted"
    print(f"bootstrap: error: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
