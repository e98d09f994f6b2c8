//! Wire to domain and back: what a request must hold whatever its model is, and what a reply says.
//!
//! Nothing is guessed: a missing sequence is not 0, an unknown enum value is not the default.

use std::{sync::Arc, sync::atomic::Ordering};

use bytes::BufMut;

use crate::{
    error::{Error, Result},
    fields,
    label::{Durability, Key, Payload, Priority, Request, Source, Values},
    limits::{MODEL_NAME_BYTES_MAX, ROBOT_ID_BYTES_MAX, SEQUENCE_MAX, SKU_BYTES_MAX},
    path::Reply,
    proto,
    row::Row,
    stages::{Stage, Timing},
};

/// Checks a request and turns it into the domain's; `priority` is the method's default.
pub fn request(message: proto::LabelRequest, priority: Priority) -> Result<Request> {
    let key = key(&message.robot_id, message.sequence)?;
    bounded("model", &message.model, MODEL_NAME_BYTES_MAX)?;
    bounded("version", &message.version, MODEL_NAME_BYTES_MAX)?;
    bounded("sku", &message.sku, SKU_BYTES_MAX)?;
    let priority = match proto::Priority::try_from(message.priority) {
        Ok(proto::Priority::Unspecified) => priority,
        Ok(proto::Priority::Robot) => Priority::Robot,
        Ok(proto::Priority::Bulk) => Priority::Bulk,
        Err(_) => return Err(unknown_enum("priority", message.priority, "0 to 2")),
    };
    let durability = match proto::Durability::try_from(message.durability) {
        Ok(proto::Durability::Unspecified) => None,
        Ok(proto::Durability::Buffered) => Some(Durability::Buffered),
        Ok(proto::Durability::Journaled) => Some(Durability::Journaled),
        Ok(proto::Durability::Stored) => Some(Durability::Stored),
        Err(_) => return Err(unknown_enum("durability", message.durability, "0 to 3")),
    };
    Ok(Request {
        key,
        model: message.model.into(),
        version: message.version.into(),
        payload: payload(message.payload)?,
        priority,
        durability,
        durability_required: message.durability_required,
        timeout_us: Some(message.timeout_us).filter(|us| *us > 0),
        captured_at_unix_us: message.captured_at_unix_us,
        sku: message.sku.into(),
    })
}

/// Checks an idempotency key.
pub fn key(robot_id: &str, sequence: Option<u64>) -> Result<Key> {
    if robot_id.is_empty() {
        return Err(invalid("robot_id", "empty", format!("1 to {ROBOT_ID_BYTES_MAX} bytes")));
    }
    bounded("robot_id", robot_id, ROBOT_ID_BYTES_MAX)?;
    let expected = || format!("1 to {SEQUENCE_MAX}");
    let sequence = sequence.ok_or_else(|| invalid("sequence", "missing", expected()))?;
    if sequence == 0 || sequence > SEQUENCE_MAX {
        return Err(invalid("sequence", sequence, expected()));
    }
    Ok(Key { robot_id: robot_id.into(), sequence })
}

fn payload(message: Option<proto::Payload>) -> Result<Payload> {
    const EXPECTED: &str = "one of floats, doubles, raw";
    let message = message.ok_or_else(|| invalid("payload", "missing", EXPECTED))?;
    let set = [!message.floats.is_empty(), !message.doubles.is_empty(), message.raw.is_some()];
    match set {
        [true, false, false] => {
            Ok(Payload { field: "payload.floats", values: Values::F32(message.floats) })
        }
        [false, true, false] => {
            Ok(Payload { field: "payload.doubles", values: Values::F64(message.doubles) })
        }
        [false, false, true] => raw(message.raw.unwrap_or_default()),
        [false, false, false] => Err(invalid("payload", "empty", EXPECTED)),
        _ => Err(invalid("payload", "more than one field", EXPECTED)),
    }
}

