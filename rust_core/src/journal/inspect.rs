//! Looking at a journal from outside: verify, stat and dump.
//!
//! Read-only: takes no lock, changes nothing, and works beside a live process, whose newest group
//! may then show as a tail that is being written.

use std::path::Path;

use uuid::Uuid;

use super::files::{Files, disk};
use super::format::{Frame, Frames, Place, journal_seed};
use super::recovery::{Damage, Survey, survey};
use super::segment::segment_name;
use super::walk::{Found, Walker};
use crate::error::{Error, Result};

/// What `verify` has found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct VerifyReport {
    /// No corruption; a tail is none.
    pub whole: bool,
    /// Names the journal.
    pub journal_id: Uuid,
    /// Segments, the spare ones included.
    pub segments: u64,
    /// Groups that are whole.
    pub groups: u64,
    /// Records that are readable, confirmed ones and copies included.
    pub records: u64,
    /// Records that are not confirmed.
    pub pending: u64,
    /// The number that the next record would get.
    pub next_number: u64,
    /// The highest place up to which a later group says that everything was durable.
    pub durable_mark: Place,
    /// Corruption.
    pub damage: Vec<Damage>,
    /// Bytes after the end of the log: torn, or being written.
    pub tail_bytes: u64,
}

/// One segment as `stat` sees it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SegmentReport {
    /// Its file.
    pub file: String,
    /// Its size on disk.
    pub bytes: u64,
    /// How much of it is written.
    pub used_bytes: u64,
    /// Records in it, copies included.
    pub records: u64,
    /// Those that are pending and stand nowhere later.
    pub live_records: u64,
    /// Their bytes, by the segment's mean.
    pub live_bytes: u64,
}

/// What `stat` has found.
#[derive(Debug, Clone, serde::Serialize)]
pub struct StatReport {
    /// Names the journal.
    pub journal_id: Uuid,
    /// Records that are not confirmed.
    pub pending: u64,
    /// The first of them.
    pub oldest_pending: Option<u64>,
    /// The number that the next record would get.
    pub next_number: u64,
    /// Bytes of pending records.
    pub live_bytes: u64,
    /// Bytes of all segments.
    pub disk_bytes: u64,
    /// All segments, oldest first.
    pub segments: Vec<SegmentReport>,
}

/// One record as `dump` sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DumpedRecord {
    /// Its number.
    pub number: u64,
    /// Its body.
    pub body: Vec<u8>,
    /// It is not confirmed.
    pub pending: bool,
}

/// A live process may go on to the next segment while we read: then an end looks too early. Damage
/// is still there at the next look.
const LOOKS_MAX: u32 = 3;

fn look(directory: &Path, files: &dyn Files) -> Result<Survey> {
    let mut found = survey(directory, files)?;
    for _ in 1..LOOKS_MAX {
        if found.as_ref().is_none_or(|found| found.damage.is_empty()) {
            break;
        }
        found = survey(directory, files)?;
    }
    found.ok_or_else(|| Error::Disk {
        operation: "read",
        path: directory.display().to_string(),
        reason: "there is no journal segment here".into(),
    })
}

/// Reads every byte that counts and reports what is not as it was written.
pub fn verify(directory: &Path, files: &dyn Files) -> Result<VerifyReport> {
    let found = look(directory, files)?;
    Ok(VerifyReport {
        whole: found.damage.is_empty(),
        journal_id: found.journal_id,
        segments: found.segments.len() as u64,
        groups: found.groups,
        records: found.records,
        pending: found.index.pending(),
        next_number: found.next_number,
        durable_mark: found.mark,
        damage: found.damage,
        tail_bytes: found.cut_bytes,
    })
}

/// Says what the journal holds and what it takes.
pub fn stat(directory: &Path, files: &dyn Files) -> Result<StatReport> {
    let found = look(directory, files)?;
    let segments = found.segments.values().map(|segment| {
        let used = found.index.segment(segment.id);
        SegmentReport {
            file: segment_name(segment.id),
            bytes: segment.bytes,
            used_bytes: segment.end,
            records: used.rows,
            live_records: used.live_rows,
            live_bytes: used.live_bytes(),
        }
    });
    let segments: Vec<SegmentReport> = segments.collect();
    Ok(StatReport {
        journal_id: found.journal_id,
        pending: found.index.pending(),
        oldest_pending: found.index.next_pending(0),
        next_number: found.next_number,
        live_bytes: segments.iter().map(|segment| segment.live_bytes).sum(),
        disk_bytes: segments.iter().map(|segment| segment.bytes).sum(),
        segments,
    })
}

/// Up to `rows_max` readable records from a number on, in the order of the log: a record that was
/// carried forward stands among later ones, and appears twice until its old segment is deleted.
pub fn dump(
    directory: &Path,
    files: &dyn Files,
    from_number: u64,
    rows_max: usize,
) -> Result<Vec<DumpedRecord>> {
    let found = look(directory, files)?;
    let seed = journal_seed(found.journal_id);
    let mut rows = Vec::new();
    for segment in found.segments.values() {
        let file = std::sync::Arc::clone(&segment.file);
        let mut walker = Walker::new(file, segment.id, seed, segment.end.min(segment.bytes));
        let path = directory.join(segment_name(segment.id));
        loop {
            let found_next = walker.next().map_err(|error| disk("read", &path, &error))?;
            let (header, body) = match found_next {
                Found::Group(header, body) => (header, body),
                Found::Bad { .. } => continue,
                Found::End => break,
            };
            for frame in Frames::new(&header, body) {
                let (Frame::Record { number, body } | Frame::Copy { number, body }) = frame else {
                    continue;
                };
                if number < from_number {
                    continue;
                }
                if rows.len() >= rows_max {
                    return Ok(rows);
                }
                let pending = found.index.is_pending(number);
                rows.push(DumpedRecord { number, body: body.to_vec(), pending });
            }
        }
    }
    Ok(rows)
}
