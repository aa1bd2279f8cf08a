//! A minimal OpenFlow 1.3 controller: it connects to a switch in the box, changes rules and waits for barriers.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use logic::{
    flow::FlowMod,
    openflow::{
        Message, v13,
        wire::{Split, split},
    },
};

use crate::{sys, testbed::Testbed};

/// Port on the box's loopback where the switch of a testbed with rules listens.
pub const PORT: u16 = 6653;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the switch.
pub struct Controller {
    stream: TcpStream,
    unread: Vec<u8>,
    xid: u32,
}

impl Controller {
    /// Connects, and agrees on the version.
    pub fn connect(testbed: &Testbed) -> Result<Self> {
        let end = Instant::now() + PATIENCE;
        let stream = loop {
            let dialled =
                testbed.box_namespace.enter(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))))?;
            match dialled {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => return Err(error).context("connecting to the switch"),
                Err(_) => sys::sleep(Duration::from_millis(20))?,
            }
        };
        Self::over(stream)
    }

    /// Agrees on the version with the switch at the other end.
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut controller = Self { stream, unread: Vec::new(), xid: 0 };
        controller.send(&[Message::Hello { versions: Some(vec![v13::VERSION]) }])?;
        match controller.next()?.1 {
            Message::Hello { .. } => Ok(controller),
            other => bail!("the switch sent {other:?} instead of a hello"),
        }
    }

    /// The number that tells the switch from others.
    pub fn datapath_id(&mut self) -> Result<u64> {
        let asked = self.send(&[Message::FeaturesRequest])?;
        loop {
            if let (xid, Message::FeaturesReply(features)) = self.next()?
                && xid == asked
            {
                return Ok(features.datapath_id);
            }
        }
    }

    /// Changes rules, in order. The next barrier reports refusals.
    pub fn change(&mut self, changes: impl IntoIterator<Item = FlowMod>) -> Result<()> {
        let messages: Vec<_> = changes.into_iter().map(Message::FlowMod).collect();
        self.send(&messages).map(drop)
    }

    /// Returns when everything that was sent before takes effect on packets, too.
    ///
    /// # Errors
    /// The switch refused something that was sent before.
    pub fn barrier(&mut self) -> Result<()> {
        let asked = self.send(&[Message::BarrierRequest])?;
        loop {
            match self.next()? {
                (xid, Message::BarrierReply) if xid == asked => return Ok(()),
                (xid, Message::Error(error)) => {
                    bail!("the switch refuses message {xid}: error {}/{}", error.kind, error.code)
                }
                (xid, Message::EchoRequest(data)) => self.write(&Message::EchoReply(data), xid)?,
                _ => {}
            }
        }
    }

    /// Sends messages and returns the transaction id of the last one.
    fn send(&mut self, messages: &[Message]) -> Result<u32> {
        let mut bytes = Vec::new();
        for message in messages {
            self.xid += 1;
            v13::encode(message, self.xid, &mut bytes)?;
        }
        self.stream.write_all(&bytes).context("sending to the switch")?;
        Ok(self.xid)
    }

    fn write(&mut self, message: &Message, xid: u32) -> Result<()> {
        let mut bytes = Vec::new();
        v13::encode(message, xid, &mut bytes)?;
        self.stream.write_all(&bytes).context("sending to the switch")
    }

    fn next(&mut self) -> Result<(u32, Message)> {
        loop {
            match split(&self.unread) {
                Split::Message(header, message) => {
                    let (_, read) = v13::decode(message)?;
                    let length = message.len();
                    self.unread.drain(..length);
                    return Ok((header.xid, read));
                }
                Split::Broken(header) => bail!("the switch sent a broken message of {} bytes", header.length),
                Split::Wait => {
                    let mut chunk = [0; 65_536];
                    let read = self.stream.read(&mut chunk).context("receiving from the switch")?;
                    ensure!(read > 0, "the switch has closed the connection");
                    self.unread.extend_from_slice(&chunk[..read]);
                }
            }
        }
    }
}
