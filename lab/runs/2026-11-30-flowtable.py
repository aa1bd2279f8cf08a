"""The same UDP packets through Linux's flow table, xdp-forward's flowtable mode, and Millrace, on Debian 13's kernel 6.12: who
forwards them, what comes out, and how many instructions a run of the program takes.

Run as the only program of a virtual machine of one processor: qemu-system-x86_64 -accel tcg -cpu max,-cx16 -smp 1 -icount shift=0
-m 3000 -append "clocksource=tsc tsc=reliable ...". With -icount shift=0, a nanosecond is an instruction. The root file system:
mmdebstrap --include=xdp-tools,bpftool,nftables,iproute2,bash,conntrack,python3-minimal,kmod,ethtool,linux-image-6.12... trixie,
with a static `millrace` and bpf/pass.bpf.c as /pass.o. Modules: veth nf_tables nf_conntrack nf_conntrack_netlink nft_ct nft_nat
nft_chain_nat nft_masq nf_flow_table nf_flow_table_inet nft_flow_offload.
"""
import json, os, re, socket, struct, subprocess, sys, time

def sh(command, check=True):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if check and done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout

def enter(name):
    with open(f"/run/netns/{name}") as f:
        os.setns(f.fileno(), os.CLONE_NEWNET)

def within(name, function):
    enter(name)
    try:
        return function()
    finally:
        enter("box")

MAC = {"a": "02:00:00:00:0a:01", "eth1": "02:00:00:00:01:01", "eth2": "02:00:00:00:02:01", "b": "02:00:00:00:0b:01"}
raw = lambda text: bytes(int(x, 16) for x in text.split(":"))

def world():
    for n in ("box", "ca", "cb"):
        sh(f"ip netns add {n}")
    enter("box")
    for near, far, ns, net in (("eth1", "a", "ca", 1), ("eth2", "b", "cb", 2)):
        sh(f"ip link add {near} address {MAC[near]} type veth peer name {far} address {MAC[far]} netns {ns}")
        sh(f"ethtool -K {near} tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on; ip netns exec {ns} ethtool -K {far} tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on", False)
        sh(f"ip addr add 10.0.{net}.1/24 dev {near}; ip link set dev {near} up; ip link set lo up")
        sh(f"ip -n {ns} addr add 10.0.{net}.9/24 dev {far}; ip -n {ns} link set dev {far} up; ip -n {ns} route add default via 10.0.{net}.1")
    sh("sysctl -qw net.ipv4.ip_forward=1 net.netfilter.nf_conntrack_udp_timeout=60 net.netfilter.nf_conntrack_udp_timeout_stream=120")
    sh("ip neigh replace 10.0.1.9 lladdr %s dev eth1; ip neigh replace 10.0.2.9 lladdr %s dev eth2" % (MAC["a"], MAC["b"]))

def rules(masquerade, flow_table):
    nat = "table ip nat { chain post { type nat hook postrouting priority 100; oifname eth2 masquerade; }\n}\n" if masquerade else ""
    text = """flush ruleset
    table inet f {
      flowtable ft { hook ingress priority 0; devices = { eth1, eth2 }; }
      chain forward { type filter hook forward priority 0; policy drop;
        FLOW_ADD
        ct state established accept
        iifname eth1 accept
      }
    }
    """.replace("FLOW_ADD", "meta l4proto { tcp, udp } ct state established flow add @ft" if flow_table else "") + nat
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
    sh("conntrack -F", False)

def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def frame(payload, port=1000, ttl=64, options=b""):
    source, destination = socket.inet_aton("10.0.1.9"), socket.inet_aton("10.0.2.9")
    udp = struct.pack("!HHHH", port, 2000, 8 + len(payload), 0) + payload
    pseudo = source + destination + struct.pack("!BBH", 0, 17, len(udp))
    udp = udp[:6] + struct.pack("!H", checksum(pseudo + udp)) + udp[8:]
    ihl = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | ihl, 0, ihl * 4 + len(udp), 7, 0x4000, ttl, 17, 0) + source + destination + options
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return raw(MAC["eth1"]) + raw(MAC["a"]) + b"\x08\x00" + head + udp

def packet_socket(device):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind((device, 3))
    s.settimeout(0.5)
    return s

def drain(s, wanted):
    found = []
    s.settimeout(0.5)
    try:
        while True:
            data, address = s.recvfrom(4096)
            if address[2] != socket.PACKET_OUTGOING and wanted in data:
                found.append(data)
    except (TimeoutError, BlockingIOError):
        return found

