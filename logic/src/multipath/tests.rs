use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Weights of the members that the vectors name by their number.
const WEIGHTS: [u32; 12] = [1, 2, 3, 5, 8, 13, 21, 34, 7, 1, 1, 9];

/// Answers of Linux 6.18 to `ip route get DESTINATION from SOURCE iif DEV ipproto PROTOCOL sport PORT dport PORT` with
/// `fib_multipath_hash_seed` 2026: policy 1, source, destination, protocol, ports, member.
const LINUX4: &[(bool, &str, &str, u8, u16, u16, usize)] = &[
    (false, "77.97.181.94", "198.18.123.234", 6, 38840, 35667, 7),
    (false, "9.146.8.155", "198.18.94.3", 17, 41008, 38067, 7),
    (false, "77.36.22.49", "198.18.226.254", 17, 16998, 36097, 5),
    (false, "222.72.242.121", "198.18.170.101", 17, 35454, 54819, 5),
    (false, "77.55.56.222", "198.18.3.237", 6, 15200, 41607, 7),
    (false, "9.111.206.40", "198.18.27.194", 17, 48579, 993, 11),
    (false, "9.132.213.210", "198.18.147.221", 6, 19744, 51124, 6),
    (false, "150.48.209.182", "198.18.193.201", 17, 30983, 38978, 5),
    (false, "222.175.210.113", "198.18.206.246", 17, 25885, 47719, 5),
    (true, "222.131.255.46", "198.18.29.221", 17, 52873, 54802, 8),
    (true, "9.233.102.206", "198.18.140.158", 17, 22290, 52903, 6),
    (true, "150.196.188.74", "198.18.181.132", 17, 38633, 8500, 7),
    (true, "150.146.87.74", "198.18.118.107", 17, 30456, 22699, 6),
    (true, "150.121.239.39", "198.18.23.51", 17, 2330, 60334, 5),
    (true, "222.95.166.252", "198.18.152.130", 6, 31284, 61819, 6),
    (true, "77.0.70.8", "198.18.218.190", 17, 36627, 62270, 6),
    (true, "222.40.159.246", "198.18.254.73", 17, 54834, 49374, 8),
    (true, "9.166.164.219", "198.18.179.150", 17, 58308, 14908, 4),
];

