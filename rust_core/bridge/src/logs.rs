//! The core's log: straight to stderr, through a bounded queue that drops and counts when it is
//! full.
//!
//! No line crosses to Python, so a busy interpreter cannot stall the path (TRAPS 12).

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{IsTerminal as _, Write as _},
    sync::{
        Once, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use pyo3::{exceptions::PyValueError, prelude::*};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
};

const LINES_MAX: usize = 8_192;

// Once a process, as the subscriber itself is.
static LOGGING: OnceLock<(ErrorCounter, WorkerGuard)> = OnceLock::new();

/// Sends the log to stderr from now on; a second call changes nothing.
#[pyfunction]
pub fn init_logging(level: &str, format: &str) -> PyResult<()> {
    let filter = EnvFilter::try_new(format!("warn,labeler_core={level},_core={level}"))
        .map_err(|e| PyValueError::new_err(format!("log level {level:?}: {e}")))?;
    LOGGING.get_or_init(|| {
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(LINES_MAX)
            .thread_name("log")
            .finish(std::io::stderr());
        let dropped = writer.error_counter();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
        // An embedding program may have a subscriber of its own; then its lines go there.
        let _ = if format == "json" {
            builder.json().try_init()
        } else {
            builder.with_ansi(std::io::stderr().is_terminal()).try_init()
        };
        (dropped, guard)
    });
    Ok(())
}

/// Lines that were dropped since the start.
pub fn dropped_total() -> u64 {
    LOGGING.get().map_or(0, |(dropped, _)| dropped.dropped_lines() as u64)
}

static PANICS_TOTAL: AtomicU64 = AtomicU64::new(0);

/// From now on a panic of our code is counted and becomes a line of the log. What is there by
/// default writes to stderr and waits for it: where nobody reads, so would the thread.
pub fn tell_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            PANICS_TOTAL.fetch_add(1, Ordering::Relaxed);
            let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let reason = info.payload_as_str().unwrap_or("without a message");
            // Empty unless RUST_BACKTRACE asks for one.
            let backtrace = Backtrace::capture();
            let asked = backtrace.status() == BacktraceStatus::Captured;
            let backtrace = asked.then(|| backtrace.to_string());
            tracing::error!(thread, place, reason, backtrace, "panic");
        }));
    });
}

/// Panics since the start, whatever they ended.
pub fn panics_total() -> u64 {
    PANICS_TOTAL.load(Ordering::Relaxed)
}

/// One line of the log's schema, written at once: an exit follows. A stderr that nobody reads
/// blocks its writers, so the line has a bounded time and the exit goes on without it.
#[pyfunction]
pub fn log_fatal(py: Python<'_>, message: &str) {
    py.detach(|| write_fatal(message));
}

/// The same, from a thread without Python.
pub fn write_fatal(message: &str) {
    let mut timestamp = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line = serde_json::json!({
        "timestamp": timestamp,
        "level": "ERROR",
        "fields": { "message": message },
        "target": "labeler",
    });
    let (sender, written) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = writeln!(std::io::stderr(), "{line}");
        let _ = sender.send(());
    });
    let _ = written.recv_timeout(FATAL_LINE_MAX);
}

const FATAL_LINE_MAX: Duration = Duration::from_millis(200);
