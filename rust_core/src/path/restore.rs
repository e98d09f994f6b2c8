//! The dedupe window after a restart: rebuilt from the journal, so that a retry of a label
//! acknowledged before the crash gets the first reply again.

use std::{collections::HashSet, sync::Arc};

use prost::Message as _;

use crate::{
    error::Result,
    journal::Journal,
    label::{Answer, Durability, Key, Priority, Source},
    proto::journal::Record,
    row::{Asked, Row},
};

/// Calls `restored` with the newest `rows_max` rows of the journal, oldest first: those that are
/// pending, and those labeled since `since_unix_us`. Rows come with their numbers; pending ones are
/// `Journaled`, the others `Stored`. Returns the number of records that could not be read as such.
pub fn rows(
    journal: &Journal,
    next_number: u64,
    rows_max: usize,
    since_unix_us: i64,
    restored: &mut dyn FnMut(Arc<Row>, bool),
) -> Result<u64> {
    let mut unreadable = 0;
    let mut names = Names::default();
    let oldest = next_number.saturating_sub(rows_max as u64);
    journal.scan(&mut |number, body, pending| {
        if number < oldest {
            return;
        }
        match Record::decode(body) {
            Ok(record) if pending || record.labeled_at_unix_us >= since_unix_us => {
                restored(row(record, number, pending, &mut names), pending);
            }
            Ok(_) => {}
            Err(_) => unreadable += 1,
        }
    })?;
    Ok(unreadable)
}

/// Model names, versions and labels repeat in each record: one copy of each.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

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

fn row(record: Record, number: u64, pending: bool, names: &mut Names) -> Arc<Row> {
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
    let level = if pending { Durability::Journaled } else { Durability::Stored };
    Arc::new(Row::restored(asked, answer, level, number, record.labeled_at_unix_us))
}
