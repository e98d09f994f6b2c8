//! What a start finds and repairs: reads every segment, tells corruption from a torn tail, cuts.
//!
//! `survey` only reads and serves `inspect.rs` too. `recover` takes the lock before anything else,
//! and writes only once it knows every version: bytes that are cut or damaged are kept in
//! `quarantine/` first. Never rewrites what lies before the highest durable mark.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::JournalConfig;
use super::files::{Clock, FileLock, Files, Mode, directory_of, disk, read_full, write_all};
use super::format::{
    Frame, Frames, GroupHeader, NUMBER_MAX, PAGE_BYTES, Place, RECORD_FRAME_BYTES, SegmentHeader,
    VERSION, decode_header_page, journal_seed,
};
use super::index::Index;
use super::quarantine::keep;
use super::segment::{Segment, create_first, is_unfinished, list_segments, segment_name};
use super::walk::{Found, Walker, used_to};
use crate::error::{Error, Result};

/// Bytes that are not what was written, at or before the highest durable mark.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// The segment's file.
    pub file: String,
    /// The segment.
    pub segment: u64,
    /// Where the damage begins.
    pub offset: u64,
    /// How long it is; 0 if a whole file is missing.
    pub bytes: u64,
    /// First and last record that are lost, where neighbours tell.
    pub numbers: Option<(u64, u64)>,
    /// What is wrong.
    pub reason: &'static str,
    /// The file in `quarantine/` that holds the bytes, once they are there.
    pub kept_as: Option<String>,
}

/// What was found at the start.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Recovery {
    /// Names the journal.
    pub journal_id: Uuid,
    /// Readable records, confirmed ones included.
    pub records: u64,
    /// Records that are not confirmed.
    pub pending: u64,
    /// The number of the next record.
    pub next_number: u64,
    /// Corruption: reported at each start until its segment is deleted.
    pub quarantined: Vec<Damage>,
    /// Length of the torn tail that was cut.
    pub cut_bytes: u64,
    /// The file in `quarantine/` that holds it.
    pub cut_kept_as: Option<String>,
    /// Segments found.
    pub segments: u64,
}

/// What the journal starts from.
pub(super) struct Start {
    pub(super) recovery: Recovery,
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) active: u64,
    /// Where what is to be cut begins: not before the next number is durable without it.
    pub(super) cut: Option<Place>,
    pub(super) lock: Box<dyn FileLock>,
}

/// What a directory holds, read without changing it.
pub(super) struct Survey {
    pub(super) journal_id: Uuid,
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    /// The last segment that holds a group, else the first.
    pub(super) active: u64,
    pub(super) damage: Vec<Damage>,
    /// Where the log ends, if anything but zeros follows.
    pub(super) cut: Option<Place>,
    pub(super) cut_bytes: u64,
    pub(super) next_number: u64,
    pub(super) records: u64,
    pub(super) groups: u64,
    /// The highest durable mark.
    pub(super) mark: Place,
    /// The last segment with a group header: nobody goes on to it before those before are durable.
    last_used: u64,
}

/// Opens every segment and checks its version; `None` if there are none.
pub(super) fn survey(directory: &Path, files: &dyn Files) -> Result<Option<Survey>> {
    let mut survey = Survey {
        journal_id: Uuid::nil(),
        index: Index::default(),
        segments: BTreeMap::new(),
        active: 0,
        damage: Vec::new(),
        cut: None,
        cut_bytes: 0,
        next_number: 1,
        records: 0,
        groups: 0,
        mark: Place::default(),
        last_used: 0,
    };
    let ids = list_segments(directory, files)?;
    survey.open_all(directory, files, &ids)?;
    let Some(first) = survey.segments.keys().next().copied() else { return Ok(None) };
    survey.active = first;
    survey.missing_files();
    (survey.mark, survey.last_used) = survey.find_mark(directory)?;
    survey.read_all(directory)?;
    if survey.next_number > NUMBER_MAX / 2 {
        let reason = format!("number {} was made up; move the files away", survey.next_number);
        let path = directory.display().to_string();
        return Err(Error::Disk { operation: "recover", path, reason });
    }
    Ok(Some(survey))
}