fn raw(raw: proto::RawValues) -> Result<Payload> {
    let bytes = &raw.data;
    let values = match proto::DType::try_from(raw.dtype) {
        Ok(proto::DType::DtypeFloat32) => {
            Values::F32(elements(bytes, 4)?.map(|b| f32::from_le_bytes(cut(b))).collect())
        }
        Ok(proto::DType::DtypeFloat64) => {
            Values::F64(elements(bytes, 8)?.map(|b| f64::from_le_bytes(cut(b))).collect())
        }
        Ok(proto::DType::DtypeUnspecified) | Err(_) => {
            return Err(unknown_enum("payload.raw.dtype", raw.dtype, "FLOAT32 (1) or FLOAT64 (2)"));
        }
    };
    Ok(Payload { field: "payload.raw.data", values })
}

fn elements(bytes: &[u8], size: usize) -> Result<std::slice::ChunksExact<'_, u8>> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(size) {
        let expected = format!("a multiple of {size} bytes, one or more values");
        return Err(invalid("payload.raw.data", format!("{} bytes", bytes.len()), expected));
    }
    Ok(bytes.chunks_exact(size))
}

/// A chunk as an array; chunks are exactly `N` long.
fn cut<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// Refuses a text that is too long.
pub fn bounded(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    if text.len() > bytes_max {
        let expected = format!("at most {bytes_max} bytes");
        return Err(invalid(field, format!("{} bytes", text.len()), expected));
    }
    Ok(())
}

fn unknown_enum(field: &'static str, got: i32, expected: &str) -> Error {
    invalid(field, got, expected)
}

/// An error about a request's field.
pub fn invalid(field: &'static str, got: impl ToString, expected: impl Into<String>) -> Error {
    Error::Invalid { field, got: got.to_string(), expected: expected.into() }
}

/// Writes a reply as a `LabelResponse` without its timing, which is known only behind it.
///
/// Errors: `Internal` for a reply without an answer; then nothing is written.
pub fn response(reply: &Reply, want_scores: bool, into: &mut impl BufMut) -> Result<()> {
    let missing = || Error::Internal { part: "path", reason: "a reply without an answer".into() };
    let answer = reply.row.answer().ok_or_else(missing)?;
    let source = if reply.replay { Source::Replay } else { answer.source };
    fields::number(1, reply.row.asked.key.sequence, into);
    fields::bytes(2, answer.label.as_bytes(), into);
    fields::number(3, answer.index.into(), into);
    fields::float(4, answer.confidence, into);
    if want_scores {
        fields::floats(5, &answer.scores, into);
    }
    fields::bytes(6, answer.model.as_bytes(), into);
    fields::bytes(7, answer.version.as_bytes(), into);
    fields::number(8, source as u64, into);
    fields::number(9, reply.level as u64, into);
    Ok(())
}

/// Writes a `LabelResponse`'s timing.
pub fn timing(timing: &Timing, into: &mut impl BufMut) {
    let us = |us| u32::try_from(us).unwrap_or(u32::MAX);
    let of = |stage| us(timing.us(stage));
    let timing = proto::Timing {
        decode_us: of(Stage::Decode),
        admit_us: of(Stage::Admit),
        cache_us: of(Stage::Cache),
        queue_us: of(Stage::Queue),
        infer_us: of(Stage::Infer),
        journal_us: of(Stage::Journal),
        encode_us: of(Stage::Encode),
        total_us: us(timing.total_us),
    };
    prost::encoding::message::encode(10, &timing, into);
}

