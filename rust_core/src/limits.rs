//! Bounds that are not settings, with assertions on how they relate.

/// Bytes of a robot id.
pub const ROBOT_ID_BYTES_MAX: usize = 128;
/// Bytes of an SKU.
pub const SKU_BYTES_MAX: usize = 64;
/// Bytes of a model's name or version in a request.
pub const MODEL_NAME_BYTES_MAX: usize = 128;
/// The largest sequence: 2^63-1, so that every store can hold it as a signed number.
pub const SEQUENCE_MAX: u64 = i64::MAX as u64;
/// Rows of one run of a model, whatever the configuration says.
pub const BATCH_ROWS_MAX: u64 = 4_096;
/// Rows of one `LabelBatch`.
pub const BATCH_REQUEST_ROWS_MAX: usize = 1_000;
/// Rows of one page of `ListLabels`.
pub const PAGE_ROWS_MAX: u32 = 1_000;
/// Rows of a page where the request names none.
pub const PAGE_ROWS_DEFAULT: u32 = 100;
/// The longest deadline: a caller that asks for more gets this.
pub const DEADLINE_US_MAX: u64 = 3_600_000_000;
/// Time for a message to arrive whole, where its call names no deadline.
pub const MESSAGE_US_MAX: u64 = 10_000_000;
/// What a record needs beside its strings and scores: tags, numbers, digest, frame.
pub const RECORD_OVERHEAD_BYTES: usize = 160;
/// Longest latency that a histogram can hold; longer ones count as this.
pub const LATENCY_US_MAX: u64 = 60_000_000;

const _: () = assert!(PAGE_ROWS_DEFAULT <= PAGE_ROWS_MAX, "a default page is a page");
const _: () = assert!(ROBOT_ID_BYTES_MAX < 2_048, "a robot id fits a DynamoDB partition key");
