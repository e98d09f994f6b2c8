//! What must hold of arbitrary bytes from the network: one body of checks, for the property tests
//! and the fuzz targets.
//!
//! For tests only. No panic, no more memory than the bytes allow, each refusal by its field.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt;
use prost::Message;
use tonic::Streaming;
use tonic::codec::{DecodeBuf, Decoder};

use super::codec::{self, Incoming};
use super::frames::Messages;
use super::unary::{Unread, message};
use super::wire;
use crate::clock::Clock;
use crate::error::Error;
use crate::label::{Priority, Values};
use crate::limits::{BATCH_REQUEST_ROWS_MAX, ROBOT_ID_BYTES_MAX, SEQUENCE_MAX, SKU_BYTES_MAX};
use crate::proto;

/// The largest message of the checks.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Bytes as one `LabelRequest`: read as prost reads them.
pub fn label_request(bytes: &[u8]) {
    let plain = proto::LabelRequest::decode(bytes);
    match proto::LabelRequest::read(bytes) {
        Ok(message) => {
            // As text, in which a NaN is itself.
            assert_eq!(plain.map(|plain| format!("{plain:?}")), Ok(format!("{message:?}")));
            row(message, bytes.len());
        }
        Err(error) => {
            assert!(plain.is_err(), "refused: {error}");
            refused(&error);
        }
    }
}

/// Bytes as one `LabelBatchRequest`.
pub fn label_batch(bytes: &[u8]) {
    let message = match proto::LabelBatchRequest::read(bytes) {
        Ok(message) => message,
        Err(error) => return refused(&error),
    };
    assert!(message.requests.len() <= BATCH_REQUEST_ROWS_MAX, "rows that were not counted");
    for request in message.requests {
        row(request, bytes.len());
    }
}

/// Bytes as what a call sends: frames of gRPC, cut into pieces of up to 97 bytes, in a stream and
/// in calls of one message. tonic reads the same messages of them as a stream does.
pub fn frames(bytes: &[u8]) {
    let (messages, whole) = streamed(bytes);
    assert_eq!((&messages, whole), (&by_tonic(bytes).0, by_tonic(bytes).1));
    let mut body = Pieces(Bytes::copy_from_slice(bytes));
    let called = message(&mut body, MESSAGE_BYTES_MAX).now_or_never();
    let called = called.expect("the body is all there");
    let count = messages.len();
    assert_eq!(called.is_ok(), whole && count == 1, "{count} messages, then {called:?}");
    match called {
        Ok(message) => {
            assert_eq!(messages[0], message);
            let clock = Clock::start();
            read(codec::received::<proto::LabelRequest>(&message, &clock).message);
            read(codec::received::<proto::LabelBatchRequest>(&message, &clock).message);
        }
        Err(unread) => told(&unread),
    }
}

fn told(unread: &Unread) {
    match unread {
        Unread::Invalid(error) => refused(error),
        Unread::Protocol(status) => assert!(!status.message().is_empty(), "{status:?}"),
        Unread::Gone => panic!("a body without an error is not gone"),
    }
}

fn read<M>(message: Result<M, Error>) {
    if let Err(error) = message {
        refused(&error);
    }
}

fn row(message: proto::LabelRequest, bytes_max: usize) {
    match wire::request(message, Priority::Robot) {
        Ok(request) => {
            let values = match &request.payload.values {
                Values::F32(values) => values.len() * 4,
                Values::F64(values) => values.len() * 8,
            };
            assert!(0 < values && values <= bytes_max, "{values} bytes of values");
            assert!((1..=SEQUENCE_MAX).contains(&request.key.sequence));
            assert!((1..=ROBOT_ID_BYTES_MAX).contains(&request.key.robot_id.len()));
            assert!(request.sku.len() <= SKU_BYTES_MAX);
        }
        Err(error) => refused(&error),
    }
}

