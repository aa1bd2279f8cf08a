use logic::memory::Capacity;
use router::plane::{Plane, Settings};
#[test]
fn smoke() {
    let capacity = Capacity {
        fib_blocks: 1024,
        fib_tails: 1024,
        nexthops: 1024,
        neighbour_buckets: 64,
        interface_buckets: 64,
        routers: 256,
    };
    let mut p = Plane::load(Settings {
        capacity,
        interface_rows: 64,
        sample_interval: 128,
        exception_pps: 1000,
        control_pps: 100,
    })
    .unwrap();
    p.set_port(0, 1, true).unwrap();
    p.confirm_until(std::time::Duration::from_secs(1 << 40));
    let r = p.run(1, &[0u8; 60]).unwrap();
    println!("{r:?} {:?}", p.counters().unwrap());
    println!("{:?}", p.explain(1, &[0u8; 60]).unwrap());
}
