//! The hot path does not allocate: counted over the whole process, client included.

mod support;

use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError};

use support::Client;
use throng::prelude::*;
use throng_proto::ws::{self, Opcode};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The count is the whole process's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns the fewest allocations of several runs. If a shard loses its CPU in the middle of a
/// read, it measures a long handler, and stores the rest of the input in memory.
fn fewest_allocations(mut run: impl FnMut()) -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..5 {
        let before = dhat::HeapStats::get().total_blocks;
        run();
        fewest = fewest.min(dhat::HeapStats::get().total_blocks - before);
        if fewest == 0 {
            break;
        }
    }
    fewest
}

#[test]
fn an_echoed_message_allocates_nothing() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _profiler = dhat::Profiler::builder().testing().build();
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let bound = Server::new(App::new().ws("/", echo)).shards(1).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(address, "/")).collect();
    for (opcode, size, pipeline) in
        [(Opcode::Binary, 100, 1), (Opcode::Text, 100, 16), (Opcode::Text, 16_384, 1)]
    {
        let mut request = Vec::new();
        let payload = vec![b'a'; size];
        for _ in 0..pipeline {
            ws::encode_masked(opcode, &payload, [9, 8, 7, 6], &mut request);
        }
        let answer_len = pipeline * (size + if size < 126 { 2 } else { 4 });
        let mut answer = vec![0; answer_len];
        let mut round = |rounds: usize| {
            for _ in 0..rounds {
                for client in &mut clients {
                    client.stream.write_all(&request).unwrap();
                    client.stream.read_exact(&mut answer).unwrap();
                }
            }
        };
        round(3); // buffers find their size
        let allocated = fewest_allocations(|| round(50));
        assert_eq!(
            allocated, 0,
            "{allocated} allocations in 1,000 rounds of {pipeline} x {size} bytes"
        );
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn a_request_and_its_body_allocate_nothing() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _profiler = dhat::Profiler::builder().testing().build();
    let bound =
        Server::new(App::new().get("/", |_| "OK").post("/{name}", |request: &Request<'_>| {
            assert_eq!(request.param("name"), Some("length"));
            Response::text(if request.body().len() == 500 { "whole" } else { "part " })
        }))
        .shards(1)
        .bind("127.0.0.1:0")
        .unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let get = b"GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n".repeat(16);
    let mut post = b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\n".to_vec();
    post.extend_from_slice(&[b'x'; 500]);
    let mut clients: Vec<_> = (0..20).map(|_| support::dial(address)).collect();
    for request in [get, post] {
        clients[0].write_all(&request).unwrap();
        let mut answer = vec![0; 10_000];
        // All answers of a kind have the same length.
        let mut answer_len = 0;
        while !answer[..answer_len].ends_with(b"OK") && !answer[..answer_len].ends_with(b"whole")
            || answer[..answer_len].windows(9).filter(|w| w == b"HTTP/1.1 ").count()
                < request.windows(9).filter(|w| w == b" HTTP/1.1").count()
        {
            answer_len += clients[0].read(&mut answer[answer_len..]).unwrap();
        }
        answer.truncate(answer_len);
        let mut round = |rounds: usize| {
            for _ in 0..rounds {
                for client in &mut clients {
                    client.write_all(&request).unwrap();
                    client.read_exact(&mut answer).unwrap();
                }
            }
        };
        round(3);
        let allocated = fewest_allocations(|| round(50));
        assert_eq!(allocated, 0, "{allocated} allocations in 1,000 rounds");
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}
