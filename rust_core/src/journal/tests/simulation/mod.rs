//! Seeded simulation: whole histories of a journal on a faulty disk, each against a small model.
//!
//! Appends, commits, confirmations, crashes between and during any steps and starts, power cuts
//! that keep any subset of what was not synced, short writes, full disks, calls that fail, bytes
//! that flip. Replayed by its seed: `LABELER_TEST_SEED=N` begins with history N;
//! `LABELER_TEST_SCALE` multiplies their number.

mod flips;
mod lives;
mod model;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use world::World;

/// In `make test`: a few seconds.
const HISTORIES_QUICK: u64 = 300;
/// In `make test-slow`: about a minute.
const HISTORIES_FULL: u64 = 6000;
/// Of each history.
const ACTS_MAX: u64 = 120;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Says what a failing history was, and how to have it again.
struct Story {
    seed: u64,
    world: World,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let acts = &self.world.acts;
            let last = acts.len().saturating_sub(60);
            println!("{}", acts[last..].join("\n"));
            println!("history of {} acts; LABELER_TEST_SEED={}", acts.len(), self.seed);
        }
    }
}

/// One history; returns what was done and seen, act by act.
fn history(seed: u64) -> Vec<String> {
    history_on(FaultyFiles::new(), seed)
}

fn history_on(files: FaultyFiles, seed: u64) -> Vec<String> {
    let mut story = Story { seed, world: World::new(files, seed) };
    let acts = 10 + story.world.random.below(ACTS_MAX);
    for _ in 0..acts {
        story.world.act();
    }
    story.world.end();
    std::mem::take(&mut story.world.acts)
}

/// Other histories each time, unless a seed is given.
fn histories(count: u64) {
    let first = variable("LABELER_TEST_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        now.as_millis() as u64
    });
    println!("LABELER_TEST_SEED={first}");
    for seed in first..first + count * variable("LABELER_TEST_SCALE").unwrap_or(1) {
        history(seed);
    }
}

#[test]
fn every_history_keeps_what_was_promised() {
    histories(HISTORIES_QUICK);
}

#[test]
#[ignore = "full count: make test-slow"]
fn full_count_every_history_keeps_what_was_promised() {
    histories(HISTORIES_FULL);
}

#[test]
fn a_seed_replays_its_history() {
    for seed in 0..20 {
        assert!(history(seed) == history(seed), "seed {seed}");
    }
}

/// What a disk that lies costs is seen, and so would be a journal that does not ask it to sync.
#[test]
fn a_disk_whose_syncs_do_nothing_is_found_out() {
    let lies: [fn(&mut faulty::Faults); 2] =
        [|faults| faults.syncs_lie = true, |faults| faults.directory_syncs_lie = true];
    for lie in lies {
        let found = (0..200).find(|seed| {
            let files = FaultyFiles::new();
            files.set_faults(lie);
            let run = std::panic::AssertUnwindSafe(|| history_on(files, *seed));
            std::panic::catch_unwind(run).is_err()
        });
        assert!(found.is_some());
    }
}
