//! Transport: bytes to domain types and back, over gRPC.
//!
//! It converts, stamps and calls; it holds no rule of the label path, and runs no model or disk
//! work on its threads. Refusals come before the body is read where they can.

#[cfg(any(test, feature = "faults"))]
pub mod checks;
pub mod codec;
pub mod connection;
pub mod deadline;
pub mod frames;
pub mod health;
pub mod labels;
pub mod models;
pub mod readback;
pub mod router;
pub mod running;
pub mod server;
pub mod slots;
pub mod status;
pub mod stream;
#[cfg(test)]
pub mod testing;
pub mod unary;
pub mod wire;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tonic::{Code, Status};

use crate::{
    account::{Accounts, Entry},
    clock::Clock,
    config::TransportConfig,
    control::Control,
    error::Error,
    path::Path,
    proto::CODES,
};

/// What every handler needs.
pub struct Shared {
    /// The label path.
    pub path: Path,
    /// The queue to the control side.
    pub control: Control,
    /// The accounting.
    pub accounts: Arc<Accounts>,
    /// Errors by status code.
    pub errors: Errors,
    /// Sockets and streams at this moment.
    pub gauges: Gauges,
    /// The engine's clock.
    pub clock: Clock,
    /// Bounds.
    pub config: TransportConfig,
    /// Deadline of a control request that names none, µs.
    pub control_timeout_us: u64,
    /// After so long without a confirmation the store counts as stalled.
    pub store_stalled: Duration,
    /// Who answers.
    pub instance_id: String,
    /// In which journal.
    pub journal_id: String,
}

impl Shared {
    /// Ends a request by an error: counts it, and makes its status.
    pub fn refuse(&self, entry: Entry, error: &Error) -> Status {
        self.errors.count(status::code(error));
        entry.ended(error);
        status::to_status(error)
    }

    /// The same for a row of a batch or a message of a stream, whose error travels in its place.
    pub fn refuse_row(&self, entry: Entry, error: Error) -> Error {
        self.errors.count(status::code(&error));
        entry.ended(&error);
        error
    }
}

/// Errors sent, by status code.
#[derive(Default)]
pub struct Errors([AtomicU64; CODES.len()]);

impl Errors {
    /// One more.
    pub fn count(&self, code: Code) {
        self.0[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The codes that occurred, by their name in the specification, with their counts.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let named = CODES.iter().map(|name| (*name).to_owned()).zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

/// Connections and streams, counted.
#[derive(Default)]
pub struct Gauges {
    /// Open connections.
    pub connections: AtomicU64,
    /// Connections since the start.
    pub connections_total: AtomicU64,
    /// Refused at the limit, or since they did not speak HTTP/2.
    pub connections_refused_total: AtomicU64,
    /// Open `LabelStream`s.
    pub streams: AtomicU64,
    /// The most `LabelStream`s that one connection has had open at once.
    pub connection_streams_peak: AtomicU64,
    /// Connections that were asked to go, by their age or a drain.
    pub goaway_total: AtomicU64,
    /// Connections that were ended for too many resets: GOAWAY with ENHANCE_YOUR_CALM.
    pub goaway_calm_total: AtomicU64,
}

/// A gauge that is one higher while this lives.
pub struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    /// One more.
    pub fn new(gauge: &'a AtomicU64) -> Self {
        gauge.fetch_add(1, Ordering::AcqRel);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
