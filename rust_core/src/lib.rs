//! The label path.
#![forbid(unsafe_code)]
/// Generated from `protos/`.
pub mod proto {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("labeler.v1");
    /// Journal records.
    pub mod journal { tonic::include_proto!("labeler.journal.v1"); }
}
