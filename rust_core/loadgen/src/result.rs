//! The result of a run, and whether it may be believed. Keys are the binary's JSON and Python's
//! dict.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use labeler_core::proto;
use serde::Serialize;

use crate::{
    kinds::Kind,
    plan::Plan,
    run::Shared,
    sampler::Samples,
    tally::{Interval, Totals},
};

/// A sender that uses more of its threads than this is itself what is measured.
const CPU_SHARE_MAX: f64 = 0.9;
/// A rate that falls short of the plan by more than this is another rate.
const RATE_SHARE_MIN: f64 = 0.99;

/// Figures of a histogram, µs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub count: u64,
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    pub mean: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p95: histogram.value_at_quantile(0.95),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
            mean: histogram.mean(),
        }
    }
}

/// How late calls were sent, µs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Lag {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// CPU and memory of the server over the measured part.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Server {
    pub cpu_user_us: f64,
    pub cpu_system_us: f64,
    pub cpu_us_per_label: Option<f64>,
    pub rss_bytes: u64,
    pub rss_bytes_max: u64,
}

/// What a run brought. Counts are labels; latencies are those of calls that were answered, one
/// each.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// Labels whose time came in the measured part.
    pub planned: u64,
    /// Of those, put on a connection.
    pub sent: u64,
    /// Of those, answered with a label.
    pub answered: u64,
    /// The others, by gRPC code or what the sender saw. With `answered` and `unsent` all `planned`.
    pub errors: BTreeMap<&'static str, u64>,
    /// Planned, and left out because the sender was too late for them.
    pub unsent: u64,
    /// Answered in the whole run, the warm-up too.
    pub acknowledged_total: u64,
    /// Put on a connection in the whole run, the warm-up too.
    pub sent_total: u64,
    /// Of those, neither answered nor refused, as far as the robots heard.
    pub unheard_total: u64,
    /// Of the first request of each robot.
    pub first_sequence: u64,
    /// Length of the measured part.
    pub elapsed_s: f64,
    /// By the schedule.
    pub rate_planned_per_s: f64,
    /// As sent.
    pub rate_reached_per_s: f64,
    /// From the intended time of sending to the reply.
    pub latency_us: Latency,
    /// From the actual time of sending, which hides what a stall does to the calls behind it.
    pub latency_uncorrected_us: Latency,
    /// What the replies say of the server's own time.
    pub server_us: Latency,
    /// From the actual time of sending to the reply, less the server's own time, call by call: the
    /// way there and back, and what the two sides do beside the server's clock.
    pub network_us: Latency,
    /// From the intended to the actual time of sending.
    pub schedule_lag_us: Lag,
    /// CPU of the sender, of what its threads may use while it sends.
    pub sender_cpu_share: Option<f64>,
    /// CPU of the sender for a label.
    pub sender_cpu_us_per_label: Option<f64>,
    /// Of the plan's `server_pid`, if it ran from the begin to the end.
    pub server: Option<Server>,
    /// Labels whose truth is known.
    pub judged: u64,
    /// Of those, the right ones.
    pub correct: u64,
    /// Their share.
    pub accuracy: Option<f64>,
    /// By truth, then by label.
    pub by_label: BTreeMap<String, BTreeMap<String, u64>>,
    /// Labels by where they come from.
    pub sources: BTreeMap<String, u64>,
    /// Labels by the level they reached.
    pub durabilities: BTreeMap<String, u64>,
    /// Labels by model and version.
    pub models: BTreeMap<String, u64>,
    /// Replies, and not the clock, brought the next call: latency says nothing of other loads.
    pub closed_loop: bool,
    /// Whether the figures are the server's.
    pub valid: bool,
    /// Why not.
    pub invalid_because: Vec<String>,
}

/// Counts so far, and what happened since the last look.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Snapshot {
    pub elapsed_s: f64,
    pub planned: u64,
    pub sent: u64,
    pub answered: u64,
    pub errors: BTreeMap<&'static str, u64>,
    pub in_flight: u64,
    pub judged: u64,
    pub correct: u64,
    pub interval: IntervalFigures,
}

/// Since the last look.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct IntervalFigures {
    pub answered: u64,
    pub latency_us_p50: u64,
    pub latency_us_p99: u64,
    pub latency_us_p999: u64,
    pub schedule_lag_us_p99: u64,
}

/// Looks at a run; the interval begins anew.
pub fn snapshot(shared: &Shared) -> Snapshot {
    let interval = shared.tally.interval(|interval: &Interval| IntervalFigures {
        answered: interval.answered,
        latency_us_p50: interval.latency_us.value_at_quantile(0.5),
        latency_us_p99: interval.latency_us.value_at_quantile(0.99),
        latency_us_p999: interval.latency_us.value_at_quantile(0.999),
        schedule_lag_us_p99: interval.lag_us.value_at_quantile(0.99),
    });
    let elapsed_s = shared.elapsed_s();
    shared.tally.look(|totals, in_flight| Snapshot {
        elapsed_s,
        planned: totals.planned,
        sent: totals.sent,
        answered: totals.answered,
        errors: errors(totals),
        in_flight,
        judged: totals.judged,
        correct: totals.correct,
        interval,
    })
}

/// The result of a run that is over. `acks_missing`: lines that the acknowledgement file lacks.
pub fn result(shared: &Shared, acks_missing: u64) -> RunResult {
    let samples = *shared.samples.lock();
    let elapsed_s = shared.elapsed_s();
    shared.tally.look(|totals, _| {
        let mut result = figures(shared, totals, &samples, elapsed_s);
        result.invalid_because = reasons(&shared.plan, totals, &result, acks_missing);
        result.valid = result.invalid_because.is_empty();
        result
    })
}

