//! Confirms that the mirror is current. The fast path forwards only while a confirmation is in force.

use super::{beats::Beats, seam::FastPath};
use crate::{base::clock::monotonic, config::Config, plane::Heart};
use anyhow::{Error, Result};
use logic::cause::{Cause, Code};
use std::{sync::Arc, time::Duration};

/// The interval between confirmations.
const CONFIRM: Duration = Duration::from_secs(1);
/// The shortest time that a confirmation lasts.
const LEAST_HEARTBEAT: Duration = Duration::from_secs(2);

/// See the head of this file.
pub(super) struct Confirming {
    pub beats: Beats,
    /// How long a confirmation lasts. With a heartbeat of 0, the end of this process ends forwarding. Where the kernel
    /// cannot show the end of a process, forwarding lasts for the shortest time that beats can keep up with.
    heartbeat: Duration,
    /// Why the mirror may be out of date.
    unread: Option<String>,
    /// When it was last confirmed, CLOCK_MONOTONIC.
    confirmed: Option<Duration>,
}

impl Confirming {
    pub fn start(config: &Config) -> Result<Self> {
        let heartbeat = config.heartbeat.0.max(LEAST_HEARTBEAT);
        Ok(Self { beats: Beats::start(heartbeat, monotonic)?, heartbeat, unread: None, confirmed: None })
    }

    /// Takes over the heartbeat of another one, for the generation with this heart. What is known of the mirror stays.
    pub fn take_heartbeat(&mut self, other: Confirming, heart: Option<Arc<Heart>>) {
        (self.beats, self.heartbeat, self.confirmed) = (other.beats, other.heartbeat, None);
        self.beats.follow(heart);
    }

    /// The kernel's state was read.
    pub fn is_read(&mut self) {
        if self.unread.take().is_some() {
            tracing::info!("the mirror is current again");
        }
    }

    /// The kernel's state could not be read.
    pub fn is_unread(&mut self, error: &Error) {
        let text = format!("cannot read the kernel's state: {error:#}");
        if self.unread.as_ref() != Some(&text) {
            tracing::error!("{text}; the mirror is not confirmed until it can be read again");
        }
        self.unread = Some(text);
    }

    /// Why the mirror may be out of date; `None`: it is current.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// When to confirm again.
    pub fn due(&self) -> Duration {
        self.confirmed.unwrap_or_default() + CONFIRM
    }

    /// Confirms the mirror when it is time, unless the kernel's state cannot be read.
    pub fn follow(&mut self, now: Duration, plane: &impl FastPath) {
        if self.confirmed.is_none_or(|last| now.saturating_sub(last) >= CONFIRM) {
            self.confirm(now, plane);
        } else {
            self.beats.vouch(self.unread.is_none());
        }
    }

    /// Confirms the mirror at once, unless the kernel's state cannot be read.
    pub fn confirm(&mut self, now: Duration, plane: &impl FastPath) {
        self.beats.vouch(self.unread.is_none());
        if self.unread.is_none() {
            plane.confirm_until(now + self.heartbeat);
            self.confirmed = Some(now);
        }
    }

    /// The age of the last confirmation.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        self.confirmed.map(|at| now.saturating_sub(at))
    }

    /// Why the kernel forwards; `None`: the last confirmation is in force.
    pub fn why_not(&self, now: Duration) -> Option<Cause> {
        let late = self.age(now).is_none_or(|age| age >= self.heartbeat);
        let late = late
            .then(|| Code::NotConfirmed.cause("the mirror was not confirmed in time; the kernel forwards"));
        self.unread.clone().map(|why| Code::Unreadable.cause(why)).or(late)
    }
}
