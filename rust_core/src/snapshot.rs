//! What the control side reads once a second: counters, gauges, histograms. Keys are those of
//! `labeler.telemetry.names`.
//!
//! Each part is read under its own short lock, so each balances in itself; nothing here is on a
//! label's way.

use std::{sync::Arc, sync::atomic::Ordering};

use serde_json::{Value, json};

use crate::{
    account::Method,
    engine::Engine,
    path::served::Version,
    stages::{Series, sparse},
};

/// Latencies of each loaded version's stages since the start.
pub fn stages(engine: &Engine) -> Vec<(Arc<Version>, Series)> {
    let versions = engine.shared.path.served.versions();
    let merged = |(version, _): (Arc<Version>, bool)| {
        let series = version.counts.stages.merged();
        series.into_iter().map(move |s| (version.clone(), s))
    };
    versions.into_iter().flat_map(merged).collect()
}

/// Everything else.
pub fn take(engine: &Engine) -> Value {
    let shared = &engine.shared;
    let (queued, expired_total) = shared.control.counts();
    json!({
        "state": engine.life.state().name(),
        "failure": engine.life.failure().map(|e| e.to_string()),
        "started_unix_us": engine.started_unix_us,
        "uptime_us": shared.clock.now_us(),
        "methods": methods(engine),
        "queues": queues(engine),
        "dedupe": dedupe(engine),
        "journal": journal(engine),
        "transport": transport(engine),
        "clock_regressions_total": engine.stamps.regressions(),
        "control": { "queued": queued, "expired_total": expired_total },
        "errors": errors(engine),
    })
}

fn methods(engine: &Engine) -> Value {
    let counts = |method: Method| {
        let c = engine.shared.accounts.counts(method);
        let counts = json!({
            "received": c.received,
            "answered": c.answered,
            "rejected": c.rejected,
            "expired": c.expired,
            "cancelled": c.cancelled,
            "failed": c.failed,
            "in_flight": c.in_flight,
        });
        (method.name().to_owned(), counts)
    };
    Value::Object(Method::ALL.into_iter().map(counts).collect())
}

fn errors(engine: &Engine) -> Value {
    let counts = engine.shared.errors.counts().into_iter();
    Value::Object(counts.map(|(code, count)| (code, count.into())).collect())
}

fn queues(engine: &Engine) -> Value {
    let queue = |(version, serving): (Arc<Version>, bool)| {
        let (robot_rows, bulk_rows) = version.queue.waiting_rows();
        let totals = version.counts.batches.lock().clone();
        json!({
            "model": &*version.manifest.name,
            "version": &*version.manifest.version,
            "serving": serving,
            "robot_rows": robot_rows,
            "bulk_rows": bulk_rows,
            "batches_total": totals.batches_total,
            "bulk_batches_total": totals.bulk_batches_total,
            "rows_total": totals.rows_total,
            "batch_rows": sparse(&totals.batch_rows),
        })
    };
    engine.shared.path.served.versions().into_iter().map(queue).collect()
}

fn dedupe(engine: &Engine) -> Value {
    let counts = engine.shared.path.dedupe.counts();
    json!({
        "rows": counts.rows,
        "replays_total": counts.replays_total,
        "joins_total": counts.joins_total,
        "conflicts_total": counts.conflicts_total,
    })
}

fn journal(engine: &Engine) -> Value {
    let stats = engine.journal.stats();
    json!({
        "journaled_total": stats.journaled_total,
        "stored_total": stats.stored_total,
        "superseded_total": stats.superseded_total,
        "dead_total": stats.dead_total,
        "pending": stats.pending,
        "next_number": stats.next_number,
        "durable_number": stats.durable_number,
        "commits_total": stats.commits_total,
        "commit_us": sparse(&stats.commit_us),
        "commit_us_sum": sum(&stats.commit_us),
        "oldest_pending_us": stats.oldest_pending_us,
        "unconfirmed_us": stats.unconfirmed_us,
        "live_bytes": stats.live_bytes,
        "disk_bytes": stats.disk_bytes,
        "disk_bytes_max": engine.journal_bytes_max(),
        "segments": stats.segments,
        "uncommitted_bytes": stats.uncommitted_bytes,
        "refused_total": stats.refused_total,
        "copied_total": stats.copied_total,
        "quarantined_total": stats.quarantined_total,
    })
}

fn transport(engine: &Engine) -> Value {
    let gauges = &engine.shared.gauges;
    json!({
        "connections": gauges.connections.load(Ordering::Acquire),
        "connections_total": gauges.connections_total.load(Ordering::Relaxed),
        "connections_refused_total": gauges.connections_refused_total.load(Ordering::Relaxed),
        "streams": gauges.streams.load(Ordering::Acquire),
        "connection_streams_max": engine.shared.config.streams_per_connection_max,
        "connection_streams_peak": gauges.connection_streams_peak.load(Ordering::Relaxed),
        "goaway_total": gauges.goaway_total.load(Ordering::Relaxed),
        "goaway_calm_total": gauges.goaway_calm_total.load(Ordering::Relaxed),
    })
}

fn sum(histogram: &hdrhistogram::Histogram<u64>) -> u64 {
    (histogram.mean() * histogram.len() as f64) as u64
}
