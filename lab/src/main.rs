use lab::{addresses, check, generator::Load, measure::*, packet::Target, subject, testbed::*};
fn main() -> anyhow::Result<()> {
    lab::sys::handle_signals();
    lab::namespace::clean_stale();
    let args: Vec<String> = std::env::args().collect();
    let routers: u16 = args[2].parse()?;
    let t0 = std::time::Instant::now();
    let mut t = Testbed::new(Spec { routers, ..Spec::default() })?;
    t.set_priority(true)?;
    lab::sys::set_affinity(0, &[0])?;
    eprintln!("built {:?}", t0.elapsed());
    let s = subject::start(&args[1], &t)?;
    for v6 in [false, true] {
        let targets: Vec<Target> = (0..4096u32)
            .map(|i| {
                let r = (i % (routers as u32 + 1)) as u16;
                Target {
                    destination: if v6 {
                        std::net::Ipv6Addr::from_bits(0x2001_0002u128 << 96 | i as u128).into()
                    } else {
                        std::net::Ipv4Addr::from_bits(0xc6120000 + i).into()
                    },
                    router_mac: addresses::ingress_mac(r),
                    source_port: 1024 + i as u16,
                }
            })
            .collect();
        let frame_bytes = targets[0].min_frame();
        check::check_forwarding(&mut t, &*s, &targets, frame_bytes, |_| vec![addresses::nexthop_mac(1)])?;
        t.generator.set_targets(targets, frame_bytes)?;
        for rate in [None, Some(400_000)] {
            let m = measure(&mut t, Load { frame_bytes, rate_pps: rate }, Window::seconds(1.0))?;
            println!("{}", serde_json::to_string(&m)?);
        }
    }
    Ok(())
}
