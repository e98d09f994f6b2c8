//! One connection: HTTP/2 with its bounds, its age, and its end.
//!
//! Age is jittered, so that a fleet that connected together does not reconnect together; a
//! connection at its age is asked to go (GOAWAY, streams told) and closed after a grace. Something
//! that does not speak HTTP/2 is answered or closed within the handshake timeout.

use std::{
    error::Error as _,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::TcpStream,
    sync::watch,
    time::Instant,
};
use tonic::Status;

use crate::{config::TransportConfig, faults};

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
    let spoken = tokio::select! {
        spoken = tokio::time::timeout(handshake, preface(&mut stream)) => spoken == Ok(true),
        // Who has not spoken yet is owed nothing.
        () = drained(drain.clone()) => return,
    };
    if !spoken {
        close(stream).await;
        shared.gauges.connections_refused_total.fetch_add(1, Ordering::Relaxed);
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
        end = &mut running => return ended(&shared, end),
        () = aged(&shared) => Ending::Age,
        () = drained(drain) => Ending::Drain,
    };
    shared.gauges.goaway_total.fetch_add(1, Ordering::Relaxed);
    let _ = ending.send(Some(why));
    running.connection().graceful_shutdown();
    let grace = Duration::from_millis(shared.config.connection_age_grace_ms);
    if let Ok(end) = tokio::time::timeout(grace, running).await {
        ended(&shared, end);
    }
}

/// Counts the ends that a fleet's settings may have caused: its limits on resets.
fn ended(shared: &Shared, end: hyper::Result<()>) {
    let Err(error) = end else { return };
    let cause = error.source().and_then(|e| e.downcast_ref::<h2::Error>());
    let calm = Some(h2::Reason::ENHANCE_YOUR_CALM);
    if cause.is_some_and(|e| e.is_library() && e.is_go_away() && e.reason() == calm) {
        shared.gauges.goaway_calm_total.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("a connection was ended for too many resets (ENHANCE_YOUR_CALM)");
    }
}

/// Whether the stream begins as HTTP/2 does. The bytes are only looked at.
async fn preface(stream: &mut TcpStream) -> bool {
    let mut seen = [0; PREFACE.len()];
    loop {
        // What is peeked stays, so the end behind it does not show in its length.
        let over = stream.ready(Interest::READABLE).await.is_ok_and(|r| r.is_read_closed());
        let len = stream.peek(&mut seen).await.unwrap_or(0);
        if len == 0 || over && len < PREFACE.len() {
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
    let TransportConfig { connection_age_ms_max: ms, connection_age_jitter_pct: pct, .. } =
        shared.config;
    if ms == 0 {
        return std::future::pending().await;
    }
    // A random UUID is the randomness at hand, and this needs no quality of it.
    let random = uuid::Uuid::new_v4().as_u64_pair().0;
    tokio::time::sleep_until(Instant::now() + age(ms, pct, random)).await;
}

/// The age of one connection: `ms` ± `pct` %, evenly spread, by a random number.
fn age(ms: u64, pct: u8, random: u64) -> Duration {
    let spread = ms * u64::from(pct) / 100;
    Duration::from_millis(ms - spread + random % (2 * spread + 1))
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
    fn ages_are_spread_evenly_over_the_jitter_and_never_beyond_it() {
        const TENTHS: usize = 10;
        let (ms, pct, connections) = (2_000, 10, 3_000_u64);
        let mut tenths = [0; TENTHS];
        for n in 0..connections {
            // Any sequence that covers 64 bits evenly; this one is the same in each run.
            let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
            let age_ms = age(ms, pct, random).as_millis() as u64;
            assert!((1_800..=2_200).contains(&age_ms), "{age_ms} ms");
            tenths[((age_ms - 1_800) as usize * TENTHS / 401).min(TENTHS - 1)] += 1;
        }
        let each = connections / TENTHS as u64;
        assert!(tenths.iter().all(|n| *n > each / 2 && *n < each * 2), "{tenths:?}");
        assert_eq!(age(ms, pct, u64::MAX), age(ms, pct, u64::MAX % 401));
        assert_eq!(age(ms, 0, 12_345), Duration::from_millis(ms), "no jitter is the age itself");
        assert_eq!(age(1, 50, u64::MAX), Duration::from_millis(1), "too short to be spread");
    }

    #[test]
    fn a_connection_that_waits_holds_no_buffer_of_ours() {
        assert!(future_bytes(serve) <= 1024, "{} bytes", future_bytes(serve));
    }
}