impl Survey {
    fn open_all(&mut self, directory: &Path, files: &dyn Files, ids: &[u64]) -> Result<()> {
        let mut journal_id = None;
        for &id in ids {
            let path = directory.join(segment_name(id));
            let file = match files.open(&path, Mode::Read) {
                Ok(file) => file,
                // Deleted by the process that we look at.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(disk("open", &path, &error)),
            };
            let mut page = vec![0_u8; PAGE_BYTES as usize];
            let read = read_full(&*file, &mut page, 0).map_err(|e| disk("read", &path, &e))?;
            let bytes = file.length().map_err(|error| disk("read", &path, &error))?;
            let found = decode_header_page(&page[..read]);
            if let Some(version) = found.newer {
                let segment = segment_name(id);
                return Err(Error::JournalVersion { segment, found: version, known: VERSION });
            }
            if found.damaged {
                self.add_damage(id, 0, PAGE_BYTES, "the segment header is damaged");
            }
            if let Some(header) = found.header {
                let known = *journal_id.get_or_insert(header.journal_id);
                if known != header.journal_id || header.segment != id {
                    let reason = format!(
                        "this is segment {} of journal {}, among segments of journal {known}; \
                         move it away",
                        header.segment, header.journal_id
                    );
                    let path = path.display().to_string();
                    return Err(Error::Disk { operation: "recover", path, reason });
                }
                self.next_number = self.next_number.max(header.first_number);
            }
            self.segments.insert(id, Segment { id, file, bytes, end: PAGE_BYTES });
        }
        match journal_id {
            Some(journal_id) => self.journal_id = journal_id,
            None if self.segments.is_empty() => {}
            None => {
                let reason = "no segment has a readable header; move the files away to start anew";
                let path = directory.display().to_string();
                return Err(Error::Disk { operation: "recover", path, reason: reason.into() });
            }
        }
        Ok(())
    }

    fn missing_files(&mut self) {
        let ids: Vec<u64> = self.segments.keys().copied().collect();
        for pair in ids.windows(2) {
            // One for each gap: how long it is, only file names say.
            match pair[1] - pair[0] {
                1 => {}
                2 => self.add_damage(pair[0] + 1, 0, 0, "the segment's file is missing"),
                _ => {
                    self.add_damage(pair[0] + 1, 0, 0, "the files of several segments are missing")
                }
            }
        }
    }

    /// Marks only grow along the log, so the highest is the last group's, in the last segment used.
    fn find_mark(&self, directory: &Path) -> Result<(Place, u64)> {
        for segment in self.segments.values().rev() {
            let mut mark = Place::default();
            let mut walker = self.walker(segment);
            loop {
                let path = directory.join(segment_name(segment.id));
                match walker.next().map_err(|error| disk("read", &path, &error))? {
                    Found::Group(header, _) => mark = mark.max(header.mark),
                    Found::Bad { header, .. } => {
                        mark = mark.max(header.map_or(Place::default(), |header| header.mark));
                    }
                    Found::End => break,
                }
            }
            if mark > Place::default() {
                return Ok((mark, segment.id));
            }
        }
        Ok((Place::default(), 0))
    }

    fn walker(&self, segment: &Segment) -> Walker {
        let seed = journal_seed(self.journal_id);
        Walker::new(Arc::clone(&segment.file), segment.id, seed, segment.bytes)
    }

    fn read_all(&mut self, directory: &Path) -> Result<()> {
        let ids: Vec<u64> = self.segments.keys().copied().collect();
        for id in ids {
            let path = directory.join(segment_name(id));
            let failed = |error: io::Error| disk("read", &path, &error);
            if self.cut.is_none() {
                self.read_segment(id).map_err(failed)?;
            }
            // Whatever follows a cut is cut too.
            let segment = &self.segments[&id];
            let used = used_to(&*segment.file, segment.end, segment.bytes).map_err(failed)?;
            if used > segment.end {
                self.cut_bytes += used - segment.end;
                self.cut.get_or_insert(Place { segment: id, offset: segment.end });
            }
        }
        if self.cut_bytes > 0 {
            // The tail may have been a whole group that was acknowledged and then damaged: its
            // numbers, however many there were, are not given again.
            self.next_number += self.cut_bytes / RECORD_FRAME_BYTES + 1;
        }
        Ok(())
    }

