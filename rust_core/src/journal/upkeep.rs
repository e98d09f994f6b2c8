//! What keeps the log bounded, done in slices between commits: allocate, delete, copy forward.
//!
//! Deletes the oldest segment only, and only when nothing in it is pending or a durable copy stands
//! later. Never does more than one slice at a time, so that a commit waits for one at most.

use std::time::Duration;

use super::committer::{Committer, GROUP_OVERHEAD_BYTES};
use super::files::disk;
use super::format::{COPY_FRAME_BYTES, Frame, Frames, PAGE_BYTES, RECORD_FRAME_BYTES};
use super::segment::Filled;
use super::walk::{Found, Walker};
use crate::error::Result;

/// Records are carried forward in slices of about this size, or an eighth of a small segment.
const COPY_SLICE_BYTES: u64 = 128 << 10;
/// Groups that the copies of a small segment make at most: slices, their rest, ends of segments.
const COPY_GROUPS_MAX: u64 = 12;
/// A segment that is no longer written to gets this long for its confirmations to come.
const COPY_DELAY: Duration = Duration::from_secs(1);
/// After the disk was full, allocation is tried again.
const DISK_FULL_RETRY: Duration = Duration::from_secs(1);

/// What upkeep remembers from one slice to the next.
#[derive(Default)]
pub(super) struct Upkeep {
    disk_full_until: Option<Duration>,
    oldest: Option<Oldest>,
}

/// The oldest segment, while the log goes on in later ones.
struct Oldest {
    segment: u64,
    since: Duration,
    walker: Option<Walker>,
    /// This reading of the segment has found live records.
    found: bool,
}

/// How a call of `upkeep` went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) did: bool,
    pub(super) again_at: Option<Duration>,
}

const DID: Done = Done { did: true, again_at: None };

impl Committer {
    /// Allocates room before the first record, and makes the next number durable after a cut.
    pub(super) fn upkeep_at_start(&mut self) -> Result<()> {
        let enough = self.low_water_bytes() / 2;
        while self.available_bytes() < enough && self.can_grow() {
            if !self.allocate_now()? {
                break;
            }
        }
        self.publish_room();
        Ok(())
    }

    /// Does one slice of what is due.
    pub(super) fn upkeep(&mut self, now: Duration) -> Result<Done> {
        if self.delete_oldest(now)? {
            self.publish_room();
            return Ok(DID);
        }
        if self.upkeep.disk_full_until.is_some_and(|until| until <= now) {
            self.upkeep.disk_full_until = None;
            // Where nothing has to grow now, nobody else would tell that it could.
            self.publish_room();
        }
        if self.wants_segment() {
            self.fill(now)?;
            self.publish_room();
            return Ok(DID);
        }
        if self.give_back_spares()? {
            self.publish_room();
            return Ok(DID);
        }
        let copy_at = self.copy_at(now);
        if copy_at.is_some_and(|at| at <= now) && self.copy_slice(now)? {
            return Ok(DID);
        }
        let again_at = [copy_at.filter(|at| *at > now), self.upkeep.disk_full_until];
        Ok(Done { did: false, again_at: again_at.into_iter().flatten().min() })
    }

    /// Tells admission what room there is.
    pub(super) fn publish_room(&mut self) {
        let filling = if self.tail.is_filling() { self.shared.config.segment_bytes } else { 0 };
        self.shared.state.lock().filling_bytes = filling;
        self.shared.admission.publish_scarce(self.is_scarce());
        let at_bound = !self.tail.is_filling() && !self.can_grow();
        self.shared.admission.publish(self.available_bytes(), at_bound);
    }

    /// Whether less than a fifth of the bound on disk is left to new records, what can still be
    /// allocated included.
    fn is_scarce(&self) -> bool {
        let config = &self.shared.config;
        let state = self.shared.state.lock();
        let (taken, filling) = (state.disk_bytes(), state.filling_bytes);
        drop(state);
        let growth = match self.upkeep.disk_full_until {
            Some(_) => 0,
            None => config.disk_bytes_max.saturating_sub(taken) / config.segment_bytes,
        };
        let left = self.available_bytes() + filling + growth * config.segment_bytes;
        left < config.disk_bytes_max / 5
    }

    /// Allocated bytes that new records may take.
    fn available_bytes(&self) -> u64 {
        let kept = self.debt_bytes() + self.shared.config.reserve_bytes + self.copy_room_bytes();
        self.tail.room(self.waste_bytes()).saturating_sub(kept)
    }

    /// Room that the copying of any one segment can count on, one from a time of larger segments
    /// included.
    fn copy_room_bytes(&self) -> u64 {
        let segment_bytes = self.shared.config.segment_bytes;
        let active = self.tail.active().id;
        let state = self.shared.state.lock();
        let larger = state.segments.values().filter(|segment| segment.bytes > segment_bytes);
        let larger = larger.map(|segment| {
            let used = state.index.segment(segment.id);
            let live = used.live_bytes() + used.live_rows * (COPY_FRAME_BYTES - RECORD_FRAME_BYTES);
            let free = if segment.id < active { 0 } else { segment.bytes - segment.end };
            (live + free).min(segment.bytes - PAGE_BYTES)
        });
        let records = larger.max().unwrap_or_default().max(segment_bytes - PAGE_BYTES);
        records + (segment_bytes / 16).max(COPY_GROUPS_MAX * GROUP_OVERHEAD_BYTES)
    }

