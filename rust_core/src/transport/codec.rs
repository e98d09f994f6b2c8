//! The label service's codec: prost, with a clock on both sides.
//!
//! A request knows when its decoding began and ended, a reply how long its encoding took: that
//! figure is appended as a second occurrence of `timing`, which protobuf merges into the first. A
//! message that is no protobuf is delivered as an error, so that it is counted and answered like
//! any bad input.

use std::{
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::{Buf as _, BufMut, BytesMut};
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::{
    account::Entry,
    clock::Clock,
    error::{Error, Result},
    faults,
    limits::BATCH_REQUEST_ROWS_MAX,
    path::{Arrival, Reply, served::Version},
    proto,
    stages::{Stage, Timing},
    supervise::panic_message,
};

use super::{status, wire};

/// A decoded request and when that was.
pub struct Received<M> {
    /// The message, or why it is none.
    pub message: Result<M>,
    /// `arrived_us` is the begin of decoding; a unary handler knows better.
    pub arrival: Arrival,
}

/// An answered request on its way out: counted and measured when it has been encoded.
pub struct Answered {
    response: proto::LabelResponse,
    meter: Meter,
}

struct Meter {
    entry: Entry,
    version: std::sync::Arc<Version>,
    timing: Timing,
    arrived_us: u64,
    resumed_us: u64,
}

impl Answered {
    /// Takes a reply over from the path.
    pub fn new(reply: Reply, want_scores: bool, entry: Entry, arrived_us: u64) -> Result<Self> {
        let response = wire::response(&reply, want_scores)?;
        let Reply { version, timing, resumed_us, .. } = reply;
        Ok(Self { response, meter: Meter { entry, version, timing, arrived_us, resumed_us } })
    }

    /// A unary reply's encoding begins where its caller woke, at `resumed_us`; that of a row or a
    /// message when its turn comes, since until then it only waits for its neighbours.
    fn write(self, buf: &mut impl BufMut, clock: &Clock, begun_us: Option<u64>) {
        let Self { response, meter } = self;
        let Meter { entry, version, mut timing, arrived_us, resumed_us } = meter;
        let begun_us = begun_us.unwrap_or(resumed_us);
        faults::point("encode");
        response.encode_raw(buf);
        let now_us = clock.now_us();
        timing.set(Stage::Encode, begun_us, now_us);
        timing.total_us = now_us.saturating_sub(arrived_us);
        let last = wire::timing(&timing);
        let last = proto::Timing {
            encode_us: last.encode_us,
            total_us: last.total_us,
            ..proto::Timing::default()
        };
        encode_key(RESPONSE_TIMING, WireType::LengthDelimited, buf);
        encode_varint(last.encoded_len() as u64, buf);
        last.encode_raw(buf);
        version.counts.stages.record(&timing);
        entry.answered();
    }
}

const RESPONSE_TIMING: u32 = 10;
const BATCH_REQUESTS: u32 = 1;
const BATCH_RESULTS: u32 = 1;
const RESULT_RESPONSE: u32 = 1;
const STREAM_RESPONSE: u32 = 2;

/// What a method receives.
pub trait Incoming: Message + Default + 'static {
    /// Refuses, by its bytes, a message that would be far larger in memory than on the wire.
    fn check(_bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Incoming for proto::LabelRequest {}
impl Incoming for proto::GetLabelRequest {}
impl Incoming for proto::ListLabelsRequest {}
impl Incoming for proto::LoadModelRequest {}
impl Incoming for proto::UnloadModelRequest {}
impl Incoming for proto::ListModelsRequest {}

impl Incoming for proto::LabelBatchRequest {
    /// A row is two bytes on the wire at least, and hundreds once decoded.
    fn check(bytes: &[u8]) -> Result<()> {
        const MOST: usize = BATCH_REQUEST_ROWS_MAX;
        let got = match repeated(bytes, BATCH_REQUESTS, MOST) {
            0 => "0 rows".to_owned(),
            1..=MOST => return Ok(()),
            _ => format!("over {MOST} rows"),
        };
        Err(wire::invalid("requests", got, format!("1 to {MOST} rows")))
    }
}

/// How often a message holds the field of this number; one above `most` is as far as it counts.
/// Bytes that are no protobuf end the count: decoding will say so.
fn repeated(mut bytes: &[u8], field: u32, most: usize) -> usize {
    let mut found = 0;
    while !bytes.is_empty() && found <= most {
        let Ok((number, kind)) = decode_key(&mut bytes) else { break };
        found += usize::from(number == field);
        if skip_field(kind, number, &mut bytes, DecodeContext::default()).is_err() {
            break;
        }
    }
    found
}

/// What a method sends.
pub trait Outgoing: Send + 'static {
    /// Writes the message.
    fn write(self, buf: &mut EncodeBuf<'_>, clock: &Clock);
}

impl Outgoing for Answered {
    fn write(self, buf: &mut EncodeBuf<'_>, clock: &Clock) {
        Answered::write(self, buf, clock, None);
    }
}

/// A `LabelBatchResponse`: each row answered or refused.
pub struct Rows(pub Vec<Result<Answered>>);

impl Outgoing for Rows {
    fn write(self, buf: &mut EncodeBuf<'_>, clock: &Clock) {
        let mut row = BytesMut::with_capacity(256);
        let mut inner = BytesMut::with_capacity(256);
        for result in self.0 {
            row.clear();
            let result =
                result.and_then(|a| nested(a, RESULT_RESPONSE, &mut inner, &mut row, clock));
            match result {
                Ok(()) => {}
                Err(error) => {
                    let error = proto::label_result::Result::Error(status::to_proto(&error));
                    proto::LabelResult { result: Some(error) }.encode_raw(&mut row);
                }
            }
            length_delimited(BATCH_RESULTS, &row, buf);
        }
    }
}

/// A `LabelStreamResponse`.
pub struct StreamReply {
    /// The request that is answered.
    pub sequence: u64,
    /// How.
    pub result: Result<Answered>,
}

impl Outgoing for StreamReply {
    fn write(self, buf: &mut EncodeBuf<'_>, clock: &Clock) {
        let sequence = self.sequence;
        let mut inner = BytesMut::with_capacity(256);
        let result = self.result.and_then(|a| nested(a, STREAM_RESPONSE, &mut inner, buf, clock));
        // Of the fields it does not matter which comes first.
        let error = result
            .err()
            .map(|error| proto::label_stream_response::Result::Error(status::to_proto(&error)));
        proto::LabelStreamResponse { sequence, result: error }.encode_raw(buf);
    }
}

/// A plain message, for the methods that are not on the label path.
pub struct Plain<M>(pub M, pub Entry);

impl<M: Message + 'static> Outgoing for Plain<M> {
    fn write(self, buf: &mut EncodeBuf<'_>, _clock: &Clock) {
        self.0.encode_raw(buf);
        self.1.answered();
    }
}

/// Writes an answered row as a field. Its panic is an error, and then nothing has been written.
fn nested(
    answered: Answered,
    field: u32,
    inner: &mut BytesMut,
    buf: &mut impl BufMut,
    clock: &Clock,
) -> Result<()> {
    inner.clear();
    guarded("encode", || answered.write(inner, clock, Some(clock.now_us())))?;
    length_delimited(field, inner, buf);
    Ok(())
}

/// A panic fails the message at hand, neither its stream nor its neighbours in a batch.
fn guarded<T>(part: &'static str, run: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let reason = panic_message(&*panic);
        tracing::error!(part, reason, "a message panicked");
        Error::Internal { part, reason }
    })
}

