//! A flag that is raised once: stop, close, fire.

use tokio::sync::watch;

/// Returns once the flag is raised, or whoever could raise it has gone.
pub async fn raised(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|raised| *raised).await;
}
