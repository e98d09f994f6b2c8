//! `LabelStream`: one stream a robot, opened before the run and again, with back-off, when it
//! broke.
//!
//! Replies are matched by their sequence and may overtake each other. What a broken stream leaves
//! without an answer is counted by why it broke; what its robot sends meanwhile fails at once.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use labeler_core::proto::{self, label_stream_response::Result as Answer};
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep, timeout_at},
};

use crate::{
    calls::{refused, server_us, unframed},
    flag::raised,
    kinds::Kind,
    run::Shared,
    tally::Call,
    wire::{self, Frames, Key},
};

/// Requests of one stream that the server has not answered, timed out ones too: with more it does
/// not read, and what is sent would only lie in memory.
const UNREAD_MAX: u32 = 65_536;
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long a server may hold the head of a stream's reply back; some do until the first message.
const HEAD_MAX: Duration = Duration::from_secs(1);
/// How often time limits are looked at: a timer of its own for each would cost more than its
/// message.
const LOOK: Duration = Duration::from_millis(20);

struct Waiting {
    sequence: u64,
    truth: i16,
    call: Call,
    settled: bool,
}

#[derive(Default)]
struct Lane {
    sender: Option<SendStream<Bytes>>,
    /// By ascending sequence; the first is not settled.
    waiting: VecDeque<Waiting>,
    unread: u32,
}

impl Lane {
    fn settle(&mut self, sequence: u64) -> Option<(Call, i16)> {
        let at = self.waiting.binary_search_by_key(&sequence, |w| w.sequence).ok()?;
        let found = &mut self.waiting[at];
        if std::mem::replace(&mut found.settled, true) {
            return None;
        }
        let settled = (found.call, found.truth);
        while self.waiting.front().is_some_and(|w| w.settled) {
            self.waiting.pop_front();
        }
        Some(settled)
    }
}

/// A time limit that is coming.
struct Limit {
    deadline: Instant,
    key: Key,
}

/// The streams of all robots.
pub struct Streams {
    lanes: Vec<Mutex<Lane>>,
    /// In the order of sending, and so of the limits: all are equally long.
    limits: Mutex<VecDeque<Limit>>,
    open: watch::Sender<usize>,
    refusal: watch::Sender<String>,
}

impl Streams {
    /// For `robots`, none of them open.
    pub fn new(robots: u32) -> Self {
        Self {
            lanes: (0..robots).map(|_| Mutex::default()).collect(),
            limits: Mutex::default(),
            open: watch::Sender::new(0),
            refusal: watch::Sender::default(),
        }
    }

    /// Starts opening and keeping all streams, until `closing`.
    pub fn start(&self, shared: &Arc<Shared>, closing: &watch::Receiver<bool>) {
        for robot in 0..self.lanes.len() as u32 {
            let (shared, mut closing) = (shared.clone(), closing.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = keep(&shared, robot) => (),
                    () = raised(&mut closing) => (),
                }
            });
        }
        tokio::spawn(watch_limits(shared.clone(), closing.clone()));
    }

    /// Waits until the server has taken every stream. Errors: its refusal, or that it is late.
    pub async fn all_open(&self, deadline: Instant) -> Result<(), String> {
        let (mut open, mut refusal) = (self.open.subscribe(), self.refusal.subscribe());
        let all = self.lanes.len();
        let head_max = deadline.min(Instant::now() + HEAD_MAX);
        tokio::select! {
            refused = refusal.wait_for(|refusal| !refusal.is_empty()) => {
                Err(refused.map_or_else(|e| e.to_string(), |refusal| refusal.clone()))
            }
            _ = timeout_at(head_max, open.wait_for(|open| *open == all)) => Ok(()),
        }
    }

    /// Says on every stream that nothing more comes.
    pub fn finish(&self) {
        for lane in &self.lanes {
            if let Some(mut sender) = lane.lock().sender.take() {
                // A stream that is gone needs no end.
                let _ = sender.send_data(Bytes::new(), true);
            }
        }
    }
}

/// Sends one message on its robot's stream. Whether it was sent.
pub fn send(shared: &Shared, call: Call, key: Key, truth: i16, message: Bytes) -> bool {
    let mut lane = shared.streams.lanes[key.robot as usize].lock();
    let unread = lane.unread;
    let Some(sender) = lane.sender.as_mut().filter(|_| unread < UNREAD_MAX) else {
        shared.tally.not_sent(&call, Kind::UNAVAILABLE);
        return false;
    };
    if let Err(error) = sender.send_data(message, false) {
        lane.sender = None;
        shared.tally.not_sent(&call, refused(&error));
        return false;
    }
    shared.tally.sent(&call);
    lane.unread += 1;
    lane.waiting.push_back(Waiting { sequence: key.sequence, truth, call, settled: false });
    drop(lane);
    let limit = Limit { deadline: shared.deadline(&call), key };
    shared.streams.limits.lock().push_back(limit);
    true
}

