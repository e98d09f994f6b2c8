//! One connection: HTTP/2 with its bounds, its age, and its end.
//!
//! Age is jittered, so that a fleet that connected together does not reconnect together; a
//! connection at its age is asked to go (GOAWAY, streams told) and closed after a grace. Something
//! that does not speak HTTP/2 is answered or closed within the handshake timeout.

use std::{sync::Arc, time::Duration};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::watch, time::Instant};
use tonic::Status;

use crate::faults;

use super::{
    Shared,
    router::Router,
    running::{Begun, Running},
};

/// Why a connection has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its age.
    Age,
    /// The service drains.
    Drain,
}

impl Ending {
    /// What a stream's robot is told after its last reply.
    pub fn status(self) -> Status {
        Status::unavailable(match self {
            Ending::Age => {
                "the connection has reached its age: reconnect, resend what is unanswered"
            }
            Ending::Drain => {
                "the service is draining: reconnect elsewhere, resend what is unanswered"
            }
        })
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NOT_HTTP2: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\n\
    connection: close\r\ncontent-length: 45\r\n\r\nThis port speaks gRPC over HTTP/2, h2c only.\n";
const PEEK_EVERY: Duration = Duration::from_millis(2);

/// Serves a connection until its end. `drain` turns true when the service drains.
pub async fn serve(
    shared: Arc<Shared>,
    router: Router,
    stream: TcpStream,
    drain: watch::Receiver<bool>,
) {
    let mut stream = stream;
    // A failure here only costs latency on this connection.
    let _ = stream.set_nodelay(true);
    let handshake = Duration::from_millis(shared.config.handshake_timeout_ms);
    let spoken = tokio::time::timeout(handshake, preface(&mut stream)).await;
    if spoken != Ok(true) {
        close(stream).await;
        let gauge = &shared.gauges.connections_refused_total;
        gauge.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        return;
    }
    let (ending, told) = watch::channel(None);
    faults::point("connection");
    let begun = Begun::default();
    let service = router.for_connection(told, begun.clone());
    let connection =
        builder(&shared, begun.clone()).serve_connection(TokioIo::new(stream), service);
    let mut running = Running::new(connection, begun);
    let why = tokio::select! {
        biased;
        _ = &mut running => return,
        () = aged(&shared) => Ending::Age,
        () = drained(drain) => Ending::Drain,
    };
    shared.gauges.goaway_total.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let _ = ending.send(Some(why));
    running.connection().graceful_shutdown();
    let grace = Duration::from_millis(shared.config.connection_age_grace_ms);
    let _ = tokio::time::timeout(grace, running).await;
}

/// Whether the stream begins as HTTP/2 does. The bytes are only looked at.
async fn preface(stream: &mut TcpStream) -> bool {
    let mut seen = [0; PREFACE.len()];
    loop {
        let len = stream.peek(&mut seen).await.unwrap_or(0);
        if len == 0 {
            return false;
        }
        if seen[..len] != PREFACE[..len] {
            if seen[0].is_ascii_uppercase() {
                let _ = stream.write_all(NOT_HTTP2).await;
            }
            return false;
        }
        if len == PREFACE.len() {
            return true;
        }
        tokio::time::sleep(PEEK_EVERY).await;
    }
}

/// Closes in order. Bytes left unread would turn the close into a reset, which can overtake the
/// answer.
async fn close(mut stream: TcpStream) {
    discard(&stream);
    let _ = stream.shutdown().await;
}

/// Not part of `close`, whose future would keep the buffer, and so would that of each connection.
fn discard(stream: &TcpStream) {
    let mut unread = [0; 4096];
    while matches!(stream.try_read(&mut unread), Ok(len) if len > 0) {}
}

fn builder(shared: &Shared, begun: Begun) -> http2::Builder<Begun> {
    let config = &shared.config;
    let mut builder = http2::Builder::new(begun);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(config.stream_window_bytes)
        .initial_connection_window_size(config.connection_window_bytes)
        .max_concurrent_streams(config.streams_per_connection_max)
        .max_header_list_size(config.header_bytes_max)
        .max_pending_accept_reset_streams(config.pending_resets_max)
        .max_local_error_reset_streams(config.local_resets_max)
        .auto_date_header(false)
        .keep_alive_interval(Duration::from_millis(config.keepalive_interval_ms))
        .keep_alive_timeout(Duration::from_millis(config.keepalive_timeout_ms));
    builder
}

async fn aged(shared: &Shared) {
    let age_ms = shared.config.connection_age_ms_max;
    if age_ms == 0 {
        return std::future::pending().await;
    }
    let spread = age_ms * u64::from(shared.config.connection_age_jitter_pct) / 100;
    // A random UUID is the randomness at hand, and this needs no quality of it.
    let random = uuid::Uuid::new_v4().as_u64_pair().0;
    let jitter_ms = if spread == 0 { 0 } else { random % (2 * spread + 1) };
    let age = Duration::from_millis(age_ms - spread + jitter_ms);
    tokio::time::sleep_until(Instant::now() + age).await;
}

async fn drained(mut drain: watch::Receiver<bool>) {
    // The sender lives as long as the server; its end is a drain too.
    let _ = drain.wait_for(|drain| *drain).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_that_waits_holds_no_buffer_of_ours() {
        assert!(future_bytes(serve) <= 1024, "{} bytes", future_bytes(serve));
    }
}
