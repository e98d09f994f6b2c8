//! The repository: folders `ROOT/NAME/VERSION/` on disk, and which of them are fit to load.
//!
//! A version is eligible when its manifest is right and every listed file has the size and SHA-256
//! that were packaged, so a half-copied folder is listed with its problem and never loaded. Reads
//! only; loads no model. Folders whose names start with `.` or `_` are left out: copy a version
//! under such a name and rename it, and no reader ever sees the half of it.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::Manifest;
use super::name::{NAME_EXPECTED, compare_versions, is_safe};
use super::{FOLDERS_MAX, MANIFEST_FILE};
use crate::error::{Error, Result};

/// One version in the repository.
#[derive(Debug, Clone, PartialEq)]
pub struct Available {
    /// The model's name: the folder's.
    pub name: Arc<str>,
    /// The version's name: the folder's.
    pub version: Arc<str>,
    /// The version's folder.
    pub directory: PathBuf,
    /// Why it cannot be loaded; `None` for an eligible version.
    pub problem: Option<String>,
    /// Its manifest, where that could be read.
    pub manifest: Option<Manifest>,
}

/// Folders of models. Without state: each call reads the disk, so never on a transport thread.
#[derive(Debug, Clone)]
pub struct Repository {
    roots: Vec<PathBuf>,
}

/// A version's folder that was found, not yet read.
struct Folder {
    name: Arc<str>,
    version: Arc<str>,
    directory: PathBuf,
    /// The same version in an earlier root.
    hidden_by: Option<PathBuf>,
}

impl Repository {
    /// Models under `roots`; of a version in two roots the earlier root's is taken.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Repository { roots }
    }

    /// Every version, by name, then the newest first; each file is read and hashed.
    pub fn list(&self) -> Vec<Available> {
        self.folders().into_iter().map(inspect).collect()
    }

    /// The version that was asked for, or with an empty `version` the newest eligible one.
    ///
    /// Errors: `Invalid` for a name that is no folder name, `ModelNotFound`, and `ModelInvalid` for
    /// a version that has a problem.
    pub fn find(&self, name: &str, version: &str) -> Result<Available> {
        require_safe("name", name)?;
        if !version.is_empty() {
            require_safe("version", version)?;
        }
        let folders = self.folders();
        let wanted = |folder: &Folder| {
            *folder.name == *name
                && (version.is_empty() || *folder.version == *version)
                && folder.hidden_by.is_none()
        };
        let not_found = not_found(name, version, &folders);
        let mut newest_problem = None;
        for folder in folders.into_iter().filter(wanted) {
            let available = inspect(folder);
            let Some(reason) = &available.problem else { return Ok(available) };
            let (model, version) = (available.name.to_string(), available.version.to_string());
            tracing::warn!(model, version, reason, "a version in the repository is not eligible");
            let reason = reason.clone();
            newest_problem.get_or_insert(Error::ModelInvalid { model, version, reason });
        }
        Err(newest_problem.unwrap_or(not_found))
    }

    /// All version folders, by name, then the newest first.
    fn folders(&self) -> Vec<Folder> {
        let mut folders: Vec<Folder> = Vec::new();
        for root in &self.roots {
            for name in folder_names(root) {
                let model = root.join(&name);
                for version in folder_names(&model) {
                    let directory = model.join(&version);
                    let (name, version) = (Arc::from(name.as_str()), Arc::from(version));
                    folders.push(Folder { name, version, directory, hidden_by: None });
                }
            }
        }
        if folders.len() > FOLDERS_MAX {
            let (found, taken) = (folders.len(), FOLDERS_MAX);
            tracing::warn!(found, taken, "the model repository holds more versions than are read");
            folders.truncate(FOLDERS_MAX);
        }
        // Stable, so that of equal versions the earlier root's stays first.
        folders.sort_by(newest_first);
        for index in 1..folders.len() {
            let (earlier, rest) = folders.split_at_mut(index);
            let (earlier, folder) = (&earlier[index - 1], &mut rest[0]);
            if newest_first(earlier, folder) == Ordering::Equal {
                let first = earlier.hidden_by.as_ref().unwrap_or(&earlier.directory);
                folder.hidden_by = Some(first.clone());
            }
        }
        folders
    }
}

