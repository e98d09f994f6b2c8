//! Domain types of the label path: what a request, an answer and a level are.
//!
//! Nothing here knows the wire, the disk or a clock.

use std::sync::Arc;

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Robot controllers: waits for at most one running bulk batch.
    Robot,
    /// Everything that may wait, and may starve until it expires.
    Bulk,
}

/// What is true of a label when it is acknowledged; ordered from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum Durability {
    /// In memory, journaled right after.
    Buffered = 1,
    /// In the journal, fsynced.
    Journaled = 2,
    /// Confirmed by the store.
    Stored = 3,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// A run of the model.
    Model = 1,
    /// The cache.
    Cache = 2,
    /// The first reply given again.
    Replay = 3,
    /// The fallback rule.
    Fallback = 4,
}

impl Source {
    /// From its number in a record; an unknown one (of a later version) is a model's.
    pub fn from_number(number: u32) -> Self {
        match number {
            2 => Source::Cache,
            3 => Source::Replay,
            4 => Source::Fallback,
            _ => Source::Model,
        }
    }
}

/// The idempotency key of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Who asked, 1 to 128 bytes.
    pub robot_id: Arc<str>,
    /// Which of its requests, 1 to 2^63-1.
    pub sequence: u64,
}

/// The label that was made for a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Index of the label in the model's labels.
    pub index: u32,
    /// The label itself.
    pub label: Arc<str>,
    /// The label's score.
    pub confidence: f32,
    /// One per label of the model.
    pub scores: Box<[f32]>,
    /// The model that made it.
    pub model: Arc<str>,
    /// The version that made it.
    pub version: Arc<str>,
    /// Where it comes from.
    pub source: Source,
}

/// Sensor values as they arrived, with the request field that held them.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// Such as `payload.floats`.
    pub field: &'static str,
    /// One row.
    pub values: Values,
}

/// Values of one row in their own width.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32-bit.
    F32(Vec<f32>),
    /// 64-bit.
    F64(Vec<f64>),
}

/// A checked request, before its model is known.
#[derive(Debug, Clone)]
pub struct Request {
    /// The idempotency key.
    pub key: Key,
    /// Empty for the default.
    pub model: Box<str>,
    /// Empty for the serving one.
    pub version: Box<str>,
    /// The sensor values.
    pub payload: Payload,
    /// Which queue.
    pub priority: Priority,
    /// `None` for the default.
    pub durability: Option<Durability>,
    /// Whether a weaker level is an error.
    pub durability_required: bool,
    /// µs from the arrival; `None` for the default.
    pub timeout_us: Option<u64>,
    /// The robot's clock.
    pub captured_at_unix_us: i64,
    /// The item at hand, or empty.
    pub sku: Box<str>,
}
