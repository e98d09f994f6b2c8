//! When calls are sent: exact intended times, known before the first is sent.
//!
//! Times are ns since the run's beginning, ascending. The warm-up comes first, at the schedule's
//! first rate; a shape's own times count from its end. Nothing here looks at a clock.

use serde::Deserialize;

use crate::{
    error::{Error, Result},
    plan::{SECONDS_MAX, within},
};

/// Calls a second, at most: beyond what one machine sends.
pub const RATE_MAX: f64 = 10_000_000.0;
/// Times of one replay, at most: 800 MB of them.
const TIMES_MAX: usize = 100_000_000;
const IN_FLIGHT_MAX: u32 = 1_000_000;
const FACTOR_MAX: f64 = 100_000.0;
const NS: f64 = 1e9;

/// A checked shape.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Shape {
    Constant { rate_per_s: f64 },
    Poisson { rate_per_s: f64 },
    Step { rate_per_s: f64, to_rate_per_s: f64, at_s: f64 },
    Ramp { rate_per_s: f64, to_rate_per_s: f64 },
    FlashCrowd { rate_per_s: f64, factor: f64, at_s: f64, lasts_s: f64 },
    Times { at_us: Vec<u64> },
    Saturate { in_flight: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    #[default]
    #[serde(skip)]
    Missing,
    Constant,
    Poisson,
    Step,
    Ramp,
    FlashCrowd,
    Times,
    Saturate,
}

/// A shape as the plan writes it: which keys belong to which shape is checked by `shape`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Written {
    shape: Name,
    rate_per_s: Option<f64>,
    to_rate_per_s: Option<f64>,
    factor: Option<f64>,
    at_s: Option<f64>,
    lasts_s: Option<f64>,
    at_us: Option<Vec<u64>>,
    in_flight: Option<u32>,
}

impl Written {
    /// The shape, if it has the keys that it needs and no other.
    pub(crate) fn shape(mut self) -> Result<Shape> {
        let shape = match self.shape {
            Name::Missing => {
                let expected = "one of constant, poisson, step, ramp, flash_crowd, times, saturate";
                return Err(Error::invalid("schedule.shape", "missing", expected));
            }
            Name::Constant => Shape::Constant { rate_per_s: self.rate()? },
            Name::Poisson => Shape::Poisson { rate_per_s: self.rate()? },
            Name::Step => Shape::Step {
                rate_per_s: self.rate()?,
                to_rate_per_s: taken(self.to_rate_per_s.take(), "to_rate_per_s")?,
                at_s: taken(self.at_s.take(), "at_s")?,
            },
            Name::Ramp => Shape::Ramp {
                rate_per_s: self.rate()?,
                to_rate_per_s: taken(self.to_rate_per_s.take(), "to_rate_per_s")?,
            },
            Name::FlashCrowd => Shape::FlashCrowd {
                rate_per_s: self.rate()?,
                factor: taken(self.factor.take(), "factor")?,
                at_s: taken(self.at_s.take(), "at_s")?,
                lasts_s: taken(self.lasts_s.take(), "lasts_s")?,
            },
            Name::Times => Shape::Times { at_us: taken(self.at_us.take(), "at_us")? },
            Name::Saturate => {
                Shape::Saturate { in_flight: taken(self.in_flight.take(), "in_flight")? }
            }
        };
        self.nothing_left()?;
        Ok(shape)
    }

    fn rate(&mut self) -> Result<f64> {
        taken(self.rate_per_s.take(), "rate_per_s")
    }

    fn nothing_left(&self) -> Result<()> {
        let left = [
            ("rate_per_s", self.rate_per_s),
            ("to_rate_per_s", self.to_rate_per_s),
            ("factor", self.factor),
            ("at_s", self.at_s),
            ("lasts_s", self.lasts_s),
            ("at_us", self.at_us.as_ref().map(|all| all.len() as f64)),
            ("in_flight", self.in_flight.map(f64::from)),
        ];
        match left.into_iter().find_map(|(name, value)| Some((name, value?))) {
            None => Ok(()),
            Some((name, value)) => {
                let expected = format!("absent: the shape {:?} has no such key", self.shape);
                Err(Error::invalid(format!("schedule.{name}"), value, expected))
            }
        }
    }
}

