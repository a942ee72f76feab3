//! The hot path does not allocate: counted over the whole process, client included.

mod support;

use std::io::{Read, Write};

use support::Client;
use throng::prelude::*;
use throng_proto::ws::{self, Opcode};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

#[test]
fn an_echoed_message_allocates_nothing() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let echo = Ws::on_message(|ws, message| ws.send(message));
    let bound = Server::new().shards(1).ws("/", echo).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.spawn().unwrap();
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
        let before = dhat::HeapStats::get().total_blocks;
        round(50);
        let allocated = dhat::HeapStats::get().total_blocks - before;
        assert_eq!(
            allocated, 0,
            "{allocated} allocations in 1,000 rounds of {pipeline} x {size} bytes"
        );
    }
    running.drain(DrainPlan::default()).unwrap();
}
