//! `LabelStream`: one robot, one stream, replies that may overtake each other.
//!
//! A task a stream reads requests, runs them side by side up to a bound, and puts replies into a
//! bounded channel. It ends the stream, after the replies it owes, when the connection must go
//! (age, drain) with UNAVAILABLE, and with RESOURCE_EXHAUSTED when the robot leaves its replies
//! unread for too long. Batcher and inference threads never wait for a stream.
//!
//! That a robot reads shows in the connection asking for more replies: it does so only when the
//! robot's window has room. What it has taken before may still be on its way to nobody.

use std::{
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream::FuturesUnordered};
use hyper::{
    body::{Frame, SizeHint},
    rt::Executor as _,
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tonic::{Code, Request, Response, Status, Streaming, body::Body};

use crate::{account::Method, faults, label::Priority, proto};

use super::{
    Counted, Shared,
    codec::{Received, StreamReply},
    connection::Ending,
    labels::{self, Call, row},
    running::Begun,
    status,
};

/// Boxed, since a channel keeps places for many: a stream that waits should cost little.
type Reply = Box<StreamReply>;
type Incoming = Streaming<Received<proto::LabelRequest>>;

/// How often a stream that has replies to read is looked at, within the time that it may leave them
/// unread.
const LOOKS: u32 = 4;

/// The replies of a stream, then its status.
pub struct Replies {
    replies: Arc<Mutex<mpsc::Receiver<Reply>>>,
    ended: Option<oneshot::Receiver<Status>>,
}

impl Drop for Replies {
    /// The call is over: the task learns it, and what nobody will read ends as cancelled.
    fn drop(&mut self) {
        let mut replies = self.replies.lock();
        replies.close();
        while replies.try_recv().is_ok() {}
    }
}

impl Stream for Replies {
    type Item = Result<StreamReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.replies.lock().poll_recv(context);
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(reply)) => Poll::Ready(Some(Ok(*reply))),
            Poll::Ready(None) => {
                let Some(mut ended) = self.ended.take() else { return Poll::Ready(None) };
                // The task says why it ended before it lets the channel go, so this never waits.
                Poll::Ready(ended.try_recv().ok().map(Err))
            }
        }
    }
}

/// What a stream knows of its connection.
#[derive(Clone)]
pub struct Connection {
    /// Why it has to go, once it has to.
    pub ending: watch::Receiver<Option<Ending>>,
    /// Runs its calls.
    pub begun: Begun,
    /// Its open streams.
    pub streams: Arc<AtomicU64>,
}

/// What the connection asks of one stream.
#[derive(Default)]
pub struct Asked {
    times: AtomicU64,
    waits: AtomicBool,
}

impl Asked {
    /// Whether the connection has sent all that it took, and waits for more.
    fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    fn times(&self) -> u64 {
        self.times.load(Ordering::Acquire)
    }
}

/// A stream's replies as bytes, which notes when the connection asks for them.
pub struct Watched {
    body: Body,
    asked: Arc<Asked>,
}

impl Watched {
    /// Notes in `asked`.
    pub fn new(body: Body, asked: Arc<Asked>) -> Self {
        Self { body, asked }
    }
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.asked.waits.store(polled.is_pending(), Ordering::Release);
        self.asked.times.fetch_add(1, Ordering::AcqRel);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Starts the stream's task, beside the call in its connection.
pub fn label_stream(
    shared: Arc<Shared>,
    connection: Connection,
    asked: Arc<Asked>,
    received: Request<Incoming>,
) -> Response<Replies> {
    let Connection { ending, begun, streams } = connection;
    let (sender, replies) = mpsc::channel(shared.config.stream_in_flight_max);
    let (why, ended) = oneshot::channel();
    let incoming = received.into_inner();
    let replies = Arc::new(Mutex::new(replies));
    let unread = replies.clone();
    begun.execute(async move {
        let status = {
            let gauges = &shared.gauges;
            let _open = (Counted::new(&gauges.streams), Counted::new(&streams));
            let peak = streams.load(Ordering::Relaxed);
            gauges.connection_streams_peak.fetch_max(peak, Ordering::Relaxed);
            let robot = Robot { shared: &shared, sender: &sender, asked: &asked };
            let served = AssertUnwindSafe(robot.serve(incoming, ending)).catch_unwind().await;
            served.unwrap_or_else(|panic| {
                let error = labels::panicked(&shared, "stream", &*panic);
                Some(status::to_status(&error))
            })
        };
        if status.as_ref().is_some_and(|s| s.code() == Code::ResourceExhausted) {
            // Nobody reads: the requests behind these replies end here, as cancelled.
            while unread.lock().try_recv().is_ok() {}
        }
        if let Some(status) = status {
            let _ = why.send(status);
        }
        drop(sender);
        read_out(&unread, &asked, unread_max(&shared)).await;
    });
    Response::new(Replies { replies, ended: Some(ended) })
}

fn unread_max(shared: &Shared) -> Duration {
    Duration::from_millis(shared.config.stream_unread_ms_max)
}

/// The last replies of a stream have to be read in time too: its end must not keep them for ever.
async fn read_out(replies: &Mutex<mpsc::Receiver<Reply>>, asked: &Asked, unread_max: Duration) {
    let mut reading = Reading::since(asked);
    while !replies.lock().is_empty() {
        tokio::time::sleep(unread_max / LOOKS).await;
        if reading.stopped(asked) {
            while replies.lock().try_recv().is_ok() {}
        }
    }
}

/// Whether a robot reads, by what its connection has asked for.
struct Reading {
    times: u64,
    quiet: u32,
}

impl Reading {
    fn since(asked: &Asked) -> Self {
        Self { times: asked.times(), quiet: 0 }
    }