fn figures(shared: &Shared, totals: &Totals, samples: &Samples, elapsed_s: f64) -> RunResult {
    let plan = &shared.plan;
    let unfed = totals.errors[Kind::Unfed.at()];
    let per_s =
        |labels: u64, seconds: f64| if seconds > 0.0 { labels as f64 / seconds } else { 0.0 };
    let per_label = |us: f64| (totals.answered > 0).then(|| us / totals.answered as f64);
    // A sender that is late sends for longer than was planned.
    let sending_s = totals.last_sent_ns.saturating_sub(shared.warm_ns()) as f64 / 1e9;
    let tried = totals.planned - totals.unsent - unfed;
    let own_us = |until: Option<f64>| Some(until? - samples.own_begin_us?);
    RunResult {
        planned: totals.planned,
        sent: totals.sent,
        answered: totals.answered,
        errors: errors(totals),
        unsent: totals.unsent,
        acknowledged_total: totals.acknowledged_total,
        sent_total: totals.sent_total,
        unheard_total: totals.unheard_total,
        first_sequence: plan.first_sequence,
        elapsed_s,
        rate_planned_per_s: per_s(totals.planned - unfed, elapsed_s),
        rate_reached_per_s: per_s(tried, elapsed_s.max(sending_s)),
        latency_us: Latency::of(&totals.latency_us),
        latency_uncorrected_us: Latency::of(&totals.uncorrected_us),
        server_us: Latency::of(&totals.server_us),
        network_us: Latency::of(&totals.network_us),
        schedule_lag_us: Lag {
            p50: totals.lag_us.value_at_quantile(0.5),
            p99: totals.lag_us.value_at_quantile(0.99),
            max: totals.lag_us.max(),
        },
        sender_cpu_share: own_us(samples.own_sent_us)
            .filter(|_| elapsed_s > 0.0)
            .map(|us| us / 1e6 / elapsed_s / cores(plan)),
        sender_cpu_us_per_label: own_us(samples.own_end_us).and_then(per_label),
        server: samples.server.map(|(begin, end)| {
            let cpu_user_us = end.user_us - begin.user_us;
            let cpu_system_us = end.system_us - begin.system_us;
            Server {
                cpu_user_us,
                cpu_system_us,
                cpu_us_per_label: per_label(cpu_user_us + cpu_system_us),
                rss_bytes: end.rss_bytes,
                rss_bytes_max: samples.rss_bytes_max,
            }
        }),
        judged: totals.judged,
        correct: totals.correct,
        accuracy: (totals.judged > 0).then(|| totals.correct as f64 / totals.judged as f64),
        by_label: by_label(plan, totals),
        sources: named(&totals.sources, |n| {
            let source = proto::Source::try_from(n).unwrap_or_default();
            source.as_str_name().trim_start_matches("SOURCE_")
        }),
        durabilities: named(&totals.durabilities, |n| {
            let level = proto::Durability::try_from(n).unwrap_or_default();
            level.as_str_name().trim_start_matches("DURABILITY_")
        }),
        models: totals.models.iter().map(|(n, v, labels)| (format!("{n} {v}"), *labels)).collect(),
        closed_loop: plan.shape.is_closed_loop(),
        valid: true,
        invalid_because: Vec::new(),
    }
}

/// Cores that the sender's threads may use.
fn cores(plan: &Plan) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    f64::from(plan.threads).min(cores as f64)
}

fn errors(totals: &Totals) -> BTreeMap<&'static str, u64> {
    let counts = totals.errors.iter().enumerate();
    counts.filter(|(_, count)| **count > 0).map(|(at, count)| (Kind::name(at), *count)).collect()
}

fn named(counts: &BTreeMap<i32, u64>, name: impl Fn(i32) -> &'static str) -> BTreeMap<String, u64> {
    counts.iter().map(|(number, count)| (name(*number).to_owned(), *count)).collect()
}

fn by_label(plan: &Plan, totals: &Totals) -> BTreeMap<String, BTreeMap<String, u64>> {
    let names = plan.labels.len();
    let label = |at: usize| plan.labels.get(at).map_or("other", String::as_str).to_owned();
    let rows = plan.labels.iter().zip(totals.by_label.chunks(names + 1));
    rows.filter(|(_, counts)| counts.iter().any(|count| *count > 0))
        .map(|(truth, counts)| {
            let given = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            (truth.clone(), given.map(|(at, count)| (label(at), *count)).collect())
        })
        .collect()
}

fn reasons(plan: &Plan, totals: &Totals, result: &RunResult, acks_missing: u64) -> Vec<String> {
    let mut reasons = Vec::new();
    let lag_ms = result.schedule_lag_us.p99 as f64 / 1e3;
    if !result.closed_loop && lag_ms > plan.lag_limit_ms {
        let limit = plan.lag_limit_ms;
        reasons.push(format!("schedule lag p99 is {lag_ms} ms, above lag_limit_ms {limit}"));
    }
    if let Some(share) = result.sender_cpu_share.filter(|share| *share > CPU_SHARE_MAX) {
        let threads = plan.threads;
        reasons.push(format!(
            "the sender used {:.0} % of its {threads} threads' cores: it was the bottleneck",
            share * 100.0
        ));
    }
    let (reached, planned) = (result.rate_reached_per_s, result.rate_planned_per_s);
    if !result.closed_loop && reached < RATE_SHARE_MIN * planned {
        reasons.push(format!("{reached:.1} labels/s were sent of {planned:.1} planned"));
    }
    if totals.starved > 0 {
        reasons.push(format!("{} fed rows came late: the feed was the bottleneck", totals.starved));
    }
    if acks_missing > 0 {
        reasons.push(format!("{acks_missing} lines of acks_file are missing: its disk is slow"));
    }
    reasons
}
