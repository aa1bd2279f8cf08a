//! Compares rows with the classes that they are made from. The key of a packet is made here from the reference's
//! headers. `router/tests/xdp_paths` runs the program itself.

use super::*;
use crate::{
    flow::{
        field::ip_proto,
        packet::{Fragment, Headers, Network},
    },
    net::Mac,
    paths::class::{Classifier, tests as made},
    tables::Ingress,
};
use proptest::prelude::*;

/// Like `bpf/path.h`.
fn key(frame: &[u8], ingress: Ingress) -> [u8; KEY] {
    let mut key = [0; KEY];
    let headers = Headers::of(frame, 0, None).unwrap();
    key[PORT] = ingress.port;
    key[ROUTER].copy_from_slice(&(u16::from(ingress.router) + 1).to_le_bytes());
    key[ETHER_TYPE].copy_from_slice(&headers.ether_type.to_le_bytes());
    key[MAC].copy_from_slice(&frame[..6]);
    match headers.network {
        Network::Ipv4(at) => {
            key[SOURCE..SOURCE + 4].copy_from_slice(&frame[at + 12..at + 16]);
            key[DESTINATION..DESTINATION + 4].copy_from_slice(&frame[at + 16..at + 20]);
            key[FLAGS] |= flags::IPV4 | flags::IP;
        }
        Network::Ipv6(at) => {
            key[SOURCE..SOURCE + 32].copy_from_slice(&frame[at + 8..at + 40]);
            key[FLAGS] |= flags::IPV6 | flags::IP;
        }
        _ => return key,
    }
    key[PROTOCOL] = headers.proto;
    let has_ports = [ip_proto::TCP, ip_proto::UDP, ip_proto::SCTP].contains(&headers.proto);
    if let Some(at) = headers.transport.filter(|_| has_ports && headers.fragment == Fragment::Whole) {
        key[FLAGS] |= flags::PORTS;
        key[8..12].copy_from_slice(&frame[at..at + 4]);
        if headers.proto == ip_proto::TCP && frame[at + 13] & 0x12 == 2 {
            key[FLAGS] |= flags::SYN;
        }
    }
    key
}

impl Row {
    fn has(&self, key: &[u8; KEY], frame: &[u8]) -> bool {
        let fits = |place: usize| key[place] & self.mask[place] == self.value[place];
        let two = |bytes: TwoBytes| {
            let at = usize::from(bytes.offset);
            let two = frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
            two.is_some_and(|two| two & bytes.mask == bytes.value)
        };
        (0..KEY).all(fits) && self.bytes.is_none_or(two)
    }
}

impl Rows {
    /// Like `find_path`.
    fn path_of(&self, key: &[u8; KEY], frame: &[u8]) -> Option<PathId> {
        let mut left = u64::MAX;
        for table in &self.tables {
            match key.get(table.place).or_else(|| frame.get(table.place - KEY)) {
                Some(byte) => left &= table.may[usize::from(*byte)],
                None => continue,
            }
        }
        let may = |i: usize| left >> i & 1 != 0;
        let mut rows = self.rows.iter().enumerate().filter(|(i, _)| may(*i));
        rows.find(|(_, row)| row.has(key, frame)).map(|(_, row)| row.path)
    }
}

fn paths(classes: &[Class]) -> Vec<PathClass> {
    let path =
        |(path, class): (PathId, &Class)| PathClass { path, class: class.clone(), ..Default::default() };
    (0..).zip(classes).map(path).collect()
}

proptest! {
    #[test]
    fn rows_have_the_packets_of_their_classes(
        (made, like) in made::made().prop_flat_map(made::like),
        others in prop::collection::vec(made::class(), 0..12),
        at in any::<prop::sample::Index>(),
        most in 0..=TABLES,
    ) {
        let mut classes = others;
        classes.insert(at.index(classes.len() + 1), like);
        classes.retain(|class| class.check().is_ok());
        let rows = Rows::with_tables(&paths(&classes), most).unwrap();
        let frame = made.frame();
        let key = key(&frame, made.ingress);
        prop_assert_eq!(rows.path_of(&key, &frame), Classifier::new(classes).path_of(&frame, made.ingress));
    }
}

fn with(class: impl Fn(&mut Class, u16)) -> Vec<PathClass> {
    let classes: Vec<_> = (0..MOST_PATHS as u16)
        .map(|i| {
            let mut made = Class::default();
            class(&mut made, i);
            made
        })
        .collect();
    paths(&classes)
}

