//! What must hold of any directory of segment files: one body of checks, for the property tests and
//! the fuzz targets.
//!
//! For tests only. Never a panic, no read longer than a group or a chunk, errors with their names;
//! and a journal that opens can be written, closed and opened again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::faulty::FaultyFiles;
use super::files::{Clock, Files, Mode};
use super::format::{
    GROUP_BYTES_MAX, GROUP_HEADER_BYTES, NUMBER_MAX, PAGE_BYTES, SegmentHeader, encode_header_page,
    journal_seed,
};
use super::segment::segment_name;
use super::walk::{Found, Walker};
use super::{JournalConfig, Next, Opened, Outcome, dump, open_with, stat, verify};
use crate::error::Error;

const DIRECTORY: &str = "/state/journal";
const SEGMENT_BYTES: u64 = 8192;
/// Of what is looked at, so that one check is quick.
const FILES_MAX: usize = 3;

/// A clock that goes on by itself, so that whatever waits for a time gets it.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(20, Ordering::Relaxed))
    }
    fn unix_us(&self) -> u64 {
        1_700_000_000_000_000
    }
}

fn opened(files: &FaultyFiles) -> Result<Opened, Error> {
    let config = JournalConfig {
        directory: PathBuf::from(DIRECTORY),
        segment_bytes: SEGMENT_BYTES,
        disk_bytes_max: SEGMENT_BYTES * 32,
        memory_bytes_max: 1 << 20,
        commit_gap_us_min: 0,
        copy_forward_live_pct: 50,
        reserve_bytes: 1024,
        pending_age_ms_max: 0,
    };
    open_with(config, Arc::new(files.clone()), Arc::new(Ticking::default()))
}

/// Steps until there is nothing to do; an error is terminal and has a name.
fn settle(opened: &mut Opened) -> bool {
    for _ in 0..2000 {
        match opened.committer.step() {
            Ok(Next::Again) => {}
            Ok(Next::Sleep(None) | Next::Ended) => return true,
            Ok(Next::Sleep(Some(_))) => {}
            Err(error) => {
                named(&error);
                return false;
            }
        }
    }
    panic!("the committer never rests");
}

fn append(opened: &mut Opened, body: &[u8]) -> Option<u64> {
    let told = Arc::new(Mutex::new(None));
    let teller = Arc::clone(&told);
    let done = Box::new(move |result| *teller.lock().expect("nobody panicked") = Some(result));
    let appended = opened.journal.append(vec![body.to_vec()], Vec::new(), done);
    settle(opened);
    let told = told.lock().expect("nobody panicked").take();
    match (appended, told) {
        (Ok(number), Some(Ok(first))) => {
            assert_eq!(first, number);
            Some(number)
        }
        (Ok(_), Some(Err(error))) | (Err(error), None) => {
            named(&error);
            None
        }
        (appended, told) => panic!("appended {appended:?}, told {told:?}"),
    }
}

fn named(error: &Error) {
    let known = matches!(
        error,
        Error::Disk { .. } | Error::JournalVersion { .. } | Error::Overloaded { .. }
    );
    assert!(known, "{error:?}");
}

/// Bytes as segment files, behind a good header page or not.
pub fn any_files(data: &[u8]) {
    let files = FaultyFiles::new();
    let (kinds, rest) = data.split_first().unwrap_or((&0, &[]));
    let journal_id = files.new_id();
    let length = rest.len() / FILES_MAX + 1;
    for (at, bytes) in rest.chunks(length).enumerate() {
        let segment = at as u64 + 1 + u64::from(kinds >> 6);
        let mut content = Vec::new();
        if kinds & (1 << at) != 0 {
            let first_number = u64::from(kinds & 0x38);
            content = encode_header_page(&SegmentHeader {
                journal_id,
                segment,
                first_number,
                created_unix_us: 0,
            });
        }
        content.extend_from_slice(bytes);
        put(&files, segment, &content);
    }
    read_and_go_on(&files);
}

