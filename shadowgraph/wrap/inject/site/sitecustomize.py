"""The start-up hook of `shadowgraph wrap`: first on ``PYTHONPATH``, so that every Python below runs it.

It imports nothing but what every interpreter has loaded, waits until torch has been imported, and then hands over to
`shadowgraph.wrap.inject.attach`. Outside a wrap, and where torch is never imported, it does nothing; where Python or
torch is not one that shadowgraph runs with, it says so then, and imports nothing of it. A `sitecustomize` that the
environment has already runs after it, as if this one were not there.
"""

from __future__ import annotations

import os
import sys

# What `importlib.machinery` and `importlib.util` hand on; these are loaded already, those take milliseconds.
from _frozen_importlib import ModuleSpec, module_from_spec
from _frozen_importlib_external import PathFinder, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_MARK = "_shadowgraph_hook"  # this module's second name, under which it stays reachable
_RUN = "SHADOWGRAPH_WRAP"
_PYTHON = '"python":"'  # in the orders, which are JSON: no interpreter has its reader loaded
_TOLD = '{"told":true,'  # how they begin once a process above has said that it is not watched
_OLDEST_TORCH = (2, 10)  # as in shadowgraph.common.compat


class AfterImport:
    """A finder that finds nothing itself: it lets the others find a module and calls back when that has been executed.

    Only the loader's ``exec_module`` is replaced, on the one instance that is about to be used and until then, so that
    specs, loaders and modules are the ones that everybody expects.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, Any] = {}
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.wanted or self._looking:
            return None
        self._looking = True
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._looking = False
        loader: Any = getattr(spec, "loader", None)
        if spec is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            self.imported(name)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader of C or with slots: nothing can be hung on it
            _say(f"cannot watch the import of {name} by {type(loader).__name__}")
        return spec

    def imported(self, name: str) -> None:
        """Call back, the first time that somebody says so; after an import that failed the next one is waited for."""
        callback = self.wanted.pop(name, None) if name in sys.modules else None
        if callback is not None:
            _call(callback)


class UnderWay(ModuleSpec):
    """What a module's spec is turned into while its import, begun before anybody wanted to know, is under way.

    The loader is running and can no longer be replaced. But `importlib` writes ``_initializing`` into the spec of each
    module that it imports, true before the module is executed and false at the end, whether that failed or not. The
    field is private to it and has no public twin. Once told, the spec is a plain one again. Looking anew at each later
    import instead would call back in the middle of that import, of our own modules for instance.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_initializing" or value:
            object.__setattr__(self, name, value)
            return
        object.__setattr__(self, "__class__", ModuleSpec)
        try:
            _after.imported(self.name)
        finally:
            self._initializing = value  # after the callback: until then other threads wait for the module


class OurPackage:
    """Finds this package and nothing else, wherever the interpreter's own path leads."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "shadowgraph":
            return None
        return spec_from_file_location(
            name, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
        )


def when_imported(name: str, callback: Any) -> None:
    """Call back once a module has been imported: at once if it has been, at its end if its import is under way."""
    _after.wanted[name] = callback  # first: another thread may begin or end the import at any time
    module = sys.modules.get(name)
    if module is None or _ends_later(getattr(module, "__spec__", None)):
        return
    _after.imported(name)


def _ends_later(spec: Any) -> bool:
    """Whether the import of a module that is in `sys.modules` is under way; then its end will be heard of."""
    if not getattr(spec, "_initializing", False):
        return False
    if type(spec) is not ModuleSpec:
        if type(spec) is not UnderWay:
            _say(f"cannot watch the import of {spec.name}, which is under way, by its {type(spec).__name__}")
        return True
    spec.__class__ = UnderWay
    if getattr(spec, "_initializing", False):
        return True
    spec.__class__ = ModuleSpec  # it ended, in another thread, before it could be heard of
    return False


def _found_by_others(own: object, name: str, path: Any, target: Any) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not own else None
        if spec is not None:
            return spec
    return None


def _call(callback: Any) -> None:
    try:
        callback()
    except Exception as error:  # ours; the program that imports torch must not see it
        _say(f"process {os.getpid()} is not watched: {type(error).__name__}: {error}".split("\n", 1)[0])


def _say(text: str) -> None:
    try:
        os.write(2, f"shadowgraph: {text}\n".encode())
    except OSError:
        return


def _other_python() -> str:
    """What is wrong with this Python; nothing where it is of the version that shadowgraph was started with."""
    _, found, rest = os.environ.get(_RUN, "").partition(_PYTHON)
    wanted, here = rest.partition('"')[0], "{}.{}".format(*sys.version_info)
    return f"it has Python {here}, and shadowgraph runs with {wanted}" if found and wanted != here else ""


def _other_torch() -> str:
    """What is wrong with the torch that was imported; nothing where it is new enough."""
    version = str(getattr(sys.modules["torch"], "__version__", "of no version"))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    wanted = ".".join(map(str, _OLDEST_TORCH))
    return f"it has torch {version}, and shadowgraph needs {wanted} or later" if numbers < _OLDEST_TORCH else ""


def _attach() -> None:
    wrong = _other_python() or _other_torch()
    if wrong:
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not OurPackage]
        _say_once(f"process {os.getpid()} is not watched, nor are those below it that are alike: {wrong}")
        return
    from shadowgraph.wrap.inject.attach import torch_loaded

    torch_loaded(when_imported)


def _say_once(text: str) -> None:
    """Say it once in a tree of processes: what is below inherits the orders."""
    orders = os.environ.get(_RUN, "")
    if not orders.startswith(_TOLD):
        os.environ[_RUN] = _TOLD + orders[1:]
        _say(text)


def _start() -> None:
    sys.modules[_MARK] = sys.modules[__name__]
    sys.meta_path.insert(0, _after)
    if not _other_python():
        sys.meta_path.insert(0, OurPackage())
    when_imported("torch", _attach)


def _chain() -> None:
    """Run the `sitecustomize` that would have run without us, under its own name."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_after = AfterImport()
if os.environ.get(_RUN) and _MARK not in sys.modules:
    _start()
_chain()
