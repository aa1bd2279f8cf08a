//! Connections that the daemon dials, again and again.

use super::{
    Shared, TargetId, Timing,
    connection::{self, Stream},
    tls::Tls,
};
use crate::config::Target;
use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

/// The most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Dials a target, serves the connection, and dials again, until the target is not configured any more.
pub async fn keep(shared: Arc<Shared>, id: TargetId, target: Target) {
    let mut back_off = BackOff { next: shared.timing.first_retry };
    while shared.begin_attempt(id) {
        let tls = shared.tls(target.tls);
        let lived = match connect(&shared.timing, &target, tls.as_ref()).await {
            Ok(stream) => {
                let begun = Instant::now();
                connection::serve(&shared, id, stream, &target.to_string(), None).await;
                begun.elapsed()
            }
            Err(error) => {
                shared.failed(id, error.to_string());
                Duration::ZERO
            }
        };
        sleep(back_off.after(lived, RandomState::new().build_hasher().finish(), &shared.timing)).await;
    }
}

/// Connects to the first address of the target that answers.
async fn connect(timing: &Timing, target: &Target, tls: Option<&Tls>) -> io::Result<Box<dyn Stream>> {
    let found = lookup_host((target.host.as_str(), target.port));
    let addresses = within(timing.connect, "looking up the name", found).await?;
    let mut last = io::Error::other("the name has no address");
    for address in addresses.take(MAX_ADDRESSES) {
        match reach(timing, target, address, tls).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn reach(
    timing: &Timing,
    target: &Target,
    address: SocketAddr,
    tls: Option<&Tls>,
) -> io::Result<Box<dyn Stream>> {
    let stream = within(timing.connect, "connecting", TcpStream::connect(address)).await?;
    connection::prepare(&stream, timing)?;
    Ok(match tls {
        Some(tls) => {
            let greeted = tls.connect(&target.host, address.ip(), stream);
            Box::new(within(timing.connect, "TLS handshake", greeted).await?)
        }
        None => Box::new(stream),
    })
}

/// Returns the result of `work` within this time. An error names the step (`what`), also if it took too long.
pub async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}"))),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what}: no answer in {limit:?}"))),
    }
}

/// The wait before dialling again. It grows, and a random part keeps switches from dialling at the same time.
struct BackOff {
    next: Duration,
}

impl BackOff {
    /// The wait after a connection that `lived` so long (zero: it failed). `random` spreads the wait between 3/4
    /// and 5/4.
    fn after(&mut self, lived: Duration, random: u64, timing: &Timing) -> Duration {
        if lived >= timing.settled {
            self.next = timing.first_retry;
        }
        let wait = self.next;
        self.next = (wait * 2).min(timing.last_retry);
        wait.mul_f64(0.75 + 0.5 * (random as f64 / u64::MAX as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::TIMING, *};

    #[test]
    fn waits_double_to_eight_seconds_and_begin_again_after_a_good_connection() {
        let mut back_off = BackOff { next: TIMING.first_retry };
        let mut after =
            |lived_s, random| back_off.after(Duration::from_secs(lived_s), random, &TIMING).as_millis();
        let middle = u64::MAX / 2;
        assert_eq!([0; 5].map(|lived| after(lived, middle)), [1000, 2000, 4000, 8000, 8000]);
        assert_eq!((after(9, 0), after(9, u64::MAX)), (6000, 10000));
        assert_eq!((after(10, middle), after(0, middle)), (1000, 2000));
    }
}
