//! The table of all metrics. docs/reference/metrics.md is made of it.
//!
//! A name is `millrace_`, what is counted, and its unit. Names and labels are part of the interface: a metric may be added, but
//! none is renamed. Each metric has a bound: the page never has more series of it ([`super::page`]).

/// A row of the table: all series of one name.
#[derive(Debug)]
pub struct Family {
    /// The heading on the page that it is under.
    #[cfg(test)]
    pub group: &'static str,
    /// Without the unit and without `_total`.
    pub name: &'static str,
    /// Empty: it has none.
    pub unit: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// The most series on a page.
    pub most: usize,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

impl Family {
    /// The name of its samples.
    #[cfg(test)]
    pub fn sample(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!("_{}", self.unit) };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }
}

impl Metric {
    pub fn family(self) -> &'static Family {
        &FAMILIES[self as usize]
    }
}

/// Each row: identifier, kind, name, unit, labels, bound, help.
macro_rules! families {
    ($($group:literal { $($id:ident $kind:ident $name:literal $unit:literal [$($label:literal)*] $most:ident $help:literal;)+ })+) => {
        /// A metric, in the order of the page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric { $($($id),+),+ }

        #[cfg(test)]
        impl Metric {
            pub const ALL: &[Metric] = &[$($(Metric::$id),+),+];
        }

        static FAMILIES: &[Family] = &[$($(Family {
            #[cfg(test)]
            group: $group,
            name: concat!("millrace_", $name),
            unit: $unit,
            kind: Kind::$kind,
            labels: &[$($label),*],
            most: $most,
            help: $help,
        }),+),+];
    };
}

// Bounds. A daemon cannot have more of the first seven.
const ONE: usize = 1;
const VERSIONS: usize = 2;
const TABLES: usize = 32;
const REASONS: usize = 128;
const PORTS: usize = 64;
const TARGETS: usize = 16;
const PATHS: usize = 64;
const CPUS: usize = 1024;
const QUEUES: usize = 2048;
const ROUTERS: usize = 256;
/// Two for each router.
const ROUTERS_TWICE: usize = 512;
pub const INTERFACES: usize = 1024;
/// Two for each interface.
const INTERFACES_TWICE: usize = 2048;
pub const SAS: usize = 256;
/// Series by reason, by place in a chain, or by resource.
const PARTS: usize = 1024;

