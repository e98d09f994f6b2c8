//! A call of one message: read from its body as gRPC frames it, and answered by one.
//!
//! tonic would take a box or a buffer at each of its layers. Here a message that came in one piece
//! is decoded where it lies, its reply lies in room that replies share, and the request's headers
//! become the reply's. What is no message is counted, and refused like any bad input.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::poll;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header, request::Parts};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::Status;

use crate::{
    account::Method,
    clock::Clock,
    error::{Error, Result},
    limits::MESSAGE_US_MAX,
    stages::Stage,
};

use super::{
    Shared,
    codec::{self, Outgoing, Received},
    deadline::timeout_us,
    labels::Call,
    status,
    stream::Replies,
    wire,
};

/// How a message begins: whether it is compressed, and its length in four bytes.
pub const HEADER_BYTES: usize = 5;

/// Runs a call. The message must have arrived by the call's deadline, since until then nobody else
/// looks at the time; from there on the handler keeps it.
///
/// Its future is allocated and moved for each call, and holds nothing that is not needed later: an
/// `async fn` would keep its arguments beside what is made of them.
pub fn call<M, O, H, F>(
    shared: Arc<Shared>,
    method: Method,
    request: Request<Incoming>,
    handler: H,
) -> impl Future<Output = Response<Sent>>
where
    M: codec::Incoming,
    O: Outgoing,
    H: FnOnce(Arc<Shared>, Call, Received<M>) -> F,
    F: Future<Output = std::result::Result<O, Status>>,
{
    let arrived_us = shared.clock.now_us();
    let (Parts { mut headers, .. }, body) = request.into_parts();
    async move {
        let timeout_us = match timeout_us(&headers) {
            Ok(timeout_us) => timeout_us,
            Err(error) => return Unread::Invalid(error).told(&shared, method).into_http(),
        };
        let until_us = arrived_us + timeout_us.unwrap_or(MESSAGE_US_MAX);
        let received = match in_time(&shared, until_us, &headers, body).await {
            Ok(message) => codec::received(&message, &shared.clock),
            Err(unread) => return unread.told(&shared, method).into_http(),
        };
        headers.clear();
        let answer = handler(shared.clone(), Call { arrived_us, timeout_us }, received).await;
        let reply = answer.and_then(|answer| {
            framed(answer, &shared.clock).map_err(|error| status::to_status(&error))
        });
        match reply {
            Ok(reply) => Sent::reply(headers, reply),
            Err(status) => status.into_http(),
        }
    }
}

/// Why a call has no message.
#[derive(Debug)]
pub enum Unread {
    /// It was reset, or its connection broke, while it sent.
    Gone,
    /// It sent something else, or too late.
    Invalid(Error),
    /// It broke a rule of gRPC's, which has a code for that.
    Protocol(Status),
}

impl Unread {
    /// Counted as a call of this method, which is told the status.
    pub fn told(self, shared: &Shared, method: Method) -> Status {
        let (status, error) = match self {
            Self::Invalid(error) => (status::to_status(&error), error),
            Self::Protocol(status) => {
                let error = status::not_whole(status.message());
                (status, error)
            }
            // Nothing was received, and nobody is there to be told.
            Self::Gone => return Status::cancelled("the call was reset"),
        };
        shared.errors.count(status.code());
        shared.accounts.receive(method).ended(&error);
        status
    }
}

async fn in_time(
    shared: &Shared,
    until_us: u64,
    headers: &HeaderMap,
    mut body: Incoming,
) -> std::result::Result<Bytes, Unread> {
    plain(headers)?;
    let mut message = pin!(message(&mut body, shared.config.message_bytes_max));
    // Most messages come with their headers, and need no timer.
    if let Poll::Ready(message) = poll!(message.as_mut()) {
        return message;
    }
    let until = shared.clock.instant(until_us);
    tokio::time::timeout_at(until.into(), message).await.unwrap_or_else(|_| {
        let stage = Stage::Decode;
        Err(Unread::Invalid(Error::DeadlinePassed { stage, label_exists: false }))
    })
}

