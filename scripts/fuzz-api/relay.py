#!/usr/bin/env python3
"""Passes TCP connections on to a Unix socket, because Schemathesis only knows TCP: relay.py PORT SOCKET."""

import asyncio
import sys


async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def serve(reader, writer):
    try:
        other_reader, other_writer = await asyncio.open_unix_connection(sys.argv[2])
    except OSError:
        writer.close()
        return
    # The daemon closes a connection after its answer.
    there = asyncio.create_task(copy(reader, other_writer))
    await copy(other_reader, writer)
    there.cancel()
    other_writer.close()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
