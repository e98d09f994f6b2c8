//! The journal's bytes: segment headers, group headers and frames, encoded and decoded.
//!
//! Pure: no file, no clock, no state. Every field is little-endian. The tables are in
//! `docs/journal.md`; a change here is a change there and a new `VERSION`.

use uuid::Uuid;

use super::{Outcome, SEGMENT_BYTES_MAX};

/// The newest format version that this program reads, and the one it writes.
pub const VERSION: u8 = 1;
/// The header page of a segment: two copies of the header, then the first group.
pub const PAGE_BYTES: u64 = 4096;
/// A group header.
pub const GROUP_HEADER_BYTES: u64 = 64;
/// What a record costs beside its body.
pub const RECORD_FRAME_BYTES: u64 = 5;
/// What a copied record costs beside its body.
pub const COPY_FRAME_BYTES: u64 = 13;
/// A confirmation of one range.
pub const CONFIRM_FRAME_BYTES: u64 = 18;
/// Groups begin at multiples of this, so that a search after damage is quick.
pub const ALIGN_BYTES: u64 = 8;

/// A group is no longer, so that one commit does not hold up the next, nor a reader its memory.
pub const GROUP_BYTES_MAX: u64 = 2 << 20;
/// No record and no segment has a higher number: 2^63-1, as every store can hold it.
pub const NUMBER_MAX: u64 = i64::MAX as u64;

const SEGMENT_MAGIC: [u8; 8] = *b"LABELJNL";
const GROUP_MAGIC: u32 = 0x4752_4a4c; // "LJRG"
const HEADER_BYTES: usize = 64;
const SECOND_COPY: usize = 2048;
const KIND_RECORD: u8 = 1;
const KIND_COPY: u8 = 2;
const KIND_CONFIRM: u8 = 3;

const _: () = assert!(SECOND_COPY + HEADER_BYTES <= PAGE_BYTES as usize, "both copies fit");
const _: () = assert!(PAGE_BYTES.is_multiple_of(ALIGN_BYTES), "the first group is aligned");

/// What the header of a segment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The journal that the segment is part of.
    pub journal_id: Uuid,
    /// The segment's place in the log, from 1.
    pub segment: u64,
    /// No record first written here has a lower number; 0 while nothing was written.
    pub first_number: u64,
    /// Wall time when the header was written: a stamp, never used.
    pub created_unix_us: u64,
}

/// What a header page holds.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderPage {
    /// The header, from whichever copy is whole.
    pub header: Option<SegmentHeader>,
    /// A whole header of a version that this program does not know.
    pub newer: Option<u8>,
    /// Some byte of the page is not what was written.
    pub damaged: bool,
}

/// Encodes a header page.
pub fn encode_header_page(header: &SegmentHeader) -> Vec<u8> {
    let mut page = vec![0_u8; PAGE_BYTES as usize];
    let copy = &mut page[..HEADER_BYTES];
    copy[..8].copy_from_slice(&SEGMENT_MAGIC);
    copy[8] = VERSION;
    copy[16..32].copy_from_slice(header.journal_id.as_bytes());
    copy[32..40].copy_from_slice(&header.segment.to_le_bytes());
    copy[40..48].copy_from_slice(&header.first_number.to_le_bytes());
    copy[48..56].copy_from_slice(&header.created_unix_us.to_le_bytes());
    let sum = crc32c::crc32c(&copy[..60]);
    copy[60..64].copy_from_slice(&sum.to_le_bytes());
    page.copy_within(..HEADER_BYTES, SECOND_COPY);
    page
}

/// Decodes a header page; a page shorter than `PAGE_BYTES` is damaged.
pub fn decode_header_page(page: &[u8]) -> HeaderPage {
    let mut found = HeaderPage { header: None, newer: None, damaged: false };
    if page.len() < PAGE_BYTES as usize {
        found.damaged = true;
        return found;
    }
    for start in [0, SECOND_COPY] {
        match decode_header(&page[start..start + HEADER_BYTES]) {
            Some((VERSION, header)) => {
                // A power cut while the first number was being set leaves one old and one new copy.
                let better = found.header.as_ref().is_none_or(|held| held.first_number == 0);
                if better {
                    found.header = Some(header);
                }
            }
            Some((version, _)) => found.newer = Some(version),
            None => found.damaged = true,
        }
    }
    let filler = [HEADER_BYTES..SECOND_COPY, SECOND_COPY + HEADER_BYTES..PAGE_BYTES as usize];
    for range in filler {
        const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        found.damaged |= page[range.clone()] != ZEROS[range];
    }
    found
}

