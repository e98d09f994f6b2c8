//! One history: a journal on the faulty disk, the model beside it, and what may happen to them.
//!
//! Everything is drawn from one seed; no thread, no real clock, no real file.

use super::model::Model;
use super::*;
use crate::journal::faulty::Random;
use crate::journal::segment::record_bytes_max;

/// A life of the journal: from its opening to a crash or its close.
pub(super) struct Life {
    pub(super) hand: Hand,
    pub(super) held: Vec<(usize, Reservation)>,
    /// The committer's terminal error.
    pub(super) ended: Option<Error>,
}

type News = Arc<Mutex<Vec<(u64, Result<u64>)>>>;

pub(super) struct World {
    pub(super) random: Random,
    pub(super) files: FaultyFiles,
    pub(super) config: JournalConfig,
    pub(super) life: Option<Life>,
    pub(super) model: Model,
    /// What was done so far, for whoever reads a failure.
    pub(super) acts: Vec<String>,
    pub(super) flips: flips::Flips,
    pub(super) news: News,
    /// The last life ended such that nothing of the log may be cut.
    pub(super) whole: bool,
    /// A sync failed once: what the page cache shows may differ from the disk ever after.
    pub(super) spoiled: bool,
    pub(super) full: bool,
}

impl World {
    pub(super) fn new(files: FaultyFiles, seed: u64) -> World {
        let mut random = Random(seed);
        let mut world = World {
            config: some_config(&mut random),
            random,
            files,
            life: None,
            model: Model::default(),
            acts: Vec::new(),
            flips: flips::Flips::default(),
            news: News::default(),
            whole: true,
            spoiled: false,
            full: false,
        };
        world.open();
        world
    }

    pub(super) fn note(&mut self, act: String) {
        self.acts.push(act);
    }

    pub(super) fn hand(&mut self) -> &mut Hand {
        &mut self.life.as_mut().expect("it is open").hand
    }

    pub(super) fn act(&mut self) {
        match self.random.below(100) {
            0..24 => self.append(),
            24..28 => self.reserve(),
            28..36 => self.step(),
            36..50 => self.settle(),
            50..56 => self.pass(),
            56..66 => self.take(),
            66..78 => self.confirm(),
            78..80 => self.flood(),
            80..82 => self.confirm_most(),
            82..86 => self.change_disk(),
            86..88 => self.inspect(),
            88..90 => {
                self.close();
                self.maybe_flip();
                self.open();
            }
            90..93 => self.crash_between_steps(),
            93..97 => self.crash_during_steps(),
            _ => self.fail_during_steps(),
        }
        self.check();
    }

    pub(super) fn check(&mut self) {
        let bound = self.config.disk_bytes_max;
        let peak = self.files.bytes_peak(Path::new(DIRECTORY));
        assert!(peak <= bound, "{peak} bytes on disk, {bound} allowed");
        let stats = self.hand().journal.stats();
        self.model.durable_to(stats.durable_number);
        let terminal = self.life.as_ref().is_some_and(|life| life.ended.is_some());
        let news = std::mem::take(&mut *self.news.lock().unwrap());
        for (call, result) in news {
            self.model.told(call, result, terminal);
        }
        self.model.accounts(&stats, terminal);
        assert!(stats.uncommitted_bytes <= self.config.memory_bytes_max);
        assert!(stats.disk_bytes <= bound);
    }

    fn bodies(&mut self) -> Vec<Vec<u8>> {
        let most = record_bytes_max(self.config.segment_bytes);
        let rows = match self.random.below(12) {
            0 => 0,
            1 => 1 + self.random.below(25),
            _ => 1 + self.random.below(5),
        };
        let mut bodies = Vec::new();
        for _ in 0..rows {
            let size = match self.random.below(10) {
                0 => most,
                1..4 => self.random.below(most),
                _ => self.random.below(300.min(most)),
            };
            let tag = self.random.number().to_le_bytes();
            bodies.push(tag.repeat(size.div_ceil(8) as usize)[..size as usize].to_vec());
        }
        bodies
    }

    fn append(&mut self) {
        let bodies = self.bodies();
        let awaited = self.random.below(10) < 7;
        self.append_bodies(bodies, Vec::new(), awaited);
    }

