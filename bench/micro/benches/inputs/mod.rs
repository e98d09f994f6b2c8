//! What the parts are given: made outside of what is counted, the same in every run.

use std::{
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use labeler_core::{
    account::{Accounts, Method},
    clock::Clock,
    journal::{self, Committer, Journal, JournalConfig, Next, SystemFiles},
    label::{Answer, Durability, Key, Payload, Priority, Source, Values},
    models::Repository,
    path::{
        Entry, Reply,
        batch::{BatchLimits, Queue},
        served::{Counts, Version},
    },
    proto,
    row::{Asked, Row},
    row_record,
    stages::{Stage, Timing},
    transport::codec::{self, Received, Rows, StreamReply, TimedCodec},
};
use prost::Message as _;
use tonic::{
    Status, Streaming,
    codec::{EncodeBody, SingleMessageCompressionOverride},
};

/// The messages of a call, not read yet.
pub type Incoming = Streaming<Received<proto::LabelRequest>>;
/// An answered row with its answer.
pub type Answered = (Arc<Row>, Answer);
/// A version as requests hold it.
pub type SharedVersion = Arc<Version>;

const WIDTH: usize = 24;
const BATCH_ROWS: usize = 100;
const DEADLINE_US: u64 = 60_000_000;

/// A payload of `floats`.
pub fn floats() -> proto::Payload {
    proto::Payload { floats: (0..WIDTH).map(|n| n as f32 / 8.0).collect(), ..Default::default() }
}

/// A payload of `doubles`.
pub fn doubles() -> proto::Payload {
    proto::Payload { doubles: (0..WIDTH).map(|n| n as f64 / 8.0).collect(), ..Default::default() }
}

/// A payload of bytes, of 32 or 64 bits a value.
pub fn raw(wide: bool) -> proto::Payload {
    let values = (0..WIDTH).map(|n| n as f32 / 8.0);
    let (dtype, data) = if wide {
        let bytes = values.flat_map(|v| f64::from(v).to_le_bytes()).collect();
        (proto::DType::DtypeFloat64, bytes)
    } else {
        (proto::DType::DtypeFloat32, values.flat_map(f32::to_le_bytes).collect())
    };
    let raw = proto::RawValues { dtype: dtype as i32, data };
    proto::Payload { raw: Some(raw), ..Default::default() }
}

/// A call with one message of this payload, its body already there.
pub fn incoming(payload: proto::Payload) -> Incoming {
    let message = proto::LabelRequest {
        robot_id: "robot-0042".into(),
        sequence: Some(123_456),
        payload: Some(payload),
        ..Default::default()
    };
    let mut frame = vec![0];
    frame.extend((message.encoded_len() as u32).to_be_bytes());
    frame.extend(message.encode_to_vec());
    let decoder = TimedCodec::<proto::LabelRequest, codec::Answered>::unary(Clock::start());
    Streaming::new_request(decoder, Whole(Some(frame.into())), None, None)
}

/// A body in one piece.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn asked(sequence: u64) -> Asked {
    Asked {
        key: Key { robot_id: "robot-0042".into(), sequence },
        digest: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
        priority: Priority::Robot,
        deadline_us: DEADLINE_US,
        captured_at_unix_us: 1_700_000_000_000_000,
        sku: "SKU-0815".into(),
    }
}

fn answer() -> Answer {
    Answer {
        index: 1,
        label: "slow-down".into(),
        confidence: 0.75,
        scores: Box::new([0.125, 0.75, 0.0625, 0.0625]),
        model: "kiva-floor".into(),
        version: "3".into(),
        source: Source::Model,
    }
}

/// A row that has its answer.
pub fn answered() -> Answered {
    let row = Row::new(asked(123_456), Durability::Buffered);
    assert!(row.begin());
    row.answered(answer());
    (Arc::new(row), answer())
}

fn version() -> SharedVersion {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../python/labeler/models/packaged")
        .canonicalize()
        .expect("the packaged models");
    let found = Repository::new(vec![packaged]).find("kiva-floor", "").expect("the packaged model");
    Arc::new(Version {
        manifest: Arc::new(found.manifest.expect("a whole manifest")),
        precision: "int8".into(),
        sha256: String::new(),
        queue: queue(),
        counts: Arc::new(Counts::default()),
    })
}

/// A version and a payload that it takes.
pub fn payload() -> (SharedVersion, Payload) {
    let version = version();
    let values = Values::F32(vec![0.5; version.manifest.width]);
    (version, Payload { field: "payload.floats", values })
}

fn reply(version: &SharedVersion, accounts: &Arc<Accounts>) -> codec::Answered {
    let mut timing = Timing::default();
    for (stage, us) in Stage::ALL.into_iter().zip(3..) {
        timing.set(stage, 0, 10 * us);
    }
    let row = answered().0;
    let level = Durability::Buffered;
    let reply =
        Reply { row, version: version.clone(), level, replay: false, timing, resumed_us: 210 };
    let entry = accounts.receive(Method::Label);
    codec::Answered { reply, want_scores: false, entry, arrived_us: 0 }
}

