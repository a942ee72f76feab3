//! Console control events of Windows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_io::console;

use super::Flag;

/// Sets `asked` at the first event: Ctrl-C, Ctrl-Break, the end of the console or of the session.
/// While `is_starting` or `asked` is set, an event ends the process at once.
pub(super) fn on_stop(asked: &Flag, is_starting: &Flag) -> io::Result<()> {
    let (asked, is_starting) = (Arc::clone(asked), Arc::clone(is_starting));
    let registered = console::on_event(move |_| {
        if is_starting.load(Relaxed) || asked.swap(true, Relaxed) {
            std::process::exit(130);
        }
    })?;
    registered.keep();
    Ok(())
}

/// Returns flags that nothing sets: no event of a console requests a reload, a status or an
/// upgrade.
pub(super) fn of_a_server(_: &Flag) -> io::Result<[Flag; 3]> {
    Ok(Default::default())
}
