//! `LabelStream`: one robot, one stream, replies that may overtake each other.
//!
//! A task a stream reads requests, runs them side by side up to a bound, and lays replies, up to a
//! bound too, where its connection takes them. It ends the stream, after the replies it owes, when
//! the connection must go (age, drain) with UNAVAILABLE, and with RESOURCE_EXHAUSTED when the robot
//! leaves its replies unread for too long. Batcher and inference threads never wait for a stream.
//!
//! That a robot reads shows in the connection asking for more replies: it does so only when the
//! robot's window has room. What it has taken before may still be on its way to nobody.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Request, Response, request::Parts};
use hyper::{
    body::{Frame, Incoming},
    rt::Executor as _,
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tonic::{Code, Status};

use crate::{account::Method, clock::Clock, faults, label::Priority, proto};

use super::{
    Counted, Shared,
    codec::{self, Received, StreamReply},
    connection::Ending,
    deadline::timeout_us,
    frames::Messages,
    labels::{self, Call, row},
    running::Begun,
    slots::Slots,
    status,
    unary::{self, Sent, Unread},
};

/// How often a stream that has replies to read is looked at, within the time that it may leave them
/// unread.
const LOOKS: u32 = 4;
/// Replies that a stream which rests keeps room for.
const ROOM_REPLIES: usize = 4;
/// With so many bytes or more, replies that are ready leave together, and no other with them.
const SEND_BYTES: usize = 32 << 10;

/// What is between a stream's task and the connection that sends its replies.
#[derive(Default)]
struct Outbox(Mutex<Ready>);

#[derive(Default)]
struct Ready {
    /// Not encoded yet: what nobody takes is no answer.
    replies: VecDeque<StreamReply>,
    /// Behind the last reply, once the task has no other.
    end: Option<Result<(), Status>>,
    /// The call is over: nobody takes anything any more.
    closed: bool,
    /// How often the connection has asked for replies.
    asked: u64,
    /// Whether the connection has sent all that it took, and waits for more.
    waits: bool,
    connection: Option<Waker>,
    /// Whether the task waits until replies are taken.
    full: bool,
    task: Option<Waker>,
}

impl Ready {
    /// All replies are with the robot, or on their way as far as this end can see.
    fn all_read(&self) -> bool {
        self.replies.is_empty() && self.waits
    }

    fn clear(&mut self) {
        self.replies.clear();
        self.replies.shrink_to(ROOM_REPLIES);
    }
}

impl Outbox {
    /// Something is there for the connection.
    fn tell(&self, change: impl FnOnce(&mut Ready)) {
        let connection = {
            let mut ready = self.0.lock();
            change(&mut ready);
            ready.connection.take()
        };
        if let Some(connection) = connection {
            connection.wake();
        }
    }
}

/// The replies of a stream, then its status.
pub struct Replies {
    outbox: Arc<Outbox>,
    clock: Clock,
}

impl Drop for Replies {
    /// The call is over: the task learns it, and what nobody will read ends as cancelled.
    fn drop(&mut self) {
        let task = {
            let mut ready = self.outbox.0.lock();
            ready.closed = true;
            ready.clear();
            ready.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Replies {
    /// All that are ready, in one frame.
    pub fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut ready = self.outbox.0.lock();
        ready.asked += 1;
        ready.waits = false;
        if !ready.replies.is_empty() {
            let (written, frame) = unary::in_room(|room| {
                while room.len() < SEND_BYTES
                    && let Some(reply) = ready.replies.pop_front()
                {
                    unary::frame(reply, room, &self.clock)?;
                }
                Ok(())
            });
            if let Err(error) = written {
                ready.end = Some(Err(status::to_status(&error)));
                ready.clear();
            }
            let task = if mem::take(&mut ready.full) { ready.task.take() } else { None };
            drop(ready);
            if let Some(task) = task {
                task.wake();
            }
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match ready.end.take() {
            Some(end) => Poll::Ready(Some(trailers(end).map(Frame::trailers))),
            None => {
                ready.waits = true;
                ready.connection = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn trailers(end: Result<(), Status>) -> Result<HeaderMap, Status> {
    let mut trailers = HeaderMap::with_capacity(1);
    match end {
        Ok(()) => {
            trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        }
        Err(status) => status.add_header(&mut trailers)?,
    }
    Ok(trailers)
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

/// Starts the stream's task, beside the call in its connection.
pub async fn label_stream(
    shared: Arc<Shared>,
    connection: Connection,
    request: Request<Incoming>,
) -> Response<Sent> {
    let (Parts { headers, .. }, body) = request.into_parts();
    // A stream has no deadline as a whole, but what is malformed is never read as none.
    if let Err(error) = timeout_us(&headers) {
        return Unread::Invalid(error).told(&shared, Method::LabelStream).into_http();
    }
    if let Err(unread) = unary::plain(&headers) {
        return unread.told(&shared, Method::LabelStream).into_http();
    }
    let outbox = Arc::<Outbox>::default();
    let replies = Replies { outbox: outbox.clone(), clock: shared.clock };
    let messages = Messages::new(body, shared.config.message_bytes_max);
    let Connection { ending, begun, streams } = connection;
    begun.execute(async move {
        let status = {
            let gauges = &shared.gauges;
            let _open = (Counted::new(&gauges.streams), Counted::new(&streams));
            let peak = streams.load(Ordering::Relaxed);
            gauges.connection_streams_peak.fetch_max(peak, Ordering::Relaxed);
            let robot = Robot { shared: &shared, outbox: &outbox };
            let served = AssertUnwindSafe(robot.serve(messages, ending)).catch_unwind().await;
            served.unwrap_or_else(|panic| {
                let error = labels::panicked(&shared, "stream", &*panic);
                Err(status::to_status(&error))
            })
        };
        outbox.tell(|ready| {
            if status.as_ref().is_err_and(|s| s.code() == Code::ResourceExhausted) {
                // Nobody reads: the requests behind these replies end here, as cancelled.
                ready.clear();
            }
            ready.end = Some(status);
        });
        read_out(&outbox, unread_max(&shared)).await;
    });
    Sent::Stream(replies).with(headers)
}

fn unread_max(shared: &Shared) -> Duration {
    Duration::from_millis(shared.config.stream_unread_ms_max)
}

/// The last replies of a stream have to be read in time too: its end must not keep them for ever.
async fn read_out(outbox: &Outbox, unread_max: Duration) {
    let mut reading = Reading::since(&outbox.0.lock());
    while !outbox.0.lock().replies.is_empty() {
        tokio::time::sleep(unread_max / LOOKS).await;
        let mut ready = outbox.0.lock();
        if reading.stopped(&ready) {
            ready.clear();
        }
    }
}

/// Whether a robot reads, by what its connection has asked for.
struct Reading {
    asked: u64,
    quiet: u32,
}

impl Reading {
    fn since(ready: &Ready) -> Self {
        Self { asked: ready.asked, quiet: 0 }
    }

    /// One look, while there is something to read. True where the connection has asked for nothing
    /// since the first of the last `LOOKS` looks.
    fn stopped(&mut self, ready: &Ready) -> bool {
        self.quiet = if ready.asked == self.asked { self.quiet + 1 } else { 0 };
        self.asked = ready.asked;
        self.quiet >= LOOKS
    }
}

struct Robot<'a> {
    shared: &'a Arc<Shared>,
    outbox: &'a Outbox,
}

/// What a stream still reads, what it runs, and how it ends once it reads nothing more.
struct Work<F> {
    messages: Messages<Incoming>,
    running: Slots<F>,
    end: Option<Result<(), Status>>,
}

impl Robot<'_> {
    /// Until the robot has ended its side or has gone, or the stream has to end.
    async fn serve(
        &self,
        messages: Messages<Incoming>,
        mut ending: watch::Receiver<Option<Ending>>,
    ) -> Result<(), Status> {
        faults::point("stream");
        let mut work = Work { messages, running: Slots::default(), end: None };
        let mut ended = pin!(ended(&mut ending));
        let mut reading = None;
        // Set when there is something to read, and left to run then: a timer set anew for each
        // reply would cost more than the reply.
        let mut look = pin!(tokio::time::sleep(Duration::ZERO));
        let look_every = unread_max(self.shared) / LOOKS;
        let answer = |received| self.answer(received);
        poll_fn(|context| {
            if self.is_over(context) {
                return Poll::Ready(Ok(()));
            }
            let sent = self.step(&mut work, answer, context);
            if work.end.is_none()
                && let Poll::Ready(why) = ended.as_mut().poll(context)
            {
                work.end = Some(Err(why.status()));
            }
            if work.running.is_empty()
                && let Some(end) = work.end.take()
            {
                return Poll::Ready(end);
            }
            if sent && reading.is_none() {
                reading = Some(Reading::since(&self.outbox.0.lock()));
                look.as_mut().reset(Instant::now() + look_every);
            }
            while let Some(since) = &mut reading
                && look.as_mut().poll(context).is_ready()
            {
                let ready = self.outbox.0.lock();
                if ready.all_read() {
                    work.running.rest(0);
                    reading = None;
                } else if since.stopped(&ready) {
                    return Poll::Ready(Err(self.reads_nothing()));
                }
                look.as_mut().reset(Instant::now() + look_every);
            }
            Poll::Pending
        })
        .await
    }

    /// Whether nobody waits for replies any more; else whoever ends this call wakes `context`.
    fn is_over(&self, context: &mut Context<'_>) -> bool {
        let mut ready = self.outbox.0.lock();
        if ready.task.as_ref().is_none_or(|task| !task.will_wake(context.waker())) {
            ready.task = Some(context.waker().clone());
        }
        ready.closed
    }

    /// Replies first, while there is room for them, then all requests that are there. True where
    /// there was a reply.
    fn step<F: Future<Output = StreamReply>>(
        &self,
        work: &mut Work<F>,
        answer: impl Fn(Received<proto::LabelRequest>) -> F,
        context: &mut Context<'_>,
    ) -> bool {
        let Work { messages, running, end } = work;
        let in_flight_max = self.shared.config.stream_in_flight_max;
        let mut sent = false;
        loop {
            while self.has_room() {
                let Poll::Ready(reply) = running.poll_next(context) else { break };
                self.outbox.tell(|ready| ready.replies.push_back(reply));
                sent = true;
            }
            let before = running.len();
            while end.is_none() && running.len() < in_flight_max {
                let clock = &self.shared.clock;
                match messages.poll_next(context, |message| codec::received(message, clock)) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(received))) => running.push(answer(received)),
                    // What is no message ends what comes in; replies that are owed are still sent.
                    Poll::Ready(Some(Err(unread))) => {
                        *end = Some(Err(unread.told(self.shared, Method::LabelStream)));
                    }
                    Poll::Ready(None) => *end = Some(Ok(())),
                }
            }
            if running.len() == before {
                return sent;
            }
        }
    }

    /// Whether another reply may be ready; else the task is woken once some are taken.
    fn has_room(&self) -> bool {
        let mut ready = self.outbox.0.lock();
        ready.full = ready.replies.len() >= self.shared.config.stream_in_flight_max;
        !ready.full
    }

    async fn answer(&self, received: Received<proto::LabelRequest>) -> StreamReply {
        let Received { message, arrival } = received;
        let entry = self.shared.accounts.receive(Method::LabelStream);
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                let result = Err(self.shared.refuse_row(entry, error));
                return StreamReply { sequence: 0, result };
            }
        };
        let sequence = message.sequence.unwrap_or(0);
        // `grpc-timeout` would cover the whole stream; each message has its own.
        let call = Call { arrived_us: arrival.arrived_us, timeout_us: None };
        let result = row(self.shared, call, entry, message, Priority::Robot, arrival).await;
        StreamReply { sequence, result }
    }

    fn reads_nothing(&self) -> Status {
        let ms = self.shared.config.stream_unread_ms_max;
        let text = format!("replies were left unread for {ms} ms; read them, then resend");
        Status::resource_exhausted(text)
    }
}

async fn ended(ending: &mut watch::Receiver<Option<Ending>>) -> Ending {
    match ending.wait_for(Option::is_some).await {
        Ok(why) => why.unwrap_or(Ending::Drain),
        // The connection itself is gone.
        Err(_) => Ending::Drain,
    }
}
