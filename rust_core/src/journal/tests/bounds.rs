//! Memory and disk stay bounded: admission, deletion, copying forward.

use super::*;
use crate::journal::format::Place;

/// Reserves, appends and commits one record; `None` if it is refused.
fn admit(hand: &mut Hand, body: &[u8]) -> Option<u64> {
    let reservation = match hand.journal.reserve(body.len()) {
        Ok(reservation) => reservation,
        Err(Error::Overloaded { retry_after, .. }) => {
            assert!(retry_after > Duration::ZERO);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let told = Arc::clone(&hand.told);
    let done = Box::new(move |result| told.lock().unwrap().push(result));
    hand.journal.append(vec![body.to_vec()], vec![reservation], done).unwrap();
    hand.settle().unwrap();
    Some(hand.told.lock().unwrap().pop().unwrap().unwrap())
}

fn disk_bytes(files: &FaultyFiles) -> u64 {
    let lengths = files.lengths();
    lengths.iter().filter(|(path, _)| !path.ends_with("lock")).map(|(_, bytes)| bytes).sum()
}

#[test]
fn the_bound_refuses_and_confirmations_still_free_space() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut numbers = Vec::new();
    while let Some(number) = admit(&mut hand, &[3; 200]) {
        numbers.push(number);
        assert!(disk_bytes(&files) <= config().disk_bytes_max);
    }
    assert!(numbers.len() > 150, "the disk is used: {}", numbers.len());
    assert!(hand.journal.stats().refused_total > 0);
    hand.pass(Duration::from_secs(5)).unwrap();
    let copied = hand.journal.stats().copied_total;
    hand.pass(Duration::from_secs(5)).unwrap();
    assert_eq!(hand.journal.stats().copied_total, copied, "a full journal is left in peace");
    // Confirmed one by one in the worst order: no two of them share a range.
    for half in [1, 0] {
        for number in numbers.iter().filter(|number| *number % 2 == half) {
            hand.journal.confirm(&[*number], Outcome::Stored);
        }
        hand.pass(Duration::from_millis(300)).unwrap();
    }
    hand.pass(Duration::from_secs(3)).unwrap();
    assert!(admit(&mut hand, &[3; 200]).is_some());
    assert!(disk_bytes(&files) <= config().disk_bytes_max);
    drop(hand);
    assert_eq!(Hand::open(&files).recovery.pending, 1);
}

#[test]
fn memory_is_bounded_until_the_commit() {
    let files = FaultyFiles::new();
    let small = JournalConfig { memory_bytes_max: 2000, ..config() };
    let mut hand = Hand::open_with(small, Arc::new(files)).unwrap();
    hand.append(&[&[1; 800]]).unwrap();
    hand.append(&[&[1; 800]]).unwrap();
    assert!(matches!(hand.append(&[&[1; 800]]), Err(Error::Overloaded { .. })));
    hand.settle().unwrap();
    hand.append(&[&[1; 800]]).unwrap();
}

#[test]
fn one_key_refused_for_ever_and_ten_times_the_bound_written_keeps_the_disk_bounded() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let bound = config().disk_bytes_max;
    let refused = hand.commit(&[b"the store never takes this"]);
    let mut written = 0;
    let mut most_segments = 0;
    while written < 10 * bound {
        let number = admit(&mut hand, &[4; 400]).expect("there is room");
        written += 400;
        assert!(disk_bytes(&files) <= bound);
        assert!(!hand.taken_numbers().contains(&refused) || number == refused + 1);
        hand.journal.confirm(&[number], Outcome::Stored);
        hand.pass(Duration::from_millis(50)).unwrap();
        most_segments = most_segments.max(hand.journal.stats().segments);
    }
    let stats = hand.journal.stats();
    assert_eq!(stats.pending, 1);
    assert!(stats.copied_total > 10 && stats.copied_total < 200, "{}", stats.copied_total);
    assert!(stats.live_bytes < 500);
    hand.pass(Duration::from_millis(300)).unwrap();
    drop(hand);
    files.power_cut(9);
    let hand = Hand::open(&files);
    assert_eq!(hand.take(), [(refused, b"the store never takes this".to_vec())]);
}