families! {
    "Daemon" {
        BuildInfo Gauge "build_info" "" ["version" "daemon"] ONE "1; version of the daemon, and the name of its instance";
        Ready Gauge "ready" "" [] ONE "1: packets are forwarded and the tables are current";
        Uptime Gauge "uptime" "seconds" [] ONE "Time since the start of the daemon";
        HeartbeatAge Gauge "heartbeat_age" "seconds" [] ONE "Time since the tables were last confirmed; absent until then";
        HeartbeatTimeout Gauge "heartbeat_timeout" "seconds" [] ONE "How long forwarding goes on without a daemon";
        Generation Gauge "generation" "" [] ONE "Counts up with every new set of programs and maps";
        Problems Gauge "problems" "" [] ONE "Conditions that hold, without notes";
        Conditions Gauge "conditions" "" ["kind"] TABLES "Conditions that hold, including notes, by kind; absent for a kind without any";
        SeriesLeftOut Gauge "series_left_out" "" ["metric"] PARTS "Series that the page has no room for; absent for a metric without any";
    }
    "Packets" {
        Forwarded Counter "forwarded" "packets" [] ONE "Packets that the fast path forwarded";
        ForwardedBytes Counter "forwarded" "bytes" [] ONE "Bytes of these packets";
        Passed Counter "passed" "packets" [] ONE "Packets passed up to the kernel";
        Dropped Counter "dropped" "packets" [] ONE "Packets dropped by a limit or a flow rule";
        Taken Counter "taken" "packets" [] ONE "Packets taken by user space, which executes flow rules or gives packets to controllers";
        Lost Counter "lost" "packets" [] ONE "Forwarded packets that egress ports did not take";
        ReasonPackets Counter "reason" "packets" ["reason" "class"] REASONS "Packets that were not forwarded, by reason";
        PacketCost Gauge "packet_cost" "seconds" [] ONE "Average time to forward a packet since the start, without transmission; sampled";
    }
    "Tables" {
        TableUsed Gauge "table_used" "rows" ["table"] TABLES "Used rows of a table";
        TableCapacity Gauge "table_capacity" "rows" ["table"] TABLES "Rows that a table has room for; tables grow as memory_mib allows";
        Routes Gauge "routes" "" ["ip_version"] VERSIONS "Routes in the tables";
        Neighbours Gauge "neighbours" "" [] ONE "Neighbours in the tables";
    }
    "Ports" {
        PortMode Gauge "port_mode" "" ["port" "mode"] PORTS "1: its current mode: native, generic or detached";
        PortTrusted Gauge "port_trusted" "" ["port"] PORTS "0: the kernel forwards packets that arrive here";
        PortRx Counter "port_rx" "packets" ["port"] PORTS "Packets that arrived, without those that flow rules send without routing";
        PortTx Counter "port_tx" "packets" ["port"] PORTS "Packets that were routed out by it";
        PortUnclassified Counter "port_unclassified" "packets" ["port" "reason"] PARTS "Packets that belong to no interface";
        PortLost Counter "port_lost" "packets" ["port" "reason"] PARTS "Packets forwarded to it that it did not take";
    }
    "Routers" {
        RouterAccelerated Gauge "router_accelerated" "" ["router" "ip_version"] ROUTERS_TWICE "1: all of its interfaces are fast";
        RouterForwarded Counter "router_forwarded" "packets" ["router"] ROUTERS "Packets that the fast path forwarded";
        RouterForwardedBytes Counter "router_forwarded" "bytes" ["router"] ROUTERS "Bytes of these packets";
        RouterPassed Counter "router_passed" "packets" ["router"] ROUTERS "Packets passed up to the kernel";
        RouterDropped Counter "router_dropped" "packets" ["router"] ROUTERS "Packets dropped by a limit or a flow rule";
        RouterTaken Counter "router_taken" "packets" ["router"] ROUTERS "Packets taken by user space";
        RouterCut Counter "router_cut" "packets" ["router"] ROUTERS "Dropped packets that exceeded its share of a full core";
        RouterReason Counter "router_reason" "packets" ["router" "reason" "class"] PARTS "Packets that were not forwarded, by reason";
        RouterInterfaces Gauge "router_interfaces" "" ["router"] ROUTERS "Its interfaces";
        RouterRoutes Gauge "router_routes" "" ["router" "ip_version"] ROUTERS_TWICE "Its routes in the tables";
        RouterNeighbours Gauge "router_neighbours" "" ["router"] ROUTERS "Its neighbours in the tables";
        RouterWeight Gauge "router_weight" "" ["router"] ROUTERS "Its weight in [shares]";
        RouterShare Gauge "router_share" "ratio" ["router"] ROUTERS "Part of full cores that it used recently; absent while no core is full";
        RouterPacketCost Gauge "router_packet_cost" "seconds" ["router"] ROUTERS "Average time to forward one of its packets since the start; sampled";
        Connections Gauge "connections" "" ["router"] ROUTERS "Connections that bypass the rules of its firewall; only for routers whose rules may affect some packets";
    }
    "Interfaces" {
        InterfaceAccelerated Gauge "interface_accelerated" "" ["router" "interface" "port" "ip_version"] INTERFACES_TWICE "1: packets that arrive here are fast";
        InterfaceRx Counter "interface_rx" "packets" ["router" "interface" "port"] INTERFACES "Packets that arrived here, whatever happened to them";
        InterfaceRxBytes Counter "interface_rx" "bytes" ["router" "interface" "port"] INTERFACES "Bytes of these packets";
        InterfaceTx Counter "interface_tx" "packets" ["router" "interface" "port"] INTERFACES "Packets that the fast path sent out here";
        InterfaceTxBytes Counter "interface_tx" "bytes" ["router" "interface" "port"] INTERFACES "Bytes of these packets";
    }
    "Cores" {
        CoreRole Gauge "core_role" "" ["core" "role"] CPUS "1: its current role: forward, serve, both or idle";
        CoreForwarding Gauge "core_forwarding" "ratio" ["core"] CPUS "Part of the last control period that it forwarded";
        CoreForwardingTime Counter "core_forwarding" "seconds" ["core"] CPUS "Time that it forwarded";
        CoreOther Gauge "core_other" "ratio" ["core"] CPUS "Part of the last 200 ms that other work took";
        CoreFlows Gauge "core_flows" "" ["core"] CPUS "Flows that rules placed on it";
        CoreHanded Counter "core_handed" "packets" ["core"] CPUS "Packets that other cores handed to it because of rules";
        CoreHandedDropped Counter "core_handed_dropped" "packets" ["core"] CPUS "Handed packets that it had no room for";
        QueueCore Gauge "queue_core" "" ["port" "queue"] QUEUES "The core that polls it; absent while that is not known";
        QueueRan Gauge "queue_ran" "ratio" ["port" "queue"] QUEUES "Part of the last control period that it ran";
        QueueRanTime Counter "queue_ran" "seconds" ["port" "queue"] QUEUES "Time that it ran";
        QueueWaited Gauge "queue_waited" "ratio" ["port" "queue"] QUEUES "Part of the last control period that it waited for its core";
        QueueWakeups Counter "queue_wakeups" "" ["port" "queue"] QUEUES "Times that it began to run";
        QueuePackets Counter "queue_received" "packets" ["port" "queue"] QUEUES "Packets that it received; 0 where they are not counted";
        QueuePolls Counter "queue_polls" "" ["port" "queue"] QUEUES "Times that it was polled; 0 where they are not counted";
        QueueSplit Gauge "queue_split_cores" "" ["port" "queue"] QUEUES "Cores that share its flows; 0: it is not split";
        QueueMoves Counter "queue_moves" "" ["drained"] VERSIONS "Moves of queues to other cores; drained=no: some earlier packets had not left";
    }
    "Captures and exports" {
        CaptureRunning Gauge "capture_running" "" [] ONE "1: a capture is running";
        ExportSamples Counter "export_samples" "" [] ONE "Sampled packets";
        ExportLost Counter "export_samples_lost" "" [] ONE "Samples that the daemon had no time to read";
        ExportEvery Gauge "export_sample_every" "packets" [] ONE "Packets for each sample, on average";
        ExportDatagrams Counter "export_datagrams" "" ["protocol" "collector"] TARGETS "Datagrams sent to a collector";
        ExportFailed Counter "export_datagrams_failed" "" ["protocol" "collector"] TARGETS "Datagrams that could not be sent to a collector";
    }
    "Flow rules and OpenFlow" {
        FlowRules Gauge "flow_rules" "" [] ONE "Flow rules, including those of the core table";
        FlowCoreRules Gauge "flow_core_rules" "" [] ONE "Rules of the core table";
        FlowInCharge Gauge "flow_rules_in_charge" "" [] ONE "1: packets go by flow rules";
        FlowCacheHits Counter "flow_cache_hits" "packets" [] ONE "Packets whose decision was cached";
        FlowCacheMisses Counter "flow_cache_misses" "packets" [] ONE "Packets whose decision was not cached";
        FlowSlow Counter "flow_slow" "packets" [] ONE "Packets that user space handled because the kernel plane cannot";
        FlowSlowLost Counter "flow_slow_lost" "packets" [] ONE "Packets that user space had no room for, or could not send";
        ControllersLost Counter "controllers_lost" "packets" ["reason"] TABLES "Packets for controllers that no controller got";
        ControllerConnections Gauge "controller_connections" "" ["target"] TARGETS "Connections of a controller or a listener";
        ControllerAttempts Counter "controller_attempts" "" ["target"] TARGETS "Times that a controller was dialled";
        ControllerRefused Counter "controller_refused" "" ["target"] TARGETS "Connections that a listener refused because it had too many";
        ControllerMessages Counter "controller_messages" "" ["target"] TARGETS "Messages from controllers";
        ControllerPacketIns Counter "controller_packet_ins" "" ["target"] TARGETS "Packet-ins to controllers";
        ControllerPacketInsDropped Counter "controller_packet_ins_dropped" "" ["target"] TARGETS "Packet-ins dropped because a controller did not read";
    }
    "Security associations" {
        SaSequence Gauge "sa_sequence" "" ["sa" "spi" "direction"] SAS "The last sequence number sent, or the highest received";
        SaLeft Gauge "sa_left" "packets" ["sa" "spi"] SAS "Packets that it can still send; only outbound";
    }
    "Paths" {
        PathActive Gauge "path_active" "" ["path"] PATHS "1: its port and router exist";
        PathGiven Counter "path_given" "packets" ["path"] PATHS "Packets given to its worker";
        PathGivenBytes Counter "path_given" "bytes" ["path"] PATHS "Bytes of these packets";
        PathLost Counter "path_lost" "packets" ["path" "reason"] PARTS "Packets given to its worker that were lost on their way, such as when its ring was full";
        PathPast Counter "path_past" "packets" ["path" "reason"] PARTS "Packets that no worker could take and that continued as if there were no path";
        PathRefused Counter "path_refused" "packets" ["path" "reason"] PARTS "Packets that no worker could take and that were dropped (otherwise = \"drop\")";
        PathStopped Gauge "path_stopped" "" ["path"] PATHS "1: its chain panicked repeatedly, and the path does not run until it gets another chain";
        PathPanics Counter "path_panics" "" ["path"] PATHS "Panics of its chain";
        PathHangs Counter "path_hangs" "" ["path"] PATHS "Runs of its chain that took more than 1.5 s, counted when they end";
        PathCore Gauge "path_core" "" ["path"] PATHS "The core whose worker runs it";
        PathShare Gauge "path_share" "ratio" ["path"] PATHS "Its recent part of what its worker's paths share (millrace_worker_shares)";
        PathPacketCycles Gauge "path_packet" "cycles" ["path"] PATHS "Cycles for one packet, sampled";
        PathRun Counter "path_run" "packets" ["path"] PATHS "Packets that its worker took from its rings";
        PathRunCycles Counter "path_run" "cycles" ["path"] PATHS "Cycles that its turns took";
        PathOut Counter "path_out" "packets" ["path" "port"] PARTS "Packets that left by a port";
        PathUp Counter "path_up" "packets" ["path" "reason"] PARTS "Packets that its chain passed up to the kernel";
        PathDropped Counter "path_dropped" "packets" ["path" "reason"] PARTS "Packets that its chain dropped, or that were lost with its worker or its rings";
        PathCounted Counter "path_counted" "" ["path" "at" "element" "what"] PARTS "What the element at this place of its chain counts besides packets: copies of a mirror, bytes of a count";
    }
    "Workers" {
        WorkerSilent Gauge "worker_silent" "" ["core"] CPUS "1: it does not answer, and its paths and ports keep their last values";
        WorkerBusy Gauge "worker_busy" "ratio" ["core"] CPUS "Part of the time since its start that it had packets";
        WorkerOther Gauge "worker_other" "ratio" ["core"] CPUS "Part of its core's recent time that other work took: queues of the kernel plane, applications";
        WorkerShares Gauge "worker_shares" "" ["core" "resource"] CPUS "1: the resource that its paths share by their weights now";
        WorkerUsed Gauge "worker_used" "ratio" ["core" "resource"] PARTS "Its recent use, as a part of what there is: of cycles in its core, of other resources in the machine";
        WorkerSlept Gauge "worker_slept" "ratio" ["core"] CPUS "Part of the time since its start that it slept; in the rest it looked for packets";
        WorkersSent Counter "workers_sent" "packets" ["port"] PORTS "Packets that workers put into the TX rings of a port";
        WorkersLost Counter "workers_lost" "packets" ["port" "reason"] PARTS "Packets that workers lost on their way out";
        WorkersUp Counter "workers_up" "packets" [] ONE "Packets of paths that reached the kernel";
        WorkersUpLost Counter "workers_up_lost" "packets" ["reason"] TABLES "Packets that paths passed up and that did not reach the kernel";
        WorkersFillEmpty Counter "workers_fill_empty" "" ["port" "queue"] QUEUES "Times that the kernel found a queue's fill ring empty, and lost packets";
        WorkersFrames Gauge "workers_frames" "" ["state"] TABLES "Frames of the memory for packets: all, free, and retired ones, which are not used again";
    }
}