    /// One look, while there is something to read. True where the connection has asked for nothing
    /// since the first of the last `LOOKS` looks.
    fn stopped(&mut self, asked: &Asked) -> bool {
        let times = asked.times();
        self.quiet = if times == self.times { self.quiet + 1 } else { 0 };
        self.times = times;
        self.quiet >= LOOKS
    }
}

struct Robot<'a> {
    shared: &'a Arc<Shared>,
    sender: &'a mpsc::Sender<Reply>,
    asked: &'a Asked,
}

impl Robot<'_> {
    /// `None`: the robot ended its side, or has gone.
    async fn serve(
        &self,
        mut incoming: Incoming,
        mut ending: watch::Receiver<Option<Ending>>,
    ) -> Option<Status> {
        // Boxed: a set of futures holds room for one at rest too, and most streams rest.
        let mut running = FuturesUnordered::new();
        let in_flight_max = self.shared.config.stream_in_flight_max;
        let mut open = true;
        let mut status = None;
        faults::point("stream");
        let mut reading = None;
        // Set when there is something to read, and left to run then: a timer set anew for each
        // reply would cost more than the reply.
        let mut look = pin!(tokio::time::sleep(Duration::ZERO));
        let look_every = unread_max(self.shared) / LOOKS;
        while open || !running.is_empty() {
            tokio::select! {
                biased;
                () = self.sender.closed() => return None,
                Some(reply) = running.next(), if !running.is_empty() => {
                    if let Err(unread) = self.send(reply).await {
                        return unread;
                    }
                    if reading.is_none() {
                        reading = Some(Reading::since(self.asked));
                        look.as_mut().reset(Instant::now() + look_every);
                    }
                }
                message = incoming.next(), if open && running.len() < in_flight_max => {
                    match message {
                        Some(Ok(received)) => running.push(Box::pin(self.answer(received))),
                        // A broken transport or an oversized message ends what comes in; replies
                        // that are owed are still sent.
                        Some(Err(error)) => (open, status) = (false, Some(self.unread(error))),
                        None => open = false,
                    }
                }
                why = ended(&mut ending), if open => (open, status) = (false, Some(why.status())),
                () = look.as_mut(), if reading.is_some() => {
                    if self.all_read() {
                        reading = None;
                    } else if reading.as_mut().is_some_and(|r| r.stopped(self.asked)) {
                        return Some(self.reads_nothing());
                    }
                    look.as_mut().reset(Instant::now() + look_every);
                }
            }
        }
        status
    }

    /// What a stream is told whose message was no message. A source says that the transport broke,
    /// not the robot's message: then nothing was received.
    fn unread(&self, told: Status) -> Status {
        if std::error::Error::source(&told).is_some() {
            return told;
        }
        let (status, error) = status::unread(&told, self.shared.config.message_bytes_max);
        self.shared.errors.count(status.code());
        self.shared.accounts.receive(Method::LabelStream).ended(&error);
        status
    }

    async fn answer(&self, received: Received<proto::LabelRequest>) -> Reply {
        let Received { message, arrival } = received;
        let entry = self.shared.accounts.receive(Method::LabelStream);
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                let result = Err(self.shared.refuse_row(entry, error));
                return Box::new(StreamReply { sequence: 0, result });
            }
        };
        let sequence = message.sequence.unwrap_or(0);
        // `grpc-timeout` would cover the whole stream; each message has its own.
        let call = Call { arrived_us: arrival.arrived_us, timeout_us: None };
        let result = row(self.shared, call, entry, message, Priority::Robot, arrival).await;
        Box::new(StreamReply { sequence, result })
    }

    /// Nothing is in the channel, nor between it and the robot.
    fn all_read(&self) -> bool {
        self.sender.capacity() == self.sender.max_capacity() && self.asked.waits()
    }

    fn reads_nothing(&self) -> Status {
        let ms = self.shared.config.stream_unread_ms_max;
        let text = format!("replies were left unread for {ms} ms; read them, then resend");
        Status::resource_exhausted(text)
    }

    async fn send(&self, reply: Reply) -> Result<(), Option<Status>> {
        match self.sender.try_send(reply) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(None),
            Err(mpsc::error::TrySendError::Full(reply)) => {
                // Rare, and its timer is large.
                match Box::pin(self.sender.send_timeout(reply, unread_max(self.shared))).await {
                    Ok(()) => Ok(()),
                    Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(None),
                    Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                        Err(Some(self.reads_nothing()))
                    }
                }
            }
        }
    }
}

async fn ended(ending: &mut watch::Receiver<Option<Ending>>) -> Ending {
    match ending.wait_for(Option::is_some).await {
        Ok(why) => why.unwrap_or(Ending::Drain),
        // The connection itself is gone.
        Err(_) => Ending::Drain,
    }
}
