//! ONNX Runtime's shared library: checked in plain code, then loaded, once a process.
//!
//! The library is the process's one piece of global state here: the system maps a library once a
//! process, and ONNX Runtime allows one environment. Never hangs and never panics: a text file, a
//! library for another processor or an old version is refused with its remedy before any of its
//! code runs, where the file itself tells.

use std::fs::File;
use std::io::Read as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ort::environment::{Environment, EnvironmentBuilder};
use ort::logging::LogLevel;
use parking_lot::Mutex;

use super::Checked;
use crate::error::{Error, Result};

/// How long reading and mapping the library may take.
const LOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// A library of ONNX Runtime is 20 MB and more, up to 2 GB with accelerators.
const LIBRARY_BYTES_MIN: u64 = 1 << 20;
const LIBRARY_BYTES_MAX: u64 = 4 << 30;
/// Where the linker keeps the names of versions: near the beginning.
const VERSION_SEARCH_BYTES_MAX: u64 = 8 << 20;
const VERSION_MARK: &[u8] = b"\0VERS_1.";
const REMEDY: &str = "give the path of libonnxruntime from the onnxruntime wheel";

/// The library that serves this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its file, with links resolved.
    pub path: PathBuf,
    /// Its version, such as `1.32.0`; `1.24 or newer` where the file does not tell.
    pub version: String,
}

struct Loaded {
    info: RuntimeInfo,
    environment: Environment,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);
/// The file that is mapped, also where its load was given up: `ort` takes the first one that maps
/// for every later path, without a word.
static MAPPED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Loads the shared library of ONNX Runtime for this process.
///
/// A second call with the same file gives the same answer, with another file an error: a process
/// cannot change its library. Errors: `RuntimeLibrary` with what is wrong and what to do.
pub fn load_runtime(path: &Path) -> Result<RuntimeInfo> {
    load_within(path, LOAD_TIME_MAX)
}

/// The environment that sessions are made in.
pub(super) fn environment() -> Result<Environment> {
    match &*LOADED.lock() {
        Some(loaded) => Ok(loaded.environment.clone()),
        None => Err(refuse(Path::new(""), "is not loaded; call load_runtime first".into())),
    }
}

fn load_within(path: &Path, limit: Duration) -> Result<RuntimeInfo> {
    let mut loaded = LOADED.lock();
    if let Some(loaded) = &*loaded {
        return match std::fs::canonicalize(path) {
            Ok(found) if found == loaded.info.path => Ok(loaded.info.clone()),
            _ => {
                let first = loaded.info.path.display();
                Err(refuse(path, format!("this process has loaded {first}; start another one")))
            }
        };
    }
    let (info, builder) = open_within(path, limit)?;
    // `ort` panics where a library that calls itself new enough gives no API.
    let made = std::panic::catch_unwind(AssertUnwindSafe(|| environment_of(builder)));
    let environment = match made {
        Ok(Ok(environment)) => environment,
        Ok(Err(error)) => return Err(refuse(path, format!("made no environment: {error}"))),
        Err(_) => {
            let api = ort::MINOR_VERSION;
            return Err(refuse(path, format!("gives no API of version {api}; {REMEDY}")));
        }
    };
    *loaded = Some(Loaded { info: info.clone(), environment });
    Ok(info)
}

/// Runs `open` with a time limit. Mapping a library runs its code and reads its disk, and neither
/// can be interrupted: only a second thread leaves the caller free to give up. It ends with the
/// load. After a time-out it stays behind with the system's loader lock, for which a normal exit
/// waits too: whoever gets that error ends the process with `abort`.
fn open_within(path: &Path, limit: Duration) -> Result<(RuntimeInfo, EnvironmentBuilder)> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let target = path.to_path_buf();
    std::thread::Builder::new()
        .name("labeler-ort-load".into())
        .spawn(move || {
            let found = open(&target);
            // The receiver is gone only after a time-out, which has been answered.
            let _ = sender.send(found);
        })
        .map_err(|error| refuse(path, format!("no thread to load it: {error}")))?;
    match receiver.recv_timeout(limit) {
        Ok(found) => found.map_err(|reason| refuse(path, reason)),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let seconds = limit.as_secs_f32();
            Err(refuse(path, format!("did not load within {seconds} s; is its disk reachable?")))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(refuse(path, format!("panicked while it was loaded; {REMEDY}")))
        }
    }
}