fn decode_header(copy: &[u8]) -> Option<(u8, SegmentHeader)> {
    if copy[..8] != SEGMENT_MAGIC || copy[8] == 0 {
        return None;
    }
    if u32_at(copy, 60) != crc32c::crc32c(&copy[..60]) {
        return None;
    }
    let header = SegmentHeader {
        journal_id: Uuid::from_slice(&copy[16..32]).ok()?,
        segment: u64_at(copy, 32),
        first_number: u64_at(copy, 40),
        created_unix_us: u64_at(copy, 48),
    };
    // Of a later version nothing else is known.
    let makes_sense = header.first_number <= NUMBER_MAX;
    (makes_sense || copy[8] != VERSION).then_some((copy[8], header))
}

/// What a group header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// The segment that the group was written to.
    pub segment: u64,
    /// Where in it.
    pub offset: u64,
    /// The number of its first record, or the next number if it holds none.
    pub first_number: u64,
    /// Everything before this place was durable when the group was written.
    pub mark: Place,
    /// New records in it; their numbers are consecutive.
    pub count: u32,
    /// Length of the body with its padding.
    pub body_bytes: u32,
    /// CRC32C of the body.
    pub body_sum: u32,
}

impl GroupHeader {
    /// Length of the group, header included.
    pub fn total_bytes(&self) -> u64 {
        GROUP_HEADER_BYTES + u64::from(self.body_bytes)
    }

    /// Whatever the sum says: no group is longer, ahead of itself, past the last number, or marks a
    /// place that no segment has.
    fn makes_sense(&self) -> bool {
        let next = self.first_number.checked_add(u64::from(self.count));
        self.total_bytes() <= GROUP_BYTES_MAX
            && self.total_bytes().is_multiple_of(ALIGN_BYTES)
            && self.mark <= Place { segment: self.segment, offset: self.offset }
            && self.mark.offset <= SEGMENT_BYTES_MAX
            && next.is_some_and(|next| next <= NUMBER_MAX)
    }
}

/// A place in the log: a segment and an offset in it. Later places are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize)]
pub struct Place {
    /// The segment.
    pub segment: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// The start value of group header checksums, so that groups of another journal are not taken for
/// ours.
pub fn journal_seed(journal_id: Uuid) -> u32 {
    crc32c::crc32c(journal_id.as_bytes())
}

/// Decodes a group header found at `place`; `None` if it is not one written there by this journal.
pub fn decode_group_header(bytes: &[u8], seed: u32, place: Place) -> Option<GroupHeader> {
    if bytes.len() < GROUP_HEADER_BYTES as usize || u32_at(bytes, 0) != GROUP_MAGIC {
        return None;
    }
    let fields = &bytes[8..GROUP_HEADER_BYTES as usize];
    if u32_at(bytes, 4) != crc32c::crc32c_append(seed, fields) {
        return None;
    }
    let header = GroupHeader {
        segment: u64_at(fields, 0),
        offset: u64_at(fields, 8),
        first_number: u64_at(fields, 16),
        mark: Place { segment: u64_at(fields, 24), offset: u64_at(fields, 32) },
        count: u32_at(fields, 40),
        body_bytes: u32_at(fields, 44),
        body_sum: u32_at(fields, 48),
    };
    let here = header.segment == place.segment && header.offset == place.offset;
    (here && header.makes_sense()).then_some(header)
}

/// One entry of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A record, written for the first time.
    Record {
        /// Its number.
        number: u64,
        /// Its body.
        body: &'a [u8],
    },
    /// A record carried forward from a segment that is to be deleted.
    Copy {
        /// Its number.
        number: u64,
        /// Its body.
        body: &'a [u8],
    },
    /// The outcome of a range of records, the last one included.
    Confirm {
        /// What became of them.
        outcome: Outcome,
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
}

/// Whether a body is what its header describes: checksum, frames and count.
pub fn body_is_whole(header: &GroupHeader, body: &[u8]) -> bool {
    if crc32c::crc32c(body) != header.body_sum {
        return false;
    }
    let mut frames = Frames::new(header, body);
    let (mut records, mut makes_sense) = (0, true);
    for frame in frames.by_ref() {
        match frame {
            Frame::Record { .. } => records += 1,
            Frame::Copy { number, .. } => makes_sense &= number <= NUMBER_MAX,
            Frame::Confirm { first, last, .. } => {
                makes_sense &= first <= last && last <= NUMBER_MAX
            }
        }
    }
    let rest_is_padding = frames.rest.iter().all(|byte| *byte == 0);
    makes_sense
        && rest_is_padding
        && frames.rest.len() < ALIGN_BYTES as usize
        && records == header.count as usize
}

/// The frames of a body that `body_is_whole`; ends at the padding, or where it makes no sense.
#[derive(Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    number: u64,
}

