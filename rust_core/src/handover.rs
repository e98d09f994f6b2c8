//! A journal whose process is gone: opened here, so that what it holds can be delivered.
//!
//! It is the engine's journal without an engine: locked, recovered, taken from, confirmed. Never
//! makes a journal where there is none, never appends a label, never deletes a directory.

use std::{path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    identity,
    journal::{self, Journal, JournalConfig, JournalStats, Outcome, Recovery, SystemFiles},
    records::{self, Numbered},
    supervise::Supervisor,
};

/// Somebody's journal, open.
pub struct Handover {
    /// Who has written it.
    pub instance_id: String,
    /// Which journal it is.
    pub journal_id: String,
    /// What was found in it.
    pub recovery: Recovery,
    journal: Journal,
    failure: Arc<Mutex<Option<Error>>>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl Handover {
    /// Opens the journal in `config.directory`, whose process kept its id in `state_dir`.
    ///
    /// Errors: `InUse` and `JournalVersion`, nothing is touched then; `Disk`, also where there is
    /// no journal.
    pub fn open(config: JournalConfig, state_dir: &Path) -> Result<Self> {
        if !journal::exists(&config.directory, &SystemFiles)? {
            let path = config.directory.display().to_string();
            let reason = "it holds no journal".to_owned();
            return Err(Error::Disk { operation: "open", path, reason });
        }
        let opened = journal::open(config, Arc::new(SystemFiles))?;
        let journal::Opened { journal, committer, recovery } = opened;
        let instance_id = identity::instance_id(state_dir)?;
        let failure: Arc<Mutex<Option<Error>>> = Arc::default();
        let told = failure.clone();
        let supervisor = Supervisor::new(move |_, error| {
            told.lock().get_or_insert_with(|| error.clone());
        });
        let run = move || committer.run();
        let committer = supervisor.spawn("journal", "adopted".to_owned(), run)?;
        Ok(Self {
            instance_id,
            journal_id: recovery.journal_id.to_string(),
            recovery,
            journal,
            failure,
            committer: Mutex::new(Some(committer)),
        })
    }

    /// Puts the next records that are not confirmed at the front of `into`, each once: how many.
    /// Waits for the first. A body that is no record ends as dead, and its bytes are kept.
    pub fn take_records(
        &self,
        rows_max: usize,
        bytes_max: usize,
        timeout: Duration,
        into: &mut Vec<Numbered>,
    ) -> Result<usize> {
        let taken = self.journal.take(rows_max, bytes_max, timeout)?;
        Ok(records::decode(&self.journal, &taken, into))
    }

    /// The store has these records, or never will.
    pub fn confirm(&self, numbers: &[u64], outcome: Outcome) {
        self.journal.confirm(numbers, outcome);
    }

    /// What is pending, and what became of the rest since it was opened.
    ///
    /// Errors: why its files cannot be written any more.
    pub fn stats(&self) -> Result<JournalStats> {
        match &*self.failure.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(self.journal.stats()),
        }
    }

    /// Writes the last confirmations and gives the lock back; waits. Idempotent.
    pub fn close(&self, budget: Duration) -> Result<()> {
        let closed = self.journal.close(budget);
        if closed.is_ok()
            && let Some(committer) = self.committer.lock().take()
        {
            // Its failure, if any, is what `close` returns; one that hangs is left behind.
            let _ = committer.join();
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &Path) -> JournalConfig {
        JournalConfig { directory: directory.join("journal"), ..journal::tests::config() }
    }

    #[test]
    fn a_directory_without_a_journal_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let missing = Handover::open(config(directory.path()), directory.path());
        assert!(matches!(missing, Err(Error::Disk { operation: "list", .. })));
        std::fs::create_dir(directory.path().join("journal")).unwrap();
        let empty = Handover::open(config(directory.path()), directory.path());
        assert!(matches!(empty, Err(Error::Disk { operation: "open", .. })));
        assert_eq!(std::fs::read_dir(directory.path().join("journal")).unwrap().count(), 0);
    }

    #[test]
    fn what_was_left_is_handed_out_until_it_is_confirmed_and_the_lock_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let opened = journal::open(config(directory.path()), Arc::new(SystemFiles)).unwrap();
        let committer = std::thread::spawn(move || opened.committer.run());
        let body = prost::Message::encode_to_vec(&crate::proto::journal::Record::default());
        for body in [body.clone(), body, vec![0xff]] {
            opened.journal.append(vec![body], Vec::new(), Box::new(|_| ())).unwrap();
        }
        let second = Handover::open(config(directory.path()), directory.path());
        assert!(matches!(second, Err(Error::InUse { .. })));
        opened.journal.close(Duration::from_secs(10)).unwrap();
        committer.join().unwrap().unwrap();

        let mut id = None;
        for pending in [3, 2, 0] {
            let left = Handover::open(config(directory.path()), directory.path()).unwrap();
            assert_eq!(left.recovery.pending, pending);
            assert_eq!(*id.get_or_insert_with(|| left.instance_id.clone()), left.instance_id);
            let mut records = Vec::new();
            let wait = Duration::from_millis(1);
            let count = left.take_records(100, 1 << 20, wait, &mut records).unwrap();
            let numbers: Vec<u64> = records[..count].iter().map(|(number, _)| *number).collect();
            if pending == 2 {
                left.confirm(&numbers, Outcome::Stored);
            }
            assert_eq!(left.stats().unwrap().dead_total, u64::from(pending == 3));
            left.close(Duration::from_secs(10)).unwrap();
        }
    }
}