    /// Below this, another segment is allocated.
    fn low_water_bytes(&self) -> u64 {
        let config = &self.shared.config;
        config.memory_bytes_max.min(config.segment_bytes) + config.segment_bytes / 4
    }

    fn can_grow(&self) -> bool {
        let config = &self.shared.config;
        let taken = self.shared.state.lock().disk_bytes();
        self.upkeep.disk_full_until.is_none()
            && taken + config.segment_bytes <= config.disk_bytes_max
    }

    fn wants_segment(&self) -> bool {
        if self.upkeep.disk_full_until.is_some() {
            return false;
        }
        self.tail.is_filling()
            || (self.available_bytes() < self.low_water_bytes() && self.can_grow())
    }

    /// Allocates a whole segment; false if the bound or the disk does not let it.
    pub(super) fn allocate_now(&mut self) -> Result<bool> {
        let now = self.shared.clock.now();
        while self.tail.is_filling() || self.can_grow() {
            match self.fill(now)? {
                Filled::More => {}
                Filled::Ready => return Ok(true),
                Filled::DiskFull => return Ok(false),
            }
        }
        Ok(false)
    }

    fn fill(&mut self, now: Duration) -> Result<Filled> {
        let filled = self.tail.fill_slice(self.shared.clock.unix_us())?;
        match filled {
            Filled::More => {}
            Filled::DiskFull => self.upkeep.disk_full_until = Some(now + DISK_FULL_RETRY),
            Filled::Ready => {
                if let Some(spare) = self.tail.last_spare() {
                    self.shared.state.lock().segments.insert(spare.id, spare);
                }
            }
        }
        Ok(filled)
    }

    /// Deletes the oldest segment if nothing in it is live.
    fn delete_oldest(&mut self, now: Duration) -> Result<bool> {
        let active = self.tail.active().id;
        let state = self.shared.state.lock();
        let oldest = state.segments.keys().next().copied().filter(|id| *id < active);
        let Some(segment) = oldest else {
            drop(state);
            self.upkeep.oldest = None;
            return Ok(false);
        };
        let live_rows = state.index.segment(segment).live_rows;
        drop(state);
        if self.upkeep.oldest.as_ref().is_none_or(|oldest| oldest.segment != segment) {
            self.upkeep.oldest = Some(Oldest { segment, since: now, walker: None, found: false });
        }
        if live_rows > 0 {
            return Ok(false);
        }
        self.remove_segment(segment)?;
        let mut state = self.shared.state.lock();
        state.segments.remove(&segment);
        state.index.forget_segment(segment);
        drop(state);
        self.upkeep.oldest = None;
        // What was full may have room now.
        self.upkeep.disk_full_until = None;
        Ok(true)
    }

    /// Removes empty spares of another size than the setting, where they keep the journal full: a
    /// larger segment finds no place beside them, and what they hold is mostly waste. From the last
    /// one on, so that there is no gap. Only while nothing is pending or admitted, so that nobody
    /// counts on their room.
    fn give_back_spares(&mut self) -> Result<bool> {
        let full = self.available_bytes() < self.low_water_bytes() && !self.can_grow();
        if !full || self.tail.is_filling() || !self.tail.has_odd_spare() {
            return Ok(false);
        }
        // First nobody is let in any more, then it is seen who is.
        self.shared.admission.publish(0, true);
        if self.debt_bytes() > 0 || self.shared.admission.charged() > 0 {
            self.publish_room();
            return Ok(false);
        }
        while self.tail.has_odd_spare() {
            let Some(spare) = self.tail.give_back_spare() else { break };
            self.remove_segment(spare.id)?;
            self.shared.state.lock().segments.remove(&spare.id);
        }
        Ok(true)
    }

    fn remove_segment(&self, segment: u64) -> Result<()> {
        let path = self.tail.path(segment);
        self.shared.files.remove(&path).map_err(|error| disk("remove", &path, &error))?;
        let directory = &self.shared.config.directory;
        let synced = self.shared.files.sync_directory(directory);
        synced.map_err(|error| disk("fsync", directory, &error))
    }

    /// When the oldest segment is to be copied forward, if at all.
    fn copy_at(&self, now: Duration) -> Option<Duration> {
        let oldest = self.upkeep.oldest.as_ref()?;
        if oldest.walker.is_some() {
            return Some(now);
        }
        let config = &self.shared.config;
        let active = self.tail.active().id;
        let content_bytes = self.content_bytes(oldest.segment);
        let pressed = self.available_bytes() < self.low_water_bytes() && !self.can_grow();
        let state = self.shared.state.lock();
        let used = state.index.segment(oldest.segment);
        if pressed {
            let sealed = state.index.segments().filter(|(id, _)| *id < active);
            let dead: u64 = sealed.map(|(_, used)| used.dead_bytes()).sum();
            if dead >= content_bytes {
                return Some(now);
            }
        }
        let share = used.live_bytes() * 100 / used.frame_bytes.max(1);
        (share < u64::from(config.copy_forward_live_pct)).then(|| oldest.since + COPY_DELAY)
    }

