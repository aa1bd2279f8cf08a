"""Corrects os-ken's test suite of switches, so that its results depend on the switch. Imported before the suite runs.

* The suite computes SCTP checksums over Python's text of a packet. Here they follow RFC 9260.
* The suite sends each packet in a message of its own, and cannot offer 2,000 a second on a busy machine. Here one message
  sends as many as are due by the clock. A rate is measured for RATE_S seconds, not for 30.
* The suite sleeps a second before it asks whether a packet met no rule. Here it asks until the packet has come.
"""

import inspect
import time

from os_ken.lib import hub
from os_ken.lib.packet import sctp
from os_ken.tests.switch import tester

RATE_S = 6
# Seconds between messages. A receive buffer holds the packets that are sent in this time.
PAUSE_S = 0.002
MOST_AT_ONCE = 64


def checksum(_self, packet):
    crc = 0xFFFFFFFF
    for byte in packet:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return int.from_bytes((crc ^ 0xFFFFFFFF).to_bytes(4, "little"), "big")


def send_packets(self, what):
    event, per_s = self.ingress_event, what["packet_counter_inc"] / tester.CONTINUOUS_THREAD_INTVL
    due, last = 0.0, time.monotonic()
    while self.ingress_event is event and not event.is_set():
        hub.sleep(PAUSE_S)
        now = time.monotonic()
        due, last = due + (now - last) * per_s, now
        while due >= 1:
            count = 1 if what["randomize"] else min(int(due), MOST_AT_ONCE)
            due -= count
            data = what["packet_binary"]
            if what["randomize"]:
                packet = eval("/".join(what["packet_text"]), vars(tester))
                packet.serialize()
                data = packet.data
            send(self.tester_sw, data, count)


def send(switch, data, count):
    ofp, parser = switch.dp.ofproto, switch.dp.ofproto_parser
    actions = [parser.OFPActionOutput(switch.tester_send_port)] * count
    switch.send_msg(
        parser.OFPPacketOut(
            datapath=switch.dp, buffer_id=ofp.OFP_NO_BUFFER, data=data, in_port=ofp.OFPP_CONTROLLER, actions=actions
        )
    )


def shorter(continuous_packet_send):
    def send_for_a_while(self, case):
        case[tester.KEY_PACKETS][tester.KEY_DURATION_TIME] = RATE_S
        return continuous_packet_send(self, case)

    return send_for_a_while


def patient(unmatching_check):
    def ask_until_it_has_come(self, before, case):
        end = time.monotonic() + tester.WAIT_TIMER
        while True:
            try:
                return unmatching_check(self, before, case)
            except tester.TestError:
                if time.monotonic() > end:
                    raise
                self.state = tester.STATE_FLOW_UNMATCH_CHK

    return ask_until_it_has_come


def prepare():
    app = tester.OfTester
    sctp.sctp._checksum = checksum
    app._send_packet_thread = send_packets
    app._continuous_packet_send = shorter(app._continuous_packet_send)
    app._test_flow_unmatching_check = patient(app._test_flow_unmatching_check)
    # No sleep before the suite asks about a packet. --test-switch-interval sets the time between cases.
    tester.INTERVAL = 0
    assert "hub.sleep(INTERVAL)" in inspect.getsource(app._test_execute)
