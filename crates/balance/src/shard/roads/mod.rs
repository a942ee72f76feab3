//! The roads: what needs three parts or more.

mod answer;
mod failure;
mod request;
mod sweep;
mod tunnel;