fn newest_first(a: &Folder, b: &Folder) -> Ordering {
    a.name.cmp(&b.name).then_with(|| compare_versions(&b.version, &a.version))
}

/// Reads a folder's manifest and hashes its files.
fn inspect(folder: Folder) -> Available {
    let Folder { name, version, directory, hidden_by } = folder;
    let known = match hidden_by {
        Some(first) => Some(format!("{} holds the same version and is taken", first.display())),
        None => [&name, &version]
            .into_iter()
            .find(|part| !is_safe(part))
            .map(|part| format!("the folder's name is {part:?}, expected {NAME_EXPECTED}")),
    };
    let (problem, manifest) = match (known, Manifest::read(&directory)) {
        (Some(problem), _) => (Some(problem), None),
        (None, Err(reason)) => (Some(reason), None),
        (None, Ok(read)) => {
            let misnamed = misnamed(&read, &name, &version);
            (misnamed.or_else(|| read.verify(&directory).err()), Some(read))
        }
    };
    Available { name, version, directory, problem, manifest }
}

/// A manifest that speaks of another version than its folder's name.
fn misnamed(manifest: &Manifest, name: &str, version: &str) -> Option<String> {
    let fields = [("name", &manifest.name, name), ("version", &manifest.version, version)];
    let (field, found, expected) =
        fields.into_iter().find(|(_, found, name)| ***found != **name)?;
    Some(format!("{MANIFEST_FILE}: {field} is {found:?}, expected the folder's name {expected:?}"))
}

/// Visible folders in `parent`. What cannot be read is said and left out: other roots go on.
fn folder_names(parent: &Path) -> Vec<String> {
    let entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) => {
            let (folder, reason) = (parent.display().to_string(), error.to_string());
            tracing::warn!(folder, reason, "a folder of the model repository cannot be read");
            return Vec::new();
        }
    };
    let visible = |name: &String| !name.starts_with(['.', '_']);
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(visible)
        .take(FOLDERS_MAX + 1)
        .collect();
    names.sort();
    names
}

fn require_safe(field: &'static str, text: &str) -> Result<()> {
    if is_safe(text) {
        return Ok(());
    }
    Err(Error::Invalid { field, got: format!("{text:?}"), expected: NAME_EXPECTED.into() })
}

