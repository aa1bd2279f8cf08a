//! All that a worker owns: its frames, its queues of all ports, and its ways out (P1). Of one thread; what it is made of may go on to
//! another ([`Io::dismantle`]).

use super::{
    Fault, MOST_PATHS, OpenError, Output, Queue, Sender, Umem,
    buffer::{Buffer, Pool},
    open::Polling,
    socket,
};
use std::{io, sync::Arc, time::Duration};

/// A worker's packets, in and out.
pub struct Io {
    // In the order in which they go: packets that wait, TX rings, queues, frames.
    outputs: Vec<Output>,
    queues: Vec<Queue>,
    /// Of each path: the queue that is first next time.
    turns: Box<[usize; MOST_PATHS]>,
    pool: Pool,
}

impl Io {
    /// For the calling thread, which has at most `in_hand` packets at a time beside those that wait for TX rings.
    ///
    /// # Errors
    /// There are too few frames.
    pub fn new(umem: &Arc<Umem>, in_hand: usize) -> Result<Io, OpenError> {
        let turns = Box::new([0; MOST_PATHS]);
        Ok(Io { outputs: Vec::new(), queues: Vec::new(), turns, pool: Pool::new(umem, in_hand)? })
    }

    /// Receives by this queue too; its number among them is returned.
    ///
    /// # Panics
    /// It is of another memory.
    pub fn add_queue(&mut self, mut queue: Queue) -> usize {
        assert!(Arc::ptr_eq(queue.slot().umem(), self.pool.umem()), "a queue of another memory");
        queue.refill(&self.pool);
        self.queues.push(queue);
        self.queues.len() - 1
    }

    /// Sends by this TX ring too, with an auxiliary queue of so many packets; its number is returned.
    ///
    /// # Errors
    /// There are too few frames for those that wait.
    ///
    /// # Panics
    /// It is of another memory.
    pub fn add_output(&mut self, sender: Sender, auxiliary: usize) -> Result<usize, OpenError> {
        assert!(Arc::ptr_eq(sender.umem(), self.pool.umem()), "a TX ring of another memory");
        self.pool.allow(auxiliary)?;
        self.outputs.push(Output::new(sender, auxiliary));
        Ok(self.outputs.len() - 1)
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// To add paths.
    pub fn queues_mut(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Takes up to `most` packets of a path from all queues; says how many (P9). Each queue may give an equal part, and what
    /// some leave the others may give, in equal parts again; what cannot be divided is given in turns, which go on with the next call.
    /// Packets of a queue are in order.
    pub fn receive(&mut self, path: usize, most: usize, to: &mut Vec<Buffer>) -> usize {
        let count = self.queues.len();
        self.queues.iter_mut().for_each(|queue| queue.collect(&self.pool));
        let Some(turn) = self.turns.get_mut(path).filter(|_| count > 0) else { return 0 };
        let most = most.min(self.pool.left());
        let first = *turn % count;
        // Queues that gave all they might: they may have more.
        let (mut received, mut full) = (0, count);
        while full > 0 && received < most {
            let part = ((most - received) / full).max(1);
            full = 0;
            for n in (first..first + count).map(|n| n % count) {
                let got = self.queues[n].receive(path, &self.pool, part.min(most - received), to);
                received += got;
                full += usize::from(got == part);
                if received == most {
                    *turn = n + 1;
                    break;
                }
            }
        }
        self.queues.iter_mut().for_each(|queue| queue.refill(&self.pool));
        received
    }

    /// Sends packets by an output, after all that it was given before. `packets` is empty then.
    ///
    /// # Errors
    /// The port is down: they wait, as far as there is room. It is gone, or has no such TX queue: they are dropped, and counted.
    pub fn send(&mut self, output: usize, packets: &mut Vec<Buffer>) -> Result<(), Fault> {
        self.outputs[output].send(packets)
    }

    /// To be called by timer, and before sleep: sends what waits for room, and takes back what was sent.
    pub fn flush(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.collect(&self.pool));
        for output in &mut self.outputs {
            // A port that is down keeps its packets; the next one to send is told.
            let _ = output.flush();
        }
    }

    /// Packets wait for room in a TX ring, or the kernel has not looked at some: to be flushed soon. Not of a port that is gone.
    pub fn has_waiting(&self) -> bool {
        self.outputs.iter().any(Output::has_waiting)
    }

    /// Sleeps until a packet of one of these paths is there, or `longest` is over. Devices that are polled busily are polled instead, once.
    pub fn wait(&self, paths: &[usize], longest: Duration) -> io::Result<bool> {
        let busy = |queue: &&Queue| queue.wanted().polling != Polling::Interrupts;
        if self.queues.iter().filter(busy).inspect(|queue| queue.ask()).count() > 0 {
            return Ok(true);
        }
        let sockets = self.queues.iter().flat_map(|queue| queue.sockets(paths));
        socket::wait(sockets, longest)
    }

    /// What is wrong with ports, by number of the queue; to be asked by timer, as sending does not find out that a carrier is missing.
    /// A port that is gone takes its queue with it: it can only be dropped.
    pub fn faults(&self) -> impl Iterator<Item = (usize, Fault)> + '_ {
        self.queues.iter().enumerate().filter_map(|(n, queue)| Some((n, queue.check().err()?)))
    }

    /// The same, by number of the output: by another worker's queue too.
    pub fn output_faults(&self) -> impl Iterator<Item = (usize, Fault)> + '_ {
        self.outputs.iter().enumerate().filter_map(|(n, output)| Some((n, output.sender().check().err()?)))
    }

    /// TX rings and queues, as they are, for another thread to go on with: nothing is lost but packets that waited for a TX
    /// ring. If nobody goes on, TX rings are to be dropped before queues, which wait for what those sent.
    pub fn dismantle(self) -> (Vec<Sender>, Vec<Queue>) {
        (self.outputs.into_iter().map(Output::into_sender).collect(), self.queues)
    }
}
