//! The label service's codec: prost, with a clock on both sides.
//!
//! A request knows when its decoding began and ended, a reply how long its encoding took: its
//! timing is the last that is written. A message that is no protobuf is delivered as an error, so
//! that it is counted and answered like any bad input.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::{BufMut, BytesMut};
use prost::{
    Message,
    encoding::{DecodeContext, decode_key, skip_field},
};

use crate::{
    account::Entry,
    clock::Clock,
    error::{Error, Result},
    faults, fields,
    limits::BATCH_REQUEST_ROWS_MAX,
    path::{Arrival, Reply},
    proto,
    stages::Stage,
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
    /// The path's reply.
    pub reply: Reply,
    /// Whether the robot wants all scores.
    pub want_scores: bool,
    /// The request in the accounts.
    pub entry: Entry,
    /// µs on the engine's clock.
    pub arrived_us: u64,
}

impl Answered {
    /// A unary reply's encoding begins where its caller woke, at `resumed_us`; that of a row or a
    /// message when its turn comes, since until then it only waits for its neighbours.
    fn write(self, buf: &mut impl BufMut, clock: &Clock, begun_us: Option<u64>) -> Result<()> {
        let Self { reply, want_scores, entry, arrived_us } = self;
        let begun_us = begun_us.unwrap_or(reply.resumed_us);
        faults::point("encode");
        if let Err(error) = wire::response(&reply, want_scores, buf) {
            entry.ended(&error);
            return Err(error);
        }
        let Reply { version, mut timing, .. } = reply;
        let now_us = clock.now_us();
        timing.set(Stage::Encode, begun_us, now_us);
        timing.total_us = now_us.saturating_sub(arrived_us);
        wire::timing(&timing, buf);
        version.counts.stages.record(&timing);
        entry.answered();
        Ok(())
    }
}

const REQUEST_PAYLOAD: u32 = 5;
const BATCH_REQUESTS: u32 = 1;
const BATCH_RESULTS: u32 = 1;
const RESULT_RESPONSE: u32 = 1;
const STREAM_RESPONSE: u32 = 2;

/// What a method receives.
pub trait Incoming: Message + Default + 'static {
    /// Decodes a whole message.
    ///
    /// Errors: `Invalid` for what is no such message, or what would be far larger in memory than it
    /// is on the wire.
    fn read(bytes: &[u8]) -> Result<Self> {
        merged(Self::default(), bytes)
    }
}

fn merged<M: Message>(mut message: M, bytes: &[u8]) -> Result<M> {
    let merged = message.merge(bytes);
    merged.map_err(|error| wire::invalid("message", error, "protobuf"))?;
    Ok(message)
}

impl Incoming for proto::LabelRequest {
    /// With room for the values: prost takes them in one by one, and room for each few.
    fn read(bytes: &[u8]) -> Result<Self> {
        let floats = Vec::with_capacity(bytes.len() / size_of::<f32>());
        let payload = Some(proto::Payload { floats, ..Default::default() });
        let mut request = merged(Self { payload, ..Default::default() }, bytes)?;
        let nothing = proto::Payload::default();
        if request.payload.as_ref() == Some(&nothing) && repeated(bytes, REQUEST_PAYLOAD, 1) == 0 {
            request.payload = None;
        }
        Ok(request)
    }
}

impl Incoming for proto::GetLabelRequest {}
impl Incoming for proto::ListLabelsRequest {}
impl Incoming for proto::LoadModelRequest {}
impl Incoming for proto::UnloadModelRequest {}
impl Incoming for proto::ListModelsRequest {}

