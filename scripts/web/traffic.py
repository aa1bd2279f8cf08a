"""Sends UDP packets from a host of the testbed, in waves, until it is killed.

Usage: traffic.py SEED SCALE DESTINATION=PPS:BYTES[:TTL]...
"""

import math
import socket
import sys
import time

SLICE_S = 0.02


class Stream:
    def __init__(self, text):
        address, rest = text.split("=")
        pps, size, *ttl = rest.split(":")
        self.pps, self.payload, self.due = int(pps), bytes(int(size) - 28), 0.0
        self.sockets = []
        for _ in range(8):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.setblocking(False)
            if ttl:
                one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, int(ttl[0]))
            one.connect((address, 9))
            self.sockets.append(one)

    def send(self, packets):
        self.due += packets
        for i in range(int(self.due)):
            try:
                self.sockets[i % 8].send(self.payload)
            except OSError:
                # An ICMP error of an earlier packet, or a full queue.
                pass
        self.due -= int(self.due)


def main():
    seed, scale, streams = float(sys.argv[1]), float(sys.argv[2]), [Stream(text) for text in sys.argv[3:]]
    last = time.monotonic()
    while True:
        time.sleep(SLICE_S)
        now = time.monotonic()
        elapsed, last = min(now - last, 0.2), now
        for i, stream in enumerate(streams):
            wave = 1 + 0.45 * math.sin(now / (7 + 3 * i) + seed) + 0.15 * math.sin(now / 1.7 + seed * 3 + i)
            stream.send(stream.pps * scale * wave * elapsed)


main()
