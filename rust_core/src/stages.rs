//! The stages of the label path, and their latencies: HDR histograms per stage × model version.
//!
//! A thread records into a shard of its own, so no lock is contended on the path; shards are merged
//! when somebody reads. A skipped stage is not observed.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::limits::LATENCY_US_MAX;

/// A part of the path with its own histogram, in the order a label meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Request bytes to domain types.
    Decode,
    /// Deadline, limits, the journal's room.
    Admit,
    /// Dedupe window and label cache.
    Cache,
    /// Waiting for the model.
    Queue,
    /// The model's run.
    Infer,
    /// From the answer to the level of durability that the caller waits for.
    Journal,
    /// Domain types to reply bytes.
    Encode,
}

impl Stage {
    /// All stages in the order of the path.
    pub const ALL: [Stage; 7] = [
        Stage::Decode,
        Stage::Admit,
        Stage::Cache,
        Stage::Queue,
        Stage::Infer,
        Stage::Journal,
        Stage::Encode,
    ];

    /// The name that protos, metrics and docs use.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Decode => "decode",
            Stage::Admit => "admit",
            Stage::Cache => "cache",
            Stage::Queue => "queue",
            Stage::Infer => "infer",
            Stage::Journal => "journal",
            Stage::Encode => "encode",
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// µs in each stage of one request; `None` where it was skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    stages_us: [Option<u64>; Stage::ALL.len()],
    /// From arrival to the encoded reply.
    pub total_us: u64,
}

impl Timing {
    /// Says how long `stage` took. Stamps out of order count as 0, never as a wrapped difference.
    pub fn set(&mut self, stage: Stage, from_us: u64, to_us: u64) {
        self.stages_us[stage as usize] = Some(to_us.saturating_sub(from_us));
    }

    /// µs in `stage`, 0 where it was skipped.
    pub fn us(&self, stage: Stage) -> u64 {
        self.stages_us[stage as usize].unwrap_or(0)
    }
}

/// The name under which the whole request's latency stands beside its stages.
pub const TOTAL: &str = "total";
const SHARDS: usize = 8;
const SERIES: usize = Stage::ALL.len() + 1;

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static SHARD: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
}

/// One series' latencies, merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// A stage's name, or `total`.
    pub stage: &'static str,
    /// Observations.
    pub count: u64,
    /// Their exact sum in µs.
    pub sum_us: u64,
    /// (upper bound in µs, count), ascending, only buckets with a count.
    pub counts: Vec<(u64, u64)>,
}

struct Latencies {
    histogram: Histogram<u64>,
    sum_us: u64,
}

impl Latencies {
    fn new() -> Self {
        Self { histogram: latency_histogram(), sum_us: 0 }
    }

    fn record(&mut self, us: u64) {
        self.histogram.saturating_record(us);
        self.sum_us += us;
    }
}

/// An empty histogram as all latencies use it: µs up to a minute, two significant digits.
fn latency_histogram() -> Histogram<u64> {
    match Histogram::new_with_max(LATENCY_US_MAX, 2) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("constant bounds are valid: {error}"),
    }
}

/// A histogram's buckets that hold something: (upper bound in µs, count), ascending.
pub fn sparse(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let buckets = histogram.iter_recorded();
    buckets.map(|b| (b.value_iterated_to(), b.count_since_last_iteration())).collect()
}

/// The latencies of one model version. A shard is made when its first thread records.
#[derive(Default)]
pub struct Stages {
    shards: [OnceLock<Box<Shard>>; SHARDS],
}

type Shard = Mutex<[Latencies; SERIES]>;

impl Stages {
    /// Counts an answered request.
    pub fn record(&self, timing: &Timing) {
        let made = || Box::new(Mutex::new(std::array::from_fn(|_| Latencies::new())));
        let mut shard = self.shards[SHARD.get()].get_or_init(made).lock();
        for (latencies, us) in shard.iter_mut().zip(timing.stages_us) {
            if let Some(us) = us {
                latencies.record(us);
            }
        }
        shard[SERIES - 1].record(timing.total_us);
    }

    /// All series since the start, merged over the shards.
    pub fn merged(&self) -> Vec<Series> {
        let mut merged: [Latencies; SERIES] = std::array::from_fn(|_| Latencies::new());
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            for (sum, part) in merged.iter_mut().zip(shard.lock().iter()) {
                if !part.histogram.is_empty() && sum.histogram.add(&part.histogram).is_ok() {
                    sum.sum_us += part.sum_us;
                }
            }
        }
        let names = Stage::ALL.iter().map(|s| s.name()).chain([TOTAL]);
        let series = names.zip(&merged).map(|(stage, latencies)| Series {
            stage,
            count: latencies.histogram.len(),
            sum_us: latencies.sum_us,
            counts: sparse(&latencies.histogram),
        });
        series.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_skipped_stage_is_not_observed_and_a_backward_stamp_is_zero() {
        let stages = Stages::default();
        let mut timing = Timing { total_us: 50, ..Timing::default() };
        timing.set(Stage::Queue, 10, 40);
        timing.set(Stage::Infer, 40, 30);
        stages.record(&timing);
        let merged = stages.merged();
        let count = |name| merged.iter().find(|s| s.stage == name).unwrap();
        assert_eq!((count("queue").count, count("queue").sum_us), (1, 30));
        assert_eq!(count("infer").counts, vec![(0, 1)]);
        assert_eq!(count("cache").count, 0);
        assert_eq!(count("total").sum_us, 50);
    }

    #[test]
    fn what_threads_record_is_merged_exactly() {
        let stages = Arc::new(Stages::default());
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let stages = stages.clone();
                std::thread::spawn(move || {
                    for us in 0..100 {
                        let mut timing = Timing { total_us: us, ..Timing::default() };
                        timing.set(Stage::Decode, 0, us);
                        stages.record(&timing);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let merged = stages.merged();
        assert_eq!((merged[0].count, merged[0].sum_us), (1600, 16 * 4950));
    }
}