impl<'a> Frames<'a> {
    /// The frames of a group.
    pub fn new(header: &GroupHeader, body: &'a [u8]) -> Self {
        Frames { rest: body, number: header.first_number }
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        match *self.rest.first()? {
            KIND_RECORD => {
                let length = u32_at(self.rest.get(1..5)?, 0) as usize;
                let body = &self.take(5_usize.checked_add(length)?)?[5..];
                self.number += 1;
                Some(Frame::Record { number: self.number - 1, body })
            }
            KIND_COPY => {
                let length = u32_at(self.rest.get(1..5)?, 0) as usize;
                let number = u64_at(self.rest.get(5..13)?, 0);
                let body = &self.take(13_usize.checked_add(length)?)?[13..];
                Some(Frame::Copy { number, body })
            }
            KIND_CONFIRM => {
                let outcome = Outcome::from_byte(*self.rest.get(1)?)?;
                let frame = self.take(CONFIRM_FRAME_BYTES as usize)?;
                let (first, last) = (u64_at(frame, 2), u64_at(frame, 10));
                Some(Frame::Confirm { outcome, first, last })
            }
            _ => None,
        }
    }
}

/// Builds one group in a buffer that is used again and again.
#[derive(Debug)]
pub struct GroupBuilder {
    bytes: Vec<u8>,
    count: u32,
}

impl Default for GroupBuilder {
    fn default() -> Self {
        GroupBuilder { bytes: vec![0; GROUP_HEADER_BYTES as usize], count: 0 }
    }
}

impl GroupBuilder {
    /// Forgets what it holds.
    pub fn clear(&mut self) {
        self.bytes.truncate(GROUP_HEADER_BYTES as usize);
        self.count = 0;
    }