#[test]
fn ten_outages_until_the_bound_leave_no_more_than_the_first() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut after_first = None;
    for outage in 0..10 {
        let mut admitted = 0;
        while admit(&mut hand, &[outage; 300]).is_some() {
            admitted += 1;
        }
        let held = hand.journal.stats();
        assert!(held.live_bytes <= held.disk_bytes);
        assert!(disk_bytes(&files) <= config().disk_bytes_max);
        let numbers = hand.taken_numbers();
        assert_eq!(numbers.len(), admitted, "outage {outage}");
        hand.confirm(&numbers, Outcome::Stored);
        hand.pass(Duration::from_secs(3)).unwrap();
        let left = hand.journal.stats();
        assert_eq!((left.pending, left.live_bytes), (0, 0), "outage {outage}");
        let (records, bytes) = *after_first.get_or_insert((admitted, disk_bytes(&files)));
        assert!(disk_bytes(&files) <= bytes, "outage {outage} left more on disk");
        // What was left is the rest of one segment, and it does not add up.
        assert!(admitted * 10 >= records * 8, "outage {outage} had room for {admitted}");
    }
}

#[test]
fn stragglers_above_the_share_are_carried_when_the_bound_is_near() {
    let files = FaultyFiles::new();
    let never = JournalConfig { copy_forward_live_pct: 0, ..config() };
    let mut hand = Hand::open_with(never, Arc::new(files.clone())).unwrap();
    let mut kept = Vec::new();
    let mut refusals = 0;
    for round in 0..1500_u64 {
        match admit(&mut hand, &[5; 400]) {
            // One of thirty is never confirmed for a long time.
            Some(number) if round % 30 == 0 && kept.len() < 40 => kept.push(number),
            Some(number) => hand.journal.confirm(&[number], Outcome::Stored),
            None => refusals += 1,
        }
        hand.pass(Duration::from_millis(20)).unwrap();
        assert!(disk_bytes(&files) <= config().disk_bytes_max);
    }
    assert!(refusals < 300, "{refusals}");
    assert!(hand.journal.stats().copied_total >= 40);
    hand.pass(Duration::from_millis(300)).unwrap();
    drop(hand);
    assert_eq!(Hand::open(&files).taken_numbers(), kept);
}

#[test]
fn a_taken_record_that_is_copied_is_not_handed_out_again_in_this_life_but_in_the_next() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let first = hand.commit(&[b"straggler"]);
    assert_eq!(hand.taken_numbers(), [first]);
    while hand.journal.stats().copied_total == 0 {
        let number = admit(&mut hand, &[6; 400]).unwrap();
        hand.journal.confirm(&[number], Outcome::Stored);
        hand.pass(Duration::from_millis(100)).unwrap();
        assert!(hand.take().iter().all(|(number, _)| *number != first));
    }
    drop(hand);
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [first]);
    hand.confirm(&[first], Outcome::Stored);
    drop(hand);
    assert!(Hand::open(&files).take().is_empty());
}

#[test]
fn a_backlog_is_handed_out_by_number_though_copies_stand_later_in_the_log() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut kept = Vec::new();
    for round in 0..400_u64 {
        let Some(number) = admit(&mut hand, &[7; 300]) else { panic!("round {round}") };
        if round % 16 == 3 {
            kept.push((number, vec![7; 300]));
        } else {
            hand.journal.confirm(&[number], Outcome::Stored);
        }
        hand.pass(Duration::from_millis(50)).unwrap();
    }
    assert!(hand.journal.stats().copied_total > 10);
    hand.pass(Duration::from_millis(300)).unwrap();
    drop(hand);
    let hand = Hand::open(&files);
    let mut taken = Vec::new();
    loop {
        let rows = hand.journal.take(3, 800, Duration::ZERO).unwrap();
        if rows.is_empty() {
            break;
        }
        taken.extend(rows);
    }
    assert!(taken == kept, "other records or another order");
}

#[test]
fn a_record_confirmed_while_it_is_being_copied_does_not_come_back() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a", b"b"]);
    // Read for copying, then confirmed, then written.
    let copies = vec![(1, b"a".to_vec()), (2, b"b".to_vec())];
    hand.journal.confirm(&[1], Outcome::Stored);
    let now = hand.clock.now();
    hand.committer.commit(now, copies).unwrap();
    assert_eq!(hand.journal.stats().copied_total, 1);
    drop(hand);
    assert_eq!(Hand::open(&files).taken_numbers(), [2]);
}

