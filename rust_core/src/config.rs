//! The core's configuration: plain structs of values that the control side has already checked.
//!
//! No defaults, no parsing beyond the JSON form, no second opinion: `labeler.config` is the schema.

use std::path::PathBuf;

use serde::Deserialize;

use crate::{journal::JournalConfig, label::Durability};

/// Everything that the engine needs to start.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreConfig {
    /// One per process: journal, `instance_id`.
    pub state_dir: PathBuf,
    /// Sockets and HTTP/2.
    pub transport: TransportConfig,
    /// Deadlines, queues, batches, the dedupe window.
    pub path: PathConfig,
    /// The write-ahead log.
    pub journal: JournalConfig,
    /// What is served.
    pub models: ModelsConfig,
    /// The queue to the control side.
    pub control: ControlConfig,
    /// The end.
    pub drain: DrainConfig,
}

/// Sockets, HTTP/2 and the bounds of a connection.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportConfig {
    /// `host:port` to listen on; port 0 takes a free one.
    pub grpc_address: String,
    /// Worker threads of the transport's runtime.
    pub threads: usize,
    /// The largest message that is read.
    pub message_bytes_max: usize,
    /// Connections at a time; one more is closed at once and counted.
    pub connections_max: usize,
    /// Streams of one connection at a time, as advertised to the client.
    pub streams_per_connection_max: u32,
    /// Flow-control window of one stream.
    pub stream_window_bytes: u32,
    /// Flow-control window of a connection; well above a stream's, so that a slow one cannot fill
    /// it.
    pub connection_window_bytes: u32,
    /// The largest header list.
    pub header_bytes_max: u32,
    /// Time for a new connection to send the HTTP/2 preface.
    pub handshake_timeout_ms: u64,
    /// Silence after which the server pings.
    pub keepalive_interval_ms: u64,
    /// Time for the pong.
    pub keepalive_timeout_ms: u64,
    /// Age at which a connection is asked to go; 0 is never.
    pub connection_age_ms_max: u64,
    /// Spread of that age, so that a fleet does not reconnect at once.
    pub connection_age_jitter_pct: u8,
    /// Time between asking and closing.
    pub connection_age_grace_ms: u64,
    /// Unanswered messages of one stream, after which its requests are left unread.
    pub stream_in_flight_max: usize,
    /// Time that a stream may leave its replies unread.
    pub stream_unread_ms_max: u64,
    /// Resets waiting to be accepted, per connection (HTTP/2 rapid reset).
    pub pending_resets_max: usize,
    /// Stream errors found here, per connection and for its life.
    pub local_resets_max: usize,
}

/// Deadlines, queues, batches, the dedupe window.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathConfig {
    /// Deadline of a request that names none.
    pub deadline_ms: u64,
    /// Level of a request that names none.
    pub durability: Durability,
    /// Robots' rows waiting for one model version.
    pub queue_rows_max: usize,
    /// Bulk rows waiting for one model version.
    pub bulk_queue_rows_max: usize,
    /// Rows of one run.
    pub batch_rows_max: usize,
    /// Waiting on purpose for a fuller batch; 0 is work-conserving.
    pub delay_us_max: u64,
    /// Measured cost of one bulk batch, which bounds what a robot's row may wait for.
    pub bulk_run_us_max: u64,
    /// Rows that the dedupe window remembers.
    pub dedupe_rows_max: usize,
    /// How long it remembers them.
    pub dedupe_window_ms: u64,
    /// How long before its deadline a caller gets the level reached so far.
    pub deadline_margin_us: u64,
    /// Callers that wait for the store at a time; one more gets JOURNALED.
    pub stored_waiters_max: usize,
    /// After so long without a confirmation the store's health is NOT_SERVING.
    pub store_stalled_ms: u64,
}

/// What is served.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelsConfig {
    /// Folders of `NAME/VERSION/`, the first wins.
    pub repositories: Vec<PathBuf>,
    /// `name` or `name@version`, loaded before the port opens.
    pub load: Vec<String>,
    /// The model of a request that names none.
    pub default: String,
    /// The shared library of ONNX Runtime.
    pub runtime_library: PathBuf,
}

/// The queue to the control side.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Requests waiting for Python.
    pub queue_rows_max: usize,
    /// Deadline of a control request that names none.
    pub timeout_ms: u64,
}

/// The end.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainConfig {
    /// From SIGTERM to the exit, at most.
    pub budget_ms: u64,
    /// How long the listener stays open after NOT_SERVING.
    pub lame_duck_ms: u64,
}
