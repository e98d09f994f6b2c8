//! `labeler-core`: the label path, from request bytes to reply bytes.
//!
//! transport ▸ admit ▸ cache ▸ batch ▸ infer ▸ journal ▸ reply, each stage with its own time.
//! Nothing here knows Python, a store, environment variables or files of settings. `engine` is the
//! wiring and the place to begin to read.

#![forbid(unsafe_code)]

pub mod account;
pub mod clock;
pub mod config;
pub mod control;
pub mod engine;
pub mod error;
pub mod faults;
mod fields;
pub mod handover;
pub mod identity;
pub mod journal;
pub mod label;
pub mod life;
pub mod limits;
pub mod models;
pub mod path;
pub mod records;
pub mod row;
pub mod row_record;
pub mod serving;
pub mod snapshot;
pub mod stages;
pub mod starting;
pub mod supervise;
pub mod transport;
mod wakes;

pub use engine::Engine;
pub use error::{Error, Result};

/// Types generated from `protos/`.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    pub mod journal {
        tonic::include_proto!("labeler.journal.v1");
    }
    tonic::include_proto!("labeler.v1");

    /// All files of `protos/`, as reflection serves them.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

    /// Names of the gRPC status codes by number, as `Error.code` and `grpc-status` hold them.
    pub const CODES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
}

/// Decodes a journal record's body, for tools that read a journal from outside.
pub fn journal_record(
    body: &[u8],
) -> std::result::Result<proto::journal::Record, prost::DecodeError> {
    prost::Message::decode(body)
}
