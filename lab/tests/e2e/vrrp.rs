//! keepalived on a port: a virtual router with a MAC address of its own, which Linux has as a macvlan device.

use crate::{
    bed::{Background, Bed, output, ping, run},
    daemon::{Leftovers, eventually_true},
};
use std::fs;

const ADDRESS: &str = "10.8.1.254";

fn keepalived(bed: &Bed, directory: &tempfile::TempDir) -> Background {
    let path = |name: &str| directory.path().join(name).display().to_string();
    let config = format!(
        "global_defs {{\n vrrp_garp_master_delay 0\n vrrp_startup_delay 0\n}}\n\
         vrrp_instance v {{\n state MASTER\n interface p1\n virtual_router_id 51\n priority 200\n advert_int 0.1\n version 3\n\
         use_vmac vrrp51\n vmac_xmit_base\n virtual_ipaddress {{\n {ADDRESS}/24\n }}\n}}\n"
    );
    fs::write(path("conf"), config).unwrap();
    let line = format!(
        "/usr/sbin/keepalived --dont-fork --log-console --vrrp --use-file {} --pid {} --vrrp_pid {}",
        path("conf"),
        path("pid"),
        path("vrrp")
    );
    Background::start(&bed.the_box, &line)
}

/// The address of the virtual router is a gateway that the fast path knows, as soon and as long as Linux has it.
#[test]
#[ignore = "needs root"]
fn packets_to_a_virtual_router_are_fast() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let daemon = bed.start(2, &[]);
    run(&bed.client, &format!("ip route replace 10.8.2.0/24 via {ADDRESS}"));
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let master = keepalived(&bed, &directory);
        eventually_true("the address", || output(&bed.the_box, "ip addr show").contains(ADDRESS));
        let virtual_mac =
            || output(&bed.client, &format!("ip neigh show {ADDRESS}")).contains("00:00:5e:00:01:33");
        eventually_true("its MAC address", || {
            output(&bed.client, &format!("ping -c 1 -W 1 {ADDRESS}"));
            virtual_mac()
        });
        ping(&bed.client, "10.8.2.2", 20);
        let before = daemon.forwarded();
        ping(&bed.client, "10.8.2.2", 50);
        // Both directions; the kernel may still learn a neighbour.
        assert!(daemon.forwarded() >= before + 90, "{} packets", daemon.forwarded() - before);
        daemon.assert_verified();
        // SAFETY: no pointers; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(master.0.id() as libc::pid_t, libc::SIGTERM) }, 0);
        eventually_true("its device to go", || !output(&bed.the_box, "ip addr show").contains("vrrp51"));
        let lost = output(&bed.client, "ping -c 20 -i 0.01 -W 1 10.8.2.2");
        assert!(lost.contains("100% packet loss"), "as with Linux alone, nobody forwards: {lost}");
    }
}