    /// Appends; true if it was accepted. What was reserved is always accepted.
    fn append_bodies(
        &mut self,
        bodies: Vec<Vec<u8>>,
        reservations: Vec<Reservation>,
        awaited: bool,
    ) -> bool {
        let (news, call) = (Arc::clone(&self.news), self.model.next_call());
        let done: Done = Box::new(move |result| news.lock().unwrap().push((call, result)));
        let reserved = !reservations.is_empty() || bodies.is_empty();
        let sizes: Vec<usize> = bodies.iter().map(Vec::len).collect();
        let journal = &self.hand().journal;
        let result = if awaited {
            journal.append(bodies.clone(), reservations, done)
        } else {
            journal.append_unawaited(bodies.clone(), reservations, done)
        };
        self.note(format!("append {sizes:?} awaited {awaited} reserved {reserved}: {result:?}"));
        match result {
            Ok(first) => drop(self.model.appended(first, bodies)),
            Err(Error::Overloaded { retry_after, .. }) if !reserved => {
                assert!(retry_after > Duration::ZERO);
                return false;
            }
            Err(error) => panic!("an append was refused: {error}"),
        }
        true
    }

    /// Appends until it is refused, committing as it goes.
    fn flood(&mut self) {
        let size = 100 + self.random.below(record_bytes_max(self.config.segment_bytes) - 100);
        for round in 0..300 {
            if !self.append_bodies(vec![vec![round as u8; size as usize]], Vec::new(), true) {
                self.settle();
                let bodies = vec![vec![round as u8; size as usize]];
                if !self.append_bodies(bodies, Vec::new(), true) {
                    return;
                }
            }
        }
    }

    /// The store takes all but a few.
    fn confirm_most(&mut self) {
        let few = self.random.below(4);
        let mut numbers = self.model.pending();
        for _ in 0..few.min(numbers.len() as u64) {
            numbers.remove(self.random.below(numbers.len() as u64) as usize);
        }
        self.confirm_numbers(&numbers, Outcome::Stored);
    }

    /// Takes room now and uses it later, or gives it back.
    fn reserve(&mut self) {
        let size = self.random.below(record_bytes_max(self.config.segment_bytes) + 1) as usize;
        let refused = record_bytes_max(self.config.segment_bytes) as usize + 1;
        let choice = self.random.below(3);
        let life = self.life.as_mut().expect("it is open");
        let room = life.hand.journal.reserve(refused);
        assert!(matches!(room, Err(Error::Invalid { field: "record", .. })));
        if choice == 0 || life.held.is_empty() {
            let room = life.hand.journal.reserve(size);
            self.acts.push(format!("reserve {size}: {:?}", room.as_ref().err()));
            life.held.extend(room.ok().map(|room| (size, room)));
            return;
        }
        let (size, room) = life.held.remove(0);
        if choice == 1 {
            let awaited = self.random.below(2) == 0;
            self.append_bodies(vec![vec![7; size]], vec![room], awaited);
        }
    }

    fn step(&mut self) {
        let steps = 1 + self.random.below(4);
        self.note(format!("step {steps}"));
        for _ in 0..steps {
            let hand = self.hand();
            match hand.committer.step().expect("nothing breaks") {
                Next::Again => {}
                Next::Sleep(until) => {
                    let now = hand.clock.now();
                    let soon = now + Duration::from_millis(50);
                    let until = until.unwrap_or(soon).clamp(now, soon);
                    hand.clock.advance(until - now);
                }
                Next::Ended => panic!("it ended by itself"),
            }
        }
    }

    fn settle(&mut self) {
        self.note("settle".into());
        self.hand().settle().expect("nothing breaks");
        self.check();
        let now = self.hand().clock.now();
        self.model.confirmations_are_durable(now);
    }

    fn pass(&mut self) {
        let time = Duration::from_millis(100 + self.random.below(2400));
        self.pass_for(time);
    }

    pub(super) fn pass_for(&mut self, time: Duration) {
        self.note(format!("pass {time:?}"));
        self.hand().pass(time).expect("nothing breaks");
        self.at_rest();
    }

    /// Everything appended is durable, and every confirmation that had its time.
    pub(super) fn at_rest(&mut self) {
        self.check();
        let now = self.hand().clock.now();
        self.model.confirmations_are_durable(now);
        self.model.nobody_waits();
    }

