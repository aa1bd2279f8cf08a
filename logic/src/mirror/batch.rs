//! The order of a plan. At no point between two operations is a packet treated in a way in which Linux would treat it
//! neither before nor after the changes.

use crate::plan::Op;

#[derive(Default)]
pub(super) struct Batch {
    /// Acceleration and transmission are turned off. The kernel decides from here on.
    pub off: Vec<Op>,
    /// Interfaces, then routers. Later operations may take their addresses again.
    pub gone: Vec<Op>,
    pub ports: Vec<Op>,
    pub routers: Vec<Op>,
    /// New ones, which are not accelerated yet.
    pub interfaces: Vec<Op>,
    pub neighbours: Vec<Op>,
    pub addresses: Vec<Op>,
    /// Routes that exist come before routes that no longer do: make before break.
    pub routes: Vec<Op>,
    pub routes_gone: Vec<Op>,
    /// Acceleration is turned on.
    pub on: Vec<Op>,
}

impl Batch {
    pub fn ops(self) -> Vec<Op> {
        let mut ops = self.off;
        let rest = [
            self.gone,
            self.ports,
            self.routers,
            self.interfaces,
            self.neighbours,
            self.addresses,
            self.routes,
            self.routes_gone,
            self.on,
        ];
        for part in rest {
            if ops.is_empty() {
                ops = part;
            } else {
                ops.extend(part);
            }
        }
        ops
    }
}
