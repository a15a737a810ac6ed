"""Which transformers the package works with, and how its models get known to it.

Importing transformers takes seconds, so the package does not. It registers its models when somebody else has imported
the Auto classes: before this package, or after it. For the latter a finder on sys.meta_path watches transformers'
modules load, and goes when its work is done.
"""

import importlib
import importlib.abc
import sys
import threading
import warnings
from importlib.metadata import PackageNotFoundError, version

OLDEST = (5, 11)
_AUTO = "transformers.models.auto.configuration_auto"  # which every Auto class imports


def installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def usable() -> bool:
    found = installed()
    return found is not None and tuple(int(part) for part in found.split(".")[:2]) >= OLDEST


class _Watcher(importlib.abc.MetaPathFinder):
    """Calls `then` once the Auto classes are imported, and with them whatever import brought them: a module of
    transformers that is half imported could not be used."""

    def __init__(self, then):
        self._then = then
        self._importing = threading.local()  # .depth: how many modules of transformers this thread is in
        self._ending = threading.Lock()

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "transformers" and not fullname.startswith("transformers."):
            return None
        finders = list(sys.meta_path)
        if self not in finders:  # another thread's import has ended the watch
            return None
        for finder in finders[finders.index(self) + 1 :]:  # those before had their turn
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _WatchedLoader(spec.loader, self)
                return spec
        return None

    def watch(self, load, module):
        self._importing.depth = getattr(self._importing, "depth", 0) + 1
        try:
            load(module)
        finally:
            self._importing.depth -= 1
        if self._importing.depth > 0 or _AUTO not in sys.modules:
            return
        with self._ending:
            if self not in sys.meta_path:
                return
            sys.meta_path.remove(self)
        self._then()


class _WatchedLoader(importlib.abc.Loader):
    def __init__(self, loader, watcher):
        self._loader = loader
        self._watcher = watcher

    def __getattr__(self, name):  # sources, resources: all else that loaders are asked for
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        module.__spec__.loader = self._loader
        self._watcher.watch(self._loader.exec_module, module)


def _register():
    """Warns where it cannot: the import of transformers that brought us here is somebody else's."""
    if not usable():
        return
    try:
        importlib.import_module(__package__ + ".huggingface")
    except ImportError as error:
        warnings.warn(f"{__package__}: its models are not registered with transformers {installed()}: {error}", stacklevel=2)


def _is_watcher(finder) -> bool:
    """Also one that was made before this module was imported once more, whose class is another."""
    return (type(finder).__module__, type(finder).__qualname__) == (__name__, _Watcher.__qualname__)


def register_when_used() -> None:
    """Registers the models with transformers' Auto classes, now or when these are imported."""
    if _AUTO in sys.modules:
        _register()
    elif not any(_is_watcher(finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(_register))
