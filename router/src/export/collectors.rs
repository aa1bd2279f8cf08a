//! The sockets of collectors. A datagram that cannot be sent at once is dropped and counted: UDP may lose it anyway.

use crate::{api::export::CollectorReport, config::Collector};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Duration,
};

/// For how long an error is reported. A collector that does not listen causes one for every other datagram.
const REMEMBERED: Duration = Duration::from_secs(10);

/// A collector, and how it goes.
#[derive(Debug)]
pub struct Sending {
    address: Collector,
    /// `None`: there is no route to it yet.
    socket: Option<UdpSocket>,
    failed: Option<Duration>,
    pub report: CollectorReport,
}

impl Sending {
    pub fn new(address: Collector, report: CollectorReport) -> Sending {
        Sending { address, socket: None, failed: None, report }
    }

    /// The address of this box from which the collector gets datagrams. `None`: there is no route to it.
    pub fn source(&mut self, now: Duration) -> Option<IpAddr> {
        self.open(now)?.local_addr().ok().map(|address| address.ip())
    }

    pub fn send(&mut self, datagram: &[u8], now: Duration) {
        let sent = self.open(now).map(|socket| socket.send(datagram));
        match sent {
            Some(Ok(_)) => {
                self.report.datagrams += 1;
                if self.failed.is_none_or(|failed| now.saturating_sub(failed) >= REMEMBERED) {
                    (self.failed, self.report.error) = (None, None);
                }
            }
            Some(Err(error)) => {
                self.report.failed += 1;
                self.fails(&error, now);
                // The address of this box may have changed, which only a new socket finds out.
                if !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock) {
                    self.socket = None;
                }
            }
            None => self.report.failed += 1,
        }
    }

    fn open(&mut self, now: Duration) -> Option<&UdpSocket> {
        if self.socket.is_none() {
            match self.connect() {
                Ok(socket) => self.socket = Some(socket),
                Err(error) => self.fails(&error, now),
            }
        }
        self.socket.as_ref()
    }

    fn connect(&self) -> io::Result<UdpSocket> {
        let any = match self.address.0.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(self.address.0)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn fails(&mut self, error: &io::Error, now: Duration) {
        (self.failed, self.report.error) = (Some(now), Some(error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::export::Protocol;

    #[test]
    fn datagrams_are_sent_and_failures_are_reported_for_a_while() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = Collector(collector.local_addr().unwrap());
        let mut sending = Sending::new(address, CollectorReport::new(Protocol::Sflow, address));
        let s = Duration::from_secs;
        assert_eq!(sending.source(s(0)), Some("127.0.0.1".parse().unwrap()));
        sending.send(b"one", s(0));
        let mut bytes = [0; 10];
        assert_eq!(collector.recv(&mut bytes).unwrap(), 3);
        assert_eq!((sending.report.datagrams, sending.report.failed), (1, 0));
        drop(collector);
        // The kernel answers that nobody listens, which is the result of the datagram after it.
        sending.send(b"two", s(1));
        sending.send(b"three", s(1));
        let report = &sending.report;
        assert_eq!((report.datagrams, report.failed), (2, 1));
        assert!(report.error.as_ref().unwrap().contains("refused"), "{report:?}");
        let _collector = UdpSocket::bind(address.0).unwrap();
        sending.send(b"four", s(10));
        assert!(sending.report.error.is_some());
        sending.send(b"five", s(11));
        assert_eq!((sending.report.datagrams, &sending.report.error), (4, &None));
    }

    #[test]
    fn without_a_route_nothing_is_sent_until_there_is_one() {
        // A socket cannot be connected to the address for broadcasts.
        let address = Collector("255.255.255.255:1".parse().unwrap());
        let mut sending = Sending::new(address, CollectorReport::new(Protocol::Ipfix, address));
        sending.send(b"one", Duration::ZERO);
        assert_eq!((sending.source(Duration::ZERO), sending.report.failed), (None, 1));
        assert!(sending.report.error.is_some());
    }
}
