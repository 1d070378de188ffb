//! ExecuTorch in this process: its libraries, its threads and its log.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::error::LoadError;

/// Whether there is an ExecuTorch in this program.
pub const BUILT: bool = cfg!(feature = "runtime");

/// ExecuTorch, as it runs in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Runtime {
    /// The version that this crate was built for.
    pub version: &'static str,
    /// Where its libraries lie.
    pub folder: PathBuf,
    /// The libraries with kernels and delegates that were opened, by their names.
    pub libraries: Vec<String>,
    /// The libraries that could not be, and why.
    pub failed: Vec<String>,
    /// The delegates that registered themselves, of those that are known here.
    pub delegates: Vec<&'static str>,
    /// Threads, for all programs of the process together.
    pub threads: usize,
}

impl Runtime {
    /// Opens ExecuTorch's libraries, if that has not happened yet, and says what is there.
    ///
    /// What it logs goes to the crate `log` from then on, under the target `executorch`.
    ///
    /// # Errors
    ///
    /// If there is no ExecuTorch in this program, or if its kernels cannot be opened.
    pub fn start() -> Result<Self, LoadError> {
        imp::start()
    }

    /// The same, and sees to the threads: the first says how many there are.
    pub(crate) fn with_threads(asked: Option<NonZeroUsize>) -> Result<(), LoadError> {
        imp::start_with(asked)
    }
}

#[cfg(not(feature = "runtime"))]
mod imp {
    use super::{LoadError, NonZeroUsize, Runtime};

    pub(super) fn start() -> Result<Runtime, LoadError> {
        Err(LoadError::NotBuilt)
    }

    pub(super) fn start_with(_: Option<NonZeroUsize>) -> Result<(), LoadError> {
        Err(LoadError::NotBuilt)
    }
}

#[cfg(all(feature = "runtime", not(unix)))]
compile_error!("the feature `runtime` is for systems with `dlopen` and `dladdr`: Linux and macOS");

#[cfg(feature = "runtime")]
pub(crate) use imp::logged;

#[cfg(feature = "runtime")]
#[expect(unsafe_code, reason = "the bindings have neither libraries that are opened late nor threads")]
mod imp {
    use std::cell::RefCell;
    use std::ffi::{CStr, CString, OsStr, c_char, c_void};
    use std::num::NonZeroUsize;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::thread::available_parallelism;

    use executorch::platform::{LogEntry, LogLevel, PlatformImpl, register_platform_impl};

    use super::Runtime;
    use crate::error::{ExecuTorchError, LoadError};

    // C, or C++ by the names of the Itanium ABI, that passes pointers and integers only.
    unsafe extern "C" {
        fn et_pal_init();
        /// `executorch::extension::threadpool::get_threadpool()`
        #[link_name = "_ZN10executorch9extension10threadpool14get_threadpoolEv"]
        fn get_threadpool() -> *mut c_void;
        /// `ThreadPool::get_thread_count() const`
        #[link_name = "_ZNK10executorch9extension10threadpool10ThreadPool16get_thread_countEv"]
        fn get_thread_count(pool: *const c_void) -> usize;
        /// `ThreadPool::_unsafe_reset_threadpool(uint32_t)`
        #[link_name = "_ZN10executorch9extension10threadpool10ThreadPool24_unsafe_reset_threadpoolEj"]
        fn reset_threadpool(pool: *mut c_void, threads: u32) -> bool;
        /// `executorch::runtime::get_backend_class(const char*)`
        #[link_name = "_ZN10executorch7runtime17get_backend_classEPKc"]
        fn get_backend_class(name: *const c_char) -> *mut c_void;
    }

    /// Delegates as they name themselves.
    const DELEGATES: [&CStr; 6] = [
        c"XnnpackBackend",
        c"OpenvinoBackend",
        c"QnnBackend",
        c"CoreMLBackend",
        c"MLXBackend",
        c"VulkanBackend",
    ];

