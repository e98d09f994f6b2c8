//! What the parts are given: made outside of what is counted, the same in every run.

use std::{
    convert::Infallible,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::body::{Body, Frame};
use labeler_core::{
    account::{Accounts, Method},
    clock::Clock,
    journal::{self, Committer, Journal, JournalConfig, Next, SystemFiles},
    label::{Answer, Durability, Key, Payload, Priority, Source, Values},
    models::Repository,
    path::{
        Entry, Formed, Reply,
        batch::{BatchLimits, Queue},
        served::{Counts, Version},
    },
    proto,
    row::{Asked, Row},
    row_record,
    stages::{Stage, Timing},
    transport::{
        codec::{self, Received, Rows, StreamReply},
        unary,
    },
};
use prost::Message as _;

/// The body of a call, not read yet.
pub struct Incoming(Whole, Clock);

impl Incoming {
    /// Reads and decodes its message, as `Label` does.
    pub fn message(&mut self) -> Received<proto::LabelRequest> {
        let message = unary::message(&mut self.0, usize::MAX).now_or_never();
        let Some(Ok(message)) = message else { unreachable!("a whole message lies there") };
        codec::received(&message, &self.1)
    }
}

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
    Incoming(Whole(Some(frame.into())), Clock::start())
}

/// A body in one piece.
pub struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
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

/// A call's reply before its encoding, on a thread that has encoded others.
pub enum Outgoing {
    /// Of `Label`.
    Unary(codec::Answered, Clock),
    /// One message of `LabelStream`.
    Message(StreamReply, Clock),
    /// Of `LabelBatch`.
    Rows(Rows, Clock),
}

impl Outgoing {
    /// Encodes it, as its call does.
    pub fn encoded(self) -> Bytes {
        let framed = match self {
            Self::Unary(reply, clock) => unary::framed(reply, &clock),
            Self::Rows(rows, clock) => unary::framed(rows, &clock),
            Self::Message(reply, clock) => unary::framed(reply, &clock),
        };
        framed.unwrap_or_else(|error| unreachable!("a whole reply: {error}"))
    }
}

/// A reply of `Label`.
pub fn unary() -> Outgoing {
    Outgoing::Unary(reply(&recorded(), &Arc::default()), Clock::start())
}

/// A reply of `LabelStream`.
pub fn stream_message() -> Outgoing {
    let result = Ok(reply(&recorded(), &Arc::default()));
    let item = StreamReply { sequence: 123_456, result };
    Outgoing::Message(item, Clock::start())
}

/// A reply of `LabelBatch`.
pub fn rows() -> Outgoing {
    let (version, accounts) = (recorded(), Arc::default());
    let rows = (0..BATCH_ROWS).map(|_| Ok(reply(&version, &accounts))).collect();
    Outgoing::Rows(Rows(rows), Clock::start())
}

/// A version whose histograms are there, and the buffers of this thread: the first label makes
/// them, and it alone.
fn recorded() -> SharedVersion {
    let version = version();
    let first = Rows(vec![Ok(reply(&version, &Arc::default()))]);
    assert!(unary::framed(first, &Clock::start()).is_ok());
    version
}

/// Rows about to queue.
pub struct Waiting {
    /// Their queue, empty.
    pub queue: Queue,
    /// The rows.
    pub entries: Vec<Entry>,
    /// Where the batch goes, with room for it as after earlier ones.
    pub formed: Formed,
}

/// So many rows about to queue.
pub fn waiting(rows: u64) -> Waiting {
    let entry = |sequence| Entry {
        row: Arc::new(Row::new(asked(sequence), Durability::Buffered)),
        values: vec![0.5; WIDTH],
        reservation: None,
    };
    // The first row of a thread sets up what the next ones find.
    assert!(queue().push(entry(1)).is_ok());
    let formed = Formed { rows: Vec::with_capacity(rows as usize), ..Formed::default() };
    Waiting { queue: queue(), entries: (1..=rows).map(entry).collect(), formed }
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
