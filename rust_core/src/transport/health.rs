//! `grpc.health.v1`: liveness never fails from load, readiness follows the engine's state, and the
//! store's health follows its confirmations.
//!
//! A store that is down makes nobody unready: labels are taken as long as the journal has room.

use std::time::Duration;

use tonic_health::{ServingStatus, server::HealthReporter};

/// Says that the process is alive.
pub const LIVE: &str = "labeler.live";
/// Names that mean ready: the whole server, and the label service.
pub const READY: [&str; 2] = ["", "labeler.v1.LabelService"];

/// Says that the store confirms what it is given.
pub const STORE: &str = "labeler.store";
/// How often the store's health is looked at.
pub const STORE_LOOK: Duration = Duration::from_millis(500);

/// Sets readiness.
pub async fn set_ready(reporter: &HealthReporter, ready: bool) {
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in READY {
        reporter.set_service_status(name, status).await;
    }
}

/// Sets liveness, once at the start.
pub async fn set_live(reporter: &HealthReporter) {
    reporter.set_service_status(LIVE, ServingStatus::Serving).await;
}

/// Sets the store's health, and says so.
pub async fn set_store(reporter: &HealthReporter, confirms: bool) {
    let status = if confirms { ServingStatus::Serving } else { ServingStatus::NotServing };
    reporter.set_service_status(STORE, status).await;
}

/// Watches the store's confirmations for as long as the runtime runs.
pub async fn watch_store(
    reporter: HealthReporter,
    unconfirmed: impl Fn() -> Duration,
    stalled: Duration,
) {
    let mut confirms = true;
    loop {
        tokio::time::sleep(STORE_LOOK).await;
        let waited = unconfirmed();
        if confirms != (waited < stalled) {
            confirms = !confirms;
            set_store(&reporter, confirms).await;
            let waited_ms = waited.as_millis() as u64;
            if confirms {
                tracing::info!("the store confirms labels again");
            } else {
                tracing::error!(waited_ms, "the store has confirmed nothing although labels wait");
            }
        }
    }
}