/// A journal of several segments with all kinds of frames, damaged as the data says: six bytes each
/// time. Some of it gets right sums again, so that what stands behind them is reached.
pub fn damaged(data: &[u8]) {
    let files = sample().copy();
    for edit in data.chunks_exact(6) {
        let names: Vec<PathBuf> = files.lengths().into_keys().collect();
        let Some(path) = names.get(usize::from(edit[1]) % names.len().max(1)) else { break };
        let mut content = files.content(path);
        let at = usize::from(u16::from_le_bytes([edit[2], edit[3]])) % content.len().max(1);
        let to = (at + usize::from(edit[4]) * 16 + 1).min(content.len());
        match edit[0] % 8 {
            0 => content[at..to].iter_mut().take(1).for_each(|byte| *byte ^= edit[5]),
            1 => content[at..to].fill(0),
            2 => content[at..to].fill(edit[5]),
            3 => content.truncate(at),
            4 => drop(files.remove(path)),
            5 => {
                let target = usize::from(edit[5]) * 8 % (content.len() - (to - at) + 1);
                content.copy_within(at..to, target);
            }
            6 => in_a_group(&files, path, &mut content, edit),
            _ => in_a_header(&mut content, edit),
        }
        if files.lengths().contains_key(path) {
            files.set_content(path, &content);
        }
    }
    read_and_go_on(&files);
}

/// A field that is wrong with a right sum.
fn value(edit: &[u8]) -> [u8; 8] {
    match edit[5] % 6 {
        0 => u64::MAX,
        1 => NUMBER_MAX,
        2 => 0,
        3 => u64::from(edit[5]),
        4 => u64::from(edit[5]) << 16,
        _ => u64::from(u32::MAX),
    }
    .to_le_bytes()
}

/// Changes a group's header or body and sets its sums right.
fn in_a_group(files: &FaultyFiles, path: &Path, content: &mut [u8], edit: &[u8]) {
    let Some(id) =
        super::segment::segment_of(&path.file_name().unwrap_or_default().to_string_lossy())
    else {
        return;
    };
    let (offsets, seed) = (groups(files, path, id), sample_seed());
    let Some(&at) = offsets.get(usize::from(edit[2]) % offsets.len().max(1)) else { return };
    let field = 8 + usize::from(edit[3]) % 24 * 8;
    let Some(place) = content.get_mut(at + field..at + field + 8) else { return };
    place.copy_from_slice(&value(edit)[..8]);
    let body_bytes = u32::from_le_bytes(content[at + 52..at + 56].try_into().unwrap_or([0; 4]));
    let body = at + GROUP_HEADER_BYTES as usize;
    if let Some(bytes) = content.get(body..body.saturating_add(body_bytes as usize)) {
        let sum = crc32c::crc32c(bytes).to_le_bytes();
        content[at + 56..at + 60].copy_from_slice(&sum);
    }
    let sum = crc32c::crc32c_append(seed, &content[at + 8..body]).to_le_bytes();
    content[at + 4..at + 8].copy_from_slice(&sum);
}

/// Changes both copies of a segment's header and sets their sums right.
fn in_a_header(content: &mut [u8], edit: &[u8]) {
    for copy in [0, 2048] {
        let Some(header) = content.get_mut(copy..copy + 64) else { return };
        let field = 8 + usize::from(edit[3]) % 6 * 8;
        header[field..field + 8].copy_from_slice(&value(edit));
        let sum = crc32c::crc32c(&header[..60]).to_le_bytes();
        header[60..64].copy_from_slice(&sum);
    }
}

fn put(files: &FaultyFiles, segment: u64, content: &[u8]) {
    let path = Path::new(DIRECTORY).join(segment_name(segment));
    files.create_directory(Path::new(DIRECTORY)).expect("nothing breaks");
    drop(files.open(&path, Mode::Create).expect("nothing breaks"));
    files.set_content(&path, content);
}

fn groups(files: &FaultyFiles, path: &Path, id: u64) -> Vec<usize> {
    let file = files.open(path, Mode::Read).expect("it is there");
    let mut walker = Walker::new(file, id, sample_seed(), files.lengths()[path]);
    let mut offsets = Vec::new();
    loop {
        match walker.next().expect("nothing breaks") {
            Found::Group(header, _) => offsets.push(header.offset as usize),
            Found::Bad { .. } => {}
            Found::End => return offsets,
        }
    }
}

