//~ a callback cannot return `
//~ if the callback is `async`, use `Ws::on_message_async`, with the feature `tokio`

use throng::prelude::*;

fn main() {
    let _ = Ws::new().on_message(|_, (), _| async {});
}