async fn keep(shared: &Arc<Shared>, robot: u32) {
    let lane = &shared.streams.lanes[robot as usize];
    let mut backoff = BACKOFF_FIRST;
    loop {
        let kind = match open(shared, robot).await {
            Ok(mut replies) => {
                backoff = BACKOFF_FIRST;
                shared.streams.open.send_modify(|open| *open += 1);
                let kind = read(shared, robot, &mut replies).await;
                shared.streams.open.send_modify(|open| *open -= 1);
                kind
            }
            Err(kind) => kind,
        };
        let left = {
            let mut lane = lane.lock();
            (lane.sender, lane.unread) = (None, 0);
            std::mem::take(&mut lane.waiting)
        };
        for waiting in left.iter().filter(|waiting| !waiting.settled) {
            shared.tally.failed(&waiting.call, kind.cut());
        }
        shared.settled();
        sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Opens the robot's stream: it can be sent on from here on, even before the server's head comes.
async fn open(shared: &Shared, robot: u32) -> Result<RecvStream, Kind> {
    let mut handle = shared.links.of(robot).wait().await;
    let sent = handle.send_request(shared.head(), false);
    let (reply, sender) = sent.map_err(|e| {
        shared.links.of(robot).gone();
        refused(&e)
    })?;
    shared.streams.lanes[robot as usize].lock().sender = Some(sender);
    let (head, body) = reply.await.map_err(|e| Kind::from(&e))?.into_parts();
    let code = wire::status(&head.headers)
        .or((head.status != http::StatusCode::OK).then(|| unframed(head.status)));
    let Some(code) = code else { return Ok(body) };
    let kind = Kind::code(code);
    let (name, text) = (Kind::name(kind.at()), wire::status_message(&head.headers));
    shared.streams.refusal.send_replace(format!("it refuses LabelStream: {name} {text}"));
    Err(kind)
}

/// Counts the replies until the stream ends; the kind of its end.
async fn read(shared: &Shared, robot: u32, replies: &mut RecvStream) -> Kind {
    let mut frames = Frames::default();
    while let Some(chunk) = replies.data().await {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) => return Kind::from(&error),
        };
        // The window is only ever short when its stream has ended.
        let _ = replies.flow_control().release_capacity(chunk.len());
        frames.push(chunk);
        loop {
            match frames.next() {
                Ok(Some(message)) => match proto::LabelStreamResponse::decode(message) {
                    Ok(reply) => answered(shared, robot, reply),
                    Err(_) => return Kind::INTERNAL,
                },
                Ok(None) => break,
                Err(wire::Malformed) => return Kind::INTERNAL,
            }
        }
        shared.settled();
    }
    match replies.trailers().await {
        // An end that is no error leaves requests unanswered all the same.
        Ok(Some(trailers)) => match wire::status(&trailers) {
            Some(0) => Kind::UNAVAILABLE,
            code => Kind::code(code.unwrap_or(2)),
        },
        Ok(None) => Kind::code(2),
        Err(error) => Kind::from(&error),
    }
}

fn answered(shared: &Shared, robot: u32, reply: proto::LabelStreamResponse) {
    let now_ns = shared.clock().now_ns();
    let sequence = reply.sequence;
    let settled = {
        let mut lane = shared.streams.lanes[robot as usize].lock();
        lane.unread = lane.unread.saturating_sub(1);
        lane.settle(sequence)
    };
    // A reply after its time limit was counted then.
    let Some((call, truth)) = settled else { return };
    match reply.result {
        Some(Answer::Response(label)) => {
            shared.tally.replied(&call, now_ns, server_us(&label));
            shared.tally.labelled(&call, Key { robot, sequence }, truth, &label);
        }
        Some(Answer::Error(error)) => shared.tally.failed(&call, Kind::code(error.code)),
        None => shared.tally.failed(&call, Kind::INTERNAL),
    }
}

async fn watch_limits(shared: Arc<Shared>, mut closing: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = sleep(LOOK) => (),
            () = raised(&mut closing) => return,
        }
        let now = Instant::now();
        while let Some(limit) = due(&shared, now) {
            let Key { robot, sequence } = limit.key;
            let settled = shared.streams.lanes[robot as usize].lock().settle(sequence);
            if let Some((call, _)) = settled {
                shared.tally.failed(&call, Kind::Timeout);
                shared.settled();
            }
        }
    }
}

fn due(shared: &Shared, now: Instant) -> Option<Limit> {
    let mut limits = shared.streams.limits.lock();
    let is_due = limits.front().is_some_and(|limit| limit.deadline <= now);
    if is_due { limits.pop_front() } else { None }
}
