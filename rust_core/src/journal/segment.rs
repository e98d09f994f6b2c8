//! Segment files: their names, the allocated ones ahead of the log, and appending to the active
//! one.
//!
//! Never deletes a record's bytes and never writes over them: a segment is filled with zeros once,
//! then written forward once. Decides nothing about when to commit, copy or delete.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{Files, LogFile, Mode, disk, is_full, write_all};
use super::format::{
    GROUP_HEADER_BYTES, GroupBuilder, NUMBER_MAX, PAGE_BYTES, Place, SegmentHeader,
    encode_header_page,
};
use super::walk::used_to;
use super::{JournalConfig, RECORD_BYTES_MAX};
use crate::error::Result;
use uuid::Uuid;

/// How many zeros are written and synced between two looks at the queue.
const FILL_SLICE_BYTES: u64 = 512 << 10;
const SUFFIX_NEW: &str = ".new";

/// A segment that is open.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) id: u64,
    pub(super) file: Arc<dyn LogFile>,
    pub(super) bytes: u64,
    /// Where the next group goes; everything before it is durable.
    pub(super) end: u64,
}

impl Segment {
    fn remaining(&self) -> u64 {
        self.bytes.saturating_sub(self.end)
    }
}

/// The file name of a segment.
pub(super) fn segment_name(id: u64) -> String {
    format!("segment-{id:020}.log")
}

/// The segment that a file name stands for.
pub(super) fn segment_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|id| (1..=NUMBER_MAX).contains(id))
}

/// Whether a file is a segment whose making was cut short.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(SUFFIX_NEW).is_some_and(|name| segment_of(name).is_some())
}

/// The longest record that segments of this size hold.
pub(super) fn record_bytes_max(segment_bytes: u64) -> u64 {
    RECORD_BYTES_MAX.min((segment_bytes - PAGE_BYTES) / 8)
}

/// What a segment's end may waste, since a record is never split: less than the group of a record
/// that is as long as such segments hold.
pub(super) fn waste_bytes(segment_bytes: u64) -> u64 {
    record_bytes_max(segment_bytes) + GROUP_HEADER_BYTES + 24
}

/// A segment that is being filled with zeros.
struct Filling {
    id: u64,
    file: Arc<dyn LogFile>,
    filled: u64,
}

/// The end of the log: the active segment and the allocated ones after it.
pub(super) struct Tail {
    files: Arc<dyn Files>,
    directory: PathBuf,
    journal_id: Uuid,
    segment_bytes: u64,
    active: Segment,
    spares: VecDeque<Segment>,
    filling: Option<Filling>,
    zeros: Vec<u8>,
    mark: Place,
}

/// How a slice of filling went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// There is more to fill.
    More,
    /// A segment is ready.
    Ready,
    /// The disk is full; what was begun is removed.
    DiskFull,
}

impl Tail {
    /// `segments` are the active one and the empty ones after it, in order.
    pub(super) fn new(
        config: &JournalConfig,
        files: Arc<dyn Files>,
        journal_id: Uuid,
        active: Segment,
        spares: VecDeque<Segment>,
    ) -> Self {
        Tail {
            files,
            directory: config.directory.clone(),
            journal_id,
            segment_bytes: config.segment_bytes,
            mark: Place { segment: active.id, offset: active.end },
            active,
            spares,
            filling: None,
            zeros: Vec::new(),
        }
    }

    pub(super) fn active(&self) -> &Segment {
        &self.active
    }

    pub(super) fn last_spare(&self) -> Option<Segment> {
        self.spares.back().cloned()
    }

    /// Whether a spare is from a time when segments had another size.
    pub(super) fn has_odd_spare(&self) -> bool {
        self.spares.iter().any(|spare| spare.bytes != self.segment_bytes)
    }

    /// Takes the last spare away, for its file to be removed.
    pub(super) fn give_back_spare(&mut self) -> Option<Segment> {
        self.spares.pop_back()
    }

    pub(super) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Allocated bytes that can be counted on though each segment's end may waste so much. A group
    /// whose first frame needs no more than `waste` takes at most the group's length from it.
    pub(super) fn room(&self, waste: u64) -> u64 {
        self.remaining().map(|remaining| remaining.saturating_sub(waste)).sum()
    }

