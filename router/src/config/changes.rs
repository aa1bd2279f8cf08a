//! The keys that differ between two configurations.

use super::{
    ApiSettings, Config, CoresSettings, Established, Experimental, ExportSettings, FirewallSettings, Flows,
    Limits, MetricsSettings, OpenFlowSettings, Policing, SharesSettings, WebSettings, WorkersSettings,
};

/// Keys with other values, named as in the file (`cores.high`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys that a running daemon can change.
    pub now: Vec<&'static str>,
    /// Keys that need a restart of the daemon.
    pub restart: Vec<&'static str>,
}

impl Changes {
    /// Has one of these keys changed, or a key of these tables (`cores.`)?
    pub fn touch(&self, names: &[&str]) -> bool {
        let is = |key: &str, name: &&str| key == *name || name.ends_with('.') && key.starts_with(*name);
        self.now.iter().any(|key| names.iter().any(|name| is(key, name)))
    }

    fn add(&mut self, key: &'static str, can_change: bool, is_same: bool) {
        match (is_same, can_change) {
            (true, _) => {}
            (false, true) => self.now.push(key),
            (false, false) => self.restart.push(key),
        }
    }
}

/// Compares all fields of two structures, which hold a table of the file. Each is listed with whether a running daemon can
/// change it. A new field does not compile until it is listed.
macro_rules! compare {
    ($changes:ident, $type:ident, $table:literal, $old:expr, $new:expr, $($field:ident: $can_change:expr),+ $(,)?) => {{
        let $type { $($field),+ } = $old;
        $($changes.add(concat!($table, ".", stringify!($field)), $can_change, *$field == $new.$field);)+
    }};
}

impl Config {
    /// The keys that are different in `new`. `has_workers`: threads that run paths were started.
    pub fn changes(&self, new: &Config, has_workers: bool) -> Changes {
        let mut changes = Changes::default();
        let Config {
            ports,
            routers,
            heartbeat,
            generic,
            ecmp,
            api,
            policing,
            firewall,
            limits,
            flows,
            cores,
            shares,
            openflow,
            metrics,
            web,
            export,
            workers,
            experimental,
            sas,
            paths,
            crypto: _,
            sas_later: _,
            sa_settings: _,
            path_settings: _,
        } = self;
        // These mechanisms keep settings of devices and queues that their successors would not know.
        let steady = !(experimental.rss || experimental.split || experimental.steering);
        changes.add("ports", steady, *ports == new.ports);
        changes.add("routers", true, *routers == new.routers);
        // With 0, the end of the process ends forwarding, and this is set up at the start.
        let lasts = !heartbeat.0.is_zero() && !new.heartbeat.0.is_zero();
        changes.add("heartbeat", lasts, *heartbeat == new.heartbeat);
        changes.add("generic", false, *generic == new.generic);
        changes.add("ecmp", false, *ecmp == new.ecmp);
        // A running daemon may not give a socket to a group.
        compare!(changes, ApiSettings, "api", api, new.api, readers: false);
        // Workers have their own limits, which they get when they start.
        compare!(changes, Policing, "policing", policing, new.policing,
            exception_pps: !has_workers,
            control_pps: !has_workers,
        );
        // The tables of connections are made at the start, if there may be any.
        let has_table = ![firewall.established, new.firewall.established].contains(&Established::Linux);
        compare!(changes, FirewallSettings, "firewall", firewall, new.firewall,
            established: has_table,
            connections: false,
        );
        compare!(changes, Limits, "limits", limits, new.limits,
            memory_mib: true,
            routes_per_namespace: true,
            devices_per_namespace: true,
            namespaces_per_owner: true,
        );
        compare!(changes, Flows, "flows", flows, new.flows,
            rules: false,
            miss: true,
            // The daemon reads it at its start only, and `flows save` writes it.
            file: true,
        );
        compare!(changes, CoresSettings, "cores", cores, new.cores,
            policy: steady,
            allowed: steady,
            high: steady,
            low: steady,
            hold: steady,
            floor: steady,
            serve: steady,
            resume_latency: steady,
            fixed: steady,
            workloads: steady,
        );
        compare!(changes, SharesSettings, "shares", shares, new.shares,
            enforce: false,
            weights: true,
        );
        compare!(changes, OpenFlowSettings, "openflow", openflow, new.openflow,
            controllers: true,
            version: false,
            fail: true,
            datapath_id: false,
            packet_in_pps: true,
            echo_interval: true,
            tls: true,
            proxy_ports: false,
        );
        compare!(changes, MetricsSettings, "metrics", metrics, new.metrics,
            listen: true,
        );
        compare!(changes, WebSettings, "web", web, new.web,
            listen: true,
            explain: true,
        );
        compare!(changes, ExportSettings, "export", export, new.export,
            every: true,
            sflow: true,
            ipfix: true,
            agent: true,
            counters: true,
        );
        compare!(changes, WorkersSettings, "workers", workers, new.workers,
            cores: !has_workers,
            zero_copy: !has_workers,
            frame_bytes: !has_workers,
            calibration: !has_workers,
            nice: !has_workers,
        );
        compare!(changes, Experimental, "experimental", experimental, new.experimental,
            steering: false,
            rss: false,
            split: false,
            local: false,
            moderation: false,
            polling: false,
            share: false,
            io_mbps: false,
            sample_every: false,
            longest_run: false,
        );
        changes.add("crypto", false, sas.crypto == new.sas.crypto);
        changes.add("sa", true, sas.is_same(&new.sas));
        changes.add("path", true, *paths == new.paths);
        changes
    }
}