fn length_delimited(field: u32, bytes: &[u8], buf: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, buf);
    encode_varint(bytes.len() as u64, buf);
    buf.put_slice(bytes);
}

/// Each call and each open stream begins with one buffer a direction: for a message, not for the
/// 8 KiB that tonic takes by itself. Larger messages grow theirs.
fn buffers() -> BufferSettings {
    const BUFFER_BYTES: usize = 256;
    const SEND_BYTES: usize = 32 << 10;
    BufferSettings::new(BUFFER_BYTES, SEND_BYTES)
}

/// The codec of one call.
pub struct TimedCodec<M, O> {
    clock: Clock,
    /// Messages that may still come.
    left: usize,
    types: PhantomData<fn(M) -> O>,
}

impl<M, O> TimedCodec<M, O> {
    /// Of a call with one message.
    pub fn unary(clock: Clock) -> Self {
        Self { clock, left: 1, types: PhantomData }
    }

    /// Of a stream.
    pub fn stream(clock: Clock) -> Self {
        Self { clock, left: usize::MAX, types: PhantomData }
    }

    fn again(&self) -> Self {
        Self { clock: self.clock, left: self.left, types: PhantomData }
    }
}

impl<M: Incoming, O: Outgoing> Codec for TimedCodec<M, O> {
    type Encode = O;
    type Decode = Received<M>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.again()
    }

    fn decoder(&mut self) -> Self {
        self.again()
    }
}