fn open(path: &Path) -> Checked<(RuntimeInfo, EnvironmentBuilder)> {
    let path = std::fs::canonicalize(path)
        .map_err(|error| format!("cannot be read: {error}; {REMEDY}"))?;
    let head = read_head(&path)?;
    check_format(&head)?;
    let written = written_version(&head);
    if let Some((minor, version)) = &written
        && *minor < ort::MINOR_VERSION
    {
        return Err(too_old(version));
    }
    let mut mapped = MAPPED.lock();
    if let Some(first) = mapped.as_ref().filter(|first| **first != path) {
        return Err(format!("this process has loaded {}; start another one", first.display()));
    }
    let builder = ort::init_from(&path).map_err(|error| match error {
        ort::LoadDynamicError::BadVersion { version_str, .. } => too_old(&version_str),
        ort::LoadDynamicError::MissingApi { .. } => {
            format!("is a library, but not ONNX Runtime (no OrtGetApiBase); {REMEDY}")
        }
        other => format!("{other}; {REMEDY}"),
    })?;
    *mapped = Some(path.clone());
    let version = match written {
        Some((_, version)) => version,
        None => format!("1.{} or newer", ort::MINOR_VERSION),
    };
    Ok((RuntimeInfo { path, version }, builder))
}

fn too_old(version: &str) -> String {
    let minor = ort::MINOR_VERSION;
    format!("is version {version}, expected 1.{minor} or newer; {REMEDY}, 1.{minor} or newer")
}

/// The first bytes of a regular file of plausible size.
fn read_head(path: &Path) -> Checked<Vec<u8>> {
    let meta =
        std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}; {REMEDY}"))?;
    if !meta.is_file() {
        return Err(format!("is not a file; {REMEDY}"));
    }
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(VERSION_SEARCH_BYTES_MAX).read_to_end(&mut head))
        .map_err(|error| format!("cannot be read: {error}; {REMEDY}"))?;
    check_format(&head)?;
    let bytes = meta.len();
    if !(LIBRARY_BYTES_MIN..=LIBRARY_BYTES_MAX).contains(&bytes) {
        return Err(format!(
            "has {bytes} bytes, expected {LIBRARY_BYTES_MIN} to {LIBRARY_BYTES_MAX}; {REMEDY}"
        ));
    }
    check_length(&head, bytes)?;
    Ok(head)
}

/// The file is as long as its own tables say. Of one that was cut short, by a copy that broke off,
/// the part that is not there would be mapped all the same, and end the process when it is touched.
fn check_length(head: &[u8], bytes: u64) -> Checked<()> {
    let number = |at: u64, len: usize| {
        let at = usize::try_from(at).ok()?;
        let field = head.get(at..at.checked_add(len)?)?;
        Some(field.iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte)))
    };
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(());
    }
    let table = |at, size, count| {
        Some((number(at, 8)?, number(size, 2)?, number(count, 2)?)) // where, bytes each, how many
    };
    let ends = || {
        let (sections, size, count) = table(40, 58, 60)?;
        let mut end = sections.saturating_add(size * count);
        let (segments, size, count) = table(32, 54, 56)?;
        for n in 0..count {
            let at = segments.checked_add(n * size)?;
            let (offset, length) =
                (number(at.checked_add(8)?, 8)?, number(at.checked_add(32)?, 8)?);
            end = end.max(offset.saturating_add(length));
        }
        Some(end)
    };
    match ends() {
        Some(end) if end <= bytes => Ok(()),
        Some(end) => Err(format!("is cut short: {bytes} of at least {end} bytes; {REMEDY}")),
        None => Err(format!("has no readable tables; {REMEDY}")),
    }
}

/// A shared library of this processor: ELF of 64 bits, or Mach-O.
fn check_format(head: &[u8]) -> Checked<()> {
    const ELF_64: &[u8] = b"\x7fELF\x02";
    const MACH_O: [[u8; 4]; 2] = [[0xcf, 0xfa, 0xed, 0xfe], [0xca, 0xfe, 0xba, 0xbe]];
    if head.len() >= 4 && MACH_O.iter().any(|magic| head.starts_with(magic)) {
        return Ok(());
    }
    if !head.starts_with(ELF_64) || head.len() < 20 {
        return Err(format!("is not a 64-bit shared library; {REMEDY}"));
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let expected: u16 = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        _ => machine,
    };
    if machine != expected {
        let arch = std::env::consts::ARCH;
        return Err(format!("is for another processor (ELF {machine}), expected {arch}; {REMEDY}"));
    }
    Ok(())
}

