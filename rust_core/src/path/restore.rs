//! The dedupe window after a restart: rebuilt from the journal, so that a retry of a label
//! acknowledged before the crash gets the first reply again.

use std::sync::Arc;

use prost::Message as _;

use crate::{
    error::Result,
    journal::Journal,
    label::Durability,
    proto::journal::Record,
    row::Row,
    row_record::{self, Names},
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
                let level = if pending { Durability::Journaled } else { Durability::Stored };
                restored(row_record::row(record, number, level, &mut names), pending);
            }
            Ok(_) => {}
            Err(_) => unreadable += 1,
        }
    })?;
    Ok(unreadable)
}