type Items<T> = futures_util::stream::Once<std::future::Ready<Result<T, Status>>>;
type Encoding<T> = EncodeBody<TimedCodec<proto::LabelRequest, T>, Items<T>>;

/// A call's reply before its encoding.
pub enum Outgoing {
    /// Of `Label`.
    Unary(Pin<Box<Encoding<codec::Answered>>>),
    /// One message of `LabelStream`.
    Message(Pin<Box<Encoding<StreamReply>>>),
    /// Of `LabelBatch`.
    Rows(Pin<Box<Encoding<Rows>>>),
}

impl Outgoing {
    /// Encodes it, as the connection asks for it.
    pub fn encoded(mut self) -> Self {
        match &mut self {
            Self::Unary(body) => first(body.as_mut()),
            Self::Message(body) => first(body.as_mut()),
            Self::Rows(body) => first(body.as_mut()),
        }
        self
    }
}

fn first<T: Body<Data = Bytes, Error = Status>>(body: Pin<&mut T>) {
    match body.poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) if frame.is_data() => {}
        _ => unreachable!("a reply has data"),
    }
}

fn encoding<T: codec::Outgoing>(item: T) -> Pin<Box<Encoding<T>>> {
    let once = futures_util::stream::once(std::future::ready(Ok(item)));
    Box::pin(EncodeBody::new_server(
        TimedCodec::unary(Clock::start()),
        once,
        None,
        SingleMessageCompressionOverride::default(),
        None,
    ))
}

/// A reply of `Label`.
pub fn unary() -> Outgoing {
    Outgoing::Unary(encoding(reply(&recorded(), &Arc::default())))
}

/// A reply of `LabelStream`.
pub fn stream_message() -> Outgoing {
    let result = Ok(reply(&recorded(), &Arc::default()));
    Outgoing::Message(encoding(StreamReply { sequence: 123_456, result }))
}

/// A reply of `LabelBatch`.
pub fn rows() -> Outgoing {
    let (version, accounts) = (recorded(), Arc::default());
    let rows = (0..BATCH_ROWS).map(|_| Ok(reply(&version, &accounts))).collect();
    Outgoing::Rows(encoding(Rows(rows)))
}

/// A version whose histograms are there: the first label makes them, and it alone.
fn recorded() -> SharedVersion {
    let version = version();
    version.counts.stages.record(&Timing::default());
    version
}

/// Rows about to queue.
pub struct Waiting {
    /// Their queue, empty.
    pub queue: Queue,
    /// The rows.
    pub entries: Vec<Entry>,
}

/// So many rows about to queue.
pub fn waiting(rows: u64) -> Waiting {
    let entry = |sequence| Entry {
        row: Arc::new(Row::new(asked(sequence), Durability::Buffered)),
        values: vec![0.5; WIDTH],
        reservation: None,
    };
    Waiting { queue: queue(), entries: (1..=rows).map(entry).collect() }
}

fn queue() -> Queue {
    let limits = BatchLimits {
        queue_rows_max: 4_096,
        bulk_queue_rows_max: 8_192,
        batch_rows_max: 64,
        bulk_run_us_max: 2_000,
        delay_us_max: 0,
    };
    Queue::new(limits, Arc::default(), Clock::start())
}

/// So many records of rows.
pub fn bodies(count: usize) -> Vec<Vec<u8>> {
    let (row, answer) = answered();
    let mut body = Vec::new();
    row_record::encode(&row.asked, &answer, 1_700_000_000_000_000, &mut body);
    vec![body; count]
}

/// A journal with records that wait for their commit.
pub struct Commit {
    committer: Committer,
    journal: Journal,
    _folder: tempfile::TempDir,
}

impl Commit {
    /// Writes and syncs the group that waits: the system's part of it counts no instruction.
    pub fn committed(mut self) -> Self {
        assert!(matches!(self.committer.step(), Ok(Next::Again)), "there was a group to write");
        self
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        let journal = self.journal.stats();
        assert_eq!(journal.durable_number, journal.next_number, "the group is durable");
    }
}

/// A new journal, its files there, to which so many records were appended as one batch's.
pub fn commit(records: usize) -> Commit {
    let folder = tempfile::tempdir().expect("a folder");
    let config = JournalConfig {
        directory: folder.path().join("journal"),
        segment_bytes: 1 << 20,
        disk_bytes_max: 16 << 20,
        memory_bytes_max: 1 << 20,
        commit_gap_us_min: 0,
        copy_forward_live_pct: 25,
        reserve_bytes: 1 << 20,
        pending_age_ms_max: 0,
    };
    let opened = journal::open(config, Arc::new(SystemFiles)).expect("a journal");
    let (journal, mut committer) = (opened.journal, opened.committer);
    while let Ok(Next::Again) = committer.step() {}
    let appended = journal.append(bodies(records), Vec::new(), Box::new(|_| ()));
    appended.expect("room");
    Commit { committer, journal, _folder: folder }
}