#[test]
fn threads_that_append_take_and_confirm_lose_and_double_nothing() {
    const RECORDS: u64 = 6000;
    let files = FaultyFiles::new();
    let hand = Hand::open_with(config(), Arc::new(files.clone())).unwrap();
    let Hand { journal, committer, clock, .. } = hand;
    let running = std::thread::spawn(move || committer.run());
    let taker = journal.clone();
    let taking = std::thread::spawn(move || {
        let mut taken = Vec::new();
        while (taken.len() as u64) < RECORDS {
            let rows = taker.take(25, 1 << 20, Duration::from_secs(20)).unwrap();
            assert!(!rows.is_empty(), "it waits for ever");
            let numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
            let stored: Vec<u64> = numbers.iter().copied().filter(|n| n % 500 != 0).collect();
            taker.confirm(&stored, Outcome::Stored);
            taken.extend(numbers);
        }
        taken
    });
    let told = Arc::new(AtomicU64::new(0));
    let mut appended = 0;
    while appended < RECORDS {
        // Time runs as fast as the test does.
        clock.advance(Duration::from_millis(2));
        let Ok(reservation) = journal.reserve(100) else {
            std::thread::yield_now();
            continue;
        };
        let told = Arc::clone(&told);
        let done = Box::new(move |result: Result<u64>| {
            result.unwrap();
            told.fetch_add(1, Ordering::Relaxed);
        });
        journal.append(vec![vec![8; 100]], vec![reservation], done).unwrap();
        appended += 1;
    }
    while !taking.is_finished() {
        clock.advance(Duration::from_millis(2));
        std::thread::yield_now();
    }
    let taken = taking.join().unwrap();
    assert!(taken.iter().copied().eq(1..=RECORDS), "lost, doubled or out of order");
    journal.close(Duration::from_secs(20)).unwrap();
    running.join().unwrap().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), RECORDS);
    let expected: Vec<u64> = (1..=RECORDS).filter(|number| number % 500 == 0).collect();
    assert_eq!(Hand::open(&files).taken_numbers(), expected);
}

/// Fills a journal to its bound with groups of so many records; returns their numbers.
fn fill_with_groups(hand: &mut Hand, body: &[u8], rows: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok(first) = hand.append(&vec![body; rows]) {
        hand.settle().unwrap();
        numbers.extend(first..first + rows as u64);
    }
    numbers
}

/// What is admitted and what is pending find their room, whatever comes between.
fn assert_room_is_kept(hand: &Hand) {
    let committer = &hand.committer;
    let room = committer.tail.room(committer.waste_bytes());
    let kept = committer.shared.admission.charged() + committer.debt_bytes();
    assert!(room >= kept, "{room} bytes of room, {kept} are kept");
}

#[test]
fn copies_leave_the_room_of_what_is_admitted_on_a_disk_that_gives_no_further_segment() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    // One group fills a segment, so the slice that is copied is as long as a segment.
    let numbers = fill_with_groups(&mut hand, &[9; 900], 13);
    let mut held = Vec::new();
    while let Ok(reservation) = hand.journal.reserve(900) {
        held.push(reservation);
    }
    assert!(held.len() > 3, "{}", held.len());
    let full = |faults: &mut crate::journal::faulty::Faults| faults.free_bytes = Some(0);
    files.set_faults(full);
    // Two segments' worth is dead, but the oldest ones are full of live records.
    hand.journal.confirm(&numbers[39..], Outcome::Stored);
    for reservation in held {
        // What a deletion frees, somebody else takes.
        for _ in 0..30 {
            hand.clock.advance(Duration::from_millis(10));
            files.set_faults(full);
            hand.committer.step().unwrap();
            assert_room_is_kept(&hand);
        }
        hand.journal.append(vec![vec![9; 900]], vec![reservation], hand.done()).unwrap();
    }
    files.set_faults(full);
    hand.pass(Duration::from_secs(1)).unwrap();
    assert!(hand.journal.stats().copied_total > 0);
    let told = hand.told.lock().unwrap();
    assert!(told.iter().all(Result::is_ok), "{told:?}");
}

