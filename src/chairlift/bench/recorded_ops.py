"""Makes an op's call of the native library again, without the Python that prepared it.

The engine prepares a call once for half a layer; a kernel alone is over in less time than its
arguments take to be checked, so that what is timed must be the call and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.int8 import PAGE_TOKENS, Int8Kernels
from chairlift.kernels.cpu.library import NativeLibrary, load_library
from chairlift.kernels.cpu.linear_q8 import Q8Ops


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

    def rotating(
        self, advance: Callable[[], int], op: Callable[[int], object]
    ) -> Callable[[], None]:
        """Replays of `op` on copy after copy of some memory, prepared when their turn first comes.

        Args:
            advance: the index of the copy whose turn it is.
            op: the op on the copy of that index.
        """
        calls: dict[int, Callable[[], None]] = {}

        def call() -> None:
            index = advance()
            ready = calls.get(index)
            if ready is None:
                calls[index] = self.replay(lambda: op(index))
            else:
                ready()

        return call

    def _note(self, function: Callable[..., int], arguments: tuple[Any, ...]) -> None:
        self._last = function, arguments


class RecordedOps:
    """The ops on bytes one by one, their calls recorded, and the backend that is made of them."""

    def __init__(self, num_threads: int) -> None:
        library = load_library()
        self.kernels = Int8Kernels(num_threads)
        self.pool = library.create_pool(num_threads)
        self.recorder = CallRecorder(library)
        self.library = self.recorder.library
        self.linears = Q8Ops(self.library, self.pool)
        self.pages = KvInt8Ops(self.library, self.pool, PAGE_TOKENS)


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