const LINUX6: &[(bool, &str, &str, u8, u16, u16, usize)] = &[
    (
        false,
        "fd35:4fb6:bcb6:d794:cfa7:7949:c36:aa2",
        "fd55:c341:e4d4:f349:f2fc:3a04:d392:5f44",
        6,
        45785,
        56403,
        10,
    ),
    (
        false,
        "fdf7:391f:a916:d5a3:1558:b3d0:f3cc:d11",
        "fd55:be06:1469:1b18:a8e5:4f8f:9826:2605",
        17,
        8155,
        4159,
        7,
    ),
    (
        false,
        "fd3c:3f0a:500b:bf85:e09a:ef00:529d:fac2",
        "fd55:3934:810b:2bd0:b760:cb7:ebb7:1c96",
        17,
        27994,
        50384,
        11,
    ),
    (
        false,
        "fd78:4048:9eff:3c23:3809:7789:464f:da01",
        "fd55:395a:b413:f5b4:ad1b:310e:8a99:1b89",
        17,
        36101,
        57732,
        5,
    ),
    (
        false,
        "fd95:da92:479c:2a6d:6c43:32a8:fc27:92b0",
        "fd55:e312:dd0a:a9d3:d9fa:5bc4:26de:fe56",
        6,
        62187,
        12936,
        4,
    ),
    (
        false,
        "20c1:8fc4:7260:de67:dd75:fa35:b1de:2385",
        "fd55:708a:dd62:15e4:d5a4:b9bc:e8dd:7c98",
        17,
        23606,
        62827,
        4,
    ),
    (
        false,
        "fddc:3cdb:60a2:7e51:66b8:94f6:32b7:d53c",
        "fd55:6b43:baef:5d07:144d:e471:fc6f:50fa",
        6,
        40641,
        63759,
        4,
    ),
    (
        false,
        "fd05:c559:d4c9:8939:4b6a:7fe9:c9fc:7894",
        "fd55:4dbd:9b50:b22f:2205:ab63:6360:a49d",
        17,
        34153,
        19857,
        7,
    ),
    (
        false,
        "fdee:85b1:585a:bc62:e5ad:cbb3:d6ea:425a",
        "fd55:6381:de9b:1b1:fab4:1497:6747:efbc",
        6,
        3938,
        41520,
        4,
    ),
    (
        true,
        "fd1f:1d4b:125a:9b8e:8638:a775:8432:491f",
        "fd55:18f9:dd88:f137:3ce3:484:1ad1:841e",
        6,
        16547,
        63701,
        8,
    ),
    (
        true,
        "fd41:97d0:d0d2:b479:b6eb:54d4:eb01:cc7c",
        "fd55:f366:eca0:c631:2692:5060:d0dc:7866",
        6,
        15694,
        51884,
        5,
    ),
    (
        true,
        "2089:4d16:3b9e:97ea:fa86:dc39:985:486c",
        "fd55:a78e:c0d:b2f9:f79:bebd:b752:c8c6",
        6,
        49578,
        17787,
        4,
    ),
    (
        true,
        "2017:5481:e71f:33e0:c10c:86c1:8311:997b",
        "fd55:2a73:85f9:216a:7308:4c2a:bdda:74b6",
        6,
        56166,
        3594,
        5,
    ),
    (
        true,
        "fda1:d5e1:3328:444d:8850:fdb:5f12:ee59",
        "fd55:5a99:c362:7921:9ca5:fe2f:bf63:2c96",
        6,
        33778,
        32907,
        5,
    ),
    (
        true,
        "20a8:c042:bf6d:cf68:ae1f:210e:ab20:368e",
        "fd55:4ea6:e400:495:4eb7:5c1d:19b9:5761",
        17,
        23648,
        17363,
        7,
    ),
    (
        true,
        "20bf:9328:f875:5b3e:bc9a:b2c:78a6:59c8",
        "fd55:1130:948a:a706:5961:d939:fda2:18cd",
        6,
        37142,
        11702,
        6,
    ),
    (
        true,
        "fd1b:31ed:565f:4d30:a0a0:9eca:37f:92c2",
        "fd55:adfc:efb3:d878:a050:6dcc:a66b:46f3",
        6,
        40825,
        58101,
        11,
    ),
    (
        true,
        "206f:8fa3:2c89:aab:2445:f39a:f6b1:397",
        "fd55:dc21:5312:b468:9acd:fa7e:c56c:7439",
        17,
        30202,
        1175,
        6,
    ),
];

fn ipv4(source: &str, destination: &str, protocol: u8, behind: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    ip.extend(source.parse::<Ipv4Addr>().unwrap().octets());
    ip.extend(destination.parse::<Ipv4Addr>().unwrap().octets());
    ip.extend(behind);
    ip
}

fn ipv6(source: &str, destination: &str, next: u8, behind: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    ip.extend(source.parse::<Ipv6Addr>().unwrap().octets());
    ip.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
    ip.extend(behind);
    ip
}