#[test]
fn confirmations_find_their_room_after_copies_though_segments_are_smaller_now() {
    let files = FaultyFiles::new();
    let large = JournalConfig { segment_bytes: 32768, disk_bytes_max: 32768 * 5, ..config() };
    let mut hand = Hand::open_with(large.clone(), Arc::new(files.clone())).unwrap();
    let mut numbers = fill_with_groups(&mut hand, &[9; 400], 60);
    numbers.extend(fill_with_groups(&mut hand, &[9; 400], 1));
    drop(hand);
    let small = JournalConfig { segment_bytes: 8192, ..large };
    let mut hand = Hand::open_with(small, Arc::new(files.clone())).unwrap();
    numbers.extend(fill_with_groups(&mut hand, &[9; 400], 1));
    hand.confirm(&numbers[60..140], Outcome::Stored);
    hand.pass(Duration::from_secs(3)).unwrap();
    numbers.drain(60..140);
    // No two of them share a range, and there are more than any room by chance holds.
    let every_second: Vec<u64> = numbers.iter().copied().step_by(2).collect();
    hand.journal.confirm(&every_second, Outcome::Stored);
    hand.close();
    let left: Vec<u64> = numbers.into_iter().skip(1).step_by(2).collect();
    assert_eq!(Hand::open(&files).taken_numbers(), left);
}

#[test]
fn who_appends_nothing_needs_no_room() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"one", b"two"]);
    files.set_faults(|faults| faults.free_bytes = Some(0));
    while hand.committer.tail.room_for(88).is_some() {
        let active = hand.committer.tail.active();
        let end = Place { segment: active.id, offset: active.end };
        hand.committer.cut_from(end).unwrap();
    }
    hand.journal.confirm(&[2], Outcome::Stored);
    hand.append(&[]).unwrap();
    hand.pass(Duration::from_millis(100)).unwrap();
    assert_eq!(*hand.told.lock().unwrap(), [Ok(3)]);
}

#[test]
fn confirmations_alone_wait_where_they_would_take_what_is_admitted() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut numbers = fill_with_groups(&mut hand, &[9; 40], 50);
    let held: Vec<_> = std::iter::from_fn(|| hand.journal.reserve(900).ok()).collect();
    assert!(held.len() > 1, "{}", held.len());
    let confirmable = numbers.len();
    files.set_faults(|faults| faults.free_bytes = Some(0));
    // Not one by one could all of them be confirmed in groups of their own.
    for number in numbers.iter().step_by(2) {
        hand.confirm(&[*number], Outcome::Stored);
        assert_room_is_kept(&hand);
    }
    for reservation in held {
        let first = hand.journal.append(vec![vec![9; 900]], vec![reservation], hand.done());
        numbers.push(first.unwrap());
    }
    hand.close();
    let taken = Hand::open(&files).taken_numbers();
    let expected = |at: &usize| at % 2 == 1 || *at >= confirmable;
    let expected: Vec<u64> = (0..numbers.len()).filter(expected).map(|at| numbers[at]).collect();
    assert_eq!(taken, expected);
}

#[test]
fn spares_from_a_time_of_smaller_segments_do_not_keep_it_full_for_good() {
    let files = FaultyFiles::new();
    let (reserve_bytes, disk_bytes_max) = (32768, 32768 * 5);
    let small = JournalConfig { segment_bytes: 8192, disk_bytes_max, reserve_bytes, ..config() };
    let mut hand = Hand::open_with(small.clone(), Arc::new(files.clone())).unwrap();
    let first = hand.commit(&[b"one"]);
    hand.pass(Duration::from_secs(1)).unwrap();
    drop(hand);
    let large = JournalConfig { segment_bytes: 32768, ..small };
    let mut hand = Hand::open_with(large, Arc::new(files.clone())).unwrap();
    hand.confirm(&[first], Outcome::Stored);
    hand.pass(Duration::from_secs(2)).unwrap();
    assert!(admit(&mut hand, &[1; 3000]).is_some(), "{:?}", hand.journal.stats());
    drop(hand);
    assert_eq!(Hand::open(&files).recovery.pending, 1);
}

#[test]
fn what_a_segment_end_split_off_waits_one_gap_more() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    while hand.committer.tail.active().end < 16384 - 1600 {
        hand.commit(&[&[1; 900]]);
    }
    let journal = hand.journal.clone();
    journal.append_unawaited(vec![vec![1; 1000]; 4], Vec::new(), hand.done()).unwrap();
    hand.clock.advance(Duration::from_millis(5));
    hand.committer.step().unwrap();
    assert!(hand.told.lock().unwrap().is_empty(), "the segment's end splits it");
    hand.clock.advance(Duration::from_millis(1));
    hand.committer.step().unwrap();
    assert_eq!(hand.told.lock().unwrap().len(), 1);
}

