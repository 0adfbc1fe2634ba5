"""Preparing batches ahead of their use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def prepared(calls: Iterable[Callable[[], _Result]], ahead: int) -> Iterator[_Result]:
    """Yield what each call returns, in order; the next ``ahead`` calls are made while a result is in use.

    Each of these runs in a thread, so what they draw must come from generators of their own.
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
