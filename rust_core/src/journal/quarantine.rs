//! Keeps bytes that are damaged or cut, so that someone can look at them later.
//!
//! Bounded: what does not fit any more is still reported, but not kept. A failure to keep never
//! stops a start.

use std::io;
use std::ops::Range;
use std::path::Path;

use super::files::{Files, Mode, read_full, write_all};
use super::segment::{Segment, segment_name};

/// All files in `quarantine/` together.
const QUARANTINE_BYTES_MAX: u64 = 64 << 20;
const QUARANTINE: &str = "quarantine";

/// Copies a range of a segment; returns the file's name, or `None` if it could not be kept.
pub(super) fn keep(
    directory: &Path,
    files: &dyn Files,
    segment: &Segment,
    range: Range<u64>,
) -> Option<String> {
    try_keep(directory, files, segment, range).ok().flatten()
}

fn try_keep(
    directory: &Path,
    files: &dyn Files,
    segment: &Segment,
    range: Range<u64>,
) -> io::Result<Option<String>> {
    let name = format!("{}.{}-{}", segment_name(segment.id), range.start, range.end);
    // A mark may tell of bytes that the file no longer has.
    let length = range.end.min(segment.bytes).saturating_sub(range.start);
    if length == 0 || length > QUARANTINE_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0_u8; length as usize];
    read_full(&*segment.file, &mut bytes, range.start)?;
    place(directory, files, &name, &bytes)
}

/// Keeps the body of a record that is whole and means nothing to us.
pub(super) fn keep_record(
    directory: &Path,
    files: &dyn Files,
    number: u64,
    body: &[u8],
) -> Option<String> {
    place(directory, files, &format!("record-{number:020}"), body).ok().flatten()
}

fn place(
    directory: &Path,
    files: &dyn Files,
    name: &str,
    bytes: &[u8],
) -> io::Result<Option<String>> {
    let folder = directory.join(QUARANTINE);
    files.create_directory(&folder)?;
    let length = bytes.len() as u64;
    let mut held = 0;
    for other in files.list(&folder)? {
        let taken = files.open(&folder.join(&other), Mode::Read)?.length()?;
        if other == name && taken == length {
            return Ok(Some(format!("{QUARANTINE}/{name}")));
        }
        held += taken;
    }
    if held + length > QUARANTINE_BYTES_MAX {
        return Ok(None);
    }
    let file = files.open(&folder.join(name), Mode::Create)?;
    write_all(&*file, bytes, 0)?;
    file.sync_data()?;
    files.sync_directory(&folder)?;
    files.sync_directory(directory)?;
    Ok(Some(format!("{QUARANTINE}/{name}")))
}
