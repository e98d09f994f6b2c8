//! When the threads that run models are woken: once for the rows that a thread puts in line in a
//! go.
//!
//! A thread of the transport takes in several calls before it rests. If it woke a model's thread
//! for the first of them, that row would run alone, and the others in a run of their own; each run
//! has its wake-up and its fixed costs. So a thread that is busy gathers its wakes until it rests,
//! and never for long: for a few rows, and for a few turns of its work. One that takes in few rows
//! between two rests wakes at once, so that the model runs beside what is left to do; so does any
//! other thread.

use std::{cell::RefCell, sync::Arc};

use parking_lot::Condvar;

/// Rows between two rests that make a thread busy.
const BUSY_ROWS: u32 = 4;
/// Rows that do not wait for the thread's rest any longer.
const ROWS_MAX: u32 = 16;
/// Turns of other work that a row may wait for.
const TURNS_MAX: u32 = 8;

struct Gathered {
    gathers: bool,
    /// As the rows since its last rest tell, or those before it.
    busy: bool,
    since_rest: u32,
    wakes: Vec<Arc<Condvar>>,
    rows: u32,
    turns: u32,
}

impl Gathered {
    const fn new(gathers: bool) -> Self {
        Self { gathers, busy: false, since_rest: 0, wakes: Vec::new(), rows: 0, turns: 0 }
    }

    fn row(&mut self, ready: &Arc<Condvar>) {
        self.since_rest = self.since_rest.saturating_add(u32::from(self.gathers));
        self.busy |= self.since_rest >= BUSY_ROWS;
        if !self.busy {
            ready.notify_one();
            return;
        }
        if !self.wakes.iter().any(|known| Arc::ptr_eq(known, ready)) {
            self.wakes.push(ready.clone());
        }
        self.rows += 1;
        if self.rows >= ROWS_MAX {
            self.wake();
        }
    }

    fn turn(&mut self) {
        self.turns += u32::from(!self.wakes.is_empty());
        if self.turns >= TURNS_MAX {
            self.wake();
        }
    }

    fn rest(&mut self) {
        if self.since_rest > 0 {
            self.busy = self.since_rest >= BUSY_ROWS;
            self.since_rest = 0;
        }
        self.wake();
    }

    fn wake(&mut self) {
        (self.rows, self.turns) = (0, 0);
        for ready in self.wakes.drain(..) {
            ready.notify_one();
        }
    }
}

thread_local! {
    static GATHERED: RefCell<Gathered> = const { RefCell::new(Gathered::new(false)) };
}

/// From now on this thread gathers its wakes: it has to say when it ends a turn, and when it rests.
pub fn gather() {
    GATHERED.with_borrow_mut(|gathered| gathered.gathers = true);
}

/// A row stands in line: whoever waits on `ready` is woken, now or soon.
pub fn row(ready: &Arc<Condvar>) {
    GATHERED.with_borrow_mut(|gathered| gathered.row(ready));
}

/// This thread has ended a turn of its work.
pub fn turn() {
    GATHERED.with_borrow_mut(Gathered::turn);
}

/// This thread has nothing to do, and rests.
pub fn rest() {
    GATHERED.with_borrow_mut(Gathered::rest);
}

/// What this thread does next takes long: rows in line do not wait for it.
pub fn now() {
    GATHERED.with_borrow_mut(Gathered::wake);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Gathered {
        let mut gathered = Gathered::new(true);
        (0..BUSY_ROWS).for_each(|_| gathered.row(&Arc::default()));
        gathered.rest();
        gathered
    }

    #[test]
    fn a_thread_is_busy_by_its_rows_between_two_rests() {
        let mut gathered = Gathered::new(true);
        let mut period = |rows: u32| {
            (0..rows).for_each(|_| gathered.row(&Arc::default()));
            gathered.rest();
            gathered.busy
        };
        let periods = [BUSY_ROWS - 1, BUSY_ROWS, 0, 10 * BUSY_ROWS, 0, 1, 0];
        let busy = periods.map(&mut period);
        assert_eq!(busy, [false, true, true, true, true, false, false]);
    }

    #[test]
    fn each_model_is_woken_once_for_its_rows() {
        let mut gathered = busy();
        let models = [Arc::default(), Arc::default()];
        (0..3).for_each(|_| models.iter().for_each(|ready| gathered.row(ready)));
        assert_eq!(gathered.wakes.len(), 2);
        gathered.wake();
        assert!(gathered.wakes.is_empty());
    }

    #[test]
    fn a_row_waits_for_few_others_and_few_turns() {
        let (mut gathered, ready) = (busy(), Arc::default());
        for _ in 0..3 {
            (1..ROWS_MAX).for_each(|_| gathered.row(&ready));
            assert_eq!(gathered.wakes.len(), 1);
            gathered.row(&ready);
            assert!(gathered.wakes.is_empty(), "with {ROWS_MAX} rows");
            // Turns without a row in line are not counted.
            gathered.turn();
            gathered.row(&ready);
            (1..TURNS_MAX).for_each(|_| gathered.turn());
            assert_eq!(gathered.wakes.len(), 1);
            gathered.turn();
            assert!(gathered.wakes.is_empty(), "after {TURNS_MAX} turns");
        }
    }

    #[test]
    fn a_thread_that_does_not_gather_wakes_at_once() {
        let mut gathered = Gathered::new(false);
        (0..2 * BUSY_ROWS).for_each(|_| gathered.row(&Arc::default()));
        gathered.rest();
        gathered.row(&Arc::default());
        assert!(gathered.wakes.is_empty());
    }
}
