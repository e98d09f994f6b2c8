//! The loads that are counted, and what a label of each costs: allocations and calls by thread,
//! stages passed, and how long half of the labels took in each.
//!
//! Labels are sent one by one and counted in blocks, from rest to rest. The figure is the median of
//! the blocks: what grows now and then (a table, a segment) is in few of them, and a label's own
//! cost is in all.

use std::collections::BTreeMap;

use labeler_core::{proto, stages::Series};
use serde_json::{Value, json};

use super::{
    client::{Client, Failure, Stream},
    served::Served,
    sites,
    threads::{Counts, NAMES, by_kind},
};

/// What is sent.
pub struct Load {
    /// Its name in results.
    pub name: &'static str,
    durability: proto::Durability,
    stream: bool,
}

/// All loads.
pub const LOADS: [Load; 4] = [
    Load { name: "unary-buffered", durability: proto::Durability::Buffered, stream: false },
    Load { name: "unary-journaled", durability: proto::Durability::Journaled, stream: false },
    Load { name: "stream-buffered", durability: proto::Durability::Buffered, stream: true },
    Load { name: "stream-journaled", durability: proto::Durability::Journaled, stream: true },
];

const WARM_UP: u64 = 200;
const BLOCKS: u64 = 11;
const BLOCK_LABELS: u64 = 40;
const WIDTH: usize = 24;

/// A robot that sends a load.
struct Robot<'a> {
    served: &'a Served,
    client: Client,
    load: &'a Load,
    stream: Option<Stream>,
    sequence: u64,
}

impl<'a> Robot<'a> {
    fn warm(served: &'a Served, load: &'a Load) -> Result<Self, Failure> {
        let client = Client::connect(&served.engine.grpc_address())?;
        let mut robot = Self { served, client, load, stream: None, sequence: 0 };
        if load.stream {
            let first = robot.request();
            robot.stream = Some(robot.client.stream(&first)?);
        }
        robot.send(WARM_UP)?;
        Ok(robot)
    }

    fn request(&mut self) -> proto::LabelRequest {
        self.sequence += 1;
        proto::LabelRequest {
            robot_id: format!("robot-{}", self.load.name),
            sequence: Some(self.sequence),
            payload: Some(proto::Payload { floats: vec![2.5; WIDTH], ..Default::default() }),
            durability: self.load.durability as i32,
            ..Default::default()
        }
    }

    /// Sends labels one after the other, and waits until their work is done.
    fn send(&mut self, labels: u64) -> Result<(), Failure> {
        for _ in 0..labels {
            let request = self.request();
            match &mut self.stream {
                Some(stream) => self.client.message(stream, &request)?,
                None => self.client.label(&request)?,
            }
        }
        self.served.rest()
    }
}

/// Sends a load and counts.
pub fn counted(served: &Served, load: &Load) -> Result<Value, Failure> {
    let stages = &served.version()?.counts.stages;
    let mut robot = Robot::warm(served, load)?;
    let stages_before = stages.merged();
    let mut blocks: BTreeMap<&str, Vec<Counts>> = BTreeMap::new();
    for _ in 0..BLOCKS {
        let before = by_kind();
        robot.send(BLOCK_LABELS)?;
        for (kind, counts) in by_kind() {
            let before = before.get(kind).copied().unwrap_or_default();
            let grown = std::array::from_fn(|at| counts[at] - before[at]);
            blocks.entry(kind).or_default().push(grown);
        }
    }
    let threads: BTreeMap<_, _> =
        blocks.iter().map(|(kind, blocks)| (*kind, per_label(blocks))).collect();
    let passed = passed(&stages_before, &stages.merged(), BLOCKS * BLOCK_LABELS);
    Ok(json!({ "threads": threads, "stages": passed }))
}

/// Where a load allocates, in lines for people.
pub fn allocation_sites(served: &Served, load: &Load) -> Result<String, Failure> {
    let mut robot = Robot::warm(served, load)?;
    let mut sent = Ok(());
    let text = sites::of(BLOCK_LABELS, || sent = robot.send(BLOCK_LABELS));
    sent.map(|()| text)
}

fn per_label(blocks: &[Counts]) -> BTreeMap<&'static str, f64> {
    let median = |at: usize| {
        let mut counts: Vec<_> = blocks.iter().map(|block| block[at]).collect();
        counts.sort_unstable();
        counts[counts.len() / 2] as f64 / BLOCK_LABELS as f64
    };
    NAMES.iter().enumerate().map(|(at, name)| (*name, median(at))).collect()
}

/// How often a label passed each stage, and what half of them took there at most.
fn passed(before: &[Series], after: &[Series], labels: u64) -> BTreeMap<&'static str, Value> {
    let one = |before: &Series, after: &Series| {
        let count = after.count - before.count;
        json!({ "per_label": count as f64 / labels as f64, "us_p50": us_p50(before, after) })
    };
    before.iter().zip(after).map(|(b, a)| (a.stage, one(b, a))).collect()
}

fn us_p50(before: &Series, after: &Series) -> u64 {
    let earlier: BTreeMap<_, _> = before.counts.iter().copied().collect();
    let mut left = (after.count - before.count).div_ceil(2);
    for (upper_us, count) in &after.counts {
        let grown = count - earlier.get(upper_us).copied().unwrap_or_default();
        if grown >= left {
            return *upper_us;
        }
        left -= grown;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_in_one_block_is_no_cost_of_a_label() {
        let mut blocks = vec![[40 * 3, 0, 0, 0, 0, 0, 0]; 5];
        blocks[1][0] += 7;
        blocks[3][2] = 1;
        let found = per_label(&blocks);
        assert_eq!((found["allocations"], found["file_syncs"]), (3.0, 0.0));
    }

    #[test]
    fn a_stage_is_judged_by_what_was_observed_since() {
        let series = |counts: &[(u64, u64)]| Series {
            stage: "journal",
            count: counts.iter().map(|(_, count)| count).sum(),
            sum_us: 0,
            counts: counts.to_vec(),
        };
        let before = series(&[(1, 100), (7, 1)]);
        let after = series(&[(1, 101), (7, 3), (9, 1)]);
        let found = passed(&[before], &[after], 4);
        assert_eq!(found["journal"], json!({ "per_label": 1.0, "us_p50": 7 }));
    }
}
