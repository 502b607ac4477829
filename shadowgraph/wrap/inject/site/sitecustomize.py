"""Start-up hook of `shadowgraph wrap`: first on ``PYTHONPATH``, so that every Python process below runs it.

It imports only modules that every interpreter has loaded, waits until torch has been imported, and then calls
`shadowgraph.wrap.inject.attach`. Outside a wrap, and where torch is never imported, it does nothing; when the Python or
torch version is not supported, it says so once torch is imported, and imports nothing of shadowgraph. An existing
`sitecustomize` of the environment runs after it, as if this one did not exist.
"""

from __future__ import annotations

import os
import sys

# Re-exported by `importlib.machinery` and `importlib.util`; these are loaded already, those take milliseconds.
from _frozen_importlib import ModuleSpec, module_from_spec
from _frozen_importlib_external import PathFinder, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_MARK = "_shadowgraph_hook"  # second name of this module in `sys.modules`, under which it stays reachable
_RUN = "SHADOWGRAPH_WRAP"
_PYTHON = '"python":"'  # within the configuration, which is JSON: no interpreter has the `json` module loaded
_TOLD = '{"told":true,'  # prefix of the configuration once a process above has reported that it is not watched
_OLDEST_TORCH = (2, 10)  # as in shadowgraph.common.compat


class AfterImport:
    """A meta path finder that delegates to the other finders, and calls back when the module has been executed.

    Only the loader's ``exec_module`` is replaced, on the one instance about to be used and until then, so that specs,
    loaders and modules keep their usual types.
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
        except AttributeError:  # a C loader or one with slots takes no attribute
            _say(f"cannot watch the import of {name} by {type(loader).__name__}")
        return spec

    def imported(self, name: str) -> None:
        """Call back, the first time only; after a failed import, wait for the next one."""
        callback = self.wanted.pop(name, None) if name in sys.modules else None
        if callback is not None:
            _call(callback)


class UnderWay(ModuleSpec):
    """Spec class of a module whose import was already running when its callback was registered.

    The loader is running and can no longer be replaced. But `importlib` writes ``_initializing`` into the spec of each
    imported module, true before the module is executed and false at the end, even after a failure. The field is private
    and has no public equivalent. After the callback the spec is a plain one again. Polling at each later import instead
    would call back in the middle of that import, for instance of shadowgraph's own modules.
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
    """Finds only this package, whatever the interpreter's own path contains."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "shadowgraph":
            return None
        return spec_from_file_location(
            name, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
        )


def when_imported(name: str, callback: Any) -> None:
    """Call back once a module has been imported: at once if already imported, at the end of an import in progress."""
    _after.wanted[name] = callback  # first: another thread may begin or end the import at any time
    module = sys.modules.get(name)
    if module is None or _ends_later(getattr(module, "__spec__", None)):
        return
    _after.imported(name)


def _ends_later(spec: Any) -> bool:
    """Whether the import of a module in `sys.modules` is in progress; its end then triggers the callback."""
    if not getattr(spec, "_initializing", False):
        return False
    if type(spec) is not ModuleSpec:
        if type(spec) is not UnderWay:
            _say(f"cannot watch the import of {spec.name}, which is under way, by its {type(spec).__name__}")
        return True
    spec.__class__ = UnderWay
    if getattr(spec, "_initializing", False):
        return True
    spec.__class__ = ModuleSpec  # another thread ended the import before the class was set
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
    except Exception as error:  # an internal error; the program that imports torch must not see it
        _say(f"process {os.getpid()} is not watched: {type(error).__name__}: {error}".split("\n", 1)[0])


def _say(text: str) -> None:
    try:
        os.write(2, f"shadowgraph: {text}\n".encode())
    except OSError:
        return


def _other_python() -> str:
    """Why this Python is not supported; empty for the version that shadowgraph was started with."""
    _, found, rest = os.environ.get(_RUN, "").partition(_PYTHON)
    wanted, here = rest.partition('"')[0], "{}.{}".format(*sys.version_info)
    return f"it has Python {here}, and shadowgraph runs with {wanted}" if found and wanted != here else ""


def _other_torch() -> str:
    """Why the imported torch is not supported; empty when it is new enough."""
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
    """Print a line once per process tree: descendants inherit the marked configuration."""
    config = os.environ.get(_RUN, "")
    if not config.startswith(_TOLD):
        os.environ[_RUN] = _TOLD + config[1:]
        _say(text)


def _start() -> None:
    sys.modules[_MARK] = sys.modules[__name__]
    sys.meta_path.insert(0, _after)
    if not _other_python():
        sys.meta_path.insert(0, OurPackage())
    when_imported("torch", _attach)


def _chain() -> None:
    """Run the `sitecustomize` that would have run without this one, under its own name."""
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
