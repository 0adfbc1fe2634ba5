"""Prepare batches in threads, ahead of their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def prepared(calls: Iterable[Callable[[], _Result]], ahead: int) -> Iterator[_Result]:
    """Yield the result of each call, in order; up to ``ahead`` later calls run while a result is in use.

    They run in threads, so each call must use its own random generator.
    """
    if not ahead:
        for call in calls:
            yield call()
        return
    pool = ThreadPoolExecutor(ahead, thread_name_prefix="batches")
    waiting: deque[Future[_Result]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(call))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
