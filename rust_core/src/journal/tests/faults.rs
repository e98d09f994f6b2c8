//! Disks that fail: short writes, failing syncs, no space, power cuts.

use super::*;

#[test]
fn short_writes_are_gone_on_with() {
    let files = FaultyFiles::new();
    files.set_faults(|faults| faults.write_bytes_max = Some(100));
    let mut hand = Hand::open(&files);
    hand.commit(&[&[1; 1000], &[2; 1000]]);
    drop(hand);
    files.power_cut(1);
    assert_eq!(Hand::open(&files).taken_numbers(), [1, 2]);
}

#[test]
fn a_failed_sync_fails_every_waiter_and_ends_the_run() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"good"]);
    hand.clock.advance(Duration::from_secs(1));
    hand.append(&[b"in the group"]).unwrap();
    let appender = hand.journal.clone();
    let (told, waiters) = (Arc::clone(&hand.told), Arc::clone(&hand.told));
    // The second one is appended while the first is on its way, and is still in the queue.
    files.set_faults(|faults| faults.syncs_until_failure = Some(0));
    let Hand { committer, journal, .. } = hand;
    let done = Box::new(move |result| told.lock().unwrap().push(result));
    appender.append(vec![b"queued".to_vec()], Vec::new(), done).unwrap();
    let ended = committer.run().unwrap_err();
    assert_eq!(*waiters.lock().unwrap(), [Err(ended.clone()), Err(ended.clone())]);
    assert!(matches!(ended, Error::Disk { operation: "fdatasync", .. }), "{ended}");
    let done = Box::new(|_| panic!("it is refused at once"));
    let refused = journal.append(vec![b"late".to_vec()], Vec::new(), done);
    assert_eq!(refused.unwrap_err(), ended);
    assert_eq!(journal.take(1, 1, Duration::ZERO).unwrap_err(), ended);
    assert_eq!(journal.close(Duration::ZERO).unwrap_err(), ended);
    assert_eq!(journal.stats().pending, 1);
    assert_eq!(journal.stats().uncommitted_bytes, 0);
}

#[test]
fn a_failed_write_tells_the_waiters_of_the_group_and_of_the_queue() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.settle().unwrap();
    files.set_faults(|faults| faults.writes_until_failure = Some(0));
    let big = [1_u8; 1400];
    let bodies: Vec<&[u8]> = vec![&big; 10];
    hand.append(&bodies).unwrap();
    hand.append(&[b"next"]).unwrap();
    hand.settle().unwrap_err();
    let told = hand.told.lock().unwrap();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|result| matches!(result, Err(Error::Disk { .. }))), "{told:?}");
}

#[test]
fn a_committer_that_vanishes_tells_its_waiters() {
    let files = FaultyFiles::new();
    let hand = Hand::open(&files);
    hand.append(&[b"a"]).unwrap();
    let Hand { committer, journal, told, .. } = hand;
    drop(committer);
    assert!(matches!(told.lock().unwrap()[0], Err(Error::Internal { .. })));
    assert!(journal.append(Vec::new(), Vec::new(), Box::new(|_| {})).is_err());
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_made_durable_or_gone_after_the_restart() {
    for seed in 0..50 {
        let files = FaultyFiles::new();
        let mut hand = Hand::open(&files);
        hand.commit(&[b"good"]);
        // Longer than what a later group shares a sector with.
        hand.append(&[&[9; 1400]]).unwrap();
        files.set_faults(|faults| faults.syncs_until_failure = Some(0));
        hand.settle().unwrap_err();
        drop(hand);
        // The page cache still shows the group, as clean; the disk does not have it.
        let mut hand = Hand::open(&files);
        let seen = hand.taken_numbers();
        let first = hand.commit(&[b"later"]);
        drop(hand);
        files.power_cut(seed);
        let hand = Hand::open(&files);
        assert!(hand.recovery.quarantined.is_empty(), "seed {seed}: {:?}", hand.recovery);
        let expected: Vec<u64> = seen.into_iter().chain([first]).collect();
        assert_eq!(hand.taken_numbers(), expected, "seed {seed}");
    }
}

#[test]
fn a_full_disk_refuses_new_records_keeps_the_admitted_and_recovers() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.settle().unwrap();
    files.set_faults(|faults| faults.free_bytes = Some(10_000));
    let mut numbers = Vec::new();
    let refused = loop {
        match hand.journal.reserve(500) {
            Ok(reservation) => {
                let body = vec![9; 500];
                let told = Arc::clone(&hand.told);
                let done = Box::new(move |result| told.lock().unwrap().push(result));
                numbers.push(hand.journal.append(vec![body], vec![reservation], done).unwrap());
                if numbers.len() % 5 == 0 {
                    hand.settle().unwrap();
                }
            }
            Err(error) => break error,
        }
        assert!(numbers.len() < 1000);
    };
    assert!(matches!(refused, Error::Overloaded { what: "journal", .. }), "{refused}");
    hand.settle().unwrap();
    let told = std::mem::take(&mut *hand.told.lock().unwrap());
    assert_eq!(told, numbers.iter().map(|number| Ok(*number)).collect::<Vec<_>>());
    // Confirmations still go to the disk, and free space.
    hand.confirm(&numbers, Outcome::Stored);
    hand.pass(Duration::from_secs(3)).unwrap();
    assert!(hand.journal.reserve(500).is_ok());
    drop(hand);
    files.power_cut(5);
    assert_eq!(Hand::open(&files).recovery.pending, 0);
}