/// Messages are taken as they are: no compression is known.
pub fn plain(headers: &HeaderMap) -> std::result::Result<(), Unread> {
    const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
    const ACCEPTED: &str = "grpc-accept-encoding";
    const PLAIN: &str = "identity";
    let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != PLAIN) else {
        return Ok(());
    };
    let text = format!("messages are compressed with {encoding:?}, expected {PLAIN}");
    let mut status = Status::unimplemented(text);
    status.metadata_mut().insert(ACCEPTED, tonic::metadata::MetadataValue::from_static(PLAIN));
    Err(Unread::Protocol(status))
}

/// The one message of a body, to whose end it reads.
pub async fn message<B>(body: &mut B, bytes_max: usize) -> std::result::Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
{
    let invalid = |error| Err(Unread::Invalid(error));
    // Pieces but the first are put together behind it, and then it is empty.
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    let mut whole = None;
    while !body.is_end_stream() {
        let piece = match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            Some(Ok(frame)) => frame.into_data(),
            Some(Err(_)) => return Err(Unread::Gone),
            None => break,
        };
        // Trailers end it, and say nothing here.
        let Ok(piece) = piece else { break };
        if first.is_empty() && joined.is_empty() {
            first = piece;
        } else {
            joined.extend_from_slice(&mem::take(&mut first));
            joined.extend_from_slice(&piece);
        }
        let got = if joined.is_empty() { &*first } else { &*joined };
        if whole.is_none() && got.len() >= HEADER_BYTES {
            whole = Some(HEADER_BYTES + length(got, bytes_max)?);
        }
        if whole.is_some_and(|whole| got.len() >= whole + HEADER_BYTES) {
            return invalid(wire::invalid("message", "followed by another", "one gRPC message"));
        }
    }
    let got = if joined.is_empty() { first } else { joined.freeze() };
    match whole {
        Some(whole) if got.len() == whole => Ok(got.slice(HEADER_BYTES..)),
        None if got.is_empty() => invalid(status::not_whole("missing")),
        _ => invalid(status::not_whole("cut short")),
    }
}

/// The length of the message that begins here; 0 where not all of its header is here.
pub fn length(got: &[u8], bytes_max: usize) -> std::result::Result<usize, Unread> {
    let [flag, a, b, c, d, ..] = *got else { return Ok(0) };
    if flag != 0 {
        // "MUST fail with INTERNAL status", gRPC's document on compression says.
        let text =
            format!("the message has compression flag {flag}, expected 0: it has no encoding");
        return Err(Unread::Protocol(Status::internal(text)));
    }
    let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
    if bytes > bytes_max {
        return Err(Unread::Invalid(status::too_large(bytes, bytes_max)));
    }
    Ok(bytes)
}

/// Bytes of the room that replies share; a larger reply has its own.
const ROOM_BYTES: usize = 4096;
/// Bytes that a label's reply hardly exceeds.
const REPLY_BYTES: usize = 256;

thread_local! {
    /// Each reply cuts off its part; when all of them have been sent, the room is used again.
    static ROOM: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(ROOM_BYTES));
}

/// A reply as it is sent.
pub fn framed(reply: impl Outgoing, clock: &Clock) -> Result<Bytes> {
    let (written, reply) = in_room(|room| frame(reply, room, clock));
    written.map(|()| reply)
}

/// What is written into the room that replies share.
pub fn in_room<T>(write: impl FnOnce(&mut BytesMut) -> T) -> (T, Bytes) {
    ROOM.with_borrow_mut(|room| {
        let done = write(room);
        if room.len() > ROOM_BYTES {
            return (done, mem::replace(room, BytesMut::with_capacity(ROOM_BYTES)).freeze());
        }
        (done, room.split().freeze())
    })
}