    fn take(&mut self) {
        let rows_max = 1 + self.random.below(20) as usize;
        let bytes_max = self.random.below(6000) as usize;
        let breaks = self.random.below(6) == 0;
        if breaks {
            let reads = self.random.below(3);
            self.files.set_faults(|faults| faults.reads_until_failure = Some(reads));
        }
        let taken = self.hand().journal.take(rows_max, bytes_max, Duration::ZERO);
        self.files.set_faults(|faults| faults.reads_until_failure = None);
        let rows = taken.as_ref().map(Vec::len);
        self.note(format!("take {rows_max} rows {bytes_max} bytes: {rows:?}"));
        match taken {
            // Less than there is, if the disk could not be read on; never anything else.
            Ok(taken) if breaks => {
                self.model.taken(&taken, taken.len(), usize::MAX);
                self.take_after_a_break();
            }
            Ok(taken) => self.model.taken(&taken, rows_max, bytes_max),
            Err(Error::Disk { operation: "read", .. }) if breaks => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// What broke a call that had rows to hand out is told by the next call, once.
    fn take_after_a_break(&mut self) {
        let taken = self.hand().journal.take(1, usize::MAX, Duration::ZERO);
        self.note(format!("take 1 row: {taken:?}"));
        match taken {
            Ok(taken) => self.model.taken(&taken, 1, usize::MAX),
            Err(Error::Disk { operation: "read", .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn confirm(&mut self) {
        let pending = self.model.pending();
        let start = self.random.below(pending.len() as u64 + 1) as usize;
        let rows = 1 + self.random.below(40) as usize;
        let every = 1 + self.random.below(3) as usize;
        let mut numbers: Vec<u64> =
            pending.into_iter().skip(start / 2).step_by(every).take(rows).collect();
        if self.random.below(10) == 0 {
            numbers.extend([0, self.random.number(), numbers.first().copied().unwrap_or(1)]);
        }
        let outcomes = [Outcome::Stored, Outcome::Stored, Outcome::Superseded, Outcome::Dead];
        let outcome = outcomes[self.random.below(4) as usize];
        self.confirm_numbers(&numbers, outcome);
    }

    pub(super) fn confirm_numbers(&mut self, numbers: &[u64], outcome: Outcome) {
        self.note(format!("confirm {numbers:?} {outcome:?}"));
        let hand = self.hand();
        hand.journal.confirm(numbers, outcome);
        let now = hand.clock.now();
        self.model.confirmed(numbers, outcome, now);
    }

    /// Short writes begin or end; the disk fills up beside us, or somebody frees space.
    fn change_disk(&mut self) {
        match self.random.below(4) {
            0 => {
                // A kill tears no page, so no write ends within a copy of a segment's header.
                let most = 512 * (1 + self.random.below(4)) as usize;
                self.note(format!("writes take at most {most} bytes"));
                self.files.set_faults(|faults| faults.write_bytes_max = Some(most));
            }
            1 => {
                let free = self.random.below(30_000);
                self.note(format!("the disk has {free} bytes left"));
                self.files.set_faults(|faults| faults.free_bytes = Some(free));
                self.full = true;
            }
            _ => self.mend_disk(),
        }
    }

    pub(super) fn mend_disk(&mut self) {
        self.note("the disk is well".into());
        self.files.set_faults(|faults| *faults = faults.mended());
        self.full = false;
    }

    /// Another process looks: what it sees is whole.
    fn inspect(&mut self) {
        self.note("inspect".into());
        let report = verify(Path::new(DIRECTORY), &self.files).unwrap();
        assert!(report.whole || self.flips.any(), "{report:?}");
        assert_eq!(report.tail_bytes, 0, "{report:?}");
        let stats = self.hand().journal.stats();
        assert!(report.pending >= stats.pending, "confirmations travel later, never earlier");
        assert_eq!(report.next_number, stats.durable_number.max(report.next_number));
    }

    /// The end of every history: on a disk that is well all is delivered, and there is room again.
    pub(super) fn end(&mut self) {
        self.mend_disk();
        self.life.as_mut().expect("it is open").held.clear();
        self.pass_for(Duration::from_millis(2500));
        let taken = self.hand().journal.take(usize::MAX, usize::MAX, Duration::ZERO).unwrap();
        self.model.taken(&taken, usize::MAX, usize::MAX);
        let pending = self.model.pending();
        self.confirm_numbers(&pending, Outcome::Stored);
        self.pass_for(Duration::from_secs(5));
        assert!(self.append_bodies(vec![vec![1; 200]], Vec::new(), true), "it is full for good");
        self.settle();
        self.close();
        self.open();
        assert_eq!(self.model.pending().len(), 1, "what was confirmed is gone, the last is there");
    }
}

pub(super) const SEGMENT_SIZES: [u64; 4] = [8192, 12288, 16384, 32768];

fn some_config(random: &mut Random) -> JournalConfig {
    let mut of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
    let reserve_bytes = of(&[1024, 4096]);
    JournalConfig {
        directory: PathBuf::from(DIRECTORY),
        segment_bytes: of(&SEGMENT_SIZES),
        disk_bytes_max: of(&[4, 5, 8]) * 32768 + reserve_bytes,
        memory_bytes_max: of(&[6000, 20_000, 1 << 20]),
        commit_gap_us_min: of(&[0, 1000, 5000]),
        copy_forward_live_pct: of(&[0, 30, 90]) as u8,
        reserve_bytes,
        pending_age_ms_max: 0,
    }
}
