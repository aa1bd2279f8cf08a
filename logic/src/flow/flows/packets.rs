//! Packets that user space handles: by the tables, or as the controller asks.

use super::Flows;
use crate::flow::{
    Action,
    execute::Packet,
    kernel::FlowMemory,
    packet::{Fragment, Headers, VXLAN_PORT},
    pipeline::{Done, Pipeline},
};
use std::sync::atomic::Ordering::AcqRel;

impl<M: FlowMemory> Flows<M> {
    /// Handles a packet that the kernel plane left to user space, and counts it.
    pub fn run(&mut self, packet: Packet, now_ns: u64) -> Done {
        if self.drops(&packet.frame) {
            return Done::default();
        }
        let bytes = packet.frame.len();
        self.through_pipeline(bytes, now_ns, |pipeline| pipeline.run(packet))
    }

    /// What would happen to a packet if user space did all the work. Nothing is counted, and every meter lets it pass.
    pub fn trace(&self, packet: Packet) -> Done {
        if self.drops(&packet.frame) {
            return Done::default();
        }
        let (tables, miss, ports) = (&self.tables, &self.miss, &self.ports);
        Pipeline { tables, miss, ports, vxlan_port: VXLAN_PORT, meter: &mut |_, _| true }.run(packet)
    }

    /// Is the frame a fragment, and are fragments dropped?
    pub fn drops(&self, frame: &[u8]) -> bool {
        let fragment = |headers: Headers| headers.fragment != Fragment::Whole;
        self.writer.drops_fragments() && Headers::of(frame, 0, None).is_some_and(fragment)
    }

    /// Does the controller's actions with a packet and counts it. The caller has checked the actions
    /// ([`crate::flow::Tables::check_actions`]).
    pub fn packet_out(&mut self, packet: Packet, actions: &[Action], now_ns: u64) -> Done {
        let bytes = packet.frame.len();
        self.through_pipeline(bytes, now_ns, |pipeline| pipeline.packet_out(packet, actions))
    }

    /// Does a packet that user space forwards pass a meter? The kernel plane charges the same words. `now_ns`:
    /// CLOCK_MONOTONIC.
    pub fn meter_passes(&self, id: u32, bytes: u64, now_ns: u64) -> bool {
        self.writer.meter_passes(id, bytes, now_ns)
    }

    fn through_pipeline(
        &mut self,
        bytes: usize,
        now_ns: u64,
        run: impl FnOnce(&mut Pipeline<'_>) -> Done,
    ) -> Done {
        let (tables, writer) = (&self.tables, &self.writer);
        let mut meter = |id: u32, bytes: usize| writer.meter_passes(id, bytes as u64, now_ns);
        let (miss, ports) = (&self.miss, &self.ports);
        let done = run(&mut Pipeline { tables, miss, ports, vxlan_port: VXLAN_PORT, meter: &mut meter });
        done.rows.iter().for_each(|&row| self.count_here(row, bytes));
        let mut before = None;
        for &(id, bucket) in &done.buckets {
            // A packet takes the buckets of a group in ascending order.
            let first =
                before.replace((id, bucket)).is_none_or(|(other, last)| other != id || bucket <= last);
            self.tables.count_bucket(id, bucket, bytes, first);
        }
        done
    }

    /// Counts in the last set of counters, which belongs to user space.
    fn count_here(&self, row: u32, bytes: usize) {
        let memory = self.writer.memory();
        if let Some(at) = memory.counters_of(row).next_back() {
            memory.counters()[at].fetch_add(1, AcqRel);
            memory.counters()[at + 1].fetch_add(bytes as u64, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{change, flows, packets},
        *,
    };
    use crate::flow::{
        FlowCommand, FlowFilter, Group, GroupKind, GroupMod, Meter, MeterMod, RulePort,
        kernel::{self, row},
        rule::{Band, BandKind, Bucket, MeterUnit},
        table::Count,
        text::{parse_actions, parse_instructions},
    };

    #[test]
    fn counts_of_user_space_and_the_kernel_plane_add_up() {
        let mut f = flows();
        f.set_miss(&parse_instructions("flood").unwrap());
        f.set_no_flood(&[RulePort(3)].into());
        let bucket = |actions| Bucket { actions: parse_actions(actions).unwrap(), ..Bucket::default() };
        let group =
            Group { id: 5, kind: GroupKind::All, buckets: vec![bucket("output:2"), bucket("output:3")] };
        f.apply_group(&GroupMod::Add(group), 0).unwrap();
        let bands = vec![Band { rate: 1, burst: 2, kind: BandKind::Drop }];
        let meter = Meter { id: 6, unit: MeterUnit::Pps, burst: true, stats: true, bands };
        f.apply_meter(&MeterMod::Add(meter), 0).unwrap();
        change(&mut f, FlowCommand::Add, "in_port=1,actions=meter:6,group:5", 0).unwrap();
        let rule = row(f.tables().ids().next().unwrap());
        packets(&f, rule, 10);
        let went = |f: &mut Flows<_>, port, now_ns| {
            let done = f.run(Packet::new([0; 100], RulePort(port)), now_ns);
            done.outputs.iter().map(|output| output.port.0).collect::<Vec<_>>()
        };
        assert_eq!(went(&mut f, 1, 1_000_000_000), [2, 3]);
        assert_eq!(went(&mut f, 1, 1_000_000_000), [2, 3]);
        assert_eq!(went(&mut f, 1, 1_000_000_000), [0; 0], "over the rate");
        assert_eq!(went(&mut f, 2, 1_000_000_000), [1, 4]);
        assert_eq!(f.counted(rule), Count { packets: 13, bytes: 900 });
        assert_eq!(f.counted(kernel::miss(0)), Count { packets: 1, bytes: 100 });
        let groups: Vec<_> =
            f.group_stats(None, 0).into_iter().map(|g| (g.packets, g.bytes, g.buckets)).collect();
        assert_eq!(groups, [(2, 200, vec![(2, 200); 2])]);
        let meters: Vec<_> =
            f.meter_stats(None, 0).into_iter().map(|m| (m.packets, m.bytes, m.bands)).collect();
        assert_eq!(meters, [(3, 300, vec![(1, 100)])]);
        let stats = f.stats(&FlowFilter::EVERYTHING, 1);
        assert_eq!(stats.iter().map(|s| s.packets).collect::<Vec<_>>(), [13]);
    }
}
