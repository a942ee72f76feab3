//! A bare TCP echo server on one thread: measures the driver without a protocol above it.
//!
//! Usage: `driver_echo [ADDRESS] [epoll|portable]`. The defaults are a free port of 127.0.0.1 and
//! epoll. Prints the address. Replies are sent from the lent memory itself.

use std::io;
use std::net::SocketAddr;

use throng_io::{
    Batch, Driver, Event, ListenOptions, Options, ReadinessDriver, Segment, SendOutcome,
};

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    match arguments.next().as_deref() {
        #[cfg(target_os = "linux")]
        None | Some("epoll") => run::<throng_io::epoll::EpollPoller>(address),
        Some("portable") => run::<throng_io::portable::MioPoller>(address),
        _ => Err(io::Error::other("the second argument is epoll or portable")),
    }
}

fn run<P: throng_io::readiness::poller::Poller>(address: SocketAddr) -> io::Result<()> {
    let (listener, bound) = throng_io::listen(address, ListenOptions::default())?;
    let mut driver = ReadinessDriver::<P>::new(Options::default())?;
    driver.add_listener(listener)?;
    println!("{bound}");
    let mut spare = Vec::new();
    loop {
        driver.wait(None)?;
        while let Some(event) = driver.next_event() {
            match event {
                Event::Incoming(socket, _, _) => drop(driver.adopt(socket)),
                Event::Received(conn, bytes) => {
                    let len = bytes.len();
                    let mut batch: Box<Batch> = spare.pop().unwrap_or_default();
                    batch.push(Segment::Lent(0..len));
                    match driver.send(conn, batch) {
                        SendOutcome::Done(batch) => spare.push(batch),
                        SendOutcome::Pending => driver.pause(conn),
                    }
                }
                Event::Sent(conn, batch) => {
                    spare.push(batch);
                    driver.resume(conn);
                }
                Event::Finished(conn) => driver.close(conn),
                Event::AcceptStopped(_)
                | Event::Connected(_)
                | Event::Secured(..)
                | Event::PassedThrough(..)
                | Event::Parked(_)
                | Event::Closed(..) => {}
            }
            if let Some(batch) = spare.last_mut() {
                batch.clear();
            }
        }
    }
}
