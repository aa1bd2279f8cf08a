//! What paths cost a packet, by BPF_PROG_TEST_RUN of the very programs: `cargo test --release --test
//! xdp_paths -- --ignored --nocapture measure::`. The raw figures go to the file that MILLRACE_MEASURE names,
//! as a line of JSON each.

use super::*;
use crate::common::driver::Driver;
use logic::paths::rows::{Rows, TABLES};
use std::{io::Write, os::fd::AsFd};

const ROUNDS: usize = 5;

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// This many classes, each made by `class` from its number.
fn classes(count: u16, class: fn(u16) -> Class) -> Vec<PathClass> {
    (0..count).map(|i| path(i, Otherwise::Drop, class(i))).collect()
}

fn by_port(i: u16) -> Class {
    Class { protocol: Some(17), destination_port: Some(4000 + i), ..Class::default() }
}

fn by_prefix(i: u16) -> Class {
    Class { destination: Some(format!("10.{}.0.0/16", 100 + i).parse().unwrap()), ..Class::default() }
}

fn by_router_and_port(i: u16) -> Class {
    Class { router: Some((i % 8) as u8), ..by_port(i / 8) }
}

fn to_port(i: u16) -> Vec<u8> {
    Frame::udp4(A, "10.0.1.5", "10.0.2.9")
        .ip4(|ip| ip[22..24].copy_from_slice(&(4000 + i).to_be_bytes()))
        .bytes()
}

fn to_prefix(i: u16) -> Vec<u8> {
    Frame::udp4(A, "10.0.1.5", &format!("10.{}.0.1", 100 + i)).bytes()
}

fn for_router_0(i: u16) -> Vec<u8> {
    to_port(i / 8)
}

#[test]
#[ignore = "a measurement, needs root"]
fn what_paths_cost() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(router::plane::Settings { sample_interval: 128, ..settings() });
        w.plane.set_with_paths(false);
        w.plane.set_shared(true);
        let port = w.port[0];
        let mut file = std::env::var("MILLRACE_MEASURE")
            .ok()
            .map(|name| std::fs::File::options().create(true).append(true).open(name).unwrap());
        let shared = w.plane.program().try_clone_to_owned().unwrap();
        w.plane.set_with_paths(true);
        let paths = w.plane.program().try_clone_to_owned().unwrap();
        // A packet for no interface: the work after the paths is short, and the packet stays as it is.
        let strange = Frame::udp4(OTHER, "10.0.1.5", "10.0.2.9").bytes();
        type Made = (&'static str, fn(u16) -> Class, fn(u16) -> Vec<u8>);
        let made: [Made; 3] = [
            ("destination port", by_port, to_port),
            ("prefix /16", by_prefix, to_prefix),
            ("router and destination port", by_router_and_port, for_router_0),
        ];
        let mut drivers: std::collections::BTreeMap<&str, (Driver, Vec<u8>)> = Default::default();
        for (name, class, to) in made {
            for count in [0, 1, 2, 4, 8, 16, 64_u16] {
                let classes = classes(count, class);
                let rows = |tables| Rows::with_tables(&classes, tables).unwrap();
                let last = if name.starts_with("router") {
                    count.saturating_sub(1) / 8 * 8
                } else {
                    count.saturating_sub(1)
                };
                drivers.clear();
                drivers.insert("none", (Driver::new(std::slice::from_ref(&strange)), strange.clone()));
                if count > 0 {
                    for (which, i) in [("first", 0), ("last", last)] {
                        drivers.insert(which, (Driver::new(&[to(i)]), to(i)));
                    }
                }
                for (which, (driver, frame)) in &mut drivers {
                    let alone = median((0..3).map(|_| driver.alone(port, frame)).collect());
                    let mut ns = [Vec::new(), Vec::new(), Vec::new()];
                    for _ in 0..ROUNDS {
                        for (variant, ns) in ns.iter_mut().enumerate() {
                            let tables = [0, 0, TABLES][variant];
                            maps.set_rows(&rows(tables), &own()).unwrap();
                            let program = if variant == 0 { &shared } else { &paths };
                            ns.push(driver.run(program.as_fd(), port, 0, frame) - alone);
                        }
                    }
                    let [without, rows_alone, with_tables] = ns.clone().map(median);
                    println!(
                        "{name}, {count} classes, {which}: without paths {without:.1}, rows {rows_alone:.1}, tables {with_tables:.1} ns"
                    );
                    let line = serde_json::json!({"classes": name, "count": count, "hit": which, "ns": {
                        "without_paths": ns[0], "rows": ns[1], "tables": ns[2]}});
                    file.iter_mut().for_each(|file| writeln!(file, "{line}").unwrap());
                }
            }
        }
    });
}
