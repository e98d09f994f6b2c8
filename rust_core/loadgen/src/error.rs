//! Why a run could not be planned, made ready or written down. What the server answers is no error
//! here: it is counted in the result.

/// What the caller can do something about.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A field of the plan, or a group of rows, does not hold what it must.
    #[error("{field} is {got}, expected {expected}")]
    Invalid {
        /// The field's path in the plan, such as `schedule.rate_per_s`; `values` and so on of rows.
        field: String,
        /// What it held.
        got: String,
        /// What it must hold.
        expected: String,
    },
    /// Nobody answers, or what answers is no gRPC server, or takes fewer streams than planned.
    #[error("{address} is not ready after {waited_ms} ms: {reason}")]
    NotReady {
        /// Whom the plan names.
        address: String,
        /// What the last attempt met, and what to do where that is known.
        reason: String,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// A step out of order, such as `fire` before `connect`.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// A file could not be written.
    #[error("{operation} {path}: {reason}")]
    Disk {
        /// Such as `create`.
        operation: &'static str,
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// The machine gives no thread, timer or the like.
    #[error("the sender cannot run here: {reason}")]
    Machine {
        /// The system's message.
        reason: String,
    },
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn invalid(
        field: impl Into<String>,
        got: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { field: field.into(), got: got.to_string(), expected: expected.into() }
    }

    pub(crate) fn machine(error: impl ToString) -> Self {
        Self::Machine { reason: error.to_string() }
    }
}