/// Minor version and version by the library's own symbol version, such as `VERS_1.32.0`.
fn written_version(head: &[u8]) -> Option<(u32, String)> {
    let mut rest = head;
    while let Some(at) = rest.iter().position(|byte| *byte == 0) {
        rest = &rest[at..];
        if rest.starts_with(VERSION_MARK) {
            let text = &rest[VERSION_MARK.len()..];
            let end = text.iter().position(|byte| *byte == 0).filter(|end| *end <= 16)?;
            let tail = std::str::from_utf8(&text[..end]).ok()?;
            let minor = tail.split('.').next()?.parse().ok()?;
            return Some((minor, format!("1.{tail}")));
        }
        rest = &rest[1..];
    }
    None
}

/// No telemetry; the library's warnings go where ours go, in our form.
fn environment_of(builder: EnvironmentBuilder) -> ort::Result<Environment> {
    let log = |level: LogLevel, category: &str, _id: &str, place: &str, message: &str| match level {
        LogLevel::Verbose | LogLevel::Info => {}
        LogLevel::Warning => tracing::warn!(category, place, "ONNX Runtime: {message}"),
        LogLevel::Error | LogLevel::Fatal => {
            tracing::error!(category, place, "ONNX Runtime: {message}");
        }
    };
    let builder = builder.with_name("labeler").with_telemetry(false);
    let environment = builder.with_logger(Arc::new(log)).build()?;
    environment.set_log_level(LogLevel::Warning);
    Ok(environment)
}

