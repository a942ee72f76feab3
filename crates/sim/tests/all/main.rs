//! Simulated worlds: thousands of schedules of peers, networks and faults.

mod accidents;
mod admission;
mod backpressure;
mod balance;
mod balancer;
mod chain;
mod channels;
mod compression;
mod contract;
mod corked;
mod drain;
mod fragments;
mod heartbeat;
mod history;
mod http;
mod memory;
mod moves;
mod order;
mod pair;
mod presence;
mod publishers;
mod secured;
mod seeds;
mod support;
mod through;
mod turns;
