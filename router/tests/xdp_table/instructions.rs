//! Instructions that each kind of packet takes (`common::instructions`).

use super::{
    common::{frame::Frame, in_new_namespace, instructions::show_instructions, only_on},
    connections::{ACK, Bed, SYN, TCP, UDP, back, connection, frame_of, tuple},
    world::*,
};
use logic::share::Grant;
use router::plane::Settings;
use std::time::Duration;

fn show(case: &str, w: &World, port: usize, frame: &Frame) {
    show_instructions(case, w.plane.program(), w.port[port], |_| frame.bytes());
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_routing() {
    in_new_namespace(|| {
        let w = World::with(Settings { sample_interval: 128, ..settings() });
        let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);
        let udp6 = |to: &str| Frame::udp6(A, "2001:db8:1::5", to);
        show("IPv4", &w, 0, &udp("192.0.2.1"));
        show("IPv4 to a neighbour", &w, 0, &udp("10.0.2.9"));
        show("IPv4 to a VLAN", &w, 0, &udp("10.0.3.9"));
        show("IPv4 from two VLAN tags", &w, 0, &udp("192.0.2.1").tagged(&[AD200, Q7]));
        show("IPv6", &w, 0, &udp6("2001:db8:9::1"));
        show("IPv6 to a neighbour", &w, 0, &udp6("2001:db8:2::9"));
        show("IPv4 to the router", &w, 0, &udp("10.0.2.1"));
        show("to another MAC", &w, 0, &Frame::udp4(OTHER, "10.0.1.5", "10.0.2.9"));
    });
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_connections() {
    in_new_namespace(|| {
        let mut bed = Bed::with(Settings { sample_interval: 128, ..settings() });
        for (family, [host, router, server]) in [
            ("IPv4", ["10.0.1.9", "10.0.2.1", "10.0.2.9"]),
            ("IPv6", ["[2001:db8:1::9]", "[2001:db8:2::1]", "[2001:db8:2::9]"]),
        ] {
            let to_server =
                |source: &str, port: u16| tuple(&format!("{source}:{port}"), &format!("{server}:2000"));
            let (plain, arrives, leaves) =
                (to_server(host, 1001), to_server(host, 1002), to_server(router, 1002));
            bed.insert(&connection(UDP, plain, plain, 2));
            bed.insert(&connection(UDP, arrives, leaves, 2));
            bed.insert(&connection(TCP, arrives, leaves, 2));
            let data = [7; 18];
            let other = to_server(host, 1003);
            for (case, port, frame) in [
                ("connection", 0, frame_of(A, UDP, &plain, 0, &data)),
                ("masquerade", 0, frame_of(A, UDP, &arrives, 0, &data)),
                ("masquerade, back", 1, frame_of(B, UDP, &back(leaves), 0, &data)),
                ("masquerade, TCP", 0, frame_of(A, TCP, &arrives, ACK, &data)),
                ("no connection", 0, frame_of(A, UDP, &other, 0, &data)),
                ("no connection, TCP SYN", 0, frame_of(A, TCP, &other, SYN, &[])),
            ] {
                show(&format!("{family}, {case}"), &bed.w, port, &frame);
            }
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn measure_instructions_of_shares() {
    in_new_namespace(|| {
        let mut w = World::new();
        let cpu = rustix::thread::sched_getcpu();
        only_on([cpu]);
        let frame = Frame::udp4(A, "10.0.1.5", "192.0.2.1");
        w.plane.set_shared(true);
        show("IPv4, with shares", &w, 0, &frame);
        w.plane.shares().set(cpu as u16, 0, Grant { admit: 1, own_admit: 0 });
        w.plane.shares().in_force(Duration::from_secs(60)).unwrap();
        show("IPv4, over its share", &w, 0, &frame);
    });
}