    /// What of `room` a group of `bytes` passes over, to a segment that can hold it; `None` if none
    /// can. Only a copy from a time of larger segments is so long that this is not 0.
    pub(super) fn passed_over(&self, waste: u64, bytes: u64) -> Option<u64> {
        let before = self.remaining().position(|remaining| remaining >= bytes)?;
        Some(self.remaining().take(before).map(|remaining| remaining.saturating_sub(waste)).sum())
    }

    /// What is left in each of the segments that are written to from here on.
    fn remaining(&self) -> impl Iterator<Item = u64> {
        std::iter::once(&self.active).chain(&self.spares).map(Segment::remaining)
    }

    /// How many segments are written to from here on.
    pub(super) fn segments(&self) -> u64 {
        1 + self.spares.len() as u64
    }

    /// What is left where a group of `bytes` would be written; `None` if it fits nowhere. Spares
    /// that are too small for it, from a time of smaller segments, are passed over for good.
    pub(super) fn room_for(&mut self, bytes: u64) -> Option<u64> {
        if self.active.remaining() >= bytes {
            return Some(self.active.remaining());
        }
        while let Some(spare) = self.spares.front() {
            if spare.remaining() >= bytes {
                return Some(spare.remaining());
            }
            if self.spares.len() == 1 {
                return None;
            }
            self.spares.pop_front();
        }
        None
    }

    /// Writes a group and makes it durable. Any error is final: what the file holds is unknown.
    pub(super) fn append(
        &mut self,
        group: &mut GroupBuilder,
        seed: u32,
        first_number: u64,
        unix_us: u64,
    ) -> Result<Place> {
        let bytes = group.total_bytes_with(0);
        if self.active.remaining() < bytes {
            self.roll(first_number, unix_us)?;
        }
        let place = Place { segment: self.active.id, offset: self.active.end };
        assert!(self.active.remaining() >= bytes, "a group fits its segment");
        let failed = |what, error| disk(what, &self.path(place.segment), &error);
        let encoded = group.finish(seed, place, first_number, self.mark);
        write_all(&*self.active.file, encoded, place.offset)
            .map_err(|error| failed("write", error))?;
        self.active.file.sync_data().map_err(|error| failed("fdatasync", error))?;
        self.active.end += bytes;
        self.mark = Place { segment: place.segment, offset: self.active.end };
        Ok(place)
    }

    /// Goes to the next spare and says in its header where its numbers begin; the next sync makes
    /// that durable together with its first group.
    fn roll(&mut self, first_number: u64, unix_us: u64) -> Result<()> {
        let spare = self.spares.pop_front().expect("the caller has checked the room");
        let header = self.header(spare.id, first_number, unix_us);
        write_all(&*spare.file, &encode_header_page(&header), 0)
            .map_err(|error| disk("write", &self.path(spare.id), &error))?;
        self.active = spare;
        Ok(())
    }

    /// Writes one slice of the next segment, and makes it a spare when it is whole.
    pub(super) fn fill_slice(&mut self, unix_us: u64) -> Result<Filled> {
        let id = self.spares.back().map_or(self.active.id, |spare| spare.id) + 1;
        match self.try_fill(id, unix_us) {
            Ok(filled) => Ok(filled),
            Err(error) if is_full(&error) => {
                if let Some(filling) = self.filling.take() {
                    let path = self.new_path(filling.id);
                    drop(filling);
                    self.files.remove(&path).map_err(|error| disk("remove", &path, &error))?;
                }
                self.zeros = Vec::new();
                Ok(Filled::DiskFull)
            }
            Err(error) => Err(disk("allocate", &self.new_path(id), &error)),
        }
    }

