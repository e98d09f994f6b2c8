//! The real engine with its real transport in this process, a client of it by the frame, and the
//! fault points.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::SendRequest};
use labeler_core::{Engine, config::CoreConfig, faults, life::State, proto};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use serde_json::json;
use tokio::{net::TcpStream, runtime::Runtime};

/// Far above what anything here takes: a call that gets there was forgotten.
const DEADLINE_US: u64 = 20_000_000;
const WIDTH: usize = 24;
/// Far above what anything here takes.
const WAIT: Duration = Duration::from_secs(20);

/// Fault points are the process's, so tests that arm them run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An engine in a directory of its own, with one model.
pub struct Served {
    pub engine: Arc<Engine>,
    _folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Served {
    /// `None`, said aloud, where there is no ONNX Runtime.
    pub fn start() -> Option<Self> {
        Self::with_lame_duck(0)
    }

    /// The same, with a listener that stays open for so long after the drain's begin.
    pub fn with_lame_duck(ms: u64) -> Option<Self> {
        let library = runtime_library()?;
        let alone = ONE_AT_A_TIME.lock();
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(config(folder.path(), &library, ms)).unwrap();
        engine.open().unwrap();
        Some(Self { engine, _folder: folder, _alone: alone })
    }

    /// Sends a call while `point` is armed; what came of it, once the point was hit.
    pub fn hit<T>(&self, point: &'static str, call: impl FnOnce() -> T) -> T {
        faults::arm(point);
        let answer = call();
        eventually(point, faults::is_hit);
        answer
    }

    /// Calls that have not ended.
    pub fn in_flight(&self) -> u64 {
        self.engine.shared.accounts.in_flight()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A test that has failed may leave it in any state.
        faults::disarm();
        let _ = self.engine.stop();
        // In its lame-duck time a drain still holds the server, whose tasks would hit the next
        // test's point.
        becomes_true(WAIT, || !runs("drain"));
    }
}

/// Whether a thread of this name runs.
fn runs(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().any(|comm| comm.trim_end() == name)
}

/// Waits for a condition; panics with its name after a long time.
pub fn eventually(name: &str, condition: impl Fn() -> bool) {
    within(WAIT, name, condition);
}

/// The same for a shorter time, where later the condition comes true for another reason.
pub fn within(limit: Duration, name: &str, condition: impl Fn() -> bool) {
    assert!(becomes_true(limit, condition), "not within {limit:?}: {name}");
}

fn becomes_true(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Waits until a part's end has ended the service; why it did.
pub fn failure(engine: &Engine) -> String {
    eventually("the service has failed", || engine.life.state() == State::Failed);
    engine.life.failure().unwrap().to_string()
}

#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
fn runtime_library() -> Option<PathBuf> {
    let path = std::env::var_os("LABELER_TEST_ORT_LIBRARY").filter(|path| !path.is_empty());
    if path.is_none() {
        let required = std::env::var("LABELER_REQUIRE_ORT").is_ok_and(|value| value == "1");
        assert!(!required, "LABELER_REQUIRE_ORT=1, but LABELER_TEST_ORT_LIBRARY is not set");
        eprintln!("SKIPPED: set LABELER_TEST_ORT_LIBRARY to the path of libonnxruntime");
    }
    path.map(PathBuf::from)
}

fn config(state_dir: &Path, runtime_library: &Path, lame_duck_ms: u64) -> CoreConfig {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/labeler/models/packaged");
    let config = json!({
        "state_dir": state_dir,
        "transport": {
            "grpc_address": "127.0.0.1:0", "threads": 2, "message_bytes_max": 4 << 20,
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
            "deadline_ms": DEADLINE_US / 1_000, "durability": "JOURNALED", "queue_rows_max": 4_096,
            "bulk_queue_rows_max": 8_192, "batch_rows_max": 8, "delay_us_max": 0,
            "bulk_run_us_max": 2_000, "dedupe_rows_max": 65_536, "dedupe_window_ms": 60_000,
            "deadline_margin_us": 5_000, "stored_waiters_max": 1_024,
            "store_stalled_ms": 30_000,
        },
        "journal": {
            "directory": state_dir.join("journal"), "segment_bytes": 1 << 20,
            "disk_bytes_max": 64 << 20, "memory_bytes_max": 8 << 20, "commit_gap_us_min": 1_000,
            "copy_forward_live_pct": 25, "reserve_bytes": 4 << 20,
            "pending_age_ms_max": 0,
        },
        "models": {
            "repositories": [packaged], "load": ["kiva-floor"], "default": "kiva-floor",
            "runtime_library": runtime_library,
        },
        "control": { "queue_rows_max": 256, "timeout_ms": 20_000 },
        "drain": { "budget_ms": 20_000, "lame_duck_ms": lame_duck_ms },
    });
    serde_json::from_value(config).unwrap()
}

/// A request of one robot.
pub fn request(sequence: u64) -> proto::LabelRequest {
    let payload = proto::Payload { floats: vec![2.5; WIDTH], ..proto::Payload::default() };
    proto::LabelRequest {
        robot_id: "robot".to_owned(),
        sequence: Some(sequence),
        payload: Some(payload),
        ..proto::LabelRequest::default()
    }
}

/// How a call ended: its code, its messages, or that its stream was reset.
#[derive(Debug, PartialEq)]
pub struct Ended<M> {
    /// By `grpc-status`; `None` where the connection said nothing.
    pub code: Option<i32>,
    /// What came before.
    pub messages: Vec<M>,
}

/// A connection, with the thread's own runtime.
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
}

impl Client {
    pub fn connect(served: &Served) -> Self {
        Self::try_connect(&served.engine.grpc_address()).expect("a connection")
    }