    /// Reads groups until the segment or the trustworthy log ends, and sets the segment's end.
    fn read_segment(&mut self, id: u64) -> io::Result<()> {
        let mut walker = self.walker(&self.segments[&id]);
        let mut end = PAGE_BYTES;
        loop {
            match walker.next()? {
                Found::Group(header, body) => {
                    self.check_end_before(id, &header);
                    self.apply(&header, body);
                    end = header.offset + header.total_bytes();
                    self.active = id;
                }
                Found::Bad { from, to, header } => {
                    let durable_to = self.durable_to(id).clamp(from, to);
                    if durable_to > from {
                        self.add_damage(id, from, durable_to - from, "the group is damaged");
                        self.name_numbers(header);
                        end = durable_to;
                    }
                    if durable_to < to {
                        break;
                    }
                }
                Found::End => break,
            }
        }
        let mark = self.mark;
        if mark.segment == id && end < mark.offset {
            self.add_damage(id, end, mark.offset - end, "a durable group is gone");
            end = mark.offset;
        }
        self.segments.get_mut(&id).expect("it is read").end = end;
        Ok(())
    }

    /// Up to where a segment was durable, as far as the marks tell.
    fn durable_to(&self, id: u64) -> u64 {
        if id < self.last_used {
            u64::MAX
        } else if id == self.mark.segment {
            self.mark.offset
        } else {
            0
        }
    }

    /// The first group of a segment knows where the one before it ended.
    fn check_end_before(&mut self, id: u64, header: &GroupHeader) {
        let mark = header.mark;
        let Some(before) = self.segments.get(&mark.segment).filter(|_| mark.segment < id) else {
            return;
        };
        let end = before.end;
        if end < mark.offset {
            self.add_damage(mark.segment, end, mark.offset - end, "a durable group is gone");
            self.segments.get_mut(&mark.segment).expect("seen above").end = mark.offset;
        }
    }

    fn apply(&mut self, header: &GroupHeader, body: &[u8]) {
        let place = Place { segment: header.segment, offset: header.offset };
        if let Some(damage) = self.damage.last_mut()
            && damage.numbers.is_none()
            && damage.offset > 0
            && header.first_number > self.next_number
        {
            damage.numbers = Some((self.next_number, header.first_number - 1));
        }
        self.groups += 1;
        self.next_number = self.next_number.max(header.first_number + u64::from(header.count));
        let mut numbers = Vec::with_capacity(header.count as usize);
        let mut bytes = 0;
        for frame in Frames::new(header, body) {
            match frame {
                Frame::Record { number, body } | Frame::Copy { number, body } => {
                    numbers.push(number);
                    bytes += body.len() as u64 + RECORD_FRAME_BYTES;
                }
                Frame::Confirm { first, last, .. } => self.confirm(first, last),
            }
        }
        self.records += numbers.len() as u64;
        self.index.used(place.segment, (body.len() as u64).saturating_sub(bytes));
        self.index.moved(&numbers, place, bytes, true);
    }

    fn confirm(&mut self, first: u64, last: u64) {
        let mut at = first;
        while let Some(number) = self.index.next_pending(at).filter(|number| *number <= last) {
            self.index.confirm(number);
            at = number + 1;
        }
    }

    fn add_damage(&mut self, segment: u64, offset: u64, bytes: u64, reason: &'static str) {
        if let Some(last) = self.damage.last_mut()
            && last.segment == segment
            && last.offset > 0
            && last.offset + last.bytes == offset
        {
            last.bytes += bytes;
            return;
        }
        let file = segment_name(segment);
        let damage = Damage { file, segment, offset, bytes, numbers: None, reason, kept_as: None };
        self.damage.push(damage);
    }

    fn name_numbers(&mut self, header: Option<GroupHeader>) {
        let Some(header) = header else { return };
        let next = header.first_number + u64::from(header.count);
        self.next_number = self.next_number.max(next);
        if let Some(damage) = self.damage.last_mut()
            && header.count > 0
        {
            let first = damage.numbers.map_or(header.first_number, |(first, _)| first);
            damage.numbers = Some((first, next - 1));
        }
    }
}

/// Takes the lock, reads what is there, makes it durable, and says what was found and is to be cut.
pub(super) fn recover(
    config: &JournalConfig,
    files: Arc<dyn Files>,
    clock: &dyn Clock,
) -> Result<Start> {
    let directory = &config.directory;
    files.create_directory(directory).map_err(|error| disk("create", directory, &error))?;
    let path = directory.join("lock");
    let lock = files.try_lock(&path).map_err(|error| disk("lock", &path, &error))?;
    let Some(lock) = lock else {
        let holder = holder(&*files, &path);
        return Err(Error::InUse {
            what: "journal",
            name: directory.display().to_string(),
            hint: format!("{holder} holds its lock; stop it, or use another state directory"),
        });
    };
    let found = survey(directory, &*files)?;
    remove_unfinished(directory, &*files)?;
    // The process that made the directory may have been killed before its name was durable.
    let parent = directory_of(directory);
    files.sync_directory(parent).map_err(|error| disk("fsync", parent, &error))?;
    let Some(survey) = found else {
        return begin(config, &*files, clock, lock);
    };
    repair(config, &*files, survey, lock)
}