fn taken<T>(value: Option<T>, name: &str) -> Result<T> {
    value.ok_or_else(|| {
        Error::invalid(format!("schedule.{name}"), "missing", "a value, with this shape")
    })
}

impl Shape {
    /// Checks values and how they relate to the measured part's length.
    pub(crate) fn check(&self, duration_s: f64) -> Result<()> {
        let rate = |name: &str, value, least| within(name, value, least, RATE_MAX);
        // Of two rates one may be nothing: a ramp may begin or end there.
        let both = |from: f64, to: f64| {
            rate("schedule.rate_per_s", from, 0.0)?;
            rate("schedule.to_rate_per_s", to, if from > 0.0 { 0.0 } else { 1e-6 })
        };
        match self {
            Self::Constant { rate_per_s } | Self::Poisson { rate_per_s } => {
                rate("schedule.rate_per_s", *rate_per_s, 1e-6)
            }
            Self::Step { rate_per_s, to_rate_per_s, at_s } => {
                both(*rate_per_s, *to_rate_per_s)?;
                within("schedule.at_s", *at_s, 0.0, duration_s)
            }
            Self::Ramp { rate_per_s, to_rate_per_s } => both(*rate_per_s, *to_rate_per_s),
            Self::FlashCrowd { rate_per_s, factor, at_s, lasts_s } => {
                rate("schedule.rate_per_s", *rate_per_s, 1e-6)?;
                within("schedule.factor", *factor, 0.0, FACTOR_MAX)?;
                rate("schedule.rate_per_s × factor", rate_per_s * factor, 0.0)?;
                within("schedule.at_s", *at_s, 0.0, duration_s)?;
                within("schedule.lasts_s", *lasts_s, 0.0, duration_s - at_s)
            }
            Self::Times { at_us } => times(at_us),
            Self::Saturate { in_flight } => {
                within("schedule.in_flight", *in_flight, 1, IN_FLIGHT_MAX)
            }
        }
    }

    /// Whether a reply, and not the clock, brings the next call.
    pub fn is_closed_loop(&self) -> bool {
        matches!(self, Self::Saturate { .. })
    }

    /// The times of a run: `warmup_s`, then `duration_s`. Empty for a closed loop.
    pub fn times(&self, warmup_s: f64, duration_s: f64, seed: u64) -> Times<'_> {
        let end_s = warmup_s + duration_s;
        let source = match *self {
            Self::Poisson { rate_per_s } => {
                Source::Poisson { random: fastrand::Rng::with_seed(seed), rate_per_s, at_s: 0.0 }
            }
            Self::Times { ref at_us } => Source::Listed(at_us.iter()),
            Self::Saturate { .. } => Source::Listed([].iter()),
            Self::Constant { rate_per_s } => Source::rates(&[(end_s, rate_per_s, rate_per_s)]),
            Self::Step { rate_per_s: from, to_rate_per_s: to, at_s } => {
                Source::rates(&[(warmup_s + at_s, from, from), (end_s, to, to)])
            }
            Self::Ramp { rate_per_s: from, to_rate_per_s: to } => {
                Source::rates(&[(warmup_s, from, from), (end_s, from, to)])
            }
            Self::FlashCrowd { rate_per_s: rate, factor, at_s, lasts_s } => {
                let (crowd, begin_s) = (rate * factor, warmup_s + at_s);
                let crowd_end_s = begin_s + lasts_s;
                let parts =
                    [(begin_s, rate, rate), (crowd_end_s, crowd, crowd), (end_s, rate, rate)];
                Source::rates(&parts)
            }
        };
        Times { source, end_ns: (end_s * NS) as u64 }
    }
}

