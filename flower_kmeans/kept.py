"""Results that live as long as the object that they belong to.

The library does not cache a run's results for the whole process. The holder of a `Kept`
decides who shares its results. The results are deleted with the object.
"""

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar, TypeVarTuple

Inputs = TypeVarTuple("Inputs")
Result = TypeVar("Result")


class Results(Generic[Result]):
    """A bounded number of results, each under a name. Errors are not kept.

    Parameters
    ----------
    most : int
        Largest number of results. The oldest one is dropped first. With 0 nothing is
        kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, Result] = {}  # the oldest one first
        self._lock = RLock()  # making a result may need another one

    def first(self, name: Hashable, make: Callable[[], Result]) -> Result:
        """Return the result under a name, and make it if there is none."""
        if self._most == 0:
            return make()
        # Most calls end here: a lock would cost more than the lookup.
        try:
            return self._found[name]
        except KeyError:
            pass
        with self._lock:  # threads that need the same result wait for it
            if name not in self._found:
                result = make()
                if len(self._found) >= self._most:
                    oldest = next(iter(self._found))
                    del self._found[oldest]
                self._found[name] = result
            return self._found[name]


class Kept:
    """Results of pure functions, by function and inputs.

    Results stay in their process: a pickled copy, for example for a worker of a
    cluster, is empty.

    Parameters
    ----------
    most : int, default: 8
        Largest number of results of each function. With 0 nothing is kept.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._results: dict[Hashable, Results[Any]] = {}

    def once(self, make: Callable[[*Inputs], Result], *inputs: *Inputs) -> Result:
        """Return ``make(*inputs)`` of a pure function, computed at the first use.

        The inputs must be hashable. ``make`` must be a function of a module or of a
        class, because a lambda or a partial object never equals another.
        """
        results: Results[Result] | None = self._results.get(make)
        if results is None:
            # Two threads that are here at once get the same object.
            results = self._results.setdefault(make, Results(self._most))
        return results.first(inputs, lambda: make(*inputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most,)
