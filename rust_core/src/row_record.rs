//! A row as its record in the journal, and back.
//!
//! Encoded from the row itself, without a copy of each text first. Knows no file, and of a record's
//! number only that a row has one.

use std::{collections::HashSet, sync::Arc};

use prost::encoding::{WireType, decode_key, decode_varint};

use crate::{
    fields,
    label::{Answer, Durability, Key, Priority, Source},
    limits::RECORD_OVERHEAD_BYTES,
    proto::journal::Record,
    row::{Asked, Row},
};

/// Appends the record of an answered row: what `Record` would encode, in the order of its fields.
pub fn encode(asked: &Asked, answer: &Answer, labeled_at_unix_us: i64, into: &mut Vec<u8>) {
    let texts = [&asked.key.robot_id, &answer.model, &answer.version, &answer.label];
    let texts_bytes = texts.map(|text| text.len()).iter().sum::<usize>() + asked.sku.len();
    into.reserve(RECORD_OVERHEAD_BYTES + texts_bytes + 4 * answer.scores.len());
    fields::bytes(1, asked.key.robot_id.as_bytes(), into);
    fields::number(2, asked.key.sequence, into);
    fields::bytes(3, answer.model.as_bytes(), into);
    fields::bytes(4, answer.version.as_bytes(), into);
    fields::bytes(5, answer.label.as_bytes(), into);
    fields::number(6, answer.index.into(), into);
    fields::float(7, answer.confidence, into);
    fields::floats(8, &answer.scores, into);
    fields::bytes(9, &asked.digest.to_le_bytes(), into);
    fields::number(10, answer.source as u64, into);
    fields::number(11, labeled_at_unix_us as u64, into);
    fields::number(12, asked.captured_at_unix_us as u64, into);
    fields::bytes(13, asked.sku.as_bytes(), into);
}

/// Robot and sequence of a record that `encode` has written, which begins with them.
pub fn key(body: &[u8]) -> Option<(&[u8], u64)> {
    let mut rest = body;
    let robot_bytes = field(&mut rest, 1, WireType::LengthDelimited)?;
    let (robot_id, mut rest) = rest.split_at_checked(usize::try_from(robot_bytes).ok()?)?;
    Some((robot_id, field(&mut rest, 2, WireType::Varint)?))
}

fn field(rest: &mut &[u8], tag: u32, wire_type: WireType) -> Option<u64> {
    let found = decode_key(rest).ok()?;
    if found == (tag, wire_type) { decode_varint(rest).ok() } else { None }
}

/// Model names, versions and labels repeat in each record: one copy of each.
#[derive(Default)]
pub struct Names(HashSet<Arc<str>>);

impl Names {
    fn one(&mut self, name: String) -> Arc<str> {
        if let Some(known) = self.0.get(name.as_str()) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

/// The row of a record, at `level`; nobody waits for it.
pub fn row(record: Record, number: u64, level: Durability, names: &mut Names) -> Arc<Row> {
    let mut digest = [0; 16];
    let len = record.payload_digest.len().min(digest.len());
    digest[..len].copy_from_slice(&record.payload_digest[..len]);
    let asked = Asked {
        key: Key { robot_id: record.robot_id.into(), sequence: record.sequence },
        digest: u128::from_le_bytes(digest),
        priority: Priority::Bulk,
        deadline_us: 0,
        captured_at_unix_us: record.captured_at_unix_us,
        sku: record.sku.into(),
    };
    let answer = Answer {
        index: record.index,
        label: names.one(record.label),
        confidence: record.confidence,
        scores: record.scores.into(),
        model: names.one(record.model),
        version: names.one(record.version),
        source: Source::from_number(record.source),
    };
    Arc::new(Row::restored(asked, answer, level, number, record.labeled_at_unix_us))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn made(texts: (String, String, String), numbers: (u64, u32, i64), scores: Vec<f32>) -> Row {
        let (robot_id, sku, label) = texts;
        let (sequence, index, time_us) = numbers;
        let key = Key { robot_id: robot_id.into(), sequence };
        let asked = Asked {
            key,
            digest: u128::from(sequence) << 64 | 7,
            priority: Priority::Robot,
            deadline_us: 1,
            captured_at_unix_us: time_us,
            sku: sku.into(),
        };
        let answer = Answer {
            index,
            label: label.into(),
            confidence: scores.first().copied().unwrap_or(0.0),
            scores: scores.into(),
            model: "kiva-floor".into(),
            version: "1".into(),
            source: Source::Model,
        };
        Row::restored(asked, answer, Durability::Stored, 9, -time_us)
    }

    fn written(row: &Row) -> Vec<u8> {
        let labeled_at_unix_us = row.labeled_at_unix_us.load(Ordering::Relaxed) as i64;
        let mut body = vec![];
        encode(&row.asked, row.answer().unwrap(), labeled_at_unix_us, &mut body);
        body
    }

    proptest! {
        #[test]
        fn a_row_is_written_as_its_message_would_be_and_comes_back_whole(
            texts in ("[a-zé]{1,140}", "[a-z]{0,3}", "[a-z]{0,9}"),
            numbers in (1..=i64::MAX as u64, any::<u32>(), any::<i64>()),
            scores in prop::collection::vec(-1e6f32..1e6, 0..40),
        ) {
            let row = made(texts, numbers, scores);
            let body = written(&row);
            let record = Record::decode(&*body).unwrap();
            prop_assert_eq!(&record.encode_to_vec(), &body);
            let robot_id = row.asked.key.robot_id.as_bytes();
            prop_assert_eq!(key(&body), Some((robot_id, row.asked.key.sequence)));
            let back = super::row(record, 9, Durability::Stored, &mut Names::default());
            prop_assert_eq!(back.answer(), row.answer());
            prop_assert_eq!(back.progress(), row.progress());
            prop_assert_eq!(written(&back), body);
        }

        #[test]
        fn any_bytes_have_a_key_or_none(body in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = key(&body);
        }
    }
}
