//! `LabelStream`: one robot, one stream, replies that may overtake each other.
//!
//! A task a stream reads requests, runs them side by side up to a bound, and puts replies into a
//! bounded channel. It ends the stream, after the replies it owes, when the connection must go
//! (age, drain) with UNAVAILABLE, and with RESOURCE_EXHAUSTED when the robot leaves its replies
//! unread for too long. Batcher and inference threads never wait for a stream.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream::FuturesUnordered};
use hyper::rt::Executor as _;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Code, Request, Response, Status, Streaming};

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

/// The replies of a stream, then its status.
pub struct Replies {
    replies: Arc<Mutex<mpsc::Receiver<Reply>>>,
    ended: Option<oneshot::Receiver<Status>>,
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

/// Starts the stream's task, beside the call in its connection.
pub fn label_stream(
    shared: Arc<Shared>,
    ending: watch::Receiver<Option<Ending>>,
    begun: &Begun,
    received: Request<Incoming>,
) -> Response<Replies> {
    let (sender, replies) = mpsc::channel(shared.config.stream_in_flight_max);
    let (why, ended) = oneshot::channel();
    let incoming = received.into_inner();
    let replies = Arc::new(Mutex::new(replies));
    let unread = replies.clone();
    begun.execute(async move {
        let _open = Counted::new(&shared.gauges.streams);
        let robot = Robot { shared: &shared, sender: &sender };
        let served = AssertUnwindSafe(robot.serve(incoming, ending)).catch_unwind().await;
        let status = served.unwrap_or_else(|panic| {
            let error = labels::panicked(&shared, "stream", &*panic);
            Some(super::status::to_status(&error))
        });
        if status.as_ref().is_some_and(|s| s.code() == Code::ResourceExhausted) {
            // Nobody reads: the requests behind these replies end here, as cancelled.
            while unread.lock().try_recv().is_ok() {}
        }
        if let Some(status) = status {
            let _ = why.send(status);
        }
        drop(sender);
    });
    Response::new(Replies { replies, ended: Some(ended) })
}

struct Robot<'a> {
    shared: &'a Arc<Shared>,
    sender: &'a mpsc::Sender<Reply>,
}

impl Robot<'_> {
    /// `None`: the robot ended its side, or has gone.
    async fn serve(
        &self,
        mut incoming: Incoming,
        mut ending: watch::Receiver<Option<Ending>>,
    ) -> Option<Status> {
        let mut running = FuturesUnordered::new();
        let in_flight_max = self.shared.config.stream_in_flight_max;
        let mut open = true;
        let mut status = None;
        faults::point("stream");
        while open || !running.is_empty() {
            tokio::select! {
                biased;
                () = self.sender.closed() => return None,
                Some(reply) = running.next(), if !running.is_empty() => {
                    if let Err(unread) = self.send(reply).await {
                        return unread;
                    }
                }
                message = incoming.next(), if open && running.len() < in_flight_max => {
                    match message {
                        Some(Ok(received)) => running.push(self.answer(received)),
                        // A broken transport or an oversized message ends what comes in; replies
                        // that are owed are still sent.
                        Some(Err(error)) => (open, status) = (false, Some(self.unread(error))),
                        None => open = false,
                    }
                }
                why = ended(&mut ending), if open => (open, status) = (false, Some(why.status())),
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

    async fn send(&self, reply: Reply) -> Result<(), Option<Status>> {
        let unread_max = Duration::from_millis(self.shared.config.stream_unread_ms_max);
        match self.sender.try_send(reply) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(None),
            Err(mpsc::error::TrySendError::Full(reply)) => {
                let sent = self.sender.send_timeout(reply, unread_max).await;
                sent.map_err(|_| {
                    let ms = self.shared.config.stream_unread_ms_max;
                    let text =
                        format!("replies were left unread for {ms} ms; read them, then resend");
                    Some(Status::resource_exhausted(text))
                })
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