fn ports_of(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

fn member(hash: Option<u32>) -> usize {
    let hash = hash.unwrap();
    upper_bounds(&WEIGHTS).iter().position(|bound| hash <= *bound).unwrap()
}

#[test]
fn the_member_is_the_one_that_linux_chooses() {
    let key = key_of_seed(2026);
    for (l4, source, destination, protocol, from, to, chosen) in LINUX4 {
        let ip = ipv4(source, destination, *protocol, &ports_of(*from, *to));
        assert_eq!(member(hash4(&ip, *l4, key)), *chosen, "{source} {destination}");
    }
    for (l4, source, destination, protocol, from, to, chosen) in LINUX6 {
        let ip = ipv6(source, destination, *protocol, &ports_of(*from, *to));
        assert_eq!(member(hash6(&ip, *l4, key)), *chosen, "{source} {destination}");
    }
}

#[test]
fn both_directions_hash_alike() {
    for l4 in [false, true] {
        let there = ipv4("10.0.0.1", "198.18.0.9", 17, &ports_of(5000, 53));
        let back = ipv4("198.18.0.9", "10.0.0.1", 17, &ports_of(53, 5000));
        assert_eq!(hash4(&there, l4, [1, 2]), hash4(&back, l4, [1, 2]));
        let there = ipv6("fd00::1", "2001:db8::9", 17, &ports_of(5000, 53));
        let back = ipv6("2001:db8::9", "fd00::1", 17, &ports_of(53, 5000));
        assert_eq!(hash6(&there, l4, [1, 2]), hash6(&back, l4, [1, 2]));
    }
}

#[test]
fn only_policy_0_sends_errors_where_their_flow_goes() {
    let flow = ipv4("10.0.0.1", "198.18.0.9", 17, &ports_of(5000, 53));
    let error =
        |kind: u8| ipv4("172.16.0.1", "10.0.0.1", 1, &[&[kind, 0, 0, 0, 0, 0, 0, 0], &flow[..]].concat());
    assert_eq!(hash4(&error(11), false, [1, 2]), hash4(&flow, false, [1, 2]));
    assert_ne!(hash4(&error(8), false, [1, 2]), hash4(&flow, false, [1, 2]), "an echo is no error");
    assert_ne!(hash4(&error(11), true, [1, 2]), hash4(&flow, true, [1, 2]));
    let mut later = error(11);
    later[7] = 1;
    assert_ne!(hash4(&later, false, [1, 2]), hash4(&flow, false, [1, 2]), "a later fragment");

    let flow = ipv6("fd00::1", "2001:db8::9", 17, &ports_of(5000, 53));
    let error =
        |kind: u8| ipv6("fd01::1", "fd00::1", 58, &[&[kind, 0, 0, 0, 0, 0, 0, 0], &flow[..]].concat());
    assert_eq!(hash6(&error(3), false, [1, 2]), hash6(&flow, false, [1, 2]));
    assert_ne!(hash6(&error(128), false, [1, 2]), hash6(&flow, false, [1, 2]), "an echo is no error");
    assert_ne!(hash6(&error(3), true, [1, 2]), hash6(&flow, true, [1, 2]));
}

#[test]
fn extension_headers_are_the_kernels_with_policy_1() {
    let with = |next: u8| ipv6("fd00::1", "2001:db8::9", next, &[17, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    for next in [0, 43, 60] {
        assert_eq!(hash6(&with(next), true, [1, 2]), None);
        assert!(hash6(&with(next), false, [1, 2]).is_some());
    }
    let udp_without_ports = hash6(&ipv6("fd00::1", "2001:db8::9", 17, &[]), true, [1, 2]);
    assert_eq!(hash6(&with(44), true, [1, 2]), udp_without_ports, "a fragment");
}

#[test]
fn thresholds_are_those_of_linux() {
    assert_eq!(upper_bounds(&[1, 1]), [0x3fff_ffff, 0x7fff_ffff]);
    assert_eq!(upper_bounds(&[1, 2]), [0x2aaa_aaaa, 0x7fff_ffff]);
    assert_eq!(upper_bounds(&[65535, 1]).last(), Some(&0x7fff_ffff));
    assert_eq!(upper_bounds(&[1; 256]).last(), Some(&0x7fff_ffff));
}

#[test]
fn whatever_is_cut_short_has_an_answer_or_none() {
    for bytes in [ipv4("10.0.0.1", "10.0.0.2", 1, &[11; 60]), ipv6("fd00::1", "fd00::2", 58, &[1; 90])] {
        for end in 0..bytes.len() {
            for l4 in [false, true] {
                let _ = (hash4(&bytes[..end], l4, [1, 2]), hash6(&bytes[..end], l4, [1, 2]));
            }
        }
    }
}
