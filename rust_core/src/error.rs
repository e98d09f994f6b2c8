//! The one error enum: variants by what the caller can do about them, each with its message's data.
//!
//! `transport/status.rs` turns it into a gRPC status and the bridge into a Python exception;
//! neither has a catch-all arm, so a new variant does not compile until both sides answer.

use std::time::Duration;

use crate::stages::Stage;

const EXISTS: &str = "; the label exists and is being made durable";

/// Why a request, an operation or the start failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A request field does not hold what it must.
    #[error("{field} is {got}, expected {expected}")]
    Invalid {
        /// The field's path in the request, such as `payload.floats`.
        field: &'static str,
        /// What it held.
        got: String,
        /// What it must hold.
        expected: String,
    },
    /// No such model or version is loaded.
    #[error("model {model:?} version {version:?} is not loaded; loaded: {loaded}")]
    ModelNotFound {
        /// The model that was asked for.
        model: String,
        /// The version that was asked for, empty for the serving one.
        version: String,
        /// What could have been asked for.
        loaded: String,
    },
    /// No label under this key is known here.
    #[error(
        "no label of robot {robot_id:?} with sequence {sequence} is stored or remembered here; \
         another pod may still hold it"
    )]
    LabelNotFound {
        /// The robot that was asked about.
        robot_id: String,
        /// Its request.
        sequence: u64,
    },
    /// The key was used for another payload or model.
    #[error(
        "sequence {sequence} of robot {robot_id:?} was used for another payload, model or version; \
         a sequence names one request"
    )]
    KeyReused {
        /// The robot.
        robot_id: String,
        /// Its sequence.
        sequence: u64,
    },
    /// A bound is reached; nothing was computed.
    #[error("{what} is full ({bound}); try again in {} ms", retry_after.as_millis())]
    Overloaded {
        /// The bound that was reached, such as `robot queue`.
        what: &'static str,
        /// Its size with its unit.
        bound: String,
        /// How long to wait.
        retry_after: Duration,
    },
    /// The deadline passed in this stage; nothing was computed, unless `label_exists`.
    #[error("the deadline passed in stage {stage}{}", if *label_exists { EXISTS } else { "" })]
    DeadlinePassed {
        /// Where the request was.
        stage: Stage,
        /// With `durability_required`: a label was made and will be journaled.
        label_exists: bool,
    },
    /// The caller left.
    #[error("the caller cancelled the request")]
    Cancelled,
    /// The service is not taking work.
    #[error("the service is {state}; use another instance, or reconnect")]
    Unavailable {
        /// `starting` or `draining`.
        state: &'static str,
    },
    /// A part of the service broke; the request may be sent again.
    #[error("{part} failed: {reason}")]
    Internal {
        /// Which part.
        part: &'static str,
        /// Why.
        reason: String,
    },
    /// A model version cannot be loaded.
    #[error("model {model} version {version} cannot be loaded: {reason}")]
    ModelInvalid {
        /// The model.
        model: String,
        /// The version.
        version: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// ONNX Runtime is missing, too old or not a library.
    #[error("ONNX Runtime at {path}: {reason}")]
    RuntimeLibrary {
        /// The path that was tried.
        path: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A port or a lock is taken by another process (exit code 69).
    #[error("{what} {name} is in use: {hint}")]
    InUse {
        /// `address` or `journal`.
        what: &'static str,
        /// Which one.
        name: String,
        /// What to do.
        hint: String,
    },
    /// The journal was written by a newer program (exit code 65).
    #[error(
        "journal segment {segment} has format version {found}, this program reads up to {known}; \
         nothing was touched"
    )]
    JournalVersion {
        /// The segment's file.
        segment: String,
        /// Its version.
        found: u8,
        /// The newest that this program knows.
        known: u8,
    },
    /// A file operation failed (exit code 74).
    #[error("{operation} {path}: {reason}")]
    Disk {
        /// Such as `fsync`.
        operation: &'static str,
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// The control side refused, in its own words.
    #[error("{message}")]
    Refused {
        /// What the caller can do about it.
        kind: Refusal,
        /// Why.
        message: String,
    },
    /// A configuration value that the core cannot work with.
    #[error("setting {setting}: {reason}")]
    Config {
        /// The setting's path.
        setting: String,
        /// What is wrong.
        reason: String,
    },
    /// The engine was stopped.
    #[error("the engine is stopped")]
    Stopped,
}

/// What a refusal of the control side is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// What was asked for does not exist.
    NotFound,
    /// A field of the request.
    Invalid,
    /// A model version that cannot be loaded.
    ModelInvalid,
    /// The store, or the control side's own queue.
    Unavailable,
    /// The control side broke.
    Internal,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;
