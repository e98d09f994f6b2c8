//! `labeler-core`: the label path, from request bytes to reply bytes.
//!
//! transport ▸ admit ▸ cache ▸ batch ▸ infer ▸ journal ▸ reply, each stage with its own time. Nothing
//! here knows Python, a store, environment variables or files of settings.

#![forbid(unsafe_code)]

pub mod error;
pub mod label;
pub mod stages;

pub use error::{Error, Result};

/// Types generated from `protos/`.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    pub mod journal {
        tonic::include_proto!("labeler.journal.v1");
    }
    tonic::include_proto!("labeler.v1");
}