/// Whether a record of a robot, and one that may wait, would be let in now.
fn admits(hand: &Hand) -> (bool, bool) {
    (hand.journal.reserve(100).is_ok(), hand.journal.reserve_spare(100).is_ok())
}

#[test]
fn what_may_wait_is_shed_at_four_fifths_of_the_age_all_at_the_bound_until_the_store_is_back() {
    let aged = JournalConfig { pending_age_ms_max: 10_000, ..config() };
    let mut hand = Hand::open_with(aged, Arc::new(FaultyFiles::new())).unwrap();
    hand.pass(Duration::from_secs(100)).unwrap();
    assert_eq!(admits(&hand), (true, true), "nothing is pending");
    let first = hand.commit(&[b"oldest"]);
    hand.pass(Duration::from_secs(7)).unwrap();
    let second = hand.commit(&[b"younger"]);
    assert_eq!(admits(&hand), (true, true));
    hand.pass(Duration::from_secs(2)).unwrap();
    assert_eq!(admits(&hand), (true, false));
    hand.pass(Duration::from_secs(2)).unwrap();
    assert_eq!(admits(&hand), (false, false));
    let Err(error) = hand.journal.reserve(100) else { panic!("it is too old") };
    let said = error.to_string();
    for part in ["has waited 11", "journal.pending_age_ms_max, 10000 ms", "again in 1000 ms"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(hand.journal.stats().refused_total >= 3);
    hand.confirm(&[first], Outcome::Stored);
    assert_eq!(admits(&hand), (true, true), "the next one is 4 s old");
    hand.pass(Duration::from_secs(5)).unwrap();
    assert_eq!(admits(&hand), (true, false));
    hand.confirm(&[second], Outcome::Dead);
    assert_eq!(admits(&hand), (true, true));
}

#[test]
fn what_was_pending_at_the_start_is_as_old_as_the_process() {
    let files = FaultyFiles::new();
    let aged = JournalConfig { pending_age_ms_max: 10_000, ..config() };
    let mut hand = Hand::open_with(aged.clone(), Arc::new(files.clone())).unwrap();
    hand.commit(&[b"oldest"]);
    hand.pass(Duration::from_secs(11)).unwrap();
    assert_eq!(admits(&hand), (false, false));
    drop(hand);
    let mut hand = Hand::open_with(aged, Arc::new(files)).unwrap();
    assert_eq!(admits(&hand), (true, true));
    hand.pass(Duration::from_secs(11)).unwrap();
    assert_eq!(admits(&hand), (false, false));
}

#[test]
fn what_may_wait_leaves_a_fifth_of_the_disk_to_others_in_an_outage() {
    let mut hand = Hand::open(&FaultyFiles::new());
    let mut fill = |spare: bool| {
        let mut bytes = 0;
        loop {
            let body = vec![7_u8; 300];
            let reserved = match spare {
                true => hand.journal.reserve_spare(body.len()),
                false => hand.journal.reserve(body.len()),
            };
            let Ok(reserved) = reserved else { return bytes };
            let done = Box::new(|_| ());
            hand.journal.append(vec![body], vec![reserved], done).unwrap();
            hand.settle().unwrap();
            bytes += 300;
        }
    };
    let (bulk, robots) = (fill(true), fill(false));
    assert!(robots > config().disk_bytes_max / 10, "bulk left {robots} and took {bulk}");
    assert!(bulk > config().disk_bytes_max / 10, "bulk took {bulk}");
    let numbers = hand.taken_numbers();
    hand.confirm(&numbers, Outcome::Stored);
    hand.pass(Duration::from_secs(3)).unwrap();
    assert_eq!(admits(&hand), (true, true));
}

#[test]
fn what_may_wait_is_let_in_again_when_the_disk_was_full_and_nothing_has_to_grow() {
    let files = FaultyFiles::new();
    let wide = JournalConfig { disk_bytes_max: 16384 * 64, ..config() };
    let mut hand = Hand::open_with(wide, Arc::new(files.clone())).unwrap();
    files.set_faults(|faults| faults.free_bytes = Some(0));
    let mut numbers = Vec::new();
    while admits(&hand).1 {
        numbers.push(hand.commit(&[&[1; 100]]));
        hand.settle().unwrap();
    }
    hand.journal.confirm(&numbers, Outcome::Stored);
    files.set_faults(|faults| faults.free_bytes = None);
    hand.pass(Duration::from_secs(10)).unwrap();
    assert_eq!(admits(&hand), (true, true), "{:?}", hand.journal.stats());
}
