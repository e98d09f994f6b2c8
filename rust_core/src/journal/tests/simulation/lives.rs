//! How a life of the journal ends and the next begins: closes, kills, power cuts, disks that fail,
//! starts that are cut short themselves.
//!
//! After each start the model compares what was found with what was promised.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Life, SEGMENT_SIZES, World};
use super::*;

impl World {
    pub(super) fn close(&mut self) {
        self.note("close".into());
        let mut life = self.life.take().expect("it is open");
        // Closing has its own thread in the engine; here it only says that the end is wanted.
        life.hand.journal.close(Duration::ZERO).unwrap_err();
        while life.hand.committer.step().expect("nothing breaks") != Next::Ended {}
        life.hand.journal.close(Duration::ZERO).expect("it is closed");
        self.life = Some(life);
        self.check();
        self.model.closed();
        self.whole = true;
        self.life = None;
    }

    pub(super) fn crash_between_steps(&mut self) {
        self.whole = true;
        self.crash();
    }

    pub(super) fn crash_during_steps(&mut self) {
        let calls = self.random.below(40);
        self.note(format!("the power goes, or the process is killed, at change {calls}"));
        self.files.set_faults(|faults| faults.changes_until_cut = Some(calls));
        let ended = self.hand().pass(Duration::from_millis(400)).err();
        self.life.as_mut().expect("it is open").ended = ended;
        self.check();
        self.whole = false;
        self.crash();
    }

    /// One call fails; that is terminal, whatever works again afterwards.
    pub(super) fn fail_during_steps(&mut self) {
        let calls = self.random.below(20);
        let sync = self.random.below(2) == 0;
        self.note(format!("change {calls} fails, only syncs: {sync}"));
        self.files.set_faults(|faults| match sync {
            true => faults.syncs_until_failure = Some(calls / 4),
            false => faults.changes_until_failure = Some(calls),
        });
        let ended = self.hand().pass(Duration::from_millis(400)).err();
        let was_reached = ended.is_some();
        self.life.as_mut().expect("it is open").ended = ended;
        self.check();
        self.files.set_faults(|faults| {
            faults.changes_until_failure = None;
            faults.syncs_until_failure = None;
        });
        if was_reached {
            self.spoiled = true;
            self.failed_for_good();
            self.whole = false;
            self.crash();
        } else {
            self.at_rest();
        }
    }

    fn failed_for_good(&mut self) {
        self.model.nobody_waits();
        let life = self.life.as_mut().expect("it is open");
        let ended = life.ended.clone().expect("it has ended");
        assert!(matches!(ended, Error::Disk { .. }), "{ended}");
        life.held.clear();
        let journal = &life.hand.journal;
        let refused = journal.append(vec![vec![1]], Vec::new(), Box::new(|_| panic!("told")));
        let again =
            matches!(&refused, Err(Error::Overloaded { .. })) || refused == Err(ended.clone());
        assert!(again, "{refused:?}");
        assert_eq!(journal.take(1, 1, Duration::ZERO), Err(ended.clone()));
        assert_eq!(journal.close(Duration::ZERO), Err(ended));
    }

    /// Ends the process, and the power with it half of the time.
    fn crash(&mut self) {
        self.life = None;
        self.news.lock().unwrap().clear();
        if self.random.below(2) == 0 {
            let seed = self.random.number();
            self.note(format!("power cut {seed:#x}"));
            self.files.power_cut(seed);
            self.full = false;
        } else {
            self.note("kill".into());
            self.files.set_faults(|faults| faults.changes_until_cut = None);
        }
        self.maybe_flip();
        self.open();
    }

    pub(super) fn maybe_flip(&mut self) {
        if self.random.below(5) > 0 {
            return;
        }
        let World { flips, files, random, model, .. } = self;
        let Some((told, excused)) = flips.flip(files, random) else { return };
        model.excused.missing.extend(excused.missing);
        model.excused.back.extend(excused.back);
        self.note(told);
        self.whole = false;
    }

    /// Opens it, most of the time at once, sometimes after starts that were cut short themselves.
    pub(super) fn open(&mut self) {
        if self.random.below(6) == 0 {
            self.config.segment_bytes = SEGMENT_SIZES[self.random.below(4) as usize];
        }
        for _ in 0..2 {
            if self.random.below(6) == 0 && self.open_cut_short() {
                break;
            }
        }
        if self.life.is_none() {
            if self.full {
                self.mend_disk();
            }
            let hand = Hand::open_with(self.config.clone(), Arc::new(self.files.clone()));
            self.opened(hand.expect("nothing breaks"));
        }
    }

    /// A start on a disk that breaks; true if it got through.
    fn open_cut_short(&mut self) -> bool {
        let most = [4, 25][self.random.below(2) as usize];
        let calls = self.random.below(most);
        let kind = self.random.below(4);
        self.files.set_faults(|faults| match kind {
            0 | 1 => faults.changes_until_cut = Some(calls),
            2 => faults.changes_until_failure = Some(calls),
            _ => faults.reads_until_failure = Some(calls),
        });
        let hand = Hand::open_with(self.config.clone(), Arc::new(self.files.clone()));
        self.files.set_faults(|faults| {
            faults.changes_until_cut = None;
            faults.changes_until_failure = None;
            faults.reads_until_failure = None;
        });
        let error = hand.as_ref().err();
        self.note(format!("a start with fault {kind} at {calls}: {error:?}"));
        match hand {
            Ok(hand) => self.opened(hand),
            Err(error) => {
                assert!(matches!(error, Error::Disk { .. }), "{error}");
                self.whole = false;
                self.spoiled |= kind == 2;
                if kind == 0 {
                    self.files.power_cut(calls);
                    self.full = false;
                }
            }
        }
        self.life.is_some()
    }

    fn opened(&mut self, hand: Hand) {
        let recovery = &hand.recovery;
        self.acts.push(format!("opened, segments of {}: {recovery:?}", self.config.segment_bytes));
        self.flips.are_said(recovery, &self.files);
        let expected = self.whole && !self.spoiled;
        assert!(!expected || recovery.cut_bytes == 0, "a whole log was cut");
        let mut found = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let see = &mut |number, body: &[u8], pending| {
            if pending {
                assert!(seen.insert(number), "{number} is pending twice");
                found.insert(number, body.to_vec());
            }
        };
        hand.journal.scan(see).unwrap();
        assert_eq!(found.len() as u64, recovery.pending);
        self.model.reopened(found, recovery);
        self.life = Some(Life { hand, held: Vec::new(), ended: None });
        self.check();
    }
}