impl Incoming for proto::LabelBatchRequest {
    /// A row is two bytes on the wire at least, and hundreds once decoded.
    fn read(bytes: &[u8]) -> Result<Self> {
        const MOST: usize = BATCH_REQUEST_ROWS_MAX;
        let got = match repeated(bytes, BATCH_REQUESTS, MOST) {
            0 => "0 rows".to_owned(),
            1..=MOST => return merged(Self::default(), bytes),
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
    fn write(self, buf: &mut impl BufMut, clock: &Clock) -> Result<()>;
}

impl Outgoing for Answered {
    fn write(self, buf: &mut impl BufMut, clock: &Clock) -> Result<()> {
        Answered::write(self, buf, clock, None)
    }
}

/// A `LabelBatchResponse`: each row answered or refused.
pub struct Rows(pub Vec<Result<Answered>>);

impl Outgoing for Rows {
    fn write(self, buf: &mut impl BufMut, clock: &Clock) -> Result<()> {
        let mut row = BytesMut::with_capacity(256);
        for result in self.0 {
            row.clear();
            match result.and_then(|a| nested(a, RESULT_RESPONSE, &mut row, clock)) {
                Ok(()) => {}
                Err(error) => {
                    let error = proto::label_result::Result::Error(status::to_proto(&error));
                    proto::LabelResult { result: Some(error) }.encode_raw(&mut row);
                }
            }
            fields::length_delimited(BATCH_RESULTS, &row, buf);
        }
        Ok(())
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
    fn write(self, buf: &mut impl BufMut, clock: &Clock) -> Result<()> {
        let sequence = self.sequence;
        let result = self.result.and_then(|a| nested(a, STREAM_RESPONSE, buf, clock));
        // Of the fields it does not matter which comes first.
        let error = result
            .err()
            .map(|error| proto::label_stream_response::Result::Error(status::to_proto(&error)));
        proto::LabelStreamResponse { sequence, result: error }.encode_raw(buf);
        Ok(())
    }
}

/// A plain message, for the methods that are not on the label path.
pub struct Plain<M>(pub M, pub Entry);

impl<M: Message + 'static> Outgoing for Plain<M> {
    fn write(self, buf: &mut impl BufMut, _clock: &Clock) -> Result<()> {
        self.0.encode_raw(buf);
        self.1.answered();
        Ok(())
    }
}

thread_local! {
    /// Where a row is written by itself, since its length goes before it.
    static ROW: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(256));
}

/// Writes an answered row as a field. Its panic is an error, and then nothing has been written.
fn nested(answered: Answered, field: u32, buf: &mut impl BufMut, clock: &Clock) -> Result<()> {
    ROW.with_borrow_mut(|row| {
        row.clear();
        guarded("encode", || answered.write(row, clock, Some(clock.now_us())))?;
        fields::length_delimited(field, row, buf);
        Ok(())
    })
}

/// A panic fails the message at hand, neither its stream nor its neighbours in a batch.
pub fn guarded<T>(part: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let reason = panic_message(&*panic);
        tracing::error!(part, reason, "a message panicked");
        Err(Error::Internal { part, reason })
    })
}

/// Decodes a message that lies in one piece.
pub fn received<M: Incoming>(message: &[u8], clock: &Clock) -> Received<M> {
    let arrived_us = clock.now_us();
    let message = guarded("decode", || {
        faults::point("decode");
        M::read(message)
    });
    let arrival = Arrival { arrived_us, decoded_us: clock.now_us() };
    Received { message, arrival }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_numbers_are_those_of_the_protos() {
        // A message whose only content is the field encodes to that field's key and length.
        let key = |message: Vec<u8>| u32::from(message[0] >> 3);
        let result = proto::label_result::Result::Response(Default::default());
        let result = proto::LabelResult { result: Some(result) };
        assert_eq!(key(result.encode_to_vec()), RESULT_RESPONSE);
        let batch = proto::LabelBatchResponse { results: vec![result] };
        assert_eq!(key(batch.encode_to_vec()), BATCH_RESULTS);
        let batch = proto::LabelBatchRequest { requests: vec![Default::default()] };
        assert_eq!(key(batch.encode_to_vec()), BATCH_REQUESTS);
        let request =
            proto::LabelRequest { payload: Some(Default::default()), ..Default::default() };
        assert_eq!(key(request.encode_to_vec()), REQUEST_PAYLOAD);
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
        let most = proto::LabelBatchRequest::read(&bytes(BATCH_REQUEST_ROWS_MAX));
        assert_eq!(most.map(|batch| batch.requests.len()), Ok(BATCH_REQUEST_ROWS_MAX));
        assert!(proto::LabelBatchRequest::read(&bytes(BATCH_REQUEST_ROWS_MAX + 1)).is_err());
        assert!(proto::LabelBatchRequest::read(&bytes(0)).is_err());
    }

    #[test]
    fn a_request_is_read_as_prost_reads_it_and_its_floats_lie_where_they_were_put() {
        let floats = vec![1.0, -2.5, 3.0];
        let payloads = [
            None,
            Some(proto::Payload::default()),
            Some(proto::Payload { floats, ..Default::default() }),
            Some(proto::Payload { doubles: vec![1.0, 2.0], ..Default::default() }),
        ];
        for payload in payloads {
            let request =
                proto::LabelRequest { robot_id: "r".into(), payload, ..Default::default() };
            let bytes = request.encode_to_vec();
            let read = proto::LabelRequest::read(&bytes);
            assert_eq!(read, Ok(request));
            let most = bytes.len() / size_of::<f32>();
            let floats = read.ok().and_then(|read| read.payload).map(|payload| payload.floats);
            assert!(floats.is_none_or(|floats| floats.capacity() == most));
        }
        assert!(proto::LabelRequest::read(b"\xff\xff").is_err());
    }
}