fn times(at_us: &[u64]) -> Result<()> {
    let field = "schedule.at_us";
    if at_us.is_empty() || at_us.len() > TIMES_MAX {
        return Err(Error::invalid(
            field,
            format!("{} times", at_us.len()),
            format!("1 to {TIMES_MAX}"),
        ));
    }
    let later = at_us.windows(2).position(|pair| pair[0] > pair[1]);
    if let Some(at) = later {
        let expected = format!("{} or more: times ascend", at_us[at]);
        return Err(Error::invalid(format!("{field}[{}]", at + 1), at_us[at + 1], expected));
    }
    let last = at_us.len() - 1;
    within(&format!("{field}[{last}]"), at_us[last], 0, (SECONDS_MAX * 1e6) as u64)
}

/// Intended times, ns since the run's beginning.
#[derive(Debug, Clone)]
pub struct Times<'a> {
    source: Source<'a>,
    end_ns: u64,
}

#[derive(Debug, Clone)]
enum Source<'a> {
    Rates { parts: Vec<Part>, next: u64, at: usize },
    Poisson { random: fastrand::Rng, rate_per_s: f64, at_s: f64 },
    Listed(std::slice::Iter<'a, u64>),
}

/// A part of the schedule in which the rate is a straight line.
#[derive(Debug, Clone, Copy)]
struct Part {
    begin_s: f64,
    end_s: f64,
    rate_per_s: f64,
    /// By how much the rate grows each second.
    slope: f64,
    /// Calls before this part, and before the next: areas under the line, no whole numbers.
    before: f64,
    after: f64,
}

impl Part {
    /// When call `k` is due: where the area under the line reaches k. In the form that stays exact
    /// for a slope of nothing.
    fn time_s(&self, k: f64) -> f64 {
        let area = k - self.before;
        let root = self.rate_per_s * self.rate_per_s + 2.0 * self.slope * area;
        let time_s = 2.0 * area / (self.rate_per_s + root.max(0.0).sqrt());
        self.begin_s + if area > 0.0 { time_s } else { 0.0 }
    }
}

impl Source<'_> {
    /// Parts by (end, rate at its begin, rate at its end); each begins where the last ends.
    fn rates(ends: &[(f64, f64, f64)]) -> Self {
        let (mut begin_s, mut before) = (0.0, 0.0);
        let mut parts = Vec::with_capacity(ends.len());
        for &(end_s, from, to) in ends {
            let lasts_s = end_s - begin_s;
            if lasts_s <= 0.0 {
                continue;
            }
            let after = before + lasts_s * (from + to) / 2.0;
            let slope = (to - from) / lasts_s;
            parts.push(Part { begin_s, end_s, rate_per_s: from, slope, before, after });
            (begin_s, before) = (end_s, after);
        }
        Self::Rates { parts, next: 0, at: 0 }
    }
}

