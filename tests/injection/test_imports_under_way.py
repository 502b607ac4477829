"""The start-up hook and modules whose import has begun before anybody asked for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.wrapping import environment

from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.launch.run_child import wrapped_environment

ASK = "hook.when_imported('slow', lambda: calls.append(getattr(sys.modules['slow'], 'LAST', None)))\n"
BEGIN = "import sys, threading\nimport __main__\nhook, calls = sys.modules['_shadowgraph_hook'], []\n"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Holds a module that runs a function of the program in the middle of its import, and more imports after that."""
    (tmp_path / "slow.py").write_text("import __main__\n__main__.halfway()\nimport colorsys, this_one\nLAST = 1\n")
    (tmp_path / "this_one.py").write_text("")
    return tmp_path


def python(folder: Path, code: str) -> str:
    """A program without torch below a wrap."""
    full = wrapped_environment(InjectionConfig(str(folder), "auto"), environment())
    words = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(words, env=full, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_callback_comes_once_when_the_import_is_complete(slow: Path) -> None:
    code = (
        f"def halfway():\n    {ASK}    print(calls)\n"
        "import slow\nprint(calls)\nimport slow, wave\nprint(calls, hook._after.wanted.keys())"
    )
    assert python(slow, code) == "[]\n[1]\n[1] dict_keys(['torch'])\n"


def test_the_module_and_its_spec_are_those_that_everybody_expects(slow: Path) -> None:
    code = (
        "def halfway():\n    if {asked}: {ask}"
        "import slow\nspec = slow.__spec__\n"
        "print(len(calls), type(spec).__name__, type(spec).__module__, sorted(vars(spec).items(), key=str), slow)"
    )
    asked = python(slow, code.format(asked=True, ask=ASK))
    plain = python(slow, code.format(asked=False, ask=ASK))
    assert (asked[0], plain[0]) == ("1", "0")
    assert asked[1:].split("SourceFileLoader")[0] == plain[1:].split("SourceFileLoader")[0]
    assert "'_initializing', False" in asked


def test_an_import_in_another_thread_is_waited_for(slow: Path) -> None:
    code = (
        "begun, go_on = threading.Event(), threading.Event()\n"
        "def halfway():\n    begun.set(); go_on.wait(30)\n"
        "thread = threading.Thread(target=__import__, args=('slow',)); thread.start(); begun.wait(30)\n"
        f"{ASK}{ASK}import wave\nprint(calls)\ngo_on.set(); thread.join()\nprint(calls)"
    )
    assert python(slow, code) == "[]\n[1]\n"


def test_others_wait_for_the_module_until_the_callback_is_through(slow: Path) -> None:
    code = (
        "import time\n"
        "def callback():\n    thread.start(); time.sleep(0.2); calls.append('called')\n"
        "def use():\n    import slow\n    calls.append('used')\n"
        "thread = threading.Thread(target=use)\n"
        "def halfway(): hook.when_imported('slow', callback)\n"
        "import slow\nthread.join()\nprint(calls)"
    )
    assert python(slow, code) == "['called', 'used']\n"


def test_after_an_import_that_fails_the_next_one_is_waited_for(slow: Path) -> None:
    (slow / "this_one.py").write_text("raise OSError('broken here')\n")
    code = (
        f"def halfway():\n    {ASK}"
        "try:\n    import slow\nexcept OSError as error:\n    print(error, calls, 'slow' in sys.modules)\n"
        "halfway = lambda: print('again', calls)\n"
        "open('this_one.py', 'w').close()\n"
        "import importlib, os; importlib.invalidate_caches(); os.utime('this_one.py', (1, 1))\n"
        "import slow\nprint(calls)"
    )
    assert python(slow, code) == "broken here [] False\nagain []\n[1]\n"


def test_one_that_is_complete_comes_at_once_and_one_that_is_forbidden_not(slow: Path) -> None:
    code = (
        "halfway = lambda: None\n"
        f"import slow\n{ASK}print(calls)\n"
        "sys.modules['none'] = None\nhook.when_imported('none', lambda: print('here'))\n"
        "try:\n    import none\nexcept ImportError:\n    print('forbidden')"
    )
    assert python(slow, code) == "[1]\nforbidden\n"


def test_a_callback_that_fails_is_a_line_and_the_import_goes_on(slow: Path) -> None:
    code = (
        BEGIN + "def halfway(): hook.when_imported('slow', lambda: 1 / 0)\nimport slow\nimport slow; print(slow.LAST)"
    )
    full = wrapped_environment(InjectionConfig(str(slow), "auto"), environment())
    done = subprocess.run([sys.executable, "-c", code], env=full, cwd=slow, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError" in done.stderr