fn not_found(name: &str, version: &str, folders: &[Folder]) -> Error {
    let mut present: Vec<String> =
        folders.iter().map(|folder| format!("{}/{}", folder.name, folder.version)).collect();
    present.dedup();
    let listed = present.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
    let loaded = match present.len() {
        0 => "nothing, and the repository is empty".to_owned(),
        1..=20 => format!("not looked at; the repository holds {listed}"),
        more => format!("not looked at; the repository holds {listed} and {} more", more - 20),
    };
    Error::ModelNotFound { model: name.into(), version: version.into(), loaded }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Package, write_plain};
    use super::*;

    fn versions(list: &[Available]) -> Vec<(&str, bool)> {
        list.iter().map(|one| (&*one.version, one.problem.is_none())).collect()
    }

    fn problem(root: &Path) -> String {
        let list = Repository::new(vec![root.into()]).list();
        assert_eq!(list.len(), 1, "{list:?}");
        list[0].problem.clone().expect("a problem")
    }

    #[test]
    fn versions_are_listed_the_newest_first() {
        let root = tempfile::tempdir().unwrap();
        for version in ["2", "10", "1.5", "beta"] {
            write_plain(root.path(), "m", version);
        }
        let list = Repository::new(vec![root.path().into()]).list();
        assert_eq!(versions(&list), [("10", true), ("2", true), ("1.5", true), ("beta", true)]);
    }

    #[test]
    fn the_newest_eligible_version_is_found_where_none_is_named() {
        let root = tempfile::tempdir().unwrap();
        write_plain(root.path(), "m", "2");
        let broken = write_plain(root.path(), "m", "10");
        std::fs::remove_file(broken.join("model.onnx")).unwrap();
        let repository = Repository::new(vec![root.path().into()]);
        assert_eq!(&*repository.find("m", "").unwrap().version, "2");
        assert_eq!(&*repository.find("m", "2").unwrap().version, "2");
        let error = repository.find("m", "10").unwrap_err();
        assert!(matches!(error, Error::ModelInvalid { .. }), "{error}");
        assert!(error.to_string().contains("model.onnx"), "{error}");
    }

    #[test]
    fn a_missing_model_is_answered_with_what_there_is() {
        let root = tempfile::tempdir().unwrap();
        write_plain(root.path(), "m", "2");
        let repository = Repository::new(vec![root.path().into()]);
        for (name, version) in [("other", ""), ("m", "3")] {
            let error = repository.find(name, version).unwrap_err();
            assert!(matches!(error, Error::ModelNotFound { .. }), "{error}");
            assert!(error.to_string().contains("m/2"), "{error}");
        }
    }

    #[test]
    fn a_name_that_leaves_the_repository_is_refused_before_the_disk() {
        let root = tempfile::tempdir().unwrap();
        write_plain(root.path(), "m", "2");
        let repository = Repository::new(vec![root.path().join("m")]);
        for (name, version) in [("..", ""), ("../m", "2"), ("m", "../2"), ("", ""), ("m", ".")] {
            let error = repository.find(name, version).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{name:?} {version:?}: {error}");
        }
    }

    #[test]
    fn a_half_copied_folder_is_listed_with_its_problem() {
        let root = tempfile::tempdir().unwrap();
        let folder = write_plain(root.path(), "m", "1");
        for file in ["model.onnx", "golden.json", "report.json"] {
            let path = folder.join(file);
            let whole = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert!(problem(root.path()).contains(&format!("{file}: cannot be read")));
            std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
            let expected = format!("{file} has {} bytes", whole.len() - 1);
            assert!(problem(root.path()).contains(&expected), "{}", problem(root.path()));
            std::fs::write(&path, &whole).unwrap();
        }
        std::fs::remove_file(folder.join(MANIFEST_FILE)).unwrap();
        assert!(problem(root.path()).contains("model.toml: cannot be read"));
    }

    #[test]
    fn one_flipped_bit_of_a_file_or_checksum_makes_a_version_ineligible() {
        let root = tempfile::tempdir().unwrap();
        let package = Package::plain();
        let folder = package.write(root.path(), "m", "1");
        let path = folder.join("model.onnx");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(problem(root.path()).contains("model.onnx has SHA-256"));
        package.write(root.path(), "m", "1");
        let path = folder.join(MANIFEST_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let at = text.rfind("sha256 = \"").unwrap() + "sha256 = \"".len();
        let other = if &text[at..=at] == "0" { "1" } else { "0" };
        let flipped = format!("{}{other}{}", &text[..at], &text[at + 1..]);
        std::fs::write(&path, flipped).unwrap();
        assert!(problem(root.path()).contains("has SHA-256"));
    }

    #[test]
    fn a_folder_under_another_name_than_its_manifest_is_not_eligible() {
        let root = tempfile::tempdir().unwrap();
        let folder = write_plain(root.path(), "m", "1");
        std::fs::rename(&folder, folder.with_file_name("2")).unwrap();
        assert!(
            problem(root.path()).contains("version is \"1\", expected the folder's name \"2\"")
        );
    }

    #[test]
    fn an_unsafe_folder_is_listed_and_a_hidden_one_is_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = write_plain(root.path(), "m", "1");
        std::fs::rename(&folder, folder.with_file_name(".incoming-1")).unwrap();
        let repository = Repository::new(vec![root.path().into()]);
        assert_eq!(repository.list(), []);
        std::fs::rename(folder.with_file_name(".incoming-1"), folder.with_file_name("A b"))
            .unwrap();
        assert!(problem(root.path()).contains("the folder's name is \"A b\", expected"));
    }

    #[test]
    fn of_one_version_in_two_roots_the_earlier_is_taken() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for root in [&first, &second] {
            write_plain(root.path(), "m", "1");
        }
        let missing = first.path().join("nowhere");
        let roots = vec![missing, first.path().into(), second.path().into()];
        let repository = Repository::new(roots);
        let list = repository.list();
        assert_eq!(versions(&list), [("1", true), ("1", false)]);
        assert!(list[0].directory.starts_with(first.path()));
        assert_eq!(repository.find("m", "").unwrap().directory, list[0].directory);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_in_place_of_a_file_does_not_hang() {
        let root = tempfile::tempdir().unwrap();
        let folder = write_plain(root.path(), "m", "1");
        let path = folder.join("model.onnx");
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        assert!(problem(root.path()).contains("is not a regular file"));
    }
}
