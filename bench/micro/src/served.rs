//! The real engine with its real transport, in this process: one transport thread, one model, the
//! journal in a folder of its own. No store is behind it, so that no thread but the path's works.

use std::{
    path::Path,
    sync::Arc,
    thread::park_timeout,
    time::{Duration, Instant},
};

use labeler_core::{Engine, config::CoreConfig, path::served::Version};
use serde_json::json;

use super::client::Failure;

const REST: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(1);

/// A running engine; its state is gone with it.
pub struct Served {
    /// The engine.
    pub engine: Arc<Engine>,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Starts it with ONNX Runtime's library and the models packaged in `root`, the project.
    pub fn start(library: &Path, root: &Path) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let engine = Engine::start(config(folder.path(), library, root)?)?;
        engine.open()?;
        Ok(Self { engine, _folder: folder })
    }

    /// The version that answers.
    pub fn version(&self) -> Result<Arc<Version>, Failure> {
        Ok(self.engine.shared.path.served.resolve("", "")?)
    }

    /// Waits until nothing is under way: no call, and no record before its commit.
    pub fn rest(&self) -> Result<(), Failure> {
        let until = Instant::now() + REST;
        let at_rest = || {
            let journal = self.engine.journal.stats();
            self.engine.shared.accounts.in_flight() == 0
                && journal.durable_number == journal.next_number
        };
        while !at_rest() {
            if Instant::now() > until {
                return Err("the engine did not come to rest".into());
            }
            park_timeout(LOOK);
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.engine.stop();
    }
}

fn config(state_dir: &Path, library: &Path, root: &Path) -> Result<CoreConfig, Failure> {
    let config = json!({
        "state_dir": state_dir,
        "transport": {
            "grpc_address": "127.0.0.1:0", "threads": 1, "message_bytes_max": 4 << 20,
            "connections_max": 64, "streams_per_connection_max": 200,
            "stream_window_bytes": 65_536, "connection_window_bytes": 16 << 20,
            "header_bytes_max": 16_384, "handshake_timeout_ms": 5_000,
            "keepalive_interval_ms": 60_000, "keepalive_timeout_ms": 20_000,
            "connection_age_ms_max": 0, "connection_age_jitter_pct": 0,
            "connection_age_grace_ms": 30_000, "stream_in_flight_max": 64,
            "stream_unread_ms_max": 10_000, "pending_resets_max": 1_000,
            "local_resets_max": 100_000,
        },
        "path": {
            "deadline_ms": 20_000, "durability": "JOURNALED", "queue_rows_max": 4_096,
            "bulk_queue_rows_max": 8_192, "batch_rows_max": 64, "delay_us_max": 0,
            "bulk_run_us_max": 2_000, "dedupe_rows_max": 65_536, "dedupe_window_ms": 600_000,
            "deadline_margin_us": 5_000, "stored_waiters_max": 1_024,
            "store_stalled_ms": 30_000,
        },
        "journal": {
            "directory": state_dir.join("journal"), "segment_bytes": 4 << 20,
            "disk_bytes_max": 64 << 20, "memory_bytes_max": 8 << 20, "commit_gap_us_min": 1_000,
            "copy_forward_live_pct": 25, "reserve_bytes": 4 << 20, "pending_age_ms_max": 0,
        },
        "models": {
            "repositories": [root.join("python/labeler/models/packaged")],
            "load": ["kiva-floor"], "default": "kiva-floor", "runtime_library": library,
        },
        "control": { "queue_rows_max": 256, "timeout_ms": 20_000 },
        "drain": { "budget_ms": 20_000, "lame_duck_ms": 0 },
    });
    Ok(serde_json::from_value(config)?)
}
