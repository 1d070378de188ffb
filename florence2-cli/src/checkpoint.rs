//! The checkpoint that is meant.

use std::path::Path;

use florence2::candle::{Candle, CandleModel};
use florence2::{Error, Florence2};

use crate::args::BackendArgs;

/// Whether it is the one in this program. A folder of that name is `./demo`.
pub(crate) fn is_demo(model: &Path) -> bool {
    cfg!(feature = "demo") && model.as_os_str() == "demo"
}

pub(crate) fn load(model: &Path, args: &BackendArgs) -> Result<Florence2<CandleModel>, Error> {
    let candle =
        Candle { device: args.device, dtype: args.dtype.into(), threads: args.threads, ..Candle::default() };
    #[cfg(feature = "demo")]
    if is_demo(model) {
        return Florence2::demo(candle);
    }
    Florence2::load(model, candle)
}
