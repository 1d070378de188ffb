//! What this project's tests, fuzz targets and benches share. No stability is promised.
