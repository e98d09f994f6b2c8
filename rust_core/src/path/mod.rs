//! The label path's entry: takes a checked request through admit ▸ cache ▸ batch ▸ infer ▸ journal,
//! and waits for the level of durability that the caller asked for.
//!
//! The stages don't know each other; they meet here. Nothing here touches the wire, the wall clock
//! or a store, and nothing blocks the calling thread.

pub mod admit;
pub mod batch;
pub mod dedupe;
pub mod infer;
pub mod journal;
pub mod reply;
pub mod restore;
pub mod served;

use std::{mem, sync::Arc, sync::atomic::Ordering, time::Duration};

use xxhash_rust::xxh3::Xxh3;

use crate::{
    clock::Clock,
    config::PathConfig,
    error::{Error, Result},
    faults,
    journal::Reservation,
    label::{Durability, Priority, Request, Values},
    limits::DEADLINE_US_MAX,
    row::{Asked, Progress, Row},
    stages::{Stage, Timing},
};

use admit::Admit;
use batch::Place;
use dedupe::{Dedupe, Seen};
use reply::{Waiter, Want, Withdraw};
use served::{Served, Version};

/// A row with what its run needs. Dropped before it is answered, it fails its callers.
pub struct Entry {
    /// The row.
    pub row: Arc<Row>,
    /// Its payload, `width` values.
    pub values: Vec<f32>,
    /// Room in the journal for its record.
    pub reservation: Option<Reservation>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Nothing happens to an answered row; for any other this is the end, whatever the reason
        // was.
        if self.row.progress() < Progress::Buffered {
            let reason = "the row was dropped".to_owned();
            self.row.fail(Error::Internal { part: "inference", reason });
        }
    }
}

/// The next batch, and the rows that are too late for any.
#[derive(Default)]
pub struct Formed {
    /// Rows to run together, all of one priority.
    pub rows: Vec<Entry>,
    /// Rows whose deadline has passed.
    pub expired: Vec<Entry>,
    /// Whether the rows are bulk.
    pub bulk: bool,
}

impl Formed {
    fn clear(&mut self) {
        self.rows.clear();
        self.expired.clear();
        self.bulk = false;
    }
}

/// Where an inference thread gets its work.
pub trait Batches {
    /// Waits for work, and puts it in `formed`, which is emptied first and keeps its room; false
    /// once there will be none any more.
    fn next(&self, formed: &mut Formed) -> bool;
    /// Says what a run cost.
    fn ran(&self, rows: usize, us: u64);
}

/// What a request gets that is not in it.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Deadline in µs.
    pub deadline_us: u64,
    /// Level.
    pub durability: Durability,
    /// How long before its deadline a caller gets the level reached so far, in µs.
    pub margin_us: u64,
}

impl From<&PathConfig> for Defaults {
    fn from(path: &PathConfig) -> Self {
        let (deadline_us, margin_us) = (path.deadline_ms * 1_000, path.deadline_margin_us);
        Self { deadline_us, durability: path.durability, margin_us }
    }
}

/// When a request came in and was decoded, µs on the engine's clock.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Its first byte.
    pub arrived_us: u64,
    /// Decoded.
    pub decoded_us: u64,
}

/// An answered request.
pub struct Reply {
    /// The row with the answer.
    pub row: Arc<Row>,
    /// The version that it belongs to, for its histograms.
    pub version: Arc<Version>,
    /// The level reached.
    pub level: Durability,
    /// Whether this is an earlier reply given again.
    pub replay: bool,
    /// So far; transport adds the encoding.
    pub timing: Timing,
    /// When the answer was there, which is where the encoding begins.
    pub resumed_us: u64,
}

/// The label path.
pub struct Path {
    /// The first stage.
    pub admit: Admit,
    /// The dedupe window.
    pub dedupe: Arc<Dedupe>,
    /// What is served.
    pub served: Arc<Served>,
    /// For requests that don't say.
    pub defaults: Defaults,
    /// The engine's clock.
    pub clock: Clock,
}

