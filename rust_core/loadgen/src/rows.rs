//! The rows that are sent: made up on the way, or fed by a producer through a bounded queue.
//!
//! A producer waits where the queue is full; the sender never does: it is told that a row is late.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::{
    error::{Error, Result},
    plan::Plan,
};

/// Rows that wait at once, at most; as many ticks of the whole fleet where those are more.
const WAITING_ROWS: usize = 16_384;
const WAITING_TICKS: usize = 4;
const WAITING_BYTES_MAX: usize = 64 << 20;

/// One row, reused.
#[derive(Debug, Default, PartialEq)]
pub struct Row {
    /// The payload.
    pub values: Vec<f32>,
    /// Index of the right label in the plan's, −1 where nobody knows.
    pub truth: i16,
    /// Index of the item in the plan's, −1 for none.
    pub sku: i16,
}

/// What a look into the queue brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The row is filled.
    Row,
    /// It has not come yet.
    Late,
    /// None will come any more.
    Ended,
}

/// Where rows come from.
pub enum Source {
    /// Made up.
    Synthetic(Synthetic),
    /// From `Feed`.
    Fed(std::sync::Arc<Feed>),
}

impl Source {
    /// Fills the row of event `k`; fed rows come in order, and each is taken once.
    pub fn take(&self, k: u64, row: &mut Row) -> Taken {
        match self {
            Self::Synthetic(synthetic) => {
                synthetic.fill(k, row);
                Taken::Row
            }
            Self::Fed(feed) => feed.take(row),
        }
    }
}

/// Rows of plausible ranges (0.40 to 4.99), the same for the same event in every run.
pub struct Synthetic {
    cycle: Vec<f32>,
    robots: u64,
    width: usize,
}

impl Synthetic {
    /// For robots that take turns.
    pub fn new(robots: u32, width: u32) -> Self {
        let cycle = (0..460_u16).map(|i| 0.4 + f32::from(i) / 100.0).collect();
        Self { cycle, robots: robots.into(), width: width as usize }
    }

    fn fill(&self, k: u64, row: &mut Row) {
        let (tick, robot) = (k / self.robots, k % self.robots);
        let length = self.cycle.len();
        let mut at = ((tick * 31 + robot) % length as u64) as usize;
        row.values.clear();
        for _ in 0..self.width {
            row.values.push(self.cycle[at]);
            at = (at + 7) % length;
        }
        (row.truth, row.sku) = (-1, -1);
    }
}

/// The bounded queue between a producer and the sender.
pub struct Feed {
    queue: Mutex<Queue>,
    room: Condvar,
    came: Notify,
    width: usize,
    rows_max: usize,
    labels: usize,
    skus: usize,
}

#[derive(Default)]
struct Queue {
    groups: VecDeque<Group>,
    rows: usize,
    ended: bool,
    closed: bool,
}

struct Group {
    values: Vec<f32>,
    truths: Vec<i16>,
    skus: Vec<i16>,
    next: usize,
}

impl Feed {
    /// For rows of the plan's width.
    pub fn new(plan: &Plan) -> Self {
        let width = plan.width as usize;
        let rows = WAITING_ROWS.max(plan.robots as usize * WAITING_TICKS);
        Self {
            queue: Mutex::default(),
            room: Condvar::new(),
            came: Notify::new(),
            width,
            rows_max: rows.min(WAITING_BYTES_MAX / (4 * width)).max(1),
            labels: plan.labels.len(),
            skus: plan.skus.len(),
        }
    }

    /// Adds rows; waits for room. A group larger than the queue waits until that is empty. Once the
    /// run is over, or `end` was called, they are dropped.
    ///
    /// `values`: little-endian float32, `width` a row; `truths`, `skus`: int16, one a row (`skus`
    /// may be empty). Errors: `Invalid` names what does not fit, and nothing was added.
    pub fn add(&self, values: &[u8], truths: &[u8], skus: &[u8]) -> Result<()> {
        let row_bytes = 4 * self.width;
        if !values.len().is_multiple_of(row_bytes) {
            let expected = format!("a multiple of {row_bytes}: {} float32 a row", self.width);
            return Err(Error::invalid("values", bytes(values), expected));
        }
        let rows = values.len() / row_bytes;
        let truths = indices("truths", truths, rows, self.labels)?;
        let skus =
            if skus.is_empty() { Vec::new() } else { indices("skus", skus, rows, self.skus)? };
        if rows == 0 {
            return Ok(());
        }
        let values = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut queue = self.queue.lock();
        while queue.rows > 0 && queue.rows + rows > self.rows_max && !queue.closed {
            self.room.wait(&mut queue);
        }
        if !queue.ended && !queue.closed {
            queue.rows += rows;
            queue.groups.push_back(Group { values, truths, skus, next: 0 });
            drop(queue);
            self.came.notify_one();
        }
        Ok(())
    }

