//! Tests of the rules on recorded and written machines, and on arbitrary facts.

mod document;
mod golden;
mod live;
mod machines;
mod properties;
mod scripts;
