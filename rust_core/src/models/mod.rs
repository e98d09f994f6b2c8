//! Models: what lies in the repository, what is fit to serve, and the session that runs it.
//!
//! Order: the runtime library once a process, then a version's manifest, its files' SHA-256, its
//! golden vectors on this very CPU, and the proof that no row depends on its neighbours. Never
//! serves what failed one of them. Knows no gRPC, no environment variable, no request.

mod check;
mod golden;
mod graph;
mod manifest;
mod name;
mod repository;
mod runtime;
mod session;
#[cfg(test)]
mod testing;

pub use manifest::{Credit, Manifest, ModelFile, PackedFile};
pub use repository::{Available, Repository};
pub use runtime::{RuntimeInfo, load_runtime};
pub use session::Session;

/// The manifest's name inside a version's folder.
pub const MANIFEST_FILE: &str = "model.toml";
/// The format of `model.toml` that this program reads.
pub const MANIFEST_FORMAT: u32 = 1;
/// Largest manifest that is read.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Largest model, golden or report file that is read; all of it is in memory while it loads.
pub const MODEL_BYTES_MAX: u64 = 1 << 30;
/// Longest name or version.
pub const NAME_BYTES_MAX: usize = 64;
/// Most values in a payload.
pub const WIDTH_MAX: usize = 65_536;
/// Most labels of a model.
pub const LABELS_MAX: usize = 4_096;
/// Most folders that one listing looks at; the rest is left out, said loudly.
pub const FOLDERS_MAX: usize = 4_096;
/// Most golden rows of a version.
pub const GOLDEN_ROWS_MAX: usize = 4_096;
/// Most rows in one run.
pub const RUN_ROWS_MAX: usize = 4_096;

/// A value, or the reason for people why there is none; the caller adds model and version.
type Checked<T> = std::result::Result<T, String>;