impl Path {
    /// Answers one request, whose values leave it. Dropping the future withdraws it: a row that
    /// nobody else waits for and that no batch has taken is not computed.
    pub async fn label(&self, request: &mut Request, arrival: Arrival) -> Result<Reply> {
        let timeout_us = request.timeout_us.unwrap_or(self.defaults.deadline_us);
        let deadline_us = arrival.arrived_us + timeout_us.min(DEADLINE_US_MAX);
        faults::point("admit");
        self.admit.admit(deadline_us, self.clock.now_us())?;
        let durability = request.durability.unwrap_or(self.defaults.durability);
        let required = request.durability_required;
        let (level, _place) = self.admit.level(durability, required, request.priority)?;
        let mut version = self.served.resolve(&request.model, &request.version)?;
        let digest = digest(&version.manifest.name, &request.payload.values);
        let mut values = version.values(&mut request.payload)?;
        let want = self.want(level, required, deadline_us, arrival.arrived_us);
        // Again where a row shared with another caller ended by that one's deadline or absence.
        loop {
            let admitted_us = self.clock.now_us();
            let row = Arc::new(Row::new(asked(request, digest, deadline_us), level));
            faults::point("cache");
            let seen = self.dedupe.look(&row, level, admitted_us);
            let looked_us = self.clock.now_us();
            let waiter = match seen {
                Seen::Conflict => return Err(key_reused(request)),
                Seen::Again(first) => Waiter::new(first, Some(self.leaving(&version, None))),
                Seen::New => {
                    let entry = Entry {
                        row: row.clone(),
                        values: mem::take(&mut values),
                        reservation: None,
                    };
                    self.enqueue(entry, &mut version, request)?
                }
            };
            let joined = !Arc::ptr_eq(waiter.row(), &row);
            match waiter.wait(&want).await {
                Err(error) if joined && self.is_anothers(&error, deadline_us) => continue,
                Err(error) => return Err(error),
                Ok(level) => {
                    let row = waiter.row().clone();
                    if joined && !is_of_version(&row, &request.version) {
                        self.dedupe.count_conflict();
                        return Err(key_reused(request));
                    }
                    let resumed_us = self.clock.now_us();
                    // Made of its stamps in the end, so that who waits does not hold it.
                    let mut timing = Timing::default();
                    timing.set(Stage::Decode, arrival.arrived_us, arrival.decoded_us);
                    timing.set(Stage::Admit, arrival.decoded_us, admitted_us);
                    timing.set(Stage::Cache, admitted_us, looked_us);
                    let begun_us = joined.then_some(admitted_us);
                    stamp(&row, begun_us, resumed_us, &mut timing);
                    let replay = joined;
                    return Ok(Reply { row, version, level, replay, timing, resumed_us });
                }
            }
        }
    }

    fn want(&self, level: Durability, required: bool, deadline_us: u64, from_us: u64) -> Want {
        // A short deadline keeps at least half of itself.
        let margin_us = self.defaults.margin_us.min((deadline_us - from_us) / 2);
        let deadline = self.clock.instant(deadline_us);
        let give_up = deadline - Duration::from_micros(margin_us);
        Want { level, required, deadline, give_up }
    }

    /// The shared row's first caller left or ran out of time; this one still has some.
    fn is_anothers(&self, error: &Error, deadline_us: u64) -> bool {
        let theirs =
            matches!(error, Error::Cancelled | Error::DeadlinePassed { label_exists: false, .. });
        theirs && self.clock.now_us() < deadline_us
    }

