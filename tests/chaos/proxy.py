"""A bad network between a host and an engine: a TCP relay in a process of its own, told by lines on its standard input.

    cut              refuse connections and close those that are open
    reset            close those that are open, with a reset
    half             keep all connections open, and pass nothing on from the engine to the host
    latency SECONDS  hold each piece back for so long
    loss PART        hold this part of all pieces back for 0.2 to 0.6 s, as TCP does when it sends a lost packet again
    flip PART        change a bit in this part of all pieces
    restore          pass everything on
    sealed ORDER     obey for the connections alone that carry sealed batches

It listens at 127.0.0.2, at the engine's two ports, which are at 127.0.0.1. It prints a line when it does, and ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import sys

__all__ = ["HERE", "THERE", "main"]

HERE, THERE = "127.0.0.2", "127.0.0.1"  # a host connects to the port that the engine tells, at the address that it knows
_PIECE = 16384  # bytes, so that a batch comes in several pieces


class _Network:
    def __init__(self, port: int) -> None:
        self.port = port
        self._pass_on()
        self.random = random.Random(port)
        self.writers: set[asyncio.StreamWriter] = set()

    def _pass_on(self) -> None:
        self.latency_s, self.loss, self.flips, self.half, self.cut = 0.0, 0.0, 0.0, False, False

    def obey(self, line: str) -> None:
        word, _, value = line.strip().partition(" ")
        if word == "latency":
            self.latency_s = float(value)
        elif word == "loss":
            self.loss = float(value)
        elif word == "flip":
            self.flips = float(value)
        elif word == "half":
            self.half = True
        elif word == "restore":
            self._pass_on()
            self.close(reset=False)  # the held data is lost: both sides must connect again
        elif word in ("cut", "reset"):
            self.cut = word == "cut"
            self.close(reset=word == "reset")
        else:
            raise SystemExit(f"proxy: unknown command {line!r}")

    def close(self, reset: bool) -> None:
        for writer in list(self.writers):
            if reset:
                peer: socket.socket = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):  # it is already closed
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort() if reset else writer.close()

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_host: bool) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while piece := await reader.read(_PIECE):
                if self.loss and self.random.random() < self.loss:
                    await asyncio.sleep(self.random.uniform(0.2, 0.6))
                if self.latency_s:
                    await asyncio.sleep(self.latency_s)
                if self.half and to_host:
                    continue
                if self.flips and self.random.random() < self.flips:
                    at = self.random.randrange(len(piece))
                    piece = piece[:at] + bytes([piece[at] ^ 1 << self.random.randrange(8)]) + piece[at + 1 :]
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.close()
            return
        try:
            there = await asyncio.open_connection(THERE, self.port)
        except OSError:  # no engine
            writer.close()
            return
        both = {writer, there[1]}
        self.writers |= both
        try:
            await asyncio.gather(self.relay(reader, there[1], to_host=False), self.relay(there[0], writer, to_host=True))
        finally:
            self.writers -= both


async def _serve(ports: list[int]) -> None:
    networks = list(map(_Network, ports))
    servers = [await asyncio.start_server(one.connected, HERE, one.port) for one in networks]  # as long as they are referred to
    print("ready", flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := (await orders.readline()).decode():
        for network in networks[line.startswith("sealed ") :]:
            network.obey(line.removeprefix("sealed "))
    del servers
    os._exit(0)  # open connections need no clean end


def main() -> None:
    """Relay to the engine whose ports are the arguments, that of sealed batches last."""
    asyncio.run(_serve([int(port) for port in sys.argv[1:]]))


if __name__ == "__main__":
    main()
