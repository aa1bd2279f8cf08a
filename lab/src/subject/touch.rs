//! A redirect after reading and rewriting the headers (MACs, TTL, checksum), without a lookup: the least that any
//! router must do. "Capacity" is compared with it (docs/measured.md).

use anyhow::Result;

use super::{Rewrite, Subject, redirect::Attached};
use crate::{
    addresses::{Mac, egress_mac, nexthop_mac},
    testbed::Testbed,
};

const TO: u8 = 1;

pub(super) struct Touch {
    _program: Attached,
}

impl Touch {
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        Ok(Self { _program: Attached::start(testbed, "touch", nexthop_mac(TO), from())? })
    }
}

fn from() -> Mac {
    egress_mac(0)
}

impl Subject for Touch {
    fn name(&self) -> &'static str {
        "touch"
    }

    fn rewrites(&self) -> Rewrite {
        Rewrite::Fixed { to: nexthop_mac(TO), from: from() }
    }
}
