"""A check that holds for every row of a list, as one test.

Hundreds of tests of a millisecond each take several: collected in each process, set up, reported to another process.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

Case = TypeVar("Case")


def every(
    cases: Collection[Case], name_of: Callable[[Case], object] = str
) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    """The test whose body is called with each case; it fails with the names and the errors of all that fail."""

    def decorate(check: Callable[[Case], None]) -> Callable[[], None]:
        def test() -> None:
            assert cases, "there is nothing to check"
            failures = []
            for case in cases:
                try:
                    check(case)
                except Exception as exc:
                    exc.add_note(f"case: {name_of(case)}")
                    failures.append(exc)
            if failures:
                raise ExceptionGroup(f"{len(failures)} cases fail", failures)

        test.__dict__.update(check.__dict__)  # marks
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
