//! Random histories against a model: nothing acknowledged is lost, nothing confirmed on disk comes
//! back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Append(Vec<u16>),
    Settle,
    Pass(u16),
    Take(u8),
    Confirm(u8, u8),
    Kill,
    Cut(u64),
    CutDuring(u8, u64),
    Close,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => proptest::collection::vec(0_u16..1400, 1..6).prop_map(Act::Append),
        6 => Just(Act::Settle),
        3 => (1_u16..2500).prop_map(Act::Pass),
        4 => (1_u8..20).prop_map(Act::Take),
        8 => (any::<u8>(), 1_u8..30).prop_map(|(from, rows)| Act::Confirm(from, rows)),
        1 => Just(Act::Kill),
        1 => any::<u64>().prop_map(Act::Cut),
        2 => (0_u8..40, any::<u64>()).prop_map(|(calls, seed)| Act::CutDuring(calls, seed)),
        1 => Just(Act::Close),
    ]
}

/// What must be true of each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Appended, not acknowledged: may be there after a crash.
    Appended,
    /// Acknowledged: must be there.
    Durable,
    /// Confirmed, and that is not known to be on disk: may be there after a crash.
    Confirmed,
    /// Confirmed, and that is on disk.
    Gone,
}

struct Model {
    files: FaultyFiles,
    hand: Option<Hand>,
    records: BTreeMap<u64, (Known, Vec<u8>)>,
    taken_to: u64,
    next_number: u64,
    filler: u8,
}

impl Model {
    fn hand(&mut self) -> &mut Hand {
        self.hand.as_mut().expect("it is open")
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Append(sizes) => self.append(&sizes),
            Act::Settle => {
                self.hand().settle().unwrap();
                self.acknowledge();
            }
            Act::Pass(milliseconds) => {
                self.hand().pass(Duration::from_millis(milliseconds.into())).unwrap();
                self.acknowledge();
                if milliseconds > 300 {
                    self.confirmations_are_durable();
                }
            }
            Act::Take(rows) => self.take(rows.into()),
            Act::Confirm(from, rows) => self.confirm(from.into(), rows.into()),
            Act::Kill => {
                self.hand = None;
                self.reopen();
            }
            Act::Cut(seed) => {
                self.hand = None;
                self.files.power_cut(seed);
                self.reopen();
            }
            Act::CutDuring(calls, seed) => self.cut_during(calls.into(), seed),
            Act::Close => {
                self.hand.take().expect("it is open").close();
                for (known, _) in self.records.values_mut() {
                    *known = if *known == Known::Appended { Known::Durable } else { *known };
                }
                self.confirmations_are_durable();
                self.reopen();
            }
        }
        let stats = self.hand().journal.stats();
        assert!(stats.disk_bytes <= config().disk_bytes_max);
    }

    fn append(&mut self, sizes: &[u16]) {
        let mut bodies = Vec::new();
        for size in sizes {
            self.filler = self.filler.wrapping_add(1);
            bodies.push(vec![self.filler; usize::from(*size)]);
        }
        let slices: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let Ok(first) = self.hand().append(&slices) else { return };
        assert_eq!(first, self.next_number, "numbers are consecutive");
        self.next_number = first + bodies.len() as u64;
        for (number, body) in (first..).zip(bodies) {
            self.records.insert(number, (Known::Appended, body));
        }
    }

    /// Everything that settled is durable, and every waiter was told so.
    fn acknowledge(&mut self) {
        for told in self.hand().told.lock().unwrap().drain(..) {
            told.unwrap();
        }
        for (known, _) in self.records.values_mut().filter(|(known, _)| *known == Known::Appended) {
            *known = Known::Durable;
        }
    }

    fn confirmations_are_durable(&mut self) {
        for (known, _) in self.records.values_mut().filter(|(known, _)| *known == Known::Confirmed)
        {
            *known = Known::Gone;
        }
    }

    fn take(&mut self, rows: usize) {
        let taken_to = self.taken_to;
        let taken = self.hand().journal.take(rows, 5000, Duration::ZERO).unwrap();
        let pending = self
            .records
            .iter()
            .filter(|(number, (known, _))| **number >= taken_to && *known == Known::Durable);
        let expected: Vec<(u64, Vec<u8>)> = pending
            .map(|(number, (_, body))| (*number, body.clone()))
            .take(taken.len().max(1))
            .collect();
        assert_eq!(taken, expected);
        if let Some((number, _)) = taken.last() {
            self.taken_to = number + 1;
        }
    }

    fn confirm(&mut self, from: usize, rows: usize) {
        let durable = self.records.iter_mut().filter(|(_, (known, _))| *known == Known::Durable);
        let mut some: Vec<_> = durable.collect();
        let start = from % some.len().max(1);
        let mut numbers = Vec::new();
        for (number, (known, _)) in some.iter_mut().skip(start).take(rows) {
            *known = Known::Confirmed;
            numbers.push(**number);
        }
        self.hand().journal.confirm(&numbers, Outcome::Stored);
    }

    fn cut_during(&mut self, calls: u64, seed: u64) {
        self.files.set_faults(|faults| faults.changes_until_cut = Some(calls));
        let _ = self.hand().pass(Duration::from_millis(400));
        let told = std::mem::take(&mut *self.hand().told.lock().unwrap());
        // An append that was told to be durable is, whatever happened after.
        for first in told.into_iter().flatten() {
            for (_, (known, _)) in self.records.range_mut(first..=first) {
                *known = if *known == Known::Appended { Known::Durable } else { *known };
            }
        }
        self.hand = None;
        self.files.power_cut(seed);
        self.reopen();
    }

    fn reopen(&mut self) {
        let hand = Hand::open(&self.files);
        assert!(hand.recovery.quarantined.is_empty(), "{:?}", hand.recovery);
        let mut there = BTreeMap::new();
        let mut see = |number, body: &[u8], pending| {
            if pending {
                there.insert(number, body.to_vec());
            }
        };
        hand.journal.scan(&mut see).unwrap();
        assert_eq!(there.len() as u64, hand.recovery.pending);
        for (number, (known, body)) in &self.records {
            match (known, there.get(number)) {
                (Known::Durable, None) => panic!("{number} is lost"),
                (Known::Gone, Some(_)) => panic!("{number} came back"),
                (_, Some(found)) => assert_eq!(found, body, "{number} is another"),
                (_, None) => {}
            }
        }
        let least = self.records.iter().filter(|(_, (known, _))| *known != Known::Appended);
        let least = least.map(|(number, _)| number + 1).max().unwrap_or(1);
        assert!(hand.recovery.next_number >= least, "numbers restart");
        let after = there.keys().next_back().map_or(1, |number| number + 1);
        assert!(hand.recovery.next_number >= after);
        self.records
            .retain(|number, (known, _)| *known == Known::Gone || there.contains_key(number));
        for (number, (known, _)) in &mut self.records {
            if there.contains_key(number) {
                *known = Known::Durable;
            }
        }
        self.next_number = hand.recovery.next_number;
        self.taken_to = 0;
        self.hand = Some(hand);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_what_was_acknowledged(acts in proptest::collection::vec(act(), 1..80)) {
        let files = FaultyFiles::new();
        let hand = Hand::open(&files);
        let mut model = Model {
            files,
            hand: Some(hand),
            records: BTreeMap::new(),
            taken_to: 0,
            next_number: 1,
            filler: 0,
        };
        for act in acts {
            model.act(act);
        }
        model.act(Act::Pass(1000));
        model.act(Act::Kill);
    }
}
