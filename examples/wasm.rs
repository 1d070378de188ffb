//! The parser for the web and for plugins: a WebAssembly module without imports that reads one JSON request, as
//! `florence2 parse --jsonl` does, and gives one JSON answer.
//!
//! ```sh
//! cargo build --example wasm --profile wasm --target wasm32-unknown-unknown
//! ```
//!
//! The host calls `reserve(len)`, writes the request (UTF-8) at the address that it gets, calls `parse()`, and
//! reads `answer_len()` bytes at the address that `parse` gives. `tools/wasm.mjs` is such a host.
#![expect(unsafe_code, reason = "an export needs an unmangled name; no other unsafe feature is used")]

use std::cell::RefCell;

use florence2::record::{AnswerRecord, Defaults};

thread_local! {
    static BUFFERS: RefCell<(Vec<u8>, String)> = const { RefCell::new((Vec::new(), String::new())) };
}

/// Makes room for a request and gives its address.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(len: usize) -> *mut u8 {
    BUFFERS.with_borrow_mut(|(request, _)| {
        request.clear();
        request.resize(len, 0);
        request.as_mut_ptr()
    })
}

/// Reads the request and gives the address of its answer: the reference's dictionary, or `{"error": …}`.
#[unsafe(no_mangle)]
pub extern "C" fn parse() -> *const u8 {
    BUFFERS.with_borrow_mut(|(request, answer)| {
        let line = String::from_utf8_lossy(request);
        *answer = match AnswerRecord::from_json(&line, &Defaults::default()) {
            Ok(record) => serde_json::to_string(&record.hf()),
            Err(error) => {
                serde_json::to_string(&std::collections::BTreeMap::from([("error", error.to_string())]))
            }
        }
        .unwrap_or_default();
        answer.as_ptr()
    })
}

/// The length of the last answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn answer_len() -> usize {
    BUFFERS.with_borrow(|(_, answer)| answer.len())
}
