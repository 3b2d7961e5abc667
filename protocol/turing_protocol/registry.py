"""Named factories, filled by decorator, by lazy import path, or by installed entry points."""

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A table of factories of one kind.

    Other distributions add to it through the entry-point group ``turing.<kind>``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}
        self._paths: dict[str, str] = {}

    def add(self, name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Return a decorator that registers a factory as ``name``."""

        def register(factory: Callable[..., T]) -> Callable[..., T]:
            self._factories[name] = factory
            return factory

        return register

    def add_path(self, name: str, path: str) -> None:
        """Register ``module:attribute`` as ``name``; it is imported at first use."""
        self._paths[name] = path

    def names(self) -> list[str]:
        """Return every registered name, sorted."""
        return sorted({*self._factories, *self._paths, *self._plugins()})

    def get(self, name: str) -> Callable[..., T]:
        """Return the factory called ``name``; an unknown name is a ``KeyError``."""
        if name not in self._factories:
            self._factories[name] = self._load(name)
        return self._factories[name]

    def make(self, name: str, *args: Any, **kwargs: Any) -> T:
        """Call the factory called ``name``."""
        return self.get(name)(*args, **kwargs)

    def _plugins(self) -> dict[str, importlib.metadata.EntryPoint]:
        found = importlib.metadata.entry_points(group=f"turing.{self.kind}")
        return {entry.name: entry for entry in found}

    def _load(self, name: str) -> Callable[..., T]:
        if name in self._paths:
            module, _, attribute = self._paths[name].partition(":")
            factory: Callable[..., T] = getattr(importlib.import_module(module), attribute)
            return factory
        plugin = self._plugins().get(name)
        if plugin is None:
            known = ", ".join(self.names()) or "none"
            raise KeyError(f"no {self.kind} called {name!r}; known: {known}")
        loaded: Callable[..., T] = plugin.load()
        return loaded
