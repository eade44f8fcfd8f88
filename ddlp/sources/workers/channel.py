"""Pipes between the training process and its worker processes, with the methods that torch calls on its queues.

torch's queues have a thread at each end that pickles and writes. Here the thread that has a message writes it, which saves two
changes of threads for each batch, and an object that can't be pickled raises its error where it was put. A closed pipe ends the
other side at once, whoever closed it: there are no events, and no semaphores.

    Requests   training process -> one worker. torch's loop reads its end, and takes it for its ``done_event`` as well.
    Answers    all workers -> training process, one pipe for each. A worker has its `Writer`.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import select
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper

from ddlp.process.forks import no_forks, unlocked_in_children
from ddlp.sources.workers.mark import Doing, Mark

__all__ = ["Answers", "Closed", "RequestReader", "Requests", "Writer", "take"]

_ROOM = 32 << 10  # bytes of requests that lie in a pipe: half of what it takes, so that a write never waits


class Closed(NamedTuple):
    """Comes in the place of an answer's number: the worker with this number has ended."""

    worker: int


# -- in the training process -----------------------------------------------------------------------------------------------


class _End:
    """The training process's end of a pipe. Forked children close it: else they would keep the pipe open."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        unlocked_in_children(self)

    def unlock(self) -> None:
        """Close the end."""
        with contextlib.suppress(OSError):
            self.connection.close()


class Requests:
    """What one worker is asked. Only the training process calls the methods.

    ``reader``: the worker's end. It is to be closed here once the worker has it. ``packed``: as of a `Writer`.
    """

    packed: Callable[[Any], Any] | None = None

    def __init__(self, pipe: Callable[[], tuple[Connection, Connection]]) -> None:
        with no_forks():  # a child forked in between would have both ends
            reader, writer = pipe()
            self._end = _End(writer)
        self.mark = Mark()
        self.reader = RequestReader(reader, self.mark)
        self._waiting: deque[tuple[bytes, Any]] = deque()
        self._sent: deque[tuple[int, Any]] = deque()  # bytes of each request that is not answered, and the request
        self._lock = threading.Lock()  # a thread that pins batches reads the answers

    def put(self, request: Any) -> None:
        """Send a request; None: there are no more of them."""
        if request is None:
            self.close()
            return
        content = bytes(ForkingPickler.dumps(request if self.packed is None else self.packed(request)))
        with self._lock:
            self._waiting.append((content, request))
            self._send()

    def answered(self) -> None:
        """Note that the worker has answered its oldest request."""
        with self._lock:
            if self._sent:
                self._sent.popleft()
            self._send()

    @property
    def doing(self) -> str:
        """What the worker does, or did last, in words."""
        with self._lock:
            request = self._sent[0][1] if self._sent else None
        return self.mark.told(request[1] if isinstance(request, tuple) else None)

    def _send(self) -> None:
        """Write the requests for which there is room."""
        while self._waiting and (not self._sent or sum(size for size, _ in self._sent) + len(self._waiting[0][0]) <= _ROOM):
            content, request = self._waiting.popleft()
            self._sent.append((len(content), request))
            with contextlib.suppress(OSError):  # the worker is gone, which its answers' pipe tells
                self._end.connection.send_bytes(content)

    def cancel_join_thread(self) -> None:
        """Do nothing: no thread writes."""

    def close(self) -> None:
        """Have the worker end: after the batch that it makes, it takes no further request."""
        self._waiting.clear()
        self.mark.close()
        self._end.unlock()
        with contextlib.suppress(OSError):
            self.reader.close()


class Answers:
    """What several workers answer."""

    def __init__(self, pipe: Callable[[], tuple[Connection, Connection]]) -> None:
        self._pipe = pipe
        self._ends: dict[int, tuple[_End, int, Requests]] = {}  # by descriptor
        self._poll = select.poll()
        self._wakes: deque[Any] = deque()
        self._ready: deque[int] = deque()  # descriptors that have something to read
        with no_forks():
            woken, wake = pipe()
            self._woken, self._wake = _End(woken), _End(wake)
        self._poll.register(woken.fileno(), select.POLLIN)

    def writer(self, worker: int, requests: Requests) -> Writer:
        """Return a new end for a worker, which answers these requests. It is to be closed here once the worker has it."""
        with no_forks():
            reader, writer = self._pipe()
            end = _End(reader)
        self._ends[reader.fileno()] = end, worker, requests
        self._poll.register(reader.fileno(), select.POLLIN)
        return Writer(writer, worker)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next answer: (number, batch), or (`Closed`, None) once a worker has ended, also within an answer.

        Raises queue.Empty if nothing has come in ``timeout`` seconds (None: wait without limit).
        """
        if not self._ready:
            self._ready.extend(number for number, _ in self._poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
        if not self._ready:
            raise queue.Empty
        number = self._ready.popleft()
        if number == self._woken.connection.fileno():  # `put` has woken this thread
            self._woken.connection.recv_bytes()
            return self._wakes.popleft()
        end, worker, requests = self._ends[number]
        try:
            content = end.connection.recv_bytes()
        except (EOFError, OSError):
            self._forget(number)
            return Closed(worker), None
        requests.answered()
        return pickle.loads(content)

    def put(self, answer: Any) -> None:
        """Have `get` return this answer, in another thread of this process."""
        self._wakes.append(answer)
        self._wake.connection.send_bytes(b"")

    def qsize(self) -> int:
        """Return how many workers have answers that wait. Any thread may call it."""
        poll = select.poll()  # not that in which another thread may wait
        for number in list(self._ends):
            poll.register(number, select.POLLIN)
        return len({*self._ready, *(number for number, _ in poll.poll(0))})

    def _forget(self, number: int) -> None:
        end, _, _ = self._ends.pop(number)
        self._poll.unregister(number)
        end.unlock()

    def cancel_join_thread(self) -> None:
        """Do nothing: no thread reads."""

    def close(self) -> None:
        """Close all pipes. Answers that have not been read are dropped."""
        for number in list(self._ends):
            self._forget(number)
        self._ready.clear()
        self._woken.unlock()
        self._wake.unlock()


def take(answers: Any, timeout: float, look: Callable[[], list[int]]) -> tuple[Any, list[int]]:
    """Return what `Answers` have, or a queue of theirs, and the workers that have ended; (None, ...): nothing has come.

    ``look``: tells who has ended. It is called where nothing has come in ``timeout`` seconds.
    """
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        return None, look()
    return answer, [answer[0].worker] if type(answer[0]) is Closed else []


# -- in the workers --------------------------------------------------------------------------------------------------------


class RequestReader:
    """A worker's end of its requests. torch's loop has it for its ``done_event`` too."""

    def __init__(self, connection: Connection, mark: Mark) -> None:
        self._connection, self.mark = connection, mark
        self._poll: Any = None  # made in the worker, which may get this object pickled

    def get(self, timeout: float) -> Any:
        """Return the next request; None once the training process has closed its end, or is gone.

        Raises queue.Empty if nothing has come in ``timeout`` seconds.
        """
        self.mark.numbers[0] = Doing.WAITS
        events = self._events(timeout)
        if not events:
            raise queue.Empty
        if events & ~select.POLLIN:
            return None  # requests that are left in the pipe are not wanted any more
        request = pickle.loads(self._connection.recv_bytes())
        self.mark.numbers[0], self.mark.numbers[1] = Doing.MAKES, -1
        return request

    def is_set(self) -> bool:
        """Whether the training process has closed its end."""
        return bool(self._events(0) & ~select.POLLIN)

    def _events(self, timeout: float) -> int:
        """Wait for a request, or the pipe's end. Returns what has happened, as poll(2) tells it; 0: nothing."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._connection.fileno(), select.POLLIN)
        return sum(events for _, events in self._poll.poll(timeout * 1000))

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


class Writer:
    """A worker's end of the answers. ``packed``: called with each batch before it is pickled."""

    def __init__(self, connection: Connection, worker: int) -> None:
        self._connection, self._worker = connection, worker
        self.packed: Callable[[Any], Any] | None = None

    def put(self, answer: tuple[Any, Any]) -> None:
        """Send (number, batch). A batch that can't be pickled is answered by its error."""
        number, batch = answer
        try:
            content = ForkingPickler.dumps((number, batch if self.packed is None else self.packed(batch)))
        except Exception:
            content = ForkingPickler.dumps((number, ExceptionWrapper(where=f"in DataLoader worker process {self._worker}")))
        with contextlib.suppress(OSError):  # nobody reads any more, which the next request tells
            self._connection.send_bytes(content)

    def cancel_join_thread(self) -> None:
        """Do nothing: no thread writes."""

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
