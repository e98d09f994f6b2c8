//! `grpc.health.v1`: liveness never fails from load, readiness follows the engine's state.

use tonic_health::{ServingStatus, server::HealthReporter};

/// Says that the process is alive.
pub const LIVE: &str = "labeler.live";
/// Names that mean ready: the whole server, and the label service.
pub const READY: [&str; 2] = ["", "labeler.v1.LabelService"];

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