    /// Copies some live records of the oldest segment; false if there is no room for them now.
    fn copy_slice(&mut self, now: Duration) -> Result<bool> {
        let Some(mut oldest) = self.upkeep.oldest.take() else { return Ok(false) };
        let slice_bytes = COPY_SLICE_BYTES.min(self.content_bytes(oldest.segment) / 8);
        if self.room_for_copies() < slice_bytes * 2 {
            self.upkeep.oldest = Some(oldest);
            return Ok(false);
        }
        let read = self.read_slice(&mut oldest, slice_bytes);
        let mut copies = read.map_err(|e| disk("read", &self.tail.path(oldest.segment), &e))?;
        if copies.is_empty() {
            self.end_of_reading(&mut oldest, now);
            self.upkeep.oldest = Some(oldest);
            return Ok(true);
        }
        // What does not fit is found when the segment is read anew.
        oldest.found = true;
        self.cut_to_room(&mut copies);
        let fits = !copies.is_empty();
        if fits {
            self.upkeep.oldest = Some(oldest);
            self.commit(now, copies)?;
        } else {
            oldest.walker = None;
            self.upkeep.oldest = Some(oldest);
        }
        Ok(fits)
    }

    /// Leaves out those copies at the end for which there is no room now: a slice is as long as the
    /// groups that were read, and these may be long.
    fn cut_to_room(&self, copies: &mut Vec<(u64, Vec<u8>)>) {
        let frame = |body: &Vec<u8>| COPY_FRAME_BYTES + body.len() as u64;
        let first = GROUP_OVERHEAD_BYTES + frame(&copies[0].1);
        let Some(passed_over) = self.tail.passed_over(self.waste_bytes(), first) else {
            copies.clear();
            return;
        };
        // No more than is kept for copying at once: what admission lets in meanwhile counts on it.
        let room = self.room_for_copies().min(self.copy_room_bytes());
        let mut taken = GROUP_OVERHEAD_BYTES + passed_over;
        let fitting = copies.iter().take_while(|(_, body)| {
            taken += frame(body);
            taken <= room
        });
        let fitting = fitting.count();
        copies.truncate(fitting);
    }

    /// Room that copies may take: all but what is admitted, what is pending and the reserve.
    fn room_for_copies(&self) -> u64 {
        let (reserve, charged) =
            (self.shared.config.reserve_bytes, self.shared.admission.charged());
        let kept = self.debt_bytes() + reserve + charged;
        self.tail.room(self.waste_bytes()).saturating_sub(kept)
    }

    /// What a segment holds beside its header; as long as a new one at least.
    fn content_bytes(&self, segment: u64) -> u64 {
        let state = self.shared.state.lock();
        let bytes = state.segments.get(&segment).map_or(0, |segment| segment.bytes);
        bytes.max(self.shared.config.segment_bytes) - PAGE_BYTES
    }

    /// The segment was read to its end. What a reading did not get to copy is found by the next
    /// one; what a whole reading does not find cannot be read any more, and is given up as dead.
    fn end_of_reading(&self, oldest: &mut Oldest, now: Duration) {
        oldest.walker = None;
        if !std::mem::take(&mut oldest.found) {
            let mut state = self.shared.state.lock();
            let lost = state.index.pending_in(oldest.segment);
            state.lose(&lost, now);
        }
    }

    /// Live records of the oldest segment in ascending order, from where the last slice ended.
    fn read_slice(
        &self,
        oldest: &mut Oldest,
        slice_bytes: u64,
    ) -> std::io::Result<Vec<(u64, Vec<u8>)>> {
        let segment = oldest.segment;
        let Some((file, end)) = self.shared.segment(segment) else { return Ok(Vec::new()) };
        let walker =
            oldest.walker.get_or_insert_with(|| Walker::new(file, segment, self.shared.seed, end));
        let mut copies: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut bytes = 0;
        while bytes < slice_bytes {
            let (header, body) = match walker.next()? {
                Found::Group(header, body) => (header, body),
                Found::Bad { from, .. } => {
                    self.shared.state.lock().note_damage(segment, from);
                    continue;
                }
                Found::End => break,
            };
            let state = self.shared.state.lock();
            for frame in Frames::new(&header, body) {
                let (Frame::Record { number, body } | Frame::Copy { number, body }) = frame else {
                    continue;
                };
                let here = state.index.run_of(number);
                let here = here.is_some_and(|run| run.place.segment == segment);
                if here && state.index.is_pending(number) {
                    bytes += COPY_FRAME_BYTES + body.len() as u64;
                    copies.push((number, body.to_vec()));
                }
            }
        }
        copies.sort_unstable_by_key(|(number, _)| *number);
        Ok(copies)
    }
}