/// The bytes that distinguish 64 classes, and the most rows that are left.
fn tables_of(classes: &[PathClass]) -> (Vec<usize>, u32) {
    let rows = Rows::new(classes).unwrap();
    let most = |row: &Row| {
        rows.tables.iter().fold(u64::MAX, |left, table| left & table.may[usize::from(row.at(table.place).1)])
    };
    let most = rows.rows.iter().map(|row| (most(row) & u64::MAX >> (64 - classes.len())).count_ones()).max();
    (rows.tables.iter().map(|table| table.place).collect(), most.unwrap())
}

#[test]
fn one_table_separates_classes_that_differ_in_a_byte() {
    let by_port = with(|class, i| class.destination_port = Some(4000 + i));
    assert_eq!(tables_of(&by_port), (vec![DESTINATION_PORT.end - 1], 1));
    let by_prefix = with(|class, i| class.destination = Some(format!("10.{i}.0.0/16").parse().unwrap()));
    assert_eq!(tables_of(&by_prefix), (vec![DESTINATION + 1], 1));
    let by_mac = with(|class, i| class.destination_mac = Some(Mac([2, 0, 0, 0, i as u8 / 8, i as u8 % 8])));
    assert_eq!(tables_of(&by_mac), (vec![MAC.end - 2, MAC.end - 1], 1));
    let by_bytes = with(|class, i| class.bytes = Some(TwoBytes { offset: 50, mask: 0xff, value: i }));
    assert_eq!(tables_of(&by_bytes), (vec![KEY + 51], 1));
    let by_router = with(|class, i| class.router = Some(i as u8));
    assert_eq!(tables_of(&by_router), (vec![ROUTER.start], 1));
    // If classes have few conditions, a table keeps all that its byte does not exclude.
    let mut last_is_all = by_port.clone();
    last_is_all[63].class.destination_port = None;
    assert_eq!(tables_of(&last_is_all), (vec![DESTINATION_PORT.end - 1], 2));
    assert_eq!(tables_of(&by_port[..3]), (vec![], 3), "a few are compared one by one");
}

#[test]
fn words_are_where_the_header_has_them() {
    let class = Class {
        port: Some(3),
        router: Some(7),
        destination_mac: Some(Mac([2, 0, 0, 0, 0, 9])),
        destination: Some("10.1.0.0/16".parse().unwrap()),
        protocol: Some(17),
        destination_port: Some(4500),
        bytes: Some(TwoBytes { offset: 14, mask: 0xff00, value: 0x4500 }),
        ..Class::default()
    };
    let path = PathClass { path: 5, class, otherwise: Otherwise::Drop };
    let words = Rows::new(&[path]).unwrap().words(|port| (port == 1).then_some(255));
    assert_eq!(words.len(), words::CLASSES);
    assert_eq!(words[..4], [1, 1, 1 | 0xffff_ffff << 32, 256 << 16]);
    let row = &words[words::HEAD..words::HEAD + words::ROW];
    let flags = u64::from(flags::IP | flags::IPV4 | flags::PORTS) << 56;
    assert_eq!(
        row[..7],
        [0xff | 0xffff << 16 | 0xff << 48 | flags, 0xffff << 16, 0xffff_ffff_ffff, 0, 0, 0xffff, 0]
    );
    let port = u64::from(u16::from_le_bytes(4500_u16.to_be_bytes()));
    assert_eq!(row[7..14], [3 | 8 << 16 | 17 << 48 | flags, port << 16, 0x0900_0000_0002, 0, 0, 0x010a, 0]);
    assert_eq!(row[14..], [0xff | 0x45 << 16 | 14 << 32 | 5 << 40 | 1 << 48, 0]);
    assert!(words[words::HEAD + words::ROW..].iter().all(|word| *word == 0));
}

#[test]
fn classes_without_room_in_the_program_are_refused() {
    let many = vec![PathClass::default(); 65];
    assert_eq!(Rows::new(&many).err(), Some(Refused::TooMany(65)));
    let high = PathClass { path: 64, ..Default::default() };
    assert_eq!(Rows::new(&[high]).err(), Some(Refused::TooHigh(64)));
    let class = Class { bytes: Some(TwoBytes { offset: 63, mask: 0, value: 0 }), ..Default::default() };
    let deep = PathClass { path: 1, class, ..Default::default() };
    assert_eq!(Rows::new(&[deep]).err(), Some(Refused::Impossible(1, Impossible::TooDeep(63))));
}
