//! Instructions that each kind of packet takes (`common::instructions`).

use super::{
    common::{frame::Frame, in_new_namespace, instructions::count},
    connections::{ACK, Bed, TCP, UDP, back, connection, frame_of, tuple},
    world::*,
};
use logic::share::Grant;
use router::plane::Settings;

fn show(case: &str, instructions: u32) {
    println!("instructions: {case}: {instructions}");
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_routing() {
    in_new_namespace(|| {
        let w = World::with(Settings { sample_interval: 128, ..settings() });
        let counted = |case: &str, port: usize, frame: &Frame| {
            show(case, count(w.plane.program(), w.port[port], 0, &frame.bytes()));
        };
        counted("IPv4", 0, &Frame::udp4(A, "10.0.1.5", "192.0.2.1"));
        counted("IPv4, connected", 0, &Frame::udp4(A, "10.0.1.5", "10.0.2.9"));
        counted("IPv4, to a VLAN", 0, &Frame::udp4(A, "10.0.1.5", "10.0.3.9"));
        counted("IPv4, from two VLAN tags", 0, &Frame::udp4(A, "10.0.4.5", "192.0.2.1").tagged(&[AD200, Q7]));
        counted("IPv6", 0, &Frame::udp6(A, "2001:db8:1::5", "2001:db8:9::1"));
        counted("IPv6, connected", 0, &Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9"));
        counted("IPv4, to the router", 0, &Frame::udp4(A, "10.0.1.5", "10.0.2.1"));
        counted("another MAC", 0, &Frame::udp4(OTHER, "10.0.1.5", "10.0.2.9"));
    });
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_connections() {
    in_new_namespace(|| {
        let mut bed = Bed::with(Settings { sample_interval: 128, ..settings() });
        let ways = |version: u8, n: u32| {
            let port = n + 1000;
            if version == 4 {
                let arrives = tuple(&format!("10.0.1.9:{port}"), "10.0.2.9:2000");
                (arrives, tuple(&format!("10.0.2.1:{port}"), "10.0.2.9:2000"))
            } else {
                let arrives = tuple(&format!("[2001:db8:1::9]:{port}"), "[2001:db8:2::9]:2000");
                (arrives, tuple(&format!("[2001:db8:2::1]:{port}"), "[2001:db8:2::9]:2000"))
            }
        };
        for version in [4, 6] {
            let frame = |n| frame_of(A, UDP, &ways(version, n).0, 0, &[7; 18]);
            let (plain, translated) = (ways(version, 1), ways(version, 2));
            bed.insert(&connection(UDP, plain.0, plain.0, 2));
            bed.insert(&connection(UDP, translated.0, translated.1, 2));
            bed.insert(&connection(TCP, translated.0, translated.1, 2));
            let counted = |case: &str, port: usize, frame: &Frame| {
                let instructions = count(bed.w.plane.program(), bed.w.port[port], 0, &frame.bytes());
                show(&format!("IPv{version}, {case}"), instructions);
            };
            counted("connection", 0, &frame(1));
            counted("masquerade", 0, &frame(2));
            counted("masquerade, back", 1, &frame_of(B, UDP, &back(translated.1), 0, &[7; 18]));
            counted("masquerade, TCP", 0, &frame_of(A, TCP, &translated.0, ACK, &[7; 18]));
            counted("no connection", 0, &frame(3));
            counted("no connection, TCP SYN", 0, &frame_of(A, TCP, &ways(version, 3).0, 2, &[]));
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_shares() {
    in_new_namespace(|| {
        let mut w = World::new();
        let cpu = rustix::thread::sched_getcpu() as u16;
        let mut one = rustix::thread::CpuSet::new();
        one.set(usize::from(cpu));
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        w.plane.set_shared(true);
        let counted = |case: &str, w: &World| {
            let frame = Frame::udp4(A, "10.0.1.5", "192.0.2.1").bytes();
            show(case, count(w.plane.program(), w.port[0], 0, &frame));
        };
        counted("IPv4, with shares", &w);
        w.plane.shares().set(cpu, 0, Grant { admit: 1, own_admit: 0 });
        w.plane.shares().in_force(std::time::Duration::from_secs(60)).unwrap();
        counted("IPv4, over its share", &w);
    });
}