    /// Says that no more rows come.
    pub fn end(&self) {
        self.queue.lock().ended = true;
        self.came.notify_one();
    }

    /// Lets every producer go: the run is over.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.room.notify_all();
    }

    /// Returns when rows may have come since the last look.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    fn take(&self, row: &mut Row) -> Taken {
        let mut queue = self.queue.lock();
        let Some(group) = queue.groups.front_mut() else {
            return if queue.ended { Taken::Ended } else { Taken::Late };
        };
        let at = group.next;
        row.values.clear();
        row.values.extend_from_slice(&group.values[at * self.width..][..self.width]);
        row.truth = group.truths[at];
        row.sku = group.skus.get(at).copied().unwrap_or(-1);
        group.next += 1;
        if group.next == group.truths.len() {
            queue.groups.pop_front();
            self.room.notify_all();
        }
        queue.rows -= 1;
        Taken::Row
    }
}

fn bytes(what: &[u8]) -> String {
    format!("{} bytes", what.len())
}

fn indices(field: &str, written: &[u8], rows: usize, names: usize) -> Result<Vec<i16>> {
    if written.len() != 2 * rows {
        let expected = format!("{} bytes: one int16 for each of {rows} rows", 2 * rows);
        return Err(Error::invalid(field, bytes(written), expected));
    }
    let indices: Vec<i16> =
        written.as_chunks::<2>().0.iter().map(|b| i16::from_le_bytes(*b)).collect();
    // Without names there is nothing that an index could miss.
    let known = |index: &i16| names == 0 || *index < names as i16;
    match indices.iter().position(|index| *index < -1 || !known(index)) {
        None => Ok(indices),
        Some(at) => {
            let expected =
                format!("-1 to {}", if names == 0 { i16::MAX } else { names as i16 - 1 });
            Err(Error::invalid(format!("{field}[{at}]"), indices[at], expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed() -> Feed {
        let plan = r#"{"address": "a:1", "robots": 2, "width": 2, "rows": "fed", "duration_s": 1,
            "labels": ["x", "y"], "skus": ["s"],
            "schedule": {"shape": "constant", "rate_per_s": 1}}"#;
        Feed::new(&Plan::from_json(plan).unwrap())
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn shorts(values: &[i16]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn rows_come_out_once_in_the_order_they_went_in() {
        let feed = feed();
        feed.add(&floats(&[1.0, 2.0, 3.0, 4.0]), &shorts(&[1, -1]), &shorts(&[0, -1])).unwrap();
        feed.add(&floats(&[5.0, 6.0]), &shorts(&[0]), &[]).unwrap();
        let mut rows = Vec::new();
        let mut row = Row::default();
        while feed.take(&mut row) == Taken::Row {
            rows.push((row.values.clone(), row.truth, row.sku));
        }
        let expected = [(vec![1.0, 2.0], 1, 0), (vec![3.0, 4.0], -1, -1), (vec![5.0, 6.0], 0, -1)];
        assert_eq!(rows, expected);
        assert_eq!(feed.take(&mut row), Taken::Late);
        feed.end();
        assert_eq!(feed.take(&mut row), Taken::Ended);
    }

    #[test]
    fn a_group_that_does_not_fit_is_refused_by_name() {
        let two = floats(&[1.0, 2.0]);
        let refused =
            |values: &[u8], truths: &[u8], skus: &[u8]| match feed().add(values, truths, skus) {
                Err(Error::Invalid { field, .. }) => field,
                other => panic!("{other:?}"),
            };
        assert_eq!(refused(&[0; 7], &[], &[]), "values");
        assert_eq!(refused(&two, &[], &[]), "truths");
        assert_eq!(refused(&two, &shorts(&[2]), &[]), "truths[0]");
        assert_eq!(refused(&two, &shorts(&[0]), &[0]), "skus");
        assert_eq!(refused(&two, &shorts(&[0]), &shorts(&[-2])), "skus[0]");
    }

    #[test]
    fn a_producer_waits_while_the_queue_is_full_and_is_let_go_at_the_end() {
        let feed = feed();
        let group = vec![0; 8 * feed.rows_max];
        let truths = vec![0; 2 * feed.rows_max];
        feed.add(&group, &truths, &[]).unwrap();
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| feed.add(&group, &truths, &[]));
            // It can end in no other way: nobody takes a row.
            feed.close();
            assert_eq!(producer.join().unwrap(), Ok(()));
        });
        assert_eq!(feed.queue.lock().rows, feed.rows_max);
    }
}
