//! What is counted: histograms, counts by kind, truths against answers.
//!
//! One lock, held for a few stores; a reader swaps histograms out and reads them outside of it.
//! What belongs to the warm-up is under way like all else, and counted nowhere.

use std::{collections::BTreeMap, mem};

use hdrhistogram::Histogram;
use labeler_core::proto;
use parking_lot::Mutex;

use crate::{
    acks::Acks,
    error::{Error, Result},
    kinds::Kind,
    plan::Plan,
    wire::Key,
};

/// Longest latency that a histogram tells from longer ones, µs: an hour.
const US_MAX: u64 = 3_600_000_000;
const DIGITS: u8 = 3;

/// A histogram of µs, within 0.1 %.
pub fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, US_MAX, DIGITS).map_err(Error::machine)
}

/// One call under way.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// When it should have been sent, ns since the run's beginning.
    pub intended_ns: u64,
    /// When it was.
    pub sent_ns: u64,
    /// Labels that it asks for.
    pub rows: u32,
    /// Whether it is past the warm-up.
    pub measured: bool,
}

/// Everything that the result is made of.
pub struct Totals {
    /// Labels whose time came.
    pub planned: u64,
    /// Of those, labels that were put on a connection.
    pub sent: u64,
    /// Labels that came back.
    pub answered: u64,
    /// The rest, by kind.
    pub errors: [u64; Kind::COUNT],
    /// Labels whose time was over before the sender came to them.
    pub unsent: u64,
    /// Labels whose rows were not there in time.
    pub starved: u64,
    /// When the last was sent, ns.
    pub last_sent_ns: u64,
    /// From the intended time to the reply, µs.
    pub latency_us: Histogram<u64>,
    /// From the actual one.
    pub uncorrected_us: Histogram<u64>,
    /// What the replies say of the server's own time.
    pub server_us: Histogram<u64>,
    /// From the actual one, less the server's own time of the same call.
    pub network_us: Histogram<u64>,
    /// From the intended to the actual time of sending.
    pub lag_us: Histogram<u64>,
    /// Labels whose truth is known.
    pub judged: u64,
    /// Of those, the right ones.
    pub correct: u64,
    /// By truth and label, both indices into the plan's names; the last column is any other name.
    pub by_label: Vec<u64>,
    /// By number of `Source`.
    pub sources: BTreeMap<i32, u64>,
    /// By number of `Durability`.
    pub durabilities: BTreeMap<i32, u64>,
    /// Name, version, labels.
    pub models: Vec<(String, String, u64)>,
    /// All labels that came back, those of the warm-up too.
    pub acknowledged_total: u64,
    /// All labels that were put on a connection, those of the warm-up too.
    pub sent_total: u64,
    /// Of those, labels of which neither an answer nor a refusal came.
    pub unheard_total: u64,
}

/// Since the last look.
pub struct Interval {
    /// Labels that came back.
    pub answered: u64,
    /// From the intended time to the reply, µs.
    pub latency_us: Histogram<u64>,
    /// From the intended to the actual time of sending.
    pub lag_us: Histogram<u64>,
}

impl Interval {
    fn new() -> Result<Self> {
        Ok(Self { answered: 0, latency_us: histogram()?, lag_us: histogram()? })
    }

    fn clear(&mut self) {
        self.answered = 0;
        self.latency_us.reset();
        self.lag_us.reset();
    }
}

struct Inner {
    totals: Totals,
    interval: Interval,
    /// Labels under way, and of those the measured ones.
    in_flight: u64,
    in_flight_measured: u64,
    acks: Option<Acks>,
    /// The run is over: what comes now came too late.
    closed: bool,
}

/// The one place where all is counted.
pub struct Tally {
    inner: Mutex<Inner>,
    spare: Mutex<Interval>,
    labels: Vec<String>,
}

