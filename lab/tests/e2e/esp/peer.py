"""The other end of an ESP tunnel (RFC 4303, RFC 4106), in user space: raw sockets on one side, a tun device on the other.

Lines on stdin: `in SPI KEY`, `out SPI KEY`, `drop SPI`, `report`. Each is answered by a line. KEY is an AES key and 4 bytes
of salt, in hexadecimal. A report is JSON. For each SPI it has the number of packets that came, were bad and were replayed, and
the highest number. It also has the number of packets with unknown SPIs, and the number of frames on the wire that were for the
net behind the tunnel and in clear.
"""

import fcntl
import json
import os
import select
import socket
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
ESP, IPV4, ALL = 50, 4, 3


class Sa:
    def __init__(self, key):
        key = bytes.fromhex(key)
        self.aead, self.salt, self.sent, self.seen = AESGCM(key[:-4]), key[-4:], 0, set()
        self.counts = {"packets": 0, "bad": 0, "replayed": 0}


def seal(spi, sa, packet):
    sa.sent += 1
    head, iv = struct.pack("!II", spi, sa.sent), struct.pack("!Q", sa.sent)
    pad = -(len(packet) + 2) % 4
    text = packet + bytes(range(1, pad + 1)) + bytes([pad, IPV4])
    return head + iv + sa.aead.encrypt(sa.salt + iv, text, head)


def unseal(sa, esp):
    try:
        text = sa.aead.decrypt(sa.salt + esp[8:16], esp[16:], esp[:8])
    except InvalidTag:
        sa.counts["bad"] += 1
        return None
    number = struct.unpack("!I", esp[4:8])[0]
    if number in sa.seen:
        sa.counts["replayed"] += 1
        return None
    sa.seen.add(number)
    sa.counts["packets"] += 1
    return text[: -2 - text[-2]]


def main():
    local, remote, device = sys.argv[1:]
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    wire = socket.socket(socket.AF_INET, socket.SOCK_RAW, ESP)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    wire.bind((local, 0))
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    tap.bind(("eth0", ALL))
    inbound, outbound, strangers, clear = {}, None, 0, 0
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([wire, tun, tap, sys.stdin], [], [])
        if wire in ready:
            packet = wire.recv(65536)
            esp = packet[(packet[0] & 15) * 4 :]
            sa = inbound.get(struct.unpack("!I", esp[:4])[0])
            if sa is None:
                strangers += 1
            elif (inner := unseal(sa, esp)) is not None:
                os.write(tun, inner)
        if tap in ready:
            frame, where = tap.recvfrom(65536)
            is_incoming = where[2] != socket.PACKET_OUTGOING
            clear += is_incoming and frame[12:14] == b"\x08\x00" and frame[30:33] == bytes([10, 9, 0])
        if tun in ready:
            inner = os.read(tun, 65536)
            if outbound and inner[0] >> 4 == 4:
                wire.sendto(seal(*outbound, inner), (remote, 0))
        if sys.stdin in ready:
            words = sys.stdin.readline().split()
            if not words:
                return
            answer = "done"
            if words[0] == "in":
                inbound[int(words[1])] = Sa(words[2])
            elif words[0] == "out":
                outbound = (int(words[1]), Sa(words[2]))
            elif words[0] == "drop":
                del inbound[int(words[1])]
            elif words[0] == "report":
                report = {spi: sa.counts | {"top": max(sa.seen, default=0)} for spi, sa in inbound.items()}
                answer = json.dumps(report | {"strangers": strangers, "clear": clear})
            print(answer, flush=True)


main()