    /// Whether it holds no frame.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == GROUP_HEADER_BYTES as usize
    }

    /// New records that it holds.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The group's length with another `frame_bytes` in it, padding included.
    pub fn total_bytes_with(&self, frame_bytes: u64) -> u64 {
        (self.bytes.len() as u64 + frame_bytes).next_multiple_of(ALIGN_BYTES)
    }

    /// Adds a new record; the caller has checked the room.
    pub fn record(&mut self, body: &[u8]) {
        self.bytes.push(KIND_RECORD);
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(body);
        self.count += 1;
    }

    /// Adds a record carried forward.
    pub fn copy(&mut self, number: u64, body: &[u8]) {
        self.bytes.push(KIND_COPY);
        self.bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(body);
    }

    /// Adds a confirmation.
    pub fn confirm(&mut self, outcome: Outcome, first: u64, last: u64) {
        assert!(first <= last, "a range of confirmations is in order");
        self.bytes.extend_from_slice(&[KIND_CONFIRM, outcome as u8]);
        self.bytes.extend_from_slice(&first.to_le_bytes());
        self.bytes.extend_from_slice(&last.to_le_bytes());
    }

    /// Pads, sets the header and returns the group's bytes.
    pub fn finish(&mut self, seed: u32, place: Place, first_number: u64, mark: Place) -> &[u8] {
        let total = self.total_bytes_with(0) as usize;
        self.bytes.resize(total, 0);
        let (head, body) = self.bytes.split_at_mut(GROUP_HEADER_BYTES as usize);
        head[..4].copy_from_slice(&GROUP_MAGIC.to_le_bytes());
        head[8..16].copy_from_slice(&place.segment.to_le_bytes());
        head[16..24].copy_from_slice(&place.offset.to_le_bytes());
        head[24..32].copy_from_slice(&first_number.to_le_bytes());
        head[32..40].copy_from_slice(&mark.segment.to_le_bytes());
        head[40..48].copy_from_slice(&mark.offset.to_le_bytes());
        head[48..52].copy_from_slice(&self.count.to_le_bytes());
        head[52..56].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[56..60].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        head[60..64].fill(0);
        let sum = crc32c::crc32c_append(seed, &head[8..]);
        head[4..8].copy_from_slice(&sum.to_le_bytes());
        &self.bytes
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0_u8; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0_u8; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            journal_id: Uuid::from_u128(7),
            segment: 3,
            first_number: 41,
            created_unix_us: 5,
        }
    }

    #[test]
    fn a_header_page_reads_back_as_it_was_written() {
        let page = decode_header_page(&encode_header_page(&header()));
        assert_eq!(page, HeaderPage { header: Some(header()), newer: None, damaged: false });
    }

    #[test]
    fn any_flipped_byte_of_a_header_page_is_noticed_and_the_header_survives() {
        let good = encode_header_page(&header());
        for at in 0..good.len() {
            let mut page = good.clone();
            page[at] ^= 0x10;
            let read = decode_header_page(&page);
            assert_eq!((read.header, read.newer), (Some(header()), None), "byte {at}");
            assert!(read.damaged, "byte {at}");
        }
    }

    #[test]
    fn a_whole_header_of_a_newer_version_is_told_from_damage() {
        let mut page = encode_header_page(&header());
        page[8] = VERSION + 1;
        let sum = crc32c::crc32c(&page[..60]);
        page[60..64].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode_header_page(&page).newer, Some(VERSION + 1));
    }

    #[test]
    fn a_group_reads_back_as_it_was_written() {
        let mut group = GroupBuilder::default();
        group.confirm(Outcome::Dead, 3, 9);
        group.copy(2, b"old");
        group.record(b"new");
        group.record(b"");
        let place = Place { segment: 3, offset: 4096 };
        let bytes = group.finish(11, place, 41, Place { segment: 2, offset: 8 }).to_vec();
        assert_eq!(bytes.len() % 8, 0);
        let header = decode_group_header(&bytes, 11, place).unwrap();
        let body = &bytes[64..];
        assert!(body_is_whole(&header, body));
        let frames: Vec<Frame> = Frames::new(&header, body).collect();
        assert_eq!(
            frames,
            [
                Frame::Confirm { outcome: Outcome::Dead, first: 3, last: 9 },
                Frame::Copy { number: 2, body: b"old" },
                Frame::Record { number: 41, body: b"new" },
                Frame::Record { number: 42, body: b"" },
            ]
        );
    }

    #[test]
    fn a_group_of_another_place_or_journal_is_not_taken_for_one() {
        let mut group = GroupBuilder::default();
        group.record(b"body");
        let place = Place { segment: 3, offset: 4096 };
        let bytes = group.finish(11, place, 1, place).to_vec();
        assert!(decode_group_header(&bytes, 11, place).is_some());
        assert!(decode_group_header(&bytes, 12, place).is_none());
        assert!(decode_group_header(&bytes, 11, Place { offset: 4104, ..place }).is_none());
    }

    #[test]
    fn a_mark_where_no_segment_reaches_is_not_taken_for_one() {
        let mut group = GroupBuilder::default();
        group.record(b"body");
        let place = Place { segment: 3, offset: 4096 };
        let mark = Place { segment: 2, offset: SEGMENT_BYTES_MAX };
        let bytes = group.finish(11, place, 1, mark).to_vec();
        assert!(decode_group_header(&bytes, 11, place).is_some());
        let bytes = group.finish(11, place, 1, Place { offset: mark.offset + 1, ..mark }).to_vec();
        assert!(decode_group_header(&bytes, 11, place).is_none());
    }

    #[test]
    fn any_flipped_byte_of_a_group_is_noticed() {
        let mut group = GroupBuilder::default();
        group.record(b"body");
        let place = Place { segment: 3, offset: 4096 };
        let good = group.finish(11, place, 1, place).to_vec();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            let whole = decode_group_header(&bytes, 11, place)
                .is_some_and(|header| body_is_whole(&header, &bytes[64..]));
            assert!(!whole, "byte {at}");
        }
    }
}
