//~ cannot be sent between threads safely

use std::rc::Rc;
use throng::prelude::*;

fn main() {
    let _ = Ws::on_upgrade(|_| Ok(Rc::new(1)));
}
