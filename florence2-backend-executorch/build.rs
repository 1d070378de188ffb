//! Links ExecuTorch's shared libraries, if the feature `runtime` asks for them.

use std::path::PathBuf;
use std::{env, fs};

/// The one that the headers of the bindings are of.
const VERSION: &str = "1.5.1";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLORENCE2_EXECUTORCH_HOME");
    println!("cargo::rustc-env=EXECUTORCH_VERSION={VERSION}");
    if env::var_os("CARGO_FEATURE_RUNTIME").is_none() {
        return;
    }
    if let Err(problem) = link() {
        println!(
            "cargo::error=the feature `runtime` needs the shared libraries of ExecuTorch {VERSION}: {problem}. tools/get-executorch.sh \
             brings them; FLORENCE2_EXECUTORCH_HOME may name another folder whose lib/ holds them."
        );
    }
}

fn link() -> Result<(), String> {
    let home = env::var_os("FLORENCE2_EXECUTORCH_HOME").map(PathBuf::from);
    let home = home.ok_or("FLORENCE2_EXECUTORCH_HOME is not set")?;
    println!("cargo::rerun-if-changed={}", home.display());
    let version = home.join("VERSION");
    match fs::read_to_string(&version) {
        Ok(found) if found.trim() != VERSION => {
            return Err(format!("{} says {:?}", version.display(), found.trim()));
        }
        // Whoever has put them there by hand knows.
        _ => {}
    }
    let lib = home.join("lib");
    let suffix = if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") { ".dylib" } else { ".so" };
    // Under target/, so that cargo has the folder among those that `cargo run` and `cargo test` look for libraries in, here and
    // in every crate that depends on this one.
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("there is no OUT_DIR")?).join("lib");
    fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let cannot = |error| format!("cannot read {}: {error}", lib.display());
    for entry in fs::read_dir(&lib).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("libexecutorch") && name.ends_with(suffix)) {
            fs::copy(entry.path(), out.join(&name)).map_err(cannot)?;
        }
    }
    for name in ["executorch", "executorch_threadpool"] {
        let file = format!("lib{name}{suffix}");
        if !out.join(&file).is_file() {
            return Err(format!("{} has no {file}", lib.display()));
        }
        println!("cargo::rustc-link-lib=dylib={name}");
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    // What DEP_FLORENCE2_EXECUTORCH_LIB_DIR is to programs.
    println!("cargo::metadata=LIB_DIR={}", out.display());
    Ok(())
}