/// Who holds the lock, by what it has written there.
fn holder(files: &dyn Files, lock: &Path) -> String {
    let mut text = [0; 20];
    let read = files.open(lock, Mode::Read).and_then(|file| read_full(&*file, &mut text, 0));
    let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
    match text.trim().parse::<u32>() {
        Ok(process) => format!("process {process}"),
        Err(_) => "another process".to_owned(),
    }
}

fn remove_unfinished(directory: &Path, files: &dyn Files) -> Result<()> {
    let names = files.list(directory).map_err(|error| disk("list", directory, &error))?;
    for name in names.iter().filter(|name| is_unfinished(name)) {
        let path = directory.join(name);
        files.remove(&path).map_err(|error| disk("remove", &path, &error))?;
    }
    Ok(())
}

/// A journal that did not exist.
fn begin(
    config: &JournalConfig,
    files: &dyn Files,
    clock: &dyn Clock,
    lock: Box<dyn FileLock>,
) -> Result<Start> {
    let header = SegmentHeader {
        journal_id: files.new_id(),
        segment: 1,
        first_number: 1,
        created_unix_us: clock.unix_us(),
    };
    let segment = create_first(config, files, &header)?;
    let recovery = Recovery {
        journal_id: header.journal_id,
        records: 0,
        pending: 0,
        next_number: 1,
        quarantined: Vec::new(),
        cut_bytes: 0,
        cut_kept_as: None,
        segments: 0,
    };
    let segments = BTreeMap::from([(1, segment)]);
    Ok(Start { recovery, index: Index::default(), segments, active: 1, cut: None, lock })
}

fn repair(
    config: &JournalConfig,
    files: &dyn Files,
    mut survey: Survey,
    lock: Box<dyn FileLock>,
) -> Result<Start> {
    let directory = &config.directory;
    for segment in survey.segments.values_mut() {
        let path = directory.join(segment_name(segment.id));
        let file = files.open(&path, Mode::Write).map_err(|error| disk("open", &path, &error))?;
        segment.file = file;
    }
    for damage in &mut survey.damage {
        if let Some(segment) = survey.segments.get(&damage.segment) {
            let range = damage.offset..damage.offset + damage.bytes;
            damage.kept_as = keep(directory, files, segment, range);
        }
    }
    let mut cut_kept_as = None;
    if let Some(cut) = survey.cut {
        for segment in survey.segments.range(cut.segment..).map(|(_, segment)| segment) {
            let path = directory.join(segment_name(segment.id));
            let used = used_to(&*segment.file, segment.end, segment.bytes);
            let used = used.map_err(|error| disk("read", &path, &error))?;
            if used > segment.end {
                let kept = keep(directory, files, segment, segment.end..used);
                cut_kept_as = cut_kept_as.or(kept);
            }
        }
    }
    write_again(directory, &survey)?;
    files.sync_directory(directory).map_err(|error| disk("fsync", directory, &error))?;
    let recovery = Recovery {
        journal_id: survey.journal_id,
        records: survey.records,
        pending: survey.index.pending(),
        next_number: survey.next_number,
        quarantined: survey.damage,
        cut_bytes: survey.cut_bytes,
        cut_kept_as,
        segments: survey.segments.len() as u64,
    };
    let Survey { index, segments, active, cut, .. } = survey;
    Ok(Start { recovery, index, segments, active, cut, lock })
}

/// Writes what lies between the highest mark and the end once more, the same bytes, and syncs.
///
/// A killed process leaves groups that were never synced, and after a failed fsync the page cache
/// may hold as clean what the disk has refused. The next mark will call all of it durable, so it
/// has to be.
fn write_again(directory: &Path, survey: &Survey) -> Result<()> {
    let segment = &survey.segments[&survey.active];
    let from = if survey.mark.segment == segment.id { survey.mark.offset } else { 0 };
    let path = directory.join(segment_name(segment.id));
    let mut bytes = vec![0_u8; segment.end.saturating_sub(from) as usize];
    read_full(&*segment.file, &mut bytes, from)
        .and_then(|read| write_all(&*segment.file, &bytes[..read], from))
        .and_then(|()| segment.file.sync_data())
        .map_err(|error| disk("fdatasync", &path, &error))
}
