// `?` in a message callback.
//~ a callback cannot return `Result<(), 
//~ an error is handled in the callback
use throng::prelude::*;

fn main() {
    let ws = Ws::new().on_message(|ws, (), message| {
        let n: u64 = std::str::from_utf8(message.as_bytes())?.parse()?;
        ws.send((n + 1).to_string());
        Ok(())
    });
    let _ = App::new().ws("/", ws);
}