impl<M, O: Outgoing> Encoder for TimedCodec<M, O> {
    type Item = O;
    type Error = Status;

    fn encode(&mut self, item: O, dst: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        guarded("encode", || item.write(dst, &self.clock)).map_err(|e| status::to_status(&e))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl<M: Incoming, O> Decoder for TimedCodec<M, O> {
    type Item = Received<M>;
    type Error = Status;

    fn decode(
        &mut self,
        src: &mut DecodeBuf<'_>,
    ) -> std::result::Result<Option<Self::Item>, Status> {
        let arrived_us = self.clock.now_us();
        if self.left == 0 {
            let second = wire::invalid("message", "followed by another", "one gRPC message");
            return Err(status::to_status(&second));
        }
        self.left -= 1;
        let decoded = guarded("decode", || {
            faults::point("decode");
            // A message lies in one piece, so that its first chunk is all of it.
            M::check(src.chunk())?;
            M::decode(&mut *src).map_err(|error| wire::invalid("message", error, "protobuf"))
        });
        let message = decoded.and_then(|decoded| decoded);
        // What is left of a bad message is skipped, so that the next one starts at its start.
        src.advance(src.remaining());
        let arrival = Arrival { arrived_us, decoded_us: self.clock.now_us() };
        Ok(Some(Received { message, arrival }))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_numbers_are_those_of_the_protos() {
        // A message whose only content is the field encodes to that field's key and length.
        let key = |message: Vec<u8>| u32::from(message[0] >> 3);
        let timing = Some(proto::Timing { total_us: 1, ..Default::default() });
        let response = proto::LabelResponse { timing, ..Default::default() };
        assert_eq!(key(response.encode_to_vec()), RESPONSE_TIMING);
        let result = proto::label_result::Result::Response(Default::default());
        let result = proto::LabelResult { result: Some(result) };
        assert_eq!(key(result.encode_to_vec()), RESULT_RESPONSE);
        let batch = proto::LabelBatchResponse { results: vec![result] };
        assert_eq!(key(batch.encode_to_vec()), BATCH_RESULTS);
        let batch = proto::LabelBatchRequest { requests: vec![Default::default()] };
        assert_eq!(key(batch.encode_to_vec()), BATCH_REQUESTS);
        let reply = proto::label_stream_response::Result::Response(Default::default());
        let reply = proto::LabelStreamResponse { sequence: 0, result: Some(reply) };
        assert_eq!(key(reply.encode_to_vec()), STREAM_RESPONSE);
    }

    #[test]
    fn rows_are_counted_before_they_are_decoded_and_no_further_than_needed() {
        let row = proto::LabelRequest { robot_id: "\x0a\x00".into(), ..Default::default() };
        let bytes = |rows| {
            let requests = vec![row.clone(); rows];
            proto::LabelBatchRequest { requests }.encode_to_vec()
        };
        for rows in [0, 1, 7, 8, 9] {
            assert_eq!(repeated(&bytes(rows), BATCH_REQUESTS, 7), rows.min(8), "{rows}");
        }
        let cut = bytes(3);
        assert_eq!(repeated(&cut[..cut.len() - 1], BATCH_REQUESTS, 7), 3);
        assert_eq!(repeated(b"\xff\xff", BATCH_REQUESTS, 7), 0);
        let most = proto::LabelBatchRequest::check(&bytes(BATCH_REQUEST_ROWS_MAX));
        assert_eq!(most, Ok(()));
        assert!(proto::LabelBatchRequest::check(&bytes(BATCH_REQUEST_ROWS_MAX + 1)).is_err());
        assert!(proto::LabelBatchRequest::check(&bytes(0)).is_err());
    }

    #[test]
    fn a_second_timing_is_merged_into_the_first() {
        let timing = Some(proto::Timing { decode_us: 3, ..Default::default() });
        let mut bytes = proto::LabelResponse { timing, ..Default::default() }.encode_to_vec();
        let last = proto::Timing { encode_us: 4, ..Default::default() };
        length_delimited(RESPONSE_TIMING, &last.encode_to_vec(), &mut bytes);
        let timing = proto::LabelResponse::decode(&*bytes).unwrap().timing.unwrap();
        assert_eq!((timing.decode_us, timing.encode_us), (3, 4));
    }
}
