"""A box with three ports and four routers between hosts, in network namespaces of its own, with traffic and a daemon."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60
HOSTS = {1: "a", 2: "b", 3: "c"}
ADDRESS = "127.0.0.1:9112"
# From each host: address, packets per second, bytes of the packet, TTL. Router 8 is the box itself.
TRAFFIC = {
    1: ["10.8.2.2=2600:1200", "10.7.3.2=1300:700", "10.6.2.2=500:300", "10.8.2.2=60:100:1", "10.8.2.3=40:100", "10.7.2.9=25:90"],
    2: ["10.8.1.2=900:400", "10.7.1.2=700:1000", "10.5.3.2=350:500"],
    3: ["10.7.1.2=1700:1400", "10.6.1.2=420:128", "10.8.1.2=240:1400", "10.99.0.1=30:200"],
}


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def napi_threads():
    """Ids of the kernel's threads that poll queues."""
    names = pathlib.Path("/proc").glob("[0-9]*/comm")
    found = set()
    for name in names:
        try:
            if name.read_text().startswith("napi/"):
                found.add(int(name.parent.name))
        except OSError:
            pass  # it has ended
    return found


class Bed:
    def __init__(self, directory, is_for_docs):
        """`directory`: for the configuration and the log of the daemon. `is_for_docs`: with plain names and more traffic."""
        self.name = "edge" if is_for_docs else f"web{os.getpid()}"
        # The kernel allows these names, and a browser would take them for markup.
        self.odd_router, self.odd_interface = ("green", "eth1") if is_for_docs else (f"<b>{os.getpid()}", "<img+src=x>")
        self.scale = 6 if is_for_docs else 1
        self.directory = pathlib.Path(directory)
        self.millrace = os.environ.get("MILLRACE", str(ROOT / "target/debug/millrace"))
        self.senders, self.daemon = [], None
        # Names of routers are those of namespaces. The last one is not fast.
        self.routers = {7: "red", 6: self.odd_router, 5: "blue"} if is_for_docs else {
            7: f"{self.name}-red", 6: self.odd_router, 5: f"{self.name}-blue"}
        self.namespaces = []
        self.box = f"{self.name}-box"

    def build(self):
        if not os.access(self.millrace, os.X_OK):
            raise RuntimeError(f"there is no program {self.millrace}: run `cargo build`, or set MILLRACE to its path")
        for name in [f"{self.name}-box", *(f"{self.name}-{host}" for host in HOSTS.values()), *self.routers.values()]:
            run("ip", "netns", "add", name)
            self.namespaces.append(name)
            self.inside(name, "ip", "link", "set", "lo", "up")
            self.settings(name, "ipv6/conf/default/accept_dad=0", "ipv6/conf/all/accept_dad=0")
        for port, host in HOSTS.items():
            self.cable(port, f"{self.name}-{host}")
        self.router(8, self.box, {port: f"eth{port}" for port in HOSTS})
        for number, router in self.routers.items():
            self.router(number, router, self.children(number, router))
        for port, host in HOSTS.items():
            self.host(port, f"{self.name}-{host}")

    def enter(self, namespace):
        return ["nsenter", f"--net=/run/netns/{namespace}"]

    def inside(self, namespace, *words):
        return run(*self.enter(namespace), *words)

    def settings(self, namespace, *settings):
        for setting in settings:
            path, value = setting.rsplit("=", 1)
            self.inside(namespace, "sh", "-c", 'echo "$2" >"/proc/sys/net/$1"', "sh", path, value)

    def cable(self, port, host):
        run("ip", "link", "add", f"eth{port}", "numrxqueues", "2", "numtxqueues", "2", "netns", self.box,
            "type", "veth", "peer", "name", "eth0", "numrxqueues", "2", "numtxqueues", "2", "netns", host)
        self.inside(host, "ip", "link", "set", "eth0", "up")
        self.inside(host, "ethtool", "-K", "eth0", *"tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on".split())
        self.inside(self.box, "ethtool", "-K", f"eth{port}", "gro", "on")
        self.inside(self.box, "ip", "link", "set", f"eth{port}", "up")
        # Threads that poll the queues, so that the daemon can place them. /sys must be that of the namespace.
        before = napi_threads()
        run("ip", "netns", "exec", self.box, "sh", "-c", f"echo 1 >/sys/class/net/eth{port}/threaded")
        # They begin on different cores, so the daemon moves some: these are events.
        cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
        for thread, core in zip(sorted(napi_threads() - before), cores):
            os.sched_setaffinity(thread, [core])

    def children(self, number, router):
        """Interfaces of a virtual router: macvlan children of the ports."""
        names = {port: f"eth{port}" for port in HOSTS}
        if router == self.odd_router:
            names[1] = self.odd_interface
        for port, name in names.items():
            self.inside(self.box, "ip", "link", "add", f"m{number}-{port}", "link", f"eth{port}", "type", "macvlan", "mode", "bridge")
            self.inside(self.box, "ip", "link", "set", f"m{number}-{port}", "netns", router, "name", name)
        return names

    def router(self, number, namespace, interfaces):
        self.settings(namespace, "ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1", "ipv4/conf/all/rp_filter=0",
                      "ipv4/conf/default/rp_filter=0", "ipv4/conf/all/send_redirects=0")
        for port, interface in interfaces.items():
            self.inside(namespace, "ip", "link", "set", interface, "up")
            self.inside(namespace, "ip", "address", "add", f"10.{number}.{port}.1/24", "dev", interface)
            self.inside(namespace, "ip", "address", "add", f"fd0{number}:{port}::1/64", "dev", interface, "nodad")
            self.settings(namespace, f"ipv4/conf/{interface}/rp_filter=0", f"ipv4/conf/{interface}/send_redirects=0")
        # A destination without a host, and one that is not routed.
        self.inside(namespace, "ip", "route", "add", "blackhole", "10.99.0.0/24")

    def host(self, port, namespace):
        for number in [8, *self.routers]:
            self.inside(namespace, "ip", "address", "add", f"10.{number}.{port}.2/24", "dev", "eth0")
            for other in HOSTS:
                if other != port:
                    self.inside(namespace, "ip", "route", "add", f"10.{number}.{other}.0/24", "via", f"10.{number}.{port}.1")
        self.inside(namespace, "ip", "route", "add", "10.99.0.0/24", "via", f"10.8.{port}.1")

    def send(self):
        """Starts the traffic."""
        for port, host in HOSTS.items():
            where = self.enter(f"{self.name}-{host}")
            # Nobody reads what arrives, and so nobody answers that nobody listens.
            sink = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('',9))\ntime.sleep(1e6)"
            self.senders.append(subprocess.Popen([*where, "python3", "-c", sink]))
            script = str(ROOT / "scripts/web/traffic.py")
            self.senders.append(subprocess.Popen([*where, "python3", script, str(port * 1.7), str(self.scale), *TRAFFIC[port]]))

    def start(self, explain=True):
        """Starts the daemon, and waits until it is ready."""
        config = self.directory / "config.toml"
        config.write_text(f'ports = ["eth1", "eth2", "eth3"]\n[web]\nlisten = "{ADDRESS}"\nexplain = {str(explain).lower()}\n')
        log = open(self.directory / "daemon.log", "ab")
        self.daemon = subprocess.Popen([*self.enter(self.box), self.millrace, "run", "--instance", self.name, "--config", str(config)],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.until(lambda: self.ask("status")["ready"], "the daemon is ready")

    def ask(self, *words):
        return json.loads(run(self.millrace, *words, "--instance", self.name, "--json"))

    def text(self, *words):
        return run(self.millrace, *words, "--instance", self.name)

    def kill(self):
        """Ends the daemon at once. Forwarding goes on for a while."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def until(self, look, what):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                if look():
                    return
                why = "not yet"
            except (RuntimeError, KeyError, ValueError) as error:
                why = error
            if time.monotonic() > end:
                raise AssertionError(f"not in {PATIENCE_S} s: {what}: {why}")
            time.sleep(0.1)

    def close(self):
        for process in self.senders:
            process.kill()
            process.wait()
        if self.daemon:
            subprocess.run([self.millrace, "stop", "--instance", self.name], capture_output=True)
            if self.daemon.poll() is None:
                self.daemon.kill()
            self.daemon.wait()
        for name in reversed(self.namespaces):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