    fn try_fill(&mut self, id: u64, unix_us: u64) -> std::io::Result<Filled> {
        let path = self.new_path(id);
        if self.filling.is_none() {
            let file = self.files.open(&path, Mode::Create)?;
            self.filling = Some(Filling { id, file, filled: 0 });
            self.zeros = vec![0; FILL_SLICE_BYTES.min(self.segment_bytes) as usize];
        }
        let filling = self.filling.as_mut().expect("set above");
        let slice = FILL_SLICE_BYTES.min(self.segment_bytes - filling.filled);
        write_all(&*filling.file, &self.zeros[..slice as usize], filling.filled)?;
        filling.filled += slice;
        let whole = filling.filled == self.segment_bytes;
        let file = Arc::clone(&filling.file);
        if whole {
            let header = encode_header_page(&self.header(id, 0, unix_us));
            write_all(&*file, &header, 0)?;
        }
        file.sync_data()?;
        if !whole {
            return Ok(Filled::More);
        }
        self.files.rename(&path, &self.path(id))?;
        self.files.sync_directory(&self.directory)?;
        self.filling = None;
        self.zeros = Vec::new();
        self.spares.push_back(Segment { id, file, bytes: self.segment_bytes, end: PAGE_BYTES });
        Ok(Filled::Ready)
    }

    fn header(&self, segment: u64, first_number: u64, created_unix_us: u64) -> SegmentHeader {
        SegmentHeader { journal_id: self.journal_id, segment, first_number, created_unix_us }
    }

    pub(super) fn path(&self, id: u64) -> PathBuf {
        self.directory.join(segment_name(id))
    }

    fn new_path(&self, id: u64) -> PathBuf {
        self.directory.join(segment_name(id) + SUFFIX_NEW)
    }
}

/// Makes the first segment of a new journal, whole and durable.
pub(super) fn create_first(
    config: &JournalConfig,
    files: &dyn Files,
    header: &SegmentHeader,
) -> Result<Segment> {
    let path = config.directory.join(segment_name(header.segment));
    let new = config.directory.join(segment_name(header.segment) + SUFFIX_NEW);
    let file = files.open(&new, Mode::Create).map_err(|error| disk("create", &new, &error))?;
    let made = zero_range(&*file, PAGE_BYTES, config.segment_bytes)
        .and_then(|()| write_all(&*file, &encode_header_page(header), 0))
        .and_then(|()| file.sync_data())
        .and_then(|()| files.rename(&new, &path))
        .and_then(|()| files.sync_directory(&config.directory));
    if let Err(error) = made {
        // A disk that was too full for it must not stay full of it.
        let _ = files.remove(&new);
        return Err(disk("allocate", &path, &error));
    }
    Ok(Segment { id: header.segment, file, bytes: config.segment_bytes, end: PAGE_BYTES })
}

/// Writes zeros over a range.
pub(super) fn zero_range(file: &dyn LogFile, from: u64, to: u64) -> std::io::Result<()> {
    let zeros = vec![0_u8; FILL_SLICE_BYTES.min(to.saturating_sub(from)) as usize];
    let mut at = from;
    while at < to {
        let slice = (to - at).min(zeros.len() as u64);
        write_all(file, &zeros[..slice as usize], at)?;
        at += slice;
    }
    Ok(())
}

/// Zeroes what follows a segment's end, durably.
pub(super) fn cut_off(directory: &Path, segment: &Segment) -> Result<()> {
    let path = directory.join(segment_name(segment.id));
    used_to(&*segment.file, segment.end, segment.bytes)
        .and_then(|used| zero_range(&*segment.file, segment.end, used))
        .and_then(|()| segment.file.sync_data())
        .map_err(|error| disk("cut", &path, &error))
}

/// The segments of a directory, oldest first.
pub(super) fn list_segments(directory: &Path, files: &dyn Files) -> Result<Vec<u64>> {
    let names = files.list(directory).map_err(|error| disk("list", directory, &error))?;
    let mut ids: Vec<u64> = names.iter().filter_map(|name| segment_of(name)).collect();
    ids.sort_unstable();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_left_alone() {
        assert_eq!(segment_of(&segment_name(12)), Some(12));
        assert_eq!(segment_of("segment-12.log"), None);
        assert_eq!(segment_of("lock"), None);
        assert_eq!(segment_of(&segment_name(u64::MAX)), None);
        assert!(is_unfinished(&(segment_name(12) + ".new")));
        assert!(!is_unfinished("notes.new"));
    }
}