/// Writes a reply behind others. One that fails leaves nothing.
pub fn frame(reply: impl Outgoing, room: &mut BytesMut, clock: &Clock) -> Result<()> {
    let begin = room.len();
    room.reserve(REPLY_BYTES);
    room.put_bytes(0, HEADER_BYTES);
    let written = codec::guarded("encode", || reply.write(room, clock)).and_then(|()| {
        let bytes = u32::try_from(room.len() - begin - HEADER_BYTES);
        let reason = || "a reply of over 4 GB".to_owned();
        bytes.map_err(|_| Error::Internal { part: "encode", reason: reason() })
    });
    match written {
        Ok(bytes) => room[begin + 1..begin + HEADER_BYTES].copy_from_slice(&bytes.to_be_bytes()),
        Err(_) => room.truncate(begin),
    }
    written.map(drop)
}

/// What a connection sends as a response.
pub enum Sent {
    /// One message and its status, OK.
    Reply {
        /// The message, until it is sent.
        message: Option<Bytes>,
        /// Whether the status is sent.
        ended: bool,
    },
    /// What a stream sends.
    Stream(Replies),
    /// What tonic sends.
    Other(tonic::body::Body),
}

impl Sent {
    fn reply(headers: HeaderMap, message: Bytes) -> Response<Self> {
        Self::Reply { message: Some(message), ended: false }.with(headers)
    }

    /// As a response that takes the room of the request's headers.
    pub fn with(self, mut headers: HeaderMap) -> Response<Self> {
        headers.clear();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let mut response = Response::new(self);
        *response.headers_mut() = headers;
        response
    }
}

impl Default for Sent {
    /// Nothing: of a response that is its headers alone.
    fn default() -> Self {
        Self::Other(tonic::body::Body::empty())
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        let (message, ended) = match &mut *self {
            Self::Stream(replies) => return replies.poll_frame(context),
            Self::Other(body) => return Pin::new(body).poll_frame(context),
            Self::Reply { message, ended } => (message, ended),
        };
        if let Some(message) = message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if mem::replace(ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Reply { ended, .. } => *ended,
            Self::Stream(_) => false,
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Reply { .. } | Self::Stream(_) => SizeHint::default(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Filled(usize, u8, bool);

    impl Outgoing for Filled {
        fn write(self, buf: &mut impl bytes::BufMut, _: &Clock) -> Result<()> {
            buf.put_bytes(self.1, self.0);
            if self.2 { Ok(()) } else { Err(Error::Stopped) }
        }
    }

    fn sent(bytes: usize, byte: u8) -> Bytes {
        framed(Filled(bytes, byte, true), &Clock::start()).unwrap()
    }

    #[test]
    fn replies_that_share_their_room_stay_as_they_were_written() {
        let held: Vec<_> = (0..100).map(|n| sent(usize::from(n) * 3, n)).collect();
        assert_eq!(framed(Filled(50, 7, false), &Clock::start()), Err(Error::Stopped));
        for (n, reply) in (0..).zip(held) {
            let bytes = usize::from(n) * 3;
            assert_eq!(reply[..HEADER_BYTES], [0, 0, 0, (bytes >> 8) as u8, bytes as u8]);
            assert_eq!(reply[HEADER_BYTES..], vec![n; bytes]);
        }
    }

    #[test]
    fn a_large_reply_leaves_the_room_of_the_others_as_small_as_it_was() {
        let large = sent(20 * ROOM_BYTES, 1);
        assert_eq!(large.len(), HEADER_BYTES + 20 * ROOM_BYTES);
        ROOM.with_borrow(|room| assert!(room.capacity() <= ROOM_BYTES));
        let begin = sent(10, 2).as_ptr();
        for _ in 0..1000 {
            let reply = sent(10, 3);
            assert!(reply.as_ptr().addr().abs_diff(begin.addr()) < ROOM_BYTES, "it is used again");
        }
    }
}
