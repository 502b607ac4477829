"""After a debugger the interpreter is as it was before: whatever the program did in between."""

from __future__ import annotations

import sys

import pytest
from support import warm
from support.wrapping import PROGRAMS, environment

# Left out are the callbacks of `atexit`, which cannot be listed, and do nothing once the debugger has ended.
STATE = """
import faulthandler, gc, logging, signal, sys, threading, types, warnings
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

KINDS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
         staticmethod, classmethod, property, types.GetSetDescriptorType)

OURS = ('shadowgraph', '__main__', 'overrun')

def attributes(owner):
    return {name: value for name, value in list(vars(owner).items()) if isinstance(value, KINDS)}

def functions():
    '''Those of each module, and the methods of each class, that are not ours.'''
    found = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition('.')[0] not in OURS:
            found[name] = attributes(module)
            for key, value in list(vars(module).items()):
                if isinstance(value, type):
                    found[name, key] = attributes(value)
    return found

def changed(before, after):
    '''What stands elsewhere than it did; modules that were imported meanwhile are none of it.'''
    found = []
    for owner, names in before.items():
        now = after.get(owner, names)
        found += [(owner, name) for name in now.keys() | names.keys() if now.get(name) is not names.get(name)]
    return found

def state():
    logs = logging.getLogger('shadowgraph'), logging.getLogger()
    return {
        'collector': (list(gc.callbacks), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        'hooks': (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, sys.getprofile(),
                  sys.gettrace(), threading.getprofile(), threading.gettrace(), warnings.showwarning),
        'imports': (list(sys.meta_path), list(sys.path), list(sys.path_hooks)),
        'signals': [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        'timers': (signal.getitimer(signal.ITIMER_REAL), faulthandler.is_enabled()),
        'logging': [(log.handlers[:], log.filters[:], log.level, log.propagate) for log in logs],
        'threads': threading.enumerate(),
        'tools': [sys.monitoring.get_tool(n) for n in range(6)] if hasattr(sys, 'monitoring') else [],
        'modes': (list(_get_current_dispatch_mode_stack()), list(_get_current_function_mode_stack())),
        'queued': list(torch.cuda._queued_calls),
    }
"""

PROGRAM = """
import shadowgraph as sg
from overrun import Decode
import triton, triton.language, triton.runtime.interpreter, triton.runtime.jit
torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()  # what torch itself sets up at first
OPTIONS = dict(guard_eager='all', layout=LAYOUT, watch_eager=WATCH)
was, before = functions(), state()
if HOW == 'install':
    sg.install(**OPTIONS)
else:
    block = sg.debug(**OPTIONS)
    block.__enter__()
assert changed(was, functions()), 'nothing is patched, so that nothing would be seen to stay'
decode = Decode()  # its tensors outlive the debugger
decode.step(8)
thread = threading.Thread(target=decode.step, args=(0,))
thread.start()
thread.join()
torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()
assert sg.current().findings
sg.uninstall() if HOW == 'install' else block.__exit__(None, None, None)
assert sg.current() is None
now = state()
assert not (left := {what: (each, now[what]) for what, each in before.items() if now[what] != each}), left
assert not (left := changed(was, functions())), left
del decode
gc.collect()
assert state() == before
"""


@pytest.mark.parametrize(
    ("how", "layout", "watch"),
    [("install", "isolate", "always"), ("install", "faithful", "sampled"), ("debug", "isolate", "sampled")],
)
def test_nothing_of_a_debugger_stays(how: str, layout: str, watch: str) -> None:
    code = f"{STATE}\nHOW, LAYOUT, WATCH = {how!r}, {layout!r}, {watch!r}\n{PROGRAM}"
    done = warm.run([sys.executable, "-c", code], environment(), PROGRAMS, warm=False)  # it looks at frozen objects
    assert done.returncode == 0, done.stderr[-3000:]
