//! Links ExecuTorch's shared libraries, if the feature `runtime` asks for them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The one that the headers of the bindings are of.
const VERSION: &str = "1.5.1";

/// What is linked, and behind it what is opened at run time and cannot be done without.
const NEEDED: [&str; 3] = ["executorch", "executorch_threadpool", "executorch_kernels_optimized"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLORENCE2_EXECUTORCH_HOME");
    println!("cargo::rustc-env=EXECUTORCH_VERSION={VERSION}");
    if env::var_os("CARGO_FEATURE_RUNTIME").is_none() {
        return;
    }
    if let Err(problem) = link() {
        println!(
            "cargo::error=the feature `runtime` needs the shared libraries of ExecuTorch {VERSION}: {problem}. \
             tools/get-executorch.sh brings them; FLORENCE2_EXECUTORCH_HOME may name another folder whose lib/ holds them."
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
    let names = libraries(&lib, suffix).map_err(|error| format!("cannot read {}: {error}", lib.display()))?;
    for needed in NEEDED {
        if !names.contains(&format!("lib{needed}{suffix}")) {
            return Err(format!("{} has no lib{needed}{suffix}", lib.display()));
        }
    }
    // Under target/, so that cargo has the folder among those that `cargo run` and `cargo test` look for libraries in, here and
    // in every crate that depends on this one.
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("there is no OUT_DIR")?).join("lib");
    copy(&lib, &out, &names, suffix)
        .map_err(|error| format!("cannot write to {}: {error}", out.display()))?;
    for name in &NEEDED[..2] {
        println!("cargo::rustc-link-lib=dylib={name}");
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    // What DEP_FLORENCE2_EXECUTORCH_LIB_DIR is to programs that depend on this crate directly.
    println!("cargo::metadata=LIB_DIR={}", out.display());
    Ok(())
}

/// The names of ExecuTorch's libraries in a folder.
fn libraries(folder: &Path, suffix: &str) -> std::io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.starts_with("libexecutorch")
            && name.ends_with(suffix)
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Makes `to` hold these libraries, and no others: all that are there are opened.
fn copy(from: &Path, to: &Path, names: &BTreeSet<String>, suffix: &str) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for old in libraries(to, suffix)?.difference(names) {
        fs::remove_file(to.join(old))?;
    }
    for name in names {
        // Programs may be running with the old one, which must not change under them.
        let part = to.join(format!("{name}.part"));
        fs::copy(from.join(name), &part)?;
        fs::rename(part, to.join(name))?;
    }
    Ok(())
}