impl Iterator for Times<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let at_ns = match &mut self.source {
            Source::Rates { parts, next, at } => {
                let k = *next as f64;
                while parts.get(*at)?.after <= k {
                    *at += 1;
                }
                *next += 1;
                let part = &parts[*at];
                (part.time_s(k).min(part.end_s) * NS).round() as u64
            }
            Source::Poisson { random, rate_per_s, at_s } => {
                // 1 − u is above 0, so that its logarithm is a number.
                *at_s -= (1.0 - random.f64()).ln() / *rate_per_s;
                (*at_s * NS) as u64
            }
            Source::Listed(at_us) => at_us.next()? * 1_000,
        };
        (at_ns < self.end_ns).then_some(at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn shape(written: &str) -> Shape {
        serde_json::from_str::<Written>(written).unwrap().shape().unwrap()
    }

    fn times(written: &str, warmup_s: f64, duration_s: f64) -> Vec<u64> {
        shape(written).times(warmup_s, duration_s, 7).collect()
    }

    /// How many fall into [from, to), seconds.
    fn between(times: &[u64], from: f64, to: f64) -> usize {
        times.iter().filter(|at| (from..to).contains(&(**at as f64 / NS))).count()
    }

    #[test]
    fn a_constant_rate_is_kept_to_the_nanosecond() {
        let found = times(r#"{"shape": "constant", "rate_per_s": 2300}"#, 0.0, 30.0);
        assert_eq!(found.len(), 69_000);
        for (k, at) in found.iter().enumerate() {
            assert_eq!(*at, (k as f64 * NS / 2300.0).round() as u64);
        }
    }

    #[test]
    fn the_warm_up_comes_before_the_shape_at_its_first_rate() {
        let step = r#"{"shape": "step", "rate_per_s": 10, "to_rate_per_s": 100, "at_s": 2}"#;
        let found = times(step, 3.0, 4.0);
        assert_eq!(between(&found, 0.0, 3.0), 30);
        assert_eq!(between(&found, 3.0, 5.0), 20);
        assert_eq!(between(&found, 5.0, 7.0), 200);
        assert_eq!(found[50], 5 * S);
        assert_eq!(found[51], 5 * S + S / 100);
    }

    #[test]
    fn a_ramp_sends_the_area_under_its_line() {
        let found = times(r#"{"shape": "ramp", "rate_per_s": 0, "to_rate_per_s": 200}"#, 0.0, 10.0);
        assert_eq!(found.len(), 1_000);
        // 10 t² calls by t.
        for (k, at) in found.iter().enumerate() {
            let expected = (k as f64 / 10.0).sqrt() * NS;
            assert!((*at as f64 - expected).abs() < 2.0, "call {k} at {at}, not {expected}");
        }
        let down = times(r#"{"shape": "ramp", "rate_per_s": 200, "to_rate_per_s": 0}"#, 0.0, 10.0);
        assert_eq!(down.len(), 1_000);
        assert_eq!(between(&down, 0.0, 5.0), 750);
    }

    #[test]
    fn a_flash_crowd_comes_and_goes() {
        let crowd = r#"{"shape": "flash_crowd", "rate_per_s": 50, "factor": 10, "at_s": 2,
            "lasts_s": 1}"#;
        let found = times(crowd, 1.0, 5.0);
        assert_eq!(between(&found, 0.0, 3.0), 150);
        assert_eq!(between(&found, 3.0, 4.0), 500);
        assert_eq!(between(&found, 4.0, 6.0), 100);
    }

    #[test]
    fn a_poisson_process_has_its_rate_its_spread_and_its_seed() {
        let poisson = r#"{"shape": "poisson", "rate_per_s": 1000}"#;
        let found = times(poisson, 0.0, 100.0);
        // 100,000 are expected, with a standard deviation of 316; the seed is fixed.
        assert!((99_000..101_000).contains(&found.len()), "{}", found.len());
        let gaps: Vec<f64> = found.windows(2).map(|p| (p[1] - p[0]) as f64 / NS).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Of exponential gaps the standard deviation is the mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{}", variance.sqrt() / mean);
        assert_eq!(times(poisson, 0.0, 100.0), found);
        let other: Vec<u64> = shape(poisson).times(0.0, 100.0, 8).collect();
        assert_ne!(other, found);
    }

    #[test]
    fn a_replay_keeps_the_times_that_it_was_given() {
        let found = times(r#"{"shape": "times", "at_us": [0, 5, 5, 1000000, 3000000]}"#, 0.0, 2.0);
        assert_eq!(found, [0, 5_000, 5_000, S]);
    }

    #[test]
    fn times_ascend_in_every_shape() {
        for written in [
            r#"{"shape": "ramp", "rate_per_s": 3, "to_rate_per_s": 777.7}"#,
            r#"{"shape": "step", "rate_per_s": 0, "to_rate_per_s": 333.3, "at_s": 1.7}"#,
            r#"{"shape": "flash_crowd", "rate_per_s": 12.3, "factor": 0, "at_s": 1, "lasts_s": 1}"#,
            r#"{"shape": "poisson", "rate_per_s": 500}"#,
        ] {
            let found = times(written, 0.9, 6.1);
            assert!(!found.is_empty(), "{written}");
            assert!(found.is_sorted(), "{written}");
        }
    }
}
