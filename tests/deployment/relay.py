"""A TCP relay that stands in for a bad network: it can be slow, narrow, silent, or refuse.

It reads nothing: TLS goes through as it is. It is *not* packet loss, which TCP mends
before anybody sees it; a reset is worse than that, and what was under way is gone.
"""

import argparse
import asyncio
import math
import random
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_CHUNK = 2**16
_TICK = 0.1  # seconds between two pieces of what is throttled
_QUEUE = 256  # chunks under way in one direction of a connection


class Relay:
    """A relay from one address to another, with its own thread, until `close` or its ``with`` ends.

    It listens at `address`. Every chunk is late by ``delay`` seconds and up to
    ``jitter`` more, in either direction; order is kept.
    """

    def __init__(
        self,
        target: str,
        listen: str = "127.0.0.1:0",
        *,
        delay: float = 0.0,
        jitter: float = 0.0,
    ) -> None:
        self._target = _split(target)
        self._delay, self._jitter = delay, jitter
        self._flows = asyncio.Event()
        self._flows.set()
        self._refusing = False
        self._rate = math.inf
        self._connections: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(_split(listen))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="relay", daemon=True
        )
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            self._open(), self._loop
        ).result()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def silence(self) -> None:
        """Let nothing through until `heal`: neither bytes nor ends nor new connections.

        Neither side is informed, as when a cable is drawn. What was under way is held,
        as TCP would send it again. (The kernel still accepts a new connection, which
        then receives nothing.)
        """
        self._loop.call_soon_threadsafe(self._flows.clear)

    def refuse(self) -> None:
        """Reset all connections, and new ones until `heal`, as a firewall that rejects does."""
        self._refusing = True
        self.reset()

    def throttle(self, rate: float) -> None:
        """Let no more than so many bytes per second of a connection through to the target.

        What comes back is as fast as before. With a rate of 0 an upload never ends.
        """
        self._rate = rate

    def heal(self) -> None:
        """Let everything through again, first what was held."""
        self._refusing = False
        self._rate = math.inf
        self._loop.call_soon_threadsafe(self._flows.set)

    def reset(self) -> int:
        """Reset all connections on both sides; return how many there were."""
        return asyncio.run_coroutine_threadsafe(self._reset(), self._loop).result()

    def close(self) -> None:
        """Reset all connections, and listen no more."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> asyncio.Server:
        return await asyncio.start_server(self._connection, sock=self._listener)

    async def _close(self) -> None:
        self._server.close()
        # also what was accepted just now
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _reset(self) -> int:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Relay one connection until both directions ended, or reset both sides."""
        task = asyncio.current_task()
        if task is None:  # never in a coroutine that a loop runs
            return
        self._connections.add(task)
        writers = [writer]
        try:
            if self._refusing:
                raise ConnectionRefusedError
            await self._flows.wait()
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(
                    self._direction(reader, far_writer, is_upload=True)
                )
                directions.create_task(
                    self._direction(far_reader, writer, is_upload=False)
                )
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            for each in writers:
                _set_to_reset(each)
        finally:
            self._connections.discard(task)
            for each in writers:
                each.transport.abort()

    async def _direction(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_upload: bool,
    ) -> None:
        """Pass on bytes, and at last their end, each at its time."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE)
        async with asyncio.TaskGroup() as halves:
            halves.create_task(self._receive(reader, queue))
            halves.create_task(self._send(queue, writer, is_upload))

    async def _receive(
        self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        chunk = b"-"
        while chunk:  # the end is an empty chunk, and late as the others are
            chunk = await reader.read(_CHUNK)
            late = self._delay + self._jitter * random.random()
            await queue.put((time.monotonic() + late, chunk))

    async def _send(
        self,
        queue: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        is_upload: bool,
    ) -> None:
        while True:
            due, chunk = await queue.get()
            await asyncio.sleep(due - time.monotonic())
            await self._flows.wait()
            if not chunk:
                break
            while is_upload and chunk and math.isfinite(self._rate):
                await asyncio.sleep(_TICK)
                size = math.ceil(min(self._rate * _TICK, len(chunk)))
                writer.write(chunk[:size])
                await writer.drain()
                chunk = chunk[size:]
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


def _set_to_reset(writer: asyncio.StreamWriter) -> None:
    # Without lingering, closing sends RST instead of FIN.
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main(arguments: Sequence[str] | None = None) -> None:
    """Relay until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", help="HOST:PORT")
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds")
    parser.add_argument(
        "--jitter", type=float, default=0.0, help="up to as many seconds more"
    )
    with Relay(**vars(parser.parse_args(arguments))):
        threading.Event().wait()


if __name__ == "__main__":
    main()