impl Tally {
    /// With an acknowledgement file, if the plan names one. Errors: `Disk`.
    pub fn new(plan: &Plan) -> Result<Self> {
        let names = plan.labels.len();
        let totals = Totals {
            planned: 0,
            sent: 0,
            answered: 0,
            errors: [0; Kind::COUNT],
            unsent: 0,
            starved: 0,
            last_sent_ns: 0,
            latency_us: histogram()?,
            uncorrected_us: histogram()?,
            server_us: histogram()?,
            network_us: histogram()?,
            lag_us: histogram()?,
            judged: 0,
            correct: 0,
            by_label: vec![0; names * (names + 1)],
            sources: BTreeMap::new(),
            durabilities: BTreeMap::new(),
            models: Vec::new(),
            acknowledged_total: 0,
            sent_total: 0,
            unheard_total: 0,
        };
        let acks = if plan.acks_file.is_empty() { None } else { Some(Acks::create(plan)?) };
        let inner = Inner {
            totals,
            interval: Interval::new()?,
            in_flight: 0,
            in_flight_measured: 0,
            acks,
            closed: false,
        };
        let (inner, spare) = (Mutex::new(inner), Mutex::new(Interval::new()?));
        Ok(Self { inner, spare, labels: plan.labels.clone() })
    }

    /// A call goes on a connection now.
    pub fn sent(&self, call: &Call) {
        let mut inner = self.inner.lock();
        inner.in_flight += u64::from(call.rows);
        inner.totals.sent_total += u64::from(call.rows);
        if call.measured {
            let rows = u64::from(call.rows);
            inner.in_flight_measured += rows;
            inner.totals.sent += rows;
            inner.due(call);
        }
    }

    /// A call's time came and it could not be put on a connection.
    pub fn not_sent(&self, call: &Call, kind: Kind) {
        if call.measured {
            let mut inner = self.inner.lock();
            inner.due(call);
            inner.totals.errors[kind.at()] += u64::from(call.rows);
        }
    }

    /// Calls that nobody can send any more.
    pub fn never_sent(&self, rows: u64, kind: Option<Kind>) {
        let totals = &mut self.inner.lock().totals;
        totals.planned += rows;
        *kind.map_or(&mut totals.unsent, |kind| &mut totals.errors[kind.at()]) += rows;
    }

    /// A call whose rows were late.
    pub fn starved(&self, rows: u32) {
        self.inner.lock().totals.starved += u64::from(rows);
    }

    /// A whole call failed.
    pub fn failed(&self, call: &Call, kind: Kind) {
        let mut inner = self.inner.lock();
        if !inner.closed && !kind.told() {
            inner.totals.unheard_total += u64::from(call.rows);
        }
        if inner.settle(call, call.rows) {
            inner.totals.errors[kind.at()] += u64::from(call.rows);
        }
    }

    /// A reply came: its latencies, once a call. Its labels are told one by one. `server_us`: the
    /// server's own time of the call, where it says so; of a batch, its longest row's.
    pub fn replied(&self, call: &Call, now_ns: u64, server_us: Option<u32>) {
        let mut inner = self.inner.lock();
        if call.measured && !inner.closed {
            let since = |ns: u64| now_ns.saturating_sub(ns) / 1_000;
            inner.totals.latency_us.saturating_record(since(call.intended_ns));
            inner.totals.uncorrected_us.saturating_record(since(call.sent_ns));
            if let Some(server_us) = server_us {
                let network_us = since(call.sent_ns).saturating_sub(server_us.into());
                inner.totals.network_us.saturating_record(network_us);
            }
            inner.interval.latency_us.saturating_record(since(call.intended_ns));
        }
    }

    /// One of a reply's rows was refused, or a read was answered with an error.
    pub fn refused(&self, call: &Call, kind: Kind) {
        let mut inner = self.inner.lock();
        if inner.settle(call, 1) {
            inner.totals.errors[kind.at()] += 1;
        }
    }