fn refused(error: &Error) {
    let Error::Invalid { field, got, expected } = error else { panic!("{error:?}") };
    assert!(!field.is_empty() && !got.is_empty() && !expected.is_empty(), "{error:?}");
    assert!(error.to_string().len() < 400, "an error as long as its message");
}

/// The messages that a stream reads, and whether it then ends as it should.
fn streamed(bytes: &[u8]) -> (Vec<Bytes>, bool) {
    let mut messages = Messages::new(Pieces(Bytes::copy_from_slice(bytes)), MESSAGE_BYTES_MAX);
    let mut context = Context::from_waker(Waker::noop());
    let mut found = Vec::new();
    loop {
        match messages.poll_next(&mut context, Bytes::copy_from_slice) {
            Poll::Ready(Some(Ok(message))) => found.push(message),
            Poll::Ready(Some(Err(unread))) => {
                told(&unread);
                return (found, false);
            }
            Poll::Ready(None) => return (found, true),
            Poll::Pending => panic!("the body is all there"),
        }
        assert!(found.len() <= bytes.len() / 5, "more messages than headers");
    }
}

/// The same as tonic reads them.
fn by_tonic(bytes: &[u8]) -> (Vec<Bytes>, bool) {
    let pieces = Pieces(Bytes::copy_from_slice(bytes));
    let mut stream = Streaming::new_request(Plain, pieces, None, Some(MESSAGE_BYTES_MAX));
    let mut found = Vec::new();
    loop {
        match stream.message().now_or_never().expect("the body is all there") {
            Ok(Some(message)) => found.push(message),
            end => return (found, end.is_ok()),
        }
    }
}

/// Takes a message as it is.
struct Plain;

impl Decoder for Plain {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }
}

/// A body that comes in pieces.
struct Pieces(Bytes);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, tonic::Status>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.0.len().min(1 + usize::from(self.0[0]) % 97);
        let piece = self.0.split_to(length);
        Poll::Ready(Some(Ok(hyper::body::Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn frame(message: &[u8], compressed: u8) -> Vec<u8> {
        let mut bytes = vec![compressed];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend(message);
        bytes
    }

    /// A request with all its fields, as a client encodes it.
    fn whole(values: Vec<f32>, text: String) -> proto::LabelRequest {
        proto::LabelRequest {
            robot_id: text.clone(),
            sequence: Some(1),
            model: "kiva-floor".into(),
            version: "1".into(),
            sku: text,
            payload: Some(proto::Payload { floats: values, ..Default::default() }),
            ..Default::default()
        }
    }

    fn some_request() -> impl Strategy<Value = proto::LabelRequest> {
        (vec(any::<f32>(), 0..40), ".{0,140}").prop_map(|(values, text)| whole(values, text))
    }

    fn damaged(mut bytes: Vec<u8>, hits: &[(usize, u8)]) -> Vec<u8> {
        for (at, byte) in hits {
            if let Some(place) = at.checked_rem(bytes.len()) {
                bytes[place] = *byte;
            }
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_request_or_refused_by_field(bytes in vec(any::<u8>(), 0..400)) {
            label_request(&bytes);
            label_batch(&bytes);
            frames(&bytes);
            frames(&frame(&bytes, 0));
        }

        #[test]
        fn any_damaged_request_is_one_still_or_refused(
            requests in vec(some_request(), 1..4),
            hits in vec((any::<usize>(), any::<u8>()), 0..6),
        ) {
            let one = damaged(requests[0].encode_to_vec(), &hits);
            label_request(&one);
            let batch = proto::LabelBatchRequest { requests: requests.clone() }.encode_to_vec();
            label_batch(&damaged(batch.clone(), &hits));
            let mut call = frame(&one, 0);
            call.extend(frame(&batch, (hits.len() == 5).into()));
            call.extend(frame(&requests[0].encode_to_vec(), 0));
            frames(&damaged(call, &hits));
        }
    }
}
