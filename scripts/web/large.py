"""Answers of a machine that the testbed cannot be: 64 ports, 128 cores, 100 routers, 1,000 interfaces, all with hostile names."""

import time

PORTS, CORES, ROUTERS, INTERFACES, QUEUES = 64, 128, 100, 1000, 4
EVIL = '<img src=x onerror="window.hostile=1"><script>window.hostile=1</script>'


def packets(n):
    return {"forwarded": n, "forwarded_bytes": n * 800, "passed": n // 50, "dropped": n // 900, "taken": 0}


def why(text):
    return {"code": "policy_rule", "text": text}


class Answers:
    """Called with a URL, it returns the answer. Counters grow with time."""

    def __call__(self, url):
        path = url.split("/v1/")[1].split("?")[0]
        now = time.monotonic()
        return getattr(self, path)(now)

    def status(self, now):
        total = int(now * 40_000_000)
        nobody = {"ipv4": [], "ipv6": []}
        ports = [{
            "port": f"{EVIL}eth{i}", "id": i, "number": i, "ifindex": i + 2, "mode": "native", "problems": [], "note": None,
            "rx_packets": int(now * 20_000 * (i + 1)), "tx_packets": int(now * 15_000 * (i + 1)),
            "rx_bytes": int(now * 20_000 * (i + 1) * 900), "tx_bytes": int(now * 15_000 * (i + 1) * 500),
            "unclassified": [], "lost": [],
        } for i in range(PORTS)]
        routers = [{
            "router": f"{EVIL}r{i}", "id": i, "accelerated": {"ipv4": i % 7 not in [3, 5], "ipv6": i % 7 != 6}, "ruled": {"ipv4": False, "ipv6": False},
            "why_not": {"ipv4": [why(f"{EVIL} stands in the way; run something")] if i % 7 == 3 else [],
                        "ipv6": [{"code": "forwarding_off", "text": "IPv6 forwarding is off"}] if i % 7 == 6 else []}, "connections": i,
            "left_to_kernel": [{"interface": EVIL, "why_not": {"ipv4": [why(EVIL)], "ipv6": []}}] if i % 7 == 5 else [], "interfaces": INTERFACES // ROUTERS, "routes": {"ipv4": 1000 * i, "ipv6": i}, "neighbours": 10,
            "packets": packets(int(now * 300_000 * (i + 1))), "ns_per_packet": 100.0 + i, "reasons": [],
        } for i in range(ROUTERS)]
        reasons = [{"reason": f"reason_{i}", "class": ["pass", "drop", "lost"][i % 3], "text": EVIL, "packets": int(now * 1000 / (i + 1))} for i in range(40)]
        remarks = [[{"text": f"{EVIL} {i}", "age_s": now} for i in range(60)] for _ in range(2)]
        summary = {"state": "slow", "text": EVIL, "not_fast": [f"{EVIL} {i}" for i in range(60)], "problems": remarks[0], "notes": remarks[1]}
        return {
            "version": EVIL, "pid": 1, "instance": EVIL, "ready": True, "problem": None, "summary": summary, "conditions": [], "uptime_s": int(now), "at_s": now,
            "heartbeat": {"timeout_s": 3.0, "age_s": 0.1}, "generation": 1, "packets": packets(total), "lost": int(now * 7), "ns_per_packet": 91.0,
            "ports": ports, "routers": routers, "reasons": reasons, "tables": [], "routes": {"ipv4": 1_000_000, "ipv6": 200_000}, "neighbours": 4000,
            "flows": {"rules": 0, "in_charge": False, "names": {}}, "paths": [], "left": nobody,
        }

    def interfaces(self, now):
        return [{
            "router": f"{EVIL}r{i % ROUTERS}", "interface": f"{EVIL}{i}", "id": i, "port": f"{EVIL}eth{i % PORTS}", "vlan": str(100 + i),
            "mac": "02:00:00:00:00:01", "accelerated": {"ipv4": True, "ipv6": i % 5 != 0}, "why_not": {"ipv4": [], "ipv6": [why(EVIL)] if i % 5 == 0 else []},
            "transmit": True, "not_forwarded_packets": int(now * i), "rx_packets": int(now * 1000 * i), "rx_bytes": int(now * 700_000 * i),
            "tx_packets": int(now * 900 * i), "tx_bytes": int(now * 300_000 * i),
        } for i in range(INTERFACES)]

    def cores(self, now):
        queues = [{
            "port": f"{EVIL}eth{i // QUEUES}", "queue": i % QUEUES, "core": i % CORES, "moved_by": "interrupt 3", "why_not": None, "moved_with": None,
            "ran": 0, "ran_ns": int(now * 1e9 * (i % 10) / 12), "packets": int(now * 1e5 * (i % 10)), "wakeups": int(now * 1000), "waited": 0.01, "wakeups_per_s": 1000.0, "packets_per_s": 1e5 * (i % 10), "shared": [], "is_estimate": False,
        } for i in range(PORTS * QUEUES)]
        cores = [{
            "core": i, "node": i // 64, "socket": i // 64, "physical": i, "role": ["forward", "serve", "both", "idle"][i % 4], "may_forward": i < 64,
            "forwarding": 0, "forwarding_ns": int(now * 1e9 * (i % 10) / 11), "other": 0.05, "workloads": [EVIL],
        } for i in range(CORES)]
        return {"policy": "pack", "allowed": list(range(64)), "high": 85, "low": 70, "hold_s": 2.0, "at_s": now, "period_ms": 1, "cores": cores,
                "queues": queues, "workloads": [], "conditions": []}

    def events(self, _now):
        return [{"number": i, "unix_s": 1_790_000_000.0 + i, "port": EVIL, "queue": 0, "from": [1], "to": [2], "why": EVIL} for i in range(1, 1025)]