    pub fn try_connect(address: &str) -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let sender = runtime.block_on(async {
            let socket = TcpStream::connect(address).await.ok()?;
            let (sender, connection) = h2::client::handshake(socket).await.ok()?;
            tokio::spawn(connection);
            Some(sender)
        })?;
        Some(Self { runtime, sender })
    }

    /// A call of one message.
    pub fn unary<M: Message + Default>(&self, method: &str, message: &impl Message) -> Ended<M> {
        self.runtime.block_on(async {
            let (body, reply) = self.open(method).await;
            read(self.write(body, message, true), reply).await
        })
    }

    /// `Label`, and the code that it ended with.
    pub fn label(&self, sequence: u64) -> Option<i32> {
        self.unary::<proto::LabelResponse>("Label", &request(sequence)).code
    }

    /// A `LabelStream` of these messages, ended by us; what came back.
    pub fn stream(&self, messages: &[proto::LabelRequest]) -> Ended<proto::LabelStreamResponse> {
        self.runtime.block_on(async {
            let (mut body, reply) = self.open("LabelStream").await;
            let last = messages.len() - 1;
            for (at, message) in messages.iter().enumerate() {
                body = self.write(body, message, at == last);
            }
            read(body, reply).await
        })
    }

    async fn open(&self, method: &str) -> (SendStream<Bytes>, h2::client::ResponseFuture) {
        let head = http::Request::post(format!("http://labeler/labeler.v1.LabelService/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let mut sender = self.sender.clone().ready().await.expect("an open connection");
        let (reply, body) = sender.send_request(head, false).unwrap();
        (body, reply)
    }

    fn write(
        &self,
        mut body: SendStream<Bytes>,
        message: &impl Message,
        last: bool,
    ) -> SendStream<Bytes> {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.encoded_len() as u32);
        message.encode(&mut frame).unwrap();
        // A server that has ended the call takes no more of it; how it ended is read.
        let _ = body.send_data(frame.freeze(), last);
        body
    }
}

async fn read<M: Message + Default>(
    _open: SendStream<Bytes>,
    reply: h2::client::ResponseFuture,
) -> Ended<M> {
    let Ok(reply) = reply.await else { return Ended { code: None, messages: vec![] } };
    let code = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|status| status.to_str().unwrap().parse::<i32>().unwrap())
    };
    let (head, mut body) = reply.into_parts();
    let messages = messages(&mut body).await;
    let trailers = body.trailers().await.ok().flatten();
    Ended { code: code(&head.headers).or(trailers.as_ref().and_then(code)), messages }
}

async fn messages<M: Message + Default>(body: &mut RecvStream) -> Vec<M> {
    let mut bytes = BytesMut::new();
    while let Some(Ok(chunk)) = body.data().await {
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend_from_slice(&chunk);
    }
    let mut messages = Vec::new();
    while bytes.len() >= 5 {
        let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
        messages.push(M::decode(&bytes[5..5 + length]).unwrap());
        let _ = bytes.split_to(5 + length);
    }
    messages
}
