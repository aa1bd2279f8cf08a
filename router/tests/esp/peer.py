#!/usr/bin/python3
"""Scapy's IPsec as the peer of `millrace paths run`: writes the packets for the tests, and checks those that come out.

    peer.py write DIRECTORY   plain.pcap and encrypted.pcap of each case
    peer.py check DIRECTORY   decrypts sent.pcap, which Millrace made of plain.pcap, and compares

A case is a directory with case.json.
"""
import json
import os
import sys

import logging
logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
from scapy.all import ESP, IP, TCP, UDP, Ether, IPv6, Raw, SecurityAssociation, rdpcap, wrpcap  # noqa: E402

HOST, LAN = "02:00:00:00:07:07", "02:00:00:00:00:01"
ENDS = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
INNER = {4: ("10.0.0.9", "10.1.0.9"), 6: ("2001:db8:a::9", "2001:db8:b::9")}


def association(case, forth, high):
    """The SA from here to there, or back; `high`: the high half of the sequence number, with ESN."""
    local, remote = ENDS[case["outer"]]
    if not forth:
        local, remote = remote, local
    wrap = IP if case["outer"] == 4 else IPv6
    key = bytes.fromhex(case["key_out" if forth else "key_in"])
    return SecurityAssociation(
        ESP,
        spi=case["spi_out" if forth else "spi_in"],
        crypt_algo="AES-GCM",
        crypt_key=key,
        tunnel_header=wrap(src=local, dst=remote) if case["mode"] == "tunnel" else None,
        nat_t_header=UDP(sport=4500, dport=4500, chksum=0) if case["udp"] else None,
        esn_en=case["esn"],
        esn=high,
    )


def packets(case, forth):
    """Packets of many lengths, so that every padding occurs."""
    version = case["inner"]
    source, destination = (INNER if case["mode"] == "tunnel" else ENDS)[version]
    if not forth:
        source, destination = destination, source
    wrap = IP if version == 4 else IPv6
    for length in list(range(0, 40)) + [100, 1000, 1300]:
        marks = {"tos": length % 2 * 0xB8} if version == 4 else {"tc": length % 2 * 0xB8}
        upper = UDP(sport=1000, dport=2000) if length % 3 else TCP(sport=1, dport=2, seq=length)
        yield wrap(bytes(wrap(src=source, dst=destination, **marks) / upper / Raw(bytes(i & 255 for i in range(length)))))


def frames(all_packets):
    return [Ether(src=HOST, dst=LAN) / packet for packet in all_packets]


def write(directory, case):
    wrpcap(f"{directory}/plain.pcap", frames(packets(case, True)))
    encrypted = []
    for index, packet in enumerate(packets(case, False)):
        number = case["first"] + 3 * index
        sa = association(case, False, number >> 32)
        low = number & 0xFFFFFFFF
        iv = number.to_bytes(8, "big")
        made = sa.encrypt(packet, seq_num=low, iv=iv, esn_en=case["esn"], esn=number >> 32)
        if case["udp"]:
            # Scapy sets the length before there is a payload.
            made[UDP].len = len(bytes(made[UDP]))
        encrypted.append(made)
    wrpcap(f"{directory}/encrypted.pcap", frames(encrypted))
    wrpcap(f"{directory}/expected.pcap", frames(packets(case, False)))


def check(directory, case):
    sent, plain = rdpcap(f"{directory}/sent.pcap"), rdpcap(f"{directory}/plain.pcap")
    assert len(sent) == len(plain), f"{len(sent)} of {len(plain)} packets"
    for number, (frame, before) in enumerate(zip(sent, plain), 1):
        outer = frame.payload
        sa = association(case, True, 0)
        opened = sa.decrypt(outer, verify=True, esn_en=case["esn"], esn=0)
        found = bytes(opened)
        assert found == bytes(before.payload), f"packet {number}: {found.hex()} is not {bytes(before.payload).hex()}"


def main():
    what, directory = sys.argv[1:]
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        if not os.path.exists(f"{path}/case.json"):
            continue
        with open(f"{path}/case.json") as file:
            case = json.load(file)
        {"write": write, "check": check}[what](path, case)
        print(f"{what} {name}")


main()
