//! Tells the program where ExecuTorch's libraries are, where it is built with them.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some(libraries) = env::var_os("DEP_FLORENCE2_EXECUTORCH_LIB_DIR").map(PathBuf::from) else { return };
    let mut places = vec!["$ORIGIN".to_owned(), "$ORIGIN/../lib/florence2".to_owned()];
    // Where cargo has put them beside the program: target/release/build/florence2-backend-executorch-*/out/lib.
    let out = env::var_os("OUT_DIR").map(PathBuf::from);
    let beside = out.as_deref().and_then(|out| out.ancestors().nth(3));
    if let Some(inner) = beside.and_then(|beside| libraries.strip_prefix(beside).ok()).and_then(Path::to_str)
    {
        places.push(format!("$ORIGIN/{inner}"));
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-rpath,{}", places.join(":"));
}