fn sample_seed() -> u32 {
    static SEED: OnceLock<u32> = OnceLock::new();
    *SEED.get_or_init(|| {
        journal_seed(verify(Path::new(DIRECTORY), sample()).expect("it is whole").journal_id)
    })
}

/// Several segments; records of which few are pending, confirmations of each kind, copies.
fn sample() -> &'static FaultyFiles {
    static SAMPLE: OnceLock<FaultyFiles> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let files = FaultyFiles::new();
        let mut opened = opened(&files).expect("nothing breaks");
        for round in 1..=90_u64 {
            let body = vec![round as u8; 40 + (round as usize * 37) % 200];
            let number = append(&mut opened, &body).expect("there is room");
            let outcome = [Outcome::Stored, Outcome::Superseded, Outcome::Dead][round as usize % 3];
            if round % 11 > 1 {
                opened.journal.confirm(&[number], outcome);
                settle(&mut opened);
            }
        }
        assert!(opened.journal.stats().copied_total > 0, "stragglers are carried forward");
        files
    })
}

fn read_and_go_on(files: &FaultyFiles) {
    let directory = Path::new(DIRECTORY);
    let held: u64 = files.lengths().values().sum();
    for looked in [
        verify(directory, files).map(drop),
        stat(directory, files).map(drop),
        dump(directory, files, 0, 10_000).map(|rows| {
            let bytes: usize = rows.iter().map(|row| row.body.len()).sum();
            assert!(bytes as u64 <= held, "{bytes} bytes of records in {held}");
        }),
    ] {
        looked.unwrap_or_else(|error| named(&error));
    }
    let longest = files.read_bytes_max() as u64;
    assert!(longest <= GROUP_BYTES_MAX.max(PAGE_BYTES), "a read of {longest} bytes");
    let mut life = match opened(files) {
        Ok(life) => life,
        Err(error) => return named(&error),
    };
    let taken = life.journal.take(usize::MAX, usize::MAX, Duration::ZERO);
    let numbers: Vec<u64> = match taken {
        Ok(rows) => rows.into_iter().map(|(number, _)| number).collect(),
        Err(error) => return named(&error),
    };
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    life.journal.scan(&mut |_, _, _| {}).expect("nothing breaks");
    let (gone, left) = numbers.split_at(numbers.len() / 2);
    life.journal.confirm(gone, Outcome::Stored);
    let appended = append(&mut life, b"the next");
    if !settle(&mut life) {
        return;
    }
    let lost = life.journal.stats().dead_total;
    drop(life);
    let life = opened(files).expect("what was opened once opens again");
    let rows = life.journal.take(usize::MAX, usize::MAX, Duration::ZERO).expect("it opened");
    let again: Vec<u64> = rows.into_iter().map(|(number, _)| number).collect();
    let expected: Vec<u64> = left.iter().copied().chain(appended).collect();
    let missing = expected.iter().filter(|number| !again.contains(number)).count() as u64;
    assert!(missing <= lost, "of {expected:?} only {again:?}");
    assert!(gone.iter().all(|number| !again.contains(number)), "{gone:?} came back");
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sample_itself_is_whole() {
        assert!(verify(Path::new(DIRECTORY), sample()).unwrap().whole);
        damaged(&[]);
    }

    /// The sum says only that the bytes are those that were written.
    #[test]
    fn any_field_of_a_group_may_lie_with_a_right_sum() {
        const IN_A_GROUP: u8 = 6;
        for (segment, group) in [(0, 0), (1, 1), (2, 0), (2, 250)] {
            for field in 0..7 {
                for value in 0..6 {
                    damaged(&[IN_A_GROUP, segment, group, field, 0, value]);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_as_segments_are_read_or_refused(data in vec(any::<u8>(), 0..3000)) {
            any_files(&data);
        }

        #[test]
        fn any_damage_to_a_journal_leaves_one_that_goes_on(data in vec(any::<u8>(), 0..36)) {
            damaged(&data);
        }
    }
}
