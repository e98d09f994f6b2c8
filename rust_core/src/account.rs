//! The accounting: received = answered + rejected + expired + cancelled + failed + in_flight, per
//! method.
//!
//! One lock a method, held for a few additions, so that every snapshot balances, not only one at
//! rest.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Refusal};

/// The methods that are counted. A row of a batch and a message of a stream count as one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Method {
    /// `Label`.
    Label,
    /// One row of `LabelBatch`.
    LabelBatch,
    /// One message of `LabelStream`.
    LabelStream,
    /// `GetLabel`.
    GetLabel,
    /// `ListLabels`.
    ListLabels,
    /// The calls of `ModelService`.
    Models,
}

impl Method {
    /// All methods, in the order of their index.
    pub const ALL: [Method; 6] = [
        Method::Label,
        Method::LabelBatch,
        Method::LabelStream,
        Method::GetLabel,
        Method::ListLabels,
        Method::Models,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Method::Label => "Label",
            Method::LabelBatch => "LabelBatch",
            Method::LabelStream => "LabelStream",
            Method::GetLabel => "GetLabel",
            Method::ListLabels => "ListLabels",
            Method::Models => "Models",
        }
    }
}

/// One method's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that arrived.
    pub received: u64,
    /// Replies that were encoded.
    pub answered: u64,
    /// Refused: bad input, unknown model, full, draining.
    pub rejected: u64,
    /// Ended by their deadline.
    pub expired: u64,
    /// The caller left first.
    pub cancelled: u64,
    /// Something here broke.
    pub failed: u64,
    /// Neither of these yet.
    pub in_flight: u64,
}

/// Counts of all methods.
#[derive(Debug, Default)]
pub struct Accounts {
    methods: [Mutex<Counts>; Method::ALL.len()],
}

impl Accounts {
    /// Counts a request as received; what becomes of it is said on the returned entry.
    pub fn receive(self: &Arc<Self>, method: Method) -> Entry {
        let mut counts = self.methods[method as usize].lock();
        counts.received += 1;
        counts.in_flight += 1;
        Entry { accounts: self.clone(), method, open: true }
    }

    /// One method's counts at this moment.
    pub fn counts(&self, method: Method) -> Counts {
        *self.methods[method as usize].lock()
    }

    /// Requests of all methods that are under way.
    pub fn in_flight(&self) -> u64 {
        Method::ALL.iter().map(|m| self.counts(*m).in_flight).sum()
    }
}

/// A received request that has not ended. Dropped without a word it counts as cancelled, since a
/// handler's future is dropped when its caller leaves; during a panic, as failed.
#[derive(Debug)]
pub struct Entry {
    accounts: Arc<Accounts>,
    method: Method,
    open: bool,
}

impl Entry {
    /// A reply was encoded.
    pub fn answered(mut self) {
        self.close(|c| &mut c.answered);
    }

    /// It ended by this error.
    pub fn ended(mut self, error: &Error) {
        self.close(match error {
            Error::DeadlinePassed { .. } => |c| &mut c.expired,
            Error::Cancelled => |c| &mut c.cancelled,
            Error::Internal { .. } | Error::Disk { .. } | Error::Stopped => |c| &mut c.failed,
            Error::Refused { kind: Refusal::Internal, .. } => |c| &mut c.failed,
            Error::RuntimeLibrary { .. } | Error::JournalVersion { .. } => |c| &mut c.failed,
            Error::Invalid { .. }
            | Error::ModelNotFound { .. }
            | Error::LabelNotFound { .. }
            | Error::KeyReused { .. }
            | Error::Overloaded { .. }
            | Error::Unavailable { .. }
            | Error::ModelInvalid { .. }
            | Error::InUse { .. }
            | Error::Refused { .. }
            | Error::Config { .. } => |c| &mut c.rejected,
        });
    }

    fn close(&mut self, term: fn(&mut Counts) -> &mut u64) {
        let mut counts = self.accounts.methods[self.method as usize].lock();
        *term(&mut counts) += 1;
        counts.in_flight -= 1;
        self.open = false;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.open {
            let panicking = std::thread::panicking();
            self.close(if panicking { |c| &mut c.failed } else { |c| &mut c.cancelled });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snapshot_balances_and_a_dropped_entry_counts_as_cancelled() {
        let accounts = Arc::new(Accounts::default());
        let answered = accounts.receive(Method::Label);
        let rejected = accounts.receive(Method::Label);
        let left = accounts.receive(Method::Label);
        assert_eq!(accounts.counts(Method::Label).in_flight, 3);
        answered.answered();
        rejected.ended(&Error::Unavailable { state: "draining" });
        drop(left);
        let expected =
            Counts { received: 3, answered: 1, rejected: 1, cancelled: 1, ..Counts::default() };
        assert_eq!(accounts.counts(Method::Label), expected);
        assert_eq!(accounts.counts(Method::LabelBatch), Counts::default());
    }
}