/// A label that is still pending here, as `GetLabel` gives it; `None` while it has no answer.
pub fn pending(row: &Arc<Row>, instance_id: &str, journal_id: &str) -> Option<proto::StoredLabel> {
    let (answer, level) = (row.answer()?, row.progress().level()?);
    let asked = &row.asked;
    Some(proto::StoredLabel {
        robot_id: asked.key.robot_id.to_string(),
        sequence: asked.key.sequence,
        label: answer.label.to_string(),
        index: answer.index,
        confidence: answer.confidence,
        model: answer.model.to_string(),
        version: answer.version.to_string(),
        source: answer.source as i32,
        durability: level as i32,
        labeled_at_unix_us: row.labeled_at_unix_us.load(Ordering::Relaxed) as i64,
        captured_at_unix_us: asked.captured_at_unix_us,
        sku: asked.sku.to_string(),
        instance_id: instance_id.to_owned(),
        journal_id: journal_id.to_owned(),
        journal_number: row.number.load(Ordering::Acquire),
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_timing_is_written_as_its_message() {
        let mut known = Timing::default();
        for (stage, us) in Stage::ALL.into_iter().zip([1, 0, 300, 70_000, 5, u64::MAX, 7]) {
            known.set(stage, 0, us);
        }
        known.total_us = u64::MAX;
        let mut bytes = vec![];
        timing(&known, &mut bytes);
        let read = proto::LabelResponse::decode(&*bytes).unwrap();
        let expected = proto::Timing {
            decode_us: 1,
            admit_us: 0,
            cache_us: 300,
            queue_us: 70_000,
            infer_us: 5,
            journal_us: u32::MAX,
            encode_us: 7,
            total_us: u32::MAX,
        };
        assert_eq!(read, proto::LabelResponse { timing: Some(expected), ..Default::default() });
    }

    fn message() -> proto::LabelRequest {
        proto::LabelRequest {
            robot_id: "r1".into(),
            sequence: Some(1),
            payload: Some(proto::Payload { floats: vec![1.0], ..Default::default() }),
            ..Default::default()
        }
    }

    fn refused(message: proto::LabelRequest) -> &'static str {
        match request(message, Priority::Robot) {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_the_field_of_each_bad_request() {
        let with = |change: fn(&mut proto::LabelRequest)| {
            let mut message = message();
            change(&mut message);
            refused(message)
        };
        assert_eq!(with(|m| m.robot_id.clear()), "robot_id");
        assert_eq!(with(|m| m.robot_id = "r".repeat(129)), "robot_id");
        assert_eq!(with(|m| m.sequence = None), "sequence");
        assert_eq!(with(|m| m.sequence = Some(0)), "sequence");
        assert_eq!(with(|m| m.sequence = Some(1 << 63)), "sequence");
        assert_eq!(with(|m| m.sku = "s".repeat(65)), "sku");
        assert_eq!(with(|m| m.priority = 9), "priority");
        assert_eq!(with(|m| m.durability = -1), "durability");
        assert_eq!(with(|m| m.payload = None), "payload");
        assert_eq!(with(|m| m.payload = Some(proto::Payload::default())), "payload");
    }

    #[test]
    fn refuses_two_payload_fields() {
        let mut message = message();
        message.payload.as_mut().unwrap().doubles = vec![1.0];
        assert_eq!(refused(message), "payload");
    }

    #[test]
    fn raw_bytes_need_a_type_and_whole_values() {
        let with = |dtype, data: &[u8]| {
            let raw = proto::RawValues { dtype, data: data.to_vec() };
            raw_payload(raw)
        };
        fn raw_payload(raw: proto::RawValues) -> Result<Payload> {
            payload(Some(proto::Payload { raw: Some(raw), ..Default::default() }))
        }
        let values = with(2, &1.5f64.to_le_bytes()).unwrap().values;
        assert_eq!(values, Values::F64(vec![1.5]));
        let fields = [with(0, &[0; 4]), with(1, &[0; 3]), with(1, &[]), with(7, &[0; 4])];
        let fields = fields.map(|r| match r {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        });
        let data = "payload.raw.data";
        assert_eq!(fields, ["payload.raw.dtype", data, data, "payload.raw.dtype"]);
    }
}