    /// More would be a slip; and ExecuTorch does not survive what it cannot start.
    const MOST_THREADS: usize = 256;

    /// Without these nothing runs: norms, embeddings and copies are no delegate's.
    const KERNELS: &str = "kernels_optimized";

    /// What was found when the libraries were opened.
    #[derive(Clone, Debug)]
    struct Opened {
        folder: PathBuf,
        libraries: Vec<String>,
        failed: Vec<String>,
    }

    pub(super) fn start() -> Result<Runtime, LoadError> {
        let Opened { folder, libraries, failed } = opened()?;
        // SAFETY: the names are C strings, and the registry only compares them.
        let is_there = |name: &&CStr| unsafe { !get_backend_class(name.as_ptr()).is_null() };
        Ok(Runtime {
            version: env!("EXECUTORCH_VERSION"),
            folder,
            libraries,
            failed,
            delegates: DELEGATES.into_iter().filter(is_there).filter_map(|name| name.to_str().ok()).collect(),
            threads: threads(),
        })
    }

    pub(super) fn start_with(asked: Option<NonZeroUsize>) -> Result<(), LoadError> {
        static SETTLED: Mutex<Option<usize>> = Mutex::new(None);
        opened()?;
        if let Some(asked) = asked.map(NonZeroUsize::get).filter(|&asked| asked > MOST_THREADS) {
            let problem = format!("{asked} threads were asked for, and {MOST_THREADS} are the most");
            return Err(LoadError::Runtime { problem });
        }
        let mut settled = SETTLED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = *settled {
            return match asked.map(NonZeroUsize::get) {
                Some(asked) if asked != running => Err(LoadError::Threads { asked, running }),
                _ => Ok(()),
            };
        }
        // Not what ExecuTorch would take, which counts processors that the process may not use.
        let wanted =
            asked.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get).min(MOST_THREADS);
        if threads() != wanted {
            let count = u32::try_from(wanted).unwrap_or(u32::MAX);
            // SAFETY: no program has run yet that was loaded by this crate, so that no work is lost with the threads that
            // are replaced. Whoever runs others in the same process is told to load one here first.
            let done = unsafe {
                let pool = get_threadpool();
                !pool.is_null() && reset_threadpool(pool, count)
            };
            if !done || threads() != wanted {
                return Err(LoadError::Runtime {
                    problem: format!("it has {} threads and could not be given {wanted}", threads()),
                });
            }
        }
        *settled = Some(wanted);
        Ok(())
    }

    fn threads() -> usize {
        // SAFETY: the pool lives as long as the process.
        unsafe {
            let pool = get_threadpool();
            if pool.is_null() { 1 } else { get_thread_count(pool) }
        }
    }

    fn opened() -> Result<Opened, LoadError> {
        static OPENED: OnceLock<Result<Opened, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| {
            // First, so that the libraries' own words are caught.
            take_log();
            open()
        });
        opened.clone().map_err(|problem| LoadError::Runtime { problem })
    }

    /// Opens the libraries beside `libexecutorch.so` that register kernels and delegates. They export nothing that is called,
    /// so that a linker would drop them.
    fn open() -> Result<Opened, String> {
        let folder = folder()?;
        let cannot = |error| format!("cannot read {}: {error}", folder.display());
        let mut names = Vec::new();
        for entry in folder.read_dir().map_err(cannot)? {
            let name = entry.map_err(cannot)?.file_name();
            let file = Path::new(&name);
            // Not a copy by another name: kernels that are registered twice end the process.
            let is_library =
                file.extension().is_some_and(|extension| extension == std::env::consts::DLL_EXTENSION);
            let stem = file.file_stem().filter(|_| is_library).and_then(OsStr::to_str);
            if let Some(short) = stem.and_then(|stem| stem.strip_prefix("libexecutorch_"))
                && (short.starts_with("kernels_") || short.starts_with("backend_"))
            {
                names.push((short.to_owned(), folder.join(&name)));
            }
        }
        // In the same order everywhere, kernels first.
        names.sort_by(|(a, _), (b, _)| b.starts_with('k').cmp(&a.starts_with('k')).then(a.cmp(b)));
        if !names.iter().any(|(name, _)| name == KERNELS) {
            return Err(format!("there is no libexecutorch_{KERNELS} in {}", folder.display()));
        }
        let (mut libraries, mut failed) = (Vec::new(), Vec::new());
        for (name, path) in names {
            match open_for_good(path) {
                Ok(()) => libraries.push(name),
                Err(problem) if name == KERNELS => return Err(problem),
                Err(problem) => {
                    log::warn!(target: "executorch", "{problem}");
                    failed.push(problem);
                }
            }
        }
        Ok(Opened { folder, libraries, failed })
    }

    /// Where `libexecutorch.so` was loaded from.
    fn folder() -> Result<PathBuf, String> {
        // SAFETY: `dladdr` fills in what it is given, and a name that it gives is a C string of the loader's.
        let name = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(et_pal_init as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
                return Err("the loader does not say where libexecutorch is".to_owned());
            }
            CStr::from_ptr(info.dli_fname)
        };
        let file = Path::new(OsStr::from_bytes(name.to_bytes()));
        let file = file.canonicalize().map_err(|error| format!("cannot find {}: {error}", file.display()))?;
        Ok(file.parent().map_or_else(PathBuf::new, Path::to_owned))
    }

    fn open_for_good(path: PathBuf) -> Result<(), String> {
        let name = CString::new(path.into_os_string().into_vec()).map_err(|error| error.to_string())?;
        // SAFETY: the libraries are of the same ExecuTorch. What they register is used until the process ends, so that they
        // are never closed.
        unsafe {
            if libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL).is_null() {
                let problem = libc::dlerror();
                return Err(if problem.is_null() {
                    format!("cannot open {}", name.to_string_lossy())
                } else {
                    CStr::from_ptr(problem).to_string_lossy().into_owned()
                });
            }
        }
        Ok(())
    }

    /// Has ExecuTorch's log go to `log` instead of the standard error.
    fn take_log() {
        let mut platform = PlatformImpl::new(Some(c"florence2-backend-executorch"));
        platform.set_emit_log_message(|entry| emit(&entry));
        // SAFETY: this happens once, before the first call into ExecuTorch that this crate makes.
        if !unsafe { register_platform_impl(platform) } {
            log::warn!(target: "executorch", "its log cannot be had, and goes to the standard error");
        }
    }

    thread_local! {
        /// What went wrong within the call that is running on this thread.
        static ERRORS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// How much of a log an error carries.
    const LINES: usize = 8;
    const LETTERS: usize = 400;

    fn emit(entry: &LogEntry<'_>) {
        let level = match entry.level {
            LogLevel::Error | LogLevel::Fatal => log::Level::Error,
            LogLevel::Info => log::Level::Info,
            _ => log::Level::Debug,
        };
        log::log!(target: "executorch", level, "{}", entry.message);
        if level == log::Level::Error {
            // Threads that are ending have no such list any more.
            let _ = ERRORS.try_with(|errors| {
                if let Ok(mut errors) = errors.try_borrow_mut()
                    && errors.len() < LINES
                {
                    errors.push(entry.message.trim_end_matches(['\n', '.']).chars().take(LETTERS).collect());
                }
            });
        }
    }

    /// Does something with ExecuTorch; an error has what was logged meanwhile.
    pub(crate) fn logged<R>(
        call: impl FnOnce() -> Result<R, executorch::Error>,
    ) -> Result<R, ExecuTorchError> {
        ERRORS.with_borrow_mut(Vec::clear);
        call().map_err(|error| ExecuTorchError {
            status: format!("{error:?}"),
            log: ERRORS.with_borrow_mut(std::mem::take),
        })
    }
}