    fn enqueue(
        &self,
        mut entry: Entry,
        version: &mut Arc<Version>,
        request: &mut Request,
    ) -> Result<Waiter<Leaving<'_>>> {
        let row = entry.row.clone();
        let refuse = |error: Error| {
            row.fail(error.clone());
            self.dedupe.forget(&row);
            error
        };
        entry.reservation = Some(self.room(version, request).map_err(refuse)?);
        row.stamps.queued_us.store(self.clock.now_us(), Ordering::Relaxed);
        loop {
            match version.queue.push(entry) {
                Ok(place) => {
                    let leaving = self.leaving(version, Some(place));
                    return Ok(Waiter::new(row, Some(leaving)));
                }
                // The version was replaced since it was resolved: its successor takes the row.
                Err(refusal) if refusal.0 == Error::Stopped => {
                    entry = refusal.1;
                    let next = self.served.resolve(&request.model, &request.version);
                    let next = next.map_err(refuse)?;
                    if Arc::ptr_eq(&next, version) {
                        return Err(refuse(Error::Unavailable { state: "stopping" }));
                    }
                    *version = next;
                    if let Values::F32(values) = &mut request.payload.values {
                        *values = mem::take(&mut entry.values);
                    }
                    entry.values = version.values(&mut request.payload).map_err(refuse)?;
                    entry.reservation = Some(self.room(version, request).map_err(refuse)?);
                }
                Err(refusal) => return Err(refuse(refusal.0)),
            }
        }
    }

    /// Room in the journal for the record that this request will make.
    fn room(&self, version: &Version, request: &Request) -> Result<Reservation> {
        let manifest = &version.manifest;
        let label_bytes = manifest.labels.iter().map(|l| l.len()).max().unwrap_or(0);
        let names = manifest.name.len() + manifest.version.len() + label_bytes;
        let strings = names + request.key.robot_id.len() + request.sku.len();
        self.admit.reserve(request.priority, strings, manifest.labels.len())
    }

    fn leaving(&self, version: &Arc<Version>, place: Option<Place>) -> Leaving<'_> {
        Leaving { dedupe: &self.dedupe, version: version.clone(), place }
    }
}

/// How the last caller of a row takes it out of the window and of its queue, also where it is not
/// the first. A row whose version was replaced meanwhile leaves when its batch is formed.
struct Leaving<'a> {
    dedupe: &'a Dedupe,
    version: Arc<Version>,
    /// Only the row's first caller knows it.
    place: Option<Place>,
}

impl Withdraw for Leaving<'_> {
    fn withdraw(self, row: &Arc<Row>) {
        self.dedupe.forget(row);
        match self.place {
            Some(place) => self.version.queue.remove(row.asked.priority, place),
            None => self.version.queue.remove_row(row),
        }
    }
}

/// Stamps the stages after the cache. A caller that joined a row at `joined_us` was not in its
/// queue: its wait counts as the cache's.
fn stamp(row: &Row, joined_us: Option<u64>, resumed_us: u64, timing: &mut Timing) {
    if let Some(joined_us) = joined_us {
        return timing.set(Stage::Cache, joined_us, resumed_us);
    }
    let stamps = &row.stamps;
    let queued_us = stamps.queued_us.load(Ordering::Relaxed);
    let formed_us = stamps.formed_us.load(Ordering::Relaxed);
    let inferred_us = stamps.inferred_us.load(Ordering::Relaxed);
    timing.set(Stage::Queue, queued_us, formed_us);
    timing.set(Stage::Infer, formed_us, inferred_us);
    timing.set(Stage::Journal, inferred_us, resumed_us);
}

fn asked(request: &Request, digest: u128, deadline_us: u64) -> Asked {
    Asked {
        key: request.key.clone(),
        digest,
        priority: request.priority,
        deadline_us,
        captured_at_unix_us: request.captured_at_unix_us,
        sku: request.sku.clone(),
    }
}

/// Whether the row's answer is one that a request for this version (empty: any) may get.
fn is_of_version(row: &Row, version: &str) -> bool {
    version.is_empty() || row.answer().is_some_and(|answer| &*answer.version == version)
}

fn key_reused(request: &Request) -> Error {
    let robot_id = request.key.robot_id.to_string();
    Error::KeyReused { robot_id, sequence: request.key.sequence }
}

/// XXH3-128 of the model's name and the values as little-endian float64, so that a retry may come
/// in another width and still be the same request.
fn digest(model: &str, values: &Values) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(model.as_bytes());
    hash.update(&[0]);
    match values {
        Values::F32(values) => {
            values.iter().for_each(|v| hash.update(&f64::from(*v).to_le_bytes()));
        }
        Values::F64(values) => values.iter().for_each(|v| hash.update(&v.to_le_bytes())),
    }
    hash.digest128()
}

impl Priority {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Robot => "robot",
            Priority::Bulk => "bulk",
        }
    }
}