    /// One row of a read came back.
    pub fn read(&self, call: &Call) {
        let mut inner = self.inner.lock();
        if inner.settle(call, 1) {
            inner.totals.answered += 1;
            inner.interval.answered += 1;
        }
    }

    /// One label came back. `truth`: an index into the plan's labels, or −1.
    pub fn labelled(&self, call: &Call, key: Key, truth: i16, reply: &proto::LabelResponse) {
        let mut inner = self.inner.lock();
        inner.totals.acknowledged_total += 1;
        if let Some(acks) = &mut inner.acks {
            acks.write(key, &reply.label, reply.durability());
        }
        if !inner.settle(call, 1) {
            return;
        }
        inner.interval.answered += 1;
        let totals = &mut inner.totals;
        totals.answered += 1;
        if let Some(timing) = &reply.timing {
            totals.server_us.saturating_record(timing.total_us.into());
        }
        *totals.sources.entry(reply.source).or_default() += 1;
        *totals.durabilities.entry(reply.durability).or_default() += 1;
        totals.model(&reply.model, &reply.version);
        if let Some(truth) = usize::try_from(truth).ok().filter(|truth| *truth < self.labels.len())
        {
            totals.judged += 1;
            totals.correct += u64::from(self.labels[truth] == reply.label);
            let names = self.labels.len();
            let label = self.label(reply);
            totals.by_label[truth * (names + 1) + label] += 1;
        }
    }

    /// Where a label's name stands in the plan's; one past them for any other.
    fn label(&self, reply: &proto::LabelResponse) -> usize {
        let named = reply.index as usize;
        if self.labels.get(named).is_some_and(|name| *name == reply.label) {
            return named;
        }
        let found = self.labels.iter().position(|name| *name == reply.label);
        found.unwrap_or(self.labels.len())
    }

    /// Labels under way.
    pub fn in_flight(&self) -> u64 {
        self.inner.lock().in_flight
    }

    /// Reads without stopping anything.
    pub fn look<T>(&self, look: impl FnOnce(&Totals, u64) -> T) -> T {
        let inner = self.inner.lock();
        look(&inner.totals, inner.in_flight)
    }

    /// What happened since the last call of this.
    pub fn interval<T>(&self, look: impl FnOnce(&Interval) -> T) -> T {
        let mut spare = self.spare.lock();
        spare.clear();
        mem::swap(&mut *spare, &mut self.inner.lock().interval);
        look(&spare)
    }

    /// Ends the counting: what is under way is counted as UNANSWERED, and the acknowledgements are
    /// written out. Returns how many of those are missing in the file, and its error.
    pub fn close(&self) -> (u64, Result<()>) {
        let acks = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            inner.totals.errors[Kind::Unanswered.at()] += inner.in_flight_measured;
            inner.totals.unheard_total += inner.in_flight;
            (inner.in_flight, inner.in_flight_measured) = (0, 0);
            inner.acks.take()
        };
        acks.map_or((0, Ok(())), Acks::close)
    }
}

impl Inner {
    fn due(&mut self, call: &Call) {
        let lag_us = call.sent_ns.saturating_sub(call.intended_ns) / 1_000;
        self.totals.planned += u64::from(call.rows);
        self.totals.last_sent_ns = self.totals.last_sent_ns.max(call.sent_ns);
        self.totals.lag_us.saturating_record(lag_us);
        self.interval.lag_us.saturating_record(lag_us);
    }

    /// Takes rows from those under way. Whether they are to be counted.
    fn settle(&mut self, call: &Call, rows: u32) -> bool {
        if self.closed {
            return false;
        }
        self.in_flight -= u64::from(rows);
        if call.measured {
            self.in_flight_measured -= u64::from(rows);
        }
        call.measured
    }
}

impl Totals {
    fn model(&mut self, name: &str, version: &str) {
        match self.models.iter_mut().find(|(n, v, _)| n == name && v == version) {
            Some((_, _, labels)) => *labels += 1,
            None => self.models.push((name.to_owned(), version.to_owned(), 1)),
        }
    }
}