#[test]
fn a_disk_that_is_full_from_the_start_is_a_disk_error() {
    let files = FaultyFiles::new();
    files.set_faults(|faults| faults.free_bytes = Some(100));
    let error = Hand::open_with(config(), Arc::new(files)).err().unwrap();
    assert!(matches!(error, Error::Disk { .. }), "{error}");
}

#[test]
fn a_journal_opens_on_a_full_disk_and_drains() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    hand.commit(&[b"a"]);
    drop(hand);
    // Only the first segment is left, and no other fits.
    for id in 2..9 {
        let _ = files.remove(&segment_path(id));
    }
    files.set_faults(|faults| faults.free_bytes = Some(0));
    let mut hand = Hand::open(&files);
    assert_eq!(hand.taken_numbers(), [1]);
    assert!(matches!(hand.journal.reserve(100), Err(Error::Overloaded { .. })));
    hand.confirm(&[1], Outcome::Stored);
    drop(hand);
    assert_eq!(Hand::open(&files).recovery.pending, 0);
}

#[test]
fn what_was_acknowledged_survives_power_cuts_at_any_call_that_drop_unsynced_pages_in_any_order() {
    for seed in 0..400_u64 {
        let files = FaultyFiles::new();
        files.set_faults(|faults| faults.changes_until_cut = Some(seed));
        let mut acknowledged = Vec::new();
        if let Ok(mut hand) = Hand::open_with(config(), Arc::new(files.clone())) {
            while acknowledged.len() < 80 {
                let size = 100 + (acknowledged.len() * 37) % 900;
                let body = vec![acknowledged.len() as u8; size];
                if hand.append(&[&body, &body]).is_err() || hand.settle().is_err() {
                    break;
                }
                let told = hand.told.lock().unwrap().pop().unwrap();
                acknowledged.extend([(told.unwrap(), body.clone())]);
            }
        }
        files.power_cut(seed);
        let hand = Hand::open(&files);
        assert!(hand.recovery.quarantined.is_empty(), "seed {seed}: {:?}", hand.recovery);
        let taken = hand.take();
        for (number, body) in &acknowledged {
            assert!(taken.contains(&(*number, body.clone())), "seed {seed}: {number} is lost");
            assert!(taken.contains(&(number + 1, body.clone())), "seed {seed}: {number}+1 is lost");
        }
        let last = acknowledged.last().map_or(0, |(number, _)| number + 1);
        assert!(hand.recovery.next_number > last, "seed {seed}: numbers restart");
    }
}

#[test]
fn the_name_of_the_directory_is_durable_though_the_start_that_made_it_was_killed() {
    for calls in 0..12 {
        let files = FaultyFiles::new();
        files.set_faults(|faults| faults.changes_until_cut = Some(calls));
        drop(Hand::open_with(config(), Arc::new(files.clone())));
        // A kill, not a cut: what it made is seen by the next start, durable or not.
        files.set_faults(|faults| faults.changes_until_cut = None);
        let mut hand = Hand::open(&files);
        hand.commit(&[b"acknowledged"]);
        drop(hand);
        files.power_cut(calls);
        assert_eq!(Hand::open(&files).taken_numbers(), [1], "killed at {calls}");
    }
}

#[test]
fn what_was_taken_before_a_read_failed_is_handed_out() {
    let files = FaultyFiles::new();
    let mut hand = Hand::open(&files);
    let mut last = 0;
    while hand.journal.stats().segments < 5 {
        last = hand.commit(&[&[1; 300]]);
    }
    let mut taken = Vec::new();
    let mut failed = 0;
    while taken.last() != Some(&last) {
        files.set_faults(|faults| faults.reads_until_failure = Some(1));
        match hand.journal.take(usize::MAX, usize::MAX, Duration::ZERO) {
            Ok(rows) => taken.extend(rows.into_iter().map(|(number, _)| number)),
            Err(error) => {
                assert!(matches!(error, Error::Disk { operation: "read", .. }), "{error}");
                failed += 1;
            }
        }
    }
    assert_eq!(taken, (1..=last).collect::<Vec<u64>>());
    assert!(failed < 50);
}
