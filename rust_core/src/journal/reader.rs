//! Handing records out: `take` for the writer, `scan` for whoever rebuilds something at the start.
//!
//! Bodies are read from the segment files, so memory does not follow the backlog. Holds the state's
//! lock only to look up, never while it reads; a segment deleted meanwhile is still readable.

use std::time::Duration;

use super::format::{Frame, Frames, Place};
use super::index::Run;
use super::state::Shared;
use super::walk::{Found, Walker};
use crate::error::{Error, Result};

/// Where `take` goes on.
#[derive(Default)]
pub(super) struct Cursor {
    /// Everything below was handed out in this life.
    next: u64,
    /// The run that was read last, by its first number and its place.
    run: Option<(u64, Place)>,
    /// A group of that run; its records from `next` on stand there or later.
    resume: Place,
    walker: Option<Walker>,
    /// A read that failed after others of its call had gone well: the next call tells it.
    failed: Option<Error>,
}

/// What is being taken.
struct Batch {
    rows: Vec<(u64, Vec<u8>)>,
    bytes: usize,
    rows_max: usize,
    bytes_max: usize,
}

impl Batch {
    fn has_room_for(&self, bytes: usize) -> bool {
        self.rows.is_empty()
            || (self.rows.len() < self.rows_max && self.bytes + bytes <= self.bytes_max)
    }
}

impl Shared {
    pub(super) fn take(
        &self,
        rows_max: usize,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let until = std::time::Instant::now() + timeout;
        let mut cursor = self.cursor.lock();
        if let Some(error) = cursor.failed.take() {
            return Err(error);
        }
        let mut batch = Batch { rows: Vec::new(), bytes: 0, rows_max: rows_max.max(1), bytes_max };
        match self.fill(&mut cursor, &mut batch, until) {
            Err(error) if batch.rows.is_empty() => return Err(error),
            // What was read is handed out now, since it is handed out once; the error comes next.
            ended => cursor.failed = ended.err(),
        }
        Ok(batch.rows)
    }

    fn fill(
        &self,
        cursor: &mut Cursor,
        batch: &mut Batch,
        until: std::time::Instant,
    ) -> Result<()> {
        while batch.rows.len() < batch.rows_max {
            let wait = batch.rows.is_empty().then_some(until);
            let Some((number, run)) = self.next_run(cursor.next, wait)? else { break };
            cursor.next = number;
            if !self.take_run(cursor, run, batch)? {
                break;
            }
        }
        Ok(())
    }

    /// The first pending number from `next` on and its run; waits for one if `until` is given.
    fn next_run(&self, next: u64, until: Option<std::time::Instant>) -> Result<Option<(u64, Run)>> {
        let mut state = self.state.lock();
        loop {
            if let Some(ended) = &state.ended {
                return Err(ended.clone().err().unwrap_or(Error::Stopped));
            }
            if let Some(number) = state.index.next_pending(next) {
                let run = state.index.run_of(number).expect("a pending record stands somewhere");
                return Ok(Some((number, run)));
            }
            let Some(until) = until else { return Ok(None) };
            if self.durable.wait_until(&mut state, until).timed_out() {
                // Looks once more, so that a timeout of zero is a poll.
                return Ok(state
                    .index
                    .next_pending(next)
                    .and_then(|number| state.index.run_of(number).map(|run| (number, run))));
            }
        }
    }

    /// Takes records of one run; false when the batch is full.
    fn take_run(&self, cursor: &mut Cursor, run: Run, batch: &mut Batch) -> Result<bool> {
        let segment = run.place.segment;
        let Some((file, end)) = self.segment(segment) else { return Ok(true) };
        if cursor.run != Some((run.first, run.place)) {
            cursor.run = Some((run.first, run.place));
            cursor.resume = run.place;
        }
        let from = cursor.resume;
        let kept = cursor.walker.take().filter(|walker| walker.segment() == segment);
        let mut walker = kept.unwrap_or_else(|| Walker::new(file, segment, self.seed, end));
        walker.seek(from.offset, end);
        let mut full = false;
        while !full && cursor.next <= run.last {
            let at = walker.at();
            match walker.next().map_err(|error| self.unreadable(segment, &error))? {
                Found::Group(header, body) => {
                    cursor.resume = Place { segment, offset: at };
                    full = self.take_frames(cursor, run, Frames::new(&header, body), batch);
                }
                Found::Bad { from, .. } => self.state.lock().note_damage(segment, from),
                // Damaged since it was written: it stays pending until the copying of this segment
                // has read all of it and gives it up.
                Found::End if from == run.place => cursor.next = run.last + 1,
                Found::End => {
                    cursor.run = None;
                    break;
                }
            }
        }
        cursor.walker = Some(walker);
        Ok(!full)
    }

    fn take_frames(
        &self,
        cursor: &mut Cursor,
        run: Run,
        frames: Frames<'_>,
        batch: &mut Batch,
    ) -> bool {
        let state = self.state.lock();
        for frame in frames {
            let (Frame::Record { number, body } | Frame::Copy { number, body }) = frame else {
                continue;
            };
            if number < cursor.next || number > run.last || !state.index.is_pending(number) {
                continue;
            }
            if !batch.has_room_for(body.len()) {
                return true;
            }
            batch.bytes += body.len();
            batch.rows.push((number, body.to_vec()));
            cursor.next = number + 1;
        }
        false
    }

    fn unreadable(&self, segment: u64, error: &std::io::Error) -> Error {
        let path = self.config.directory.join(super::segment::segment_name(segment));
        super::files::disk("read", &path, error)
    }

    pub(super) fn scan(&self, f: &mut dyn FnMut(u64, &[u8], bool)) -> Result<()> {
        let segments: Vec<u64> = self.state.lock().segments.keys().copied().collect();
        for copies in [true, false] {
            for &segment in &segments {
                self.scan_segment(segment, copies, f)?;
            }
        }
        Ok(())
    }

    fn scan_segment(
        &self,
        segment: u64,
        copies: bool,
        f: &mut dyn FnMut(u64, &[u8], bool),
    ) -> Result<()> {
        let Some((file, end)) = self.segment(segment) else { return Ok(()) };
        let mut walker = Walker::new(file, segment, self.seed, end);
        loop {
            let found = walker.next().map_err(|error| self.unreadable(segment, &error))?;
            let (header, body) = match found {
                Found::Group(header, body) => (header, body),
                Found::Bad { .. } => continue,
                Found::End => return Ok(()),
            };
            for frame in Frames::new(&header, body) {
                let (number, body) = match frame {
                    Frame::Record { number, body } if !copies => (number, body),
                    Frame::Copy { number, body } if copies => (number, body),
                    _ => continue,
                };
                let pending = self.is_pending_here(number, segment);
                if let Some(pending) = pending {
                    f(number, body, pending);
                }
            }
        }
    }

    /// Whether a record is pending; `None` if it is, and a later segment holds a copy of it.
    fn is_pending_here(&self, number: u64, segment: u64) -> Option<bool> {
        let state = self.state.lock();
        if !state.index.is_pending(number) {
            return Some(false);
        }
        let here = state.index.run_of(number).is_some_and(|run| run.place.segment == segment);
        here.then_some(true)
    }
}
