use throng::prelude::*;

fn main() {
    let _ = Ws::new().on_message(|_, _| async {});
}