fn refuse(path: &Path, reason: String) -> Error {
    Error::RuntimeLibrary { path: path.display().to_string(), reason }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::testing::runtime_path;
    use super::*;

    fn refused(path: &Path) -> String {
        match open_within(path, LOAD_TIME_MAX) {
            Err(error @ Error::RuntimeLibrary { .. }) => {
                let text = error.to_string();
                assert!(text.contains(&path.display().to_string()), "{text}");
                text
            }
            other => panic!("expected RuntimeLibrary, got {:?}", other.map(|found| found.0)),
        }
    }

    /// A shared library from C source, over a megabyte as a real one.
    fn compiled(folder: &Path, name: &str, source: &str) -> PathBuf {
        let (code, library) = (folder.join(format!("{name}.c")), folder.join(name));
        std::fs::write(&code, format!("const char filler[2 << 20] = {{1}};\n{source}")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code);
        assert!(compiler.status().expect("cc, which links Rust too").success());
        library
    }

    fn runtime_of_version(version: &str) -> String {
        format!(
            "static const void *api(unsigned v) {{ return 0; }}\n\
             static const char *version(void) {{ return \"{version}\"; }}\n\
             struct base {{ const void *(*a)(unsigned); const char *(*v)(void); }};\n\
             static const struct base base = {{ api, version }};\n\
             const struct base *OrtGetApiBase(void) {{ return &base; }}\n"
        )
    }

    #[test]
    fn a_missing_library_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let text = refused(&folder.path().join("libonnxruntime.so"));
        assert!(text.contains("cannot be read") && text.contains(REMEDY), "{text}");
        assert!(refused(folder.path()).contains("is not a file"));
    }

    #[test]
    fn a_text_file_and_a_short_library_are_refused_before_they_are_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libonnxruntime.so");
        std::fs::write(&path, "INPUT(libonnxruntime.so.1)\n").unwrap();
        assert!(refused(&path).contains("is not a 64-bit shared library"));
        std::fs::write(&path, "").unwrap();
        assert!(refused(&path).contains("is not a 64-bit shared library"));
        let mut head = b"\x7fELF\x02".to_vec();
        head.resize(64, 0);
        head[18] = 62;
        #[cfg(target_arch = "x86_64")]
        {
            std::fs::write(&path, &head).unwrap();
            assert!(refused(&path).contains("has 64 bytes, expected 1048576"));
            let mut cut = head.clone();
            cut[5] = 1; // little-endian
            cut[40..48].copy_from_slice(&(9u64 << 20).to_le_bytes());
            cut.resize(2 << 20, 0);
            std::fs::write(&path, &cut).unwrap();
            let text = refused(&path);
            assert!(text.contains("is cut short: 2097152 of at least 9437184 bytes"), "{text}");
            head[18] = 183;
        }
        head.resize(2 << 20, 0);
        std::fs::write(&path, &head).unwrap();
        let text = refused(&path);
        assert!(text.contains("for another processor") || text.contains(REMEDY), "{text}");
    }

    /// What `load_within` says of libraries from C source, in a process of its own: mapped code
    /// stays for ever, and one that never finishes holds up even a normal exit.
    fn loaded_elsewhere(sources: &[&str], limit: Duration) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let verdict = folder.path().join("verdict");
        let libraries = sources.iter().enumerate().map(|(index, source)| {
            compiled(folder.path(), &format!("lib{index}.so"), source).display().to_string()
        });
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "models::runtime::tests::loads_in_this_process"])
            .env("LABELER_TEST_LIBRARIES", libraries.collect::<Vec<_>>().join(":"))
            .env("LABELER_TEST_LIMIT_MS", limit.as_millis().to_string())
            .env("LABELER_TEST_VERDICT", &verdict)
            .output()
            .unwrap();
        let text = std::fs::read_to_string(&verdict).expect("the calls came back");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    #[ignore = "started by loaded_elsewhere"]
    #[expect(clippy::disallowed_methods, reason = "a stuck loader would hold a normal exit")]
    fn loads_in_this_process() {
        let Ok(libraries) = std::env::var("LABELER_TEST_LIBRARIES") else { return };
        let verdict = std::env::var_os("LABELER_TEST_VERDICT").unwrap();
        let limit: u64 = std::env::var("LABELER_TEST_LIMIT_MS").unwrap().parse().unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let load = |path| match load_within(Path::new(path), Duration::from_millis(limit)) {
                Ok(info) => format!("{info:?}\n"),
                Err(error) => format!("{error}\n"),
            };
            let _ = sender.send(libraries.split(':').map(load).collect::<String>());
        });
        if let Ok(text) = receiver.recv_timeout(Duration::from_secs(20)) {
            std::fs::write(verdict, text).unwrap();
        }
        std::process::abort();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_is_not_onnx_runtime_is_refused() {
        let found = loaded_elsewhere(&["int other(void) { return 1; }"], LOAD_TIME_MAX);
        assert!(found[0].contains("no OrtGetApiBase"), "{found:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_older_library_is_refused_with_both_versions() {
        let found = loaded_elsewhere(&[&runtime_of_version("1.10.2")], LOAD_TIME_MAX);
        assert!(found[0].contains("is version 1.10.2, expected 1.24 or newer"), "{found:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_older_library_that_tells_its_version_is_never_mapped() {
        let source = "const char mark[] = \"\\0VERS_1.9.0\";\n\
                      __attribute__((constructor)) void trap(void) { __builtin_trap(); }\n";
        let found = loaded_elsewhere(&[source], LOAD_TIME_MAX);
        assert!(found[0].contains("is version 1.9.0, expected 1.24 or newer"), "{found:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_never_finishes_loading_is_given_up() {
        let source = "#include <unistd.h>\n\
                      __attribute__((constructor)) static void hold(void) { for (;;) sleep(1); }\n";
        let found = loaded_elsewhere(&[source], Duration::from_millis(300));
        assert!(found[0].contains("did not load within 0.3 s"), "{found:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_its_api_is_refused_and_no_other_takes_its_place() {
        let (new, other) = (runtime_of_version("1.99.0"), runtime_of_version("1.99.1"));
        let found = loaded_elsewhere(&[&new, &other], LOAD_TIME_MAX);
        assert!(found[0].contains("lib0.so: gives no API of version 24"), "{found:?}");
        assert!(found[1].contains("this process has loaded"), "{found:?}");
    }

    #[test]
    fn a_second_load_of_the_same_library_gives_the_same_answer() {
        let Some(path) = runtime_path() else { return };
        let first = load_runtime(&path).unwrap();
        assert!(first.version.starts_with("1."), "{first:?}");
        assert_eq!(load_runtime(&path).unwrap(), first);
        let folder = tempfile::tempdir().unwrap();
        #[cfg(unix)]
        {
            let link = folder.path().join("link.so");
            std::os::unix::fs::symlink(std::fs::canonicalize(&path).unwrap(), &link).unwrap();
            assert_eq!(load_runtime(&link).unwrap(), first);
        }
        let error = load_runtime(&folder.path().join("other.so")).unwrap_err();
        assert!(error.to_string().contains("this process has loaded"), "{error}");
    }

    #[test]
    fn the_version_is_read_from_the_symbol_names() {
        let head = b"\0\0GLIBC_2.2\0VERS_1.32.0\0VERS";
        assert_eq!(written_version(head), Some((32, "1.32.0".into())));
        assert_eq!(written_version(b"\0VERS_1."), None);
        assert_eq!(written_version(b"\0VERS_1.x.0\0"), None);
        assert_eq!(written_version(b""), None);
    }
}