class Sides:
    def __init__(self):
        def udp(address, port):
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.bind((address, port)); s.settimeout(3)
            return s
        self.a = within("ca", lambda: udp("10.0.1.9", 1000))
        self.b = within("cb", lambda: udp("10.0.2.9", 2000))
        self.wire_a = within("ca", lambda: packet_socket("a"))
        self.wire_b = within("cb", lambda: packet_socket("b"))
        self.stack = packet_socket("eth1")

    def converse(self, times):
        for n in range(times):
            self.a.sendto(b"there", ("10.0.2.9", 2000))
            _, who = self.b.recvfrom(100)
            self.b.sendto(b"back", who)
            self.a.recvfrom(100)
            time.sleep(0.05)

    def send(self, name, data, marker):
        drain(self.wire_b, b"\0never"); drain(self.stack, b"\0never")
        self.wire_a.send(data)
        out, up = drain(self.wire_b, marker), drain(self.stack, marker)
        by = "nobody" if not out else "the kernel" if up else "XDP"
        print(f"    {name}: forwarded by {by}" + (f", {out[0].hex()}" if out else ""), flush=True)
        return out[0] if out else None

def instructions(program, data, repeat=1):
    ifindex = socket.if_nametoindex("eth1")
    open("/run/frame", "wb").write(data)
    open("/run/context", "wb").write(struct.pack("IIIIII", 0, len(data), 0, ifindex, 0, 0))
    least = None
    for _ in range(30):
        out = sh(f"bpftool prog run {program} data_in /run/frame ctx_in /run/context repeat {repeat}", False)
        found = re.search(r"value: (\d+).*?(\d+) ?ns", out, re.S)
        if not found:
            return out.strip() or "cannot run"
        ns, value = int(found[2]), "aborted dropped passed sent redirected".split()[int(found[1])]
        least = min(least or (ns, value), (ns, value))
    return least

def attached(device):
    shown = json.loads(sh(f"ip -j -d link show {device}"))[0]
    return shown.get("xdp", {}).get("prog", {}).get("id")

def story(name, start, stop, flow_table=True):
    for masquerade in (False, True):
        kind = "masquerade" if masquerade else "no NAT"
        rules(masquerade, flow_table)
        sides = Sides()
        started = start()
        print(f"{name}, {kind}", flush=True)
        try:
            for _ in range(8):
                sides.converse(10)
                time.sleep(0.5)
            sides.send("established", frame(b"marker-1"), b"marker-1")
            program = attached("eth1")
            if program:
                print(f"    program {program}: empty", instructions("pinned /sys/fs/bpf/pass", frame(b"marker-0")),
                      "established", instructions(f"id {program}", frame(b"marker-0")),
                      "another flow", instructions(f"id {program}", frame(b"marker-0", port=77)), flush=True)
            sides.send("with IP options", frame(b"marker-2", options=b"\x01\x01\x01\x00"), b"marker-2")
            sides.send("TTL 1", frame(b"marker-3", ttl=1), b"marker-3")
            sh("conntrack -L -p udp 2>/dev/null | head -3")
            print("    conntrack:", sh("conntrack -L -p udp 2>/dev/null | head -2").strip())
            # The owner of the firewall stops the traffic.
            sh("nft insert rule inet f forward udp dport 2000 drop")
            for wait in (0.0, 0.5, 2.0):
                time.sleep(wait)
                sides.send(f"a rule drops it, {wait} s later", frame(b"marker-4"), b"marker-4")
            for n in range(5):
                sides.wire_a.send(frame(b"keep")); time.sleep(2)
            sides.send("a rule drops it, 12 s later, with traffic", frame(b"marker-5"), b"marker-5")
        except (TimeoutError, SystemExit) as e:
            print("    failed:", repr(e), flush=True)
        stop(started)
        for s in (sides.a, sides.b, sides.wire_a, sides.wire_b, sides.stack):
            s.close()

def millrace():
    open("/run/c.toml", "w").write('ports = ["eth1", "eth2"]\n')
    daemon = subprocess.Popen(["millrace", "run", "--config", "/run/c.toml"], stdout=subprocess.DEVNULL, stderr=open("/run/log", "w"))
    for _ in range(100):
        time.sleep(0.3)
        out = sh("millrace status --json", False)
        if out and json.loads(out).get("ready"):
            break
    time.sleep(3)
    return daemon

def end(daemon):
    print("    fast:", sh("millrace connections --json", False).replace("\n", " ")[:600])
    print("    log:", open("/run/log").read()[-600:])
    daemon.terminate(); daemon.wait()

world()
sh("bpftool prog load /pass.o /sys/fs/bpf/pass type xdp")
story("Linux's flowtable", lambda: None, lambda _: None)
story("xdp-forward -f flowtable", lambda: print(sh("xdp-forward load -f flowtable eth1 eth2; bpftool net show", False)), lambda _: sh("xdp-forward unload eth1 eth2", False))
# Connections of UDP in a flow table would stay with Linux.
story("Millrace", millrace, end, flow_table=False)
