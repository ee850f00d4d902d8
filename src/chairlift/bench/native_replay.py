"""Makes an op's call of the native library again, without the Python that prepared it.

The engine prepares a call once for half a layer; a kernel alone is over in less time than its
arguments take to be checked, so that what is timed must be the call and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from chairlift.kernels.cpu.library import NativeLibrary


class CallRecorder:
    """Stands before a library: ops that are given `library` work as ever, their calls are noted.

    An op's last call of a library function is taken to be the work; those before it are questions.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._last: tuple[Callable[..., int], tuple[Any, ...]] | None = None
        self.library = cast(NativeLibrary, _RecordedLibrary(library, self._note))

    def replay(self, op: Callable[[], object]) -> Callable[[], None]:
        """Run `op`, and return its call.  Whatever `op` refers to, and its result, stay alive."""
        self._last = None
        result = op()
        assert self._last is not None, "the op did not call the library"
        function, arguments = self._last
        kept_alive = (op, result)
        check = self._library.check

        def call(kept_alive: object = kept_alive) -> None:
            check(function(*arguments))

        return call

    def _note(self, function: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        self._last = function, arguments


class RotatingCalls:
    """A call for each copy of some memory; each is prepared when its turn first comes.

    Args:
        advance: the index of the copy whose turn it is.
        op: the op on the copy of that index.
    """

    def __init__(
        self, recorder: CallRecorder, advance: Callable[[], int], op: Callable[[int], object]
    ) -> None:
        self._recorder = recorder
        self._advance = advance
        self._op = op
        self._calls: dict[int, Callable[[], None]] = {}

    def __call__(self) -> None:
        index = self._advance()
        call = self._calls.get(index)
        if call is None:
            self._calls[index] = self._recorder.replay(lambda: self._op(index))
        else:
            call()


class _RecordedLibrary:
    """A `NativeLibrary` whose functions say that they are called."""

    def __init__(self, library: NativeLibrary, note: Callable[..., None]) -> None:
        self._library = library
        self.functions = _RecordedFunctions(library.functions, note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


class _RecordedFunctions:
    def __init__(self, functions: Any, note: Callable[..., None]) -> None:
        self._functions = functions
        self._note = note

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._functions, name)

        def noted(*arguments: Any) -> Any:
            self._note(function, arguments)
            return function(*arguments)

        return noted
