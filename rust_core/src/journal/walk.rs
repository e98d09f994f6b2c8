//! Reads one segment forward, group by group, and finds the next good group after damage.
//!
//! Reads in chunks, so memory is bounded by the chunk and the largest group. Never judges damage:
//! whether a bad span is corruption or a torn tail is decided in `recovery.rs`.

use std::io;
use std::sync::Arc;

use super::files::{LogFile, read_full};
use super::format::{
    ALIGN_BYTES, GROUP_HEADER_BYTES, GroupHeader, PAGE_BYTES, Place, body_is_whole,
    decode_group_header,
};

const CHUNK_BYTES: usize = 256 << 10;
/// Unwritten space is passed over by such blocks, as they compare much faster than single words.
const ZEROS: [u8; 512] = [0; 512];

/// What stands next in a segment.
#[derive(Debug)]
pub enum Found<'a> {
    /// A whole group and its body.
    Group(GroupHeader, &'a [u8]),
    /// Bytes that are no group, up to the next one or to the last byte that is not zero.
    Bad {
        /// The first of them.
        from: u64,
        /// The first after them.
        to: u64,
        /// The header, where only the body is damaged.
        header: Option<GroupHeader>,
    },
    /// Only zeros up to the end.
    End,
}

/// A reader of one segment.
pub struct Walker {
    file: Arc<dyn LogFile>,
    segment: u64,
    seed: u32,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    base: u64,
}

impl Walker {
    /// Reads from the segment's first group up to `end`, at most the file's length.
    pub fn new(file: Arc<dyn LogFile>, segment: u64, seed: u32, end: u64) -> Self {
        Walker { file, segment, seed, at: PAGE_BYTES, end, buffer: Vec::new(), base: 0 }
    }

    /// Goes on at another offset, up to another end; both are group borders.
    pub fn seek(&mut self, at: u64, end: u64) {
        self.at = at;
        self.end = end;
    }

    /// The segment that it reads.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// Where the next group is looked for.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next group or bad span.
    pub fn next(&mut self) -> io::Result<Found<'_>> {
        let from = self.at;
        if from >= self.end {
            return Ok(Found::End);
        }
        let Some(header) = self.header_at(from)? else {
            return self.resync(from);
        };
        let to = from + header.total_bytes();
        if to > self.end {
            self.at = self.end;
            return Ok(Found::Bad { from, to: self.end, header: Some(header) });
        }
        self.load(from, header.total_bytes() as usize)?;
        self.at = to;
        let start = (from - self.base) as usize + GROUP_HEADER_BYTES as usize;
        let body = &self.buffer[start..start + header.body_bytes as usize];
        if body_is_whole(&header, body) {
            return Ok(Found::Group(header, body));
        }
        Ok(Found::Bad { from, to, header: Some(header) })
    }

    fn header_at(&mut self, at: u64) -> io::Result<Option<GroupHeader>> {
        self.load(at, GROUP_HEADER_BYTES as usize)?;
        let start = (at - self.base) as usize;
        let place = Place { segment: self.segment, offset: at };
        Ok(decode_group_header(&self.buffer[start..], self.seed, place))
    }

    /// Looks for the next group header after `from`.
    fn resync(&mut self, from: u64) -> io::Result<Found<'_>> {
        let mut at = from;
        let mut used = from;
        while at < self.end {
            self.load(at, ALIGN_BYTES as usize)?;
            let start = (at - self.base) as usize;
            if self.buffer[start..].starts_with(&ZEROS) {
                at += ZEROS.len() as u64;
                continue;
            }
            let Some(word) = self.buffer.get(start..start + ALIGN_BYTES as usize) else { break };
            if word != [0; ALIGN_BYTES as usize] {
                if at > from && self.header_at(at)?.is_some() {
                    self.at = at;
                    return Ok(Found::Bad { from, to: at, header: None });
                }
                used = at + ALIGN_BYTES;
            }
            at += ALIGN_BYTES;
        }
        self.at = self.end;
        if used == from {
            return Ok(Found::End);
        }
        Ok(Found::Bad { from, to: used.min(self.end), header: None })
    }

    /// Makes `bytes` at `at` available in the buffer, or as many as there are before the end.
    fn load(&mut self, at: u64, bytes: usize) -> io::Result<()> {
        let wanted = bytes.min((self.end - at) as usize);
        let held = at >= self.base && at + wanted as u64 <= self.base + self.buffer.len() as u64;
        if held {
            return Ok(());
        }
        let room = (self.end - at) as usize;
        let length = wanted.max(CHUNK_BYTES.min(room));
        if self.buffer.len() < length {
            self.buffer = vec![0; length];
        }
        self.buffer.truncate(length);
        self.base = at;
        let read = read_full(&*self.file, &mut self.buffer, at)?;
        // What a file that was cut short does not hold reads as zeros, so it shows as damage.
        self.buffer[read..].fill(0);
        Ok(())
    }
}

/// The end of the last byte from `from` on that is not zero; `from` if all are.
pub(super) fn used_to(file: &dyn LogFile, from: u64, end: u64) -> io::Result<u64> {
    let mut buffer = vec![0_u8; 256 << 10];
    let mut used = from;
    let mut at = from;
    while at < end {
        let length = (end - at).min(buffer.len() as u64) as usize;
        let read = read_full(file, &mut buffer[..length], at)?;
        // By the block first: most of it is zeros, and blocks compare quickly.
        let mut blocks = buffer[..read].chunks(ZEROS.len());
        let last = blocks.rposition(|block| *block != ZEROS[..block.len()]).unwrap_or(0);
        let from = last * ZEROS.len();
        let block = &buffer[from..read.min(from + ZEROS.len())];
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            used = at + (from + last) as u64 + 1;
        }
        if read < length {
            break;
        }
        at += length as u64;
    }
    Ok(used)
}
