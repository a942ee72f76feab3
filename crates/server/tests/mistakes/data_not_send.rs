//~ cannot be sent between threads safely

use std::rc::Rc;
use throng::prelude::*;

fn main() {
    let _ = Ws::from_request(|_| Ok(Rc::new(1)));
}
