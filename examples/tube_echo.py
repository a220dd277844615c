"""An echo over a tube, and somebody who talks to it.

python examples/tube_echo.py                                listen, talk, and end
python examples/tube_echo.py serve tcp 127.0.0.1:8081       only listen (or: websocket 127.0.0.1:8080)
python examples/tube_echo.py talk tube://127.0.0.1:8081     only talk (or: ws://127.0.0.1:8080)
"""

from __future__ import annotations

import asyncio
import sys

from headrace.config import Address
from headrace.tube import Transport, Tube, connect, serve

MESSAGES = [b"hello", b"", b"the wheel turns while the water runs; " * 10_000]


async def echo(tube: Tube) -> None:
    print(f"{tube.peer} is here, and takes fragments of {tube.fragment_size} bytes")
    async for message in tube:
        await tube.send(message)
    print(f"{tube.peer} is gone; {tube.counts.messages_received} messages")


async def talk(url: str) -> None:
    async with connect(url) as tube:
        for message in MESSAGES:
            await tube.send(message)
            answer = await tube.receive()
            print(f"{len(message)} bytes sent, {len(answer)} came back")
            assert answer == message


async def listen(transport: str, where: str) -> None:
    address = Address.parse(where)
    async with serve(echo, address.host, address.port, transport=Transport(transport)) as server:
        print(f"listening on {server.addresses[0]}")
        await server.wait_closed()


async def both() -> None:
    for transport, scheme in ((Transport.TCP, "tube"), (Transport.WEBSOCKET, "ws")):
        async with serve(echo, "127.0.0.1", 0, transport=transport) as server:
            await talk(f"{scheme}://{server.addresses[0]}")


def main() -> None:
    match sys.argv[1:]:
        case []:
            asyncio.run(both())
        case ["serve", transport, where]:
            asyncio.run(listen(transport, where))
        case ["talk", url]:
            asyncio.run(talk(url))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
