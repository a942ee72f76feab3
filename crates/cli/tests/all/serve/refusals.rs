//! Mistakes and limits that keep it from starting.

use std::net::TcpListener;
use std::process::Command;

use super::{refused, throng};

#[test]
fn a_port_that_is_taken_is_one_line_and_exit_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, errors) = refused(&throng(&["serve", "--listen", &address]).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(errors.contains(&address) && errors.contains("choose another port"), "{errors}");
}

#[test]
fn mistakes_are_one_line_with_the_remedy_and_exit_code_2() {
    let folder = throng_testkit::TempFolder::new("mistakes");
    let file = folder.write("serve.toml", "shards = 1\nmax_backlog = 1MiB\n");
    let file = file.to_str().unwrap();
    let nowhere = format!("{file}.not-here");
    let no_file = ["serve", "--config", &nowhere];
    for (words, parts) in [
        (&["serve", "--set", "max_mesage_size=1"][..], &["did you mean max_message_size?"][..]),
        (&["serve", "--set", "max_backlog=1M"], &["max_backlog", "\"1M\"", "1MiB"]),
        (&["serve", "--deflate", "on"], &["--deflate", "\"on\"", "window:BITS"]),
        (&["serve", "--deflate", "window:8"], &["deflate.window_bits", "--deflate", "9 to 15"]),
        (&["serve", "--shards", "-1"], &["shards is \"-1\"", "--shards", "whole number"]),
        (&["serve", "--shards", "many"], &["shards", "many", "--shards", "whole number"]),
        (&["config", "show", "--set", "zzz=1"], &["zzz", "config show"]),
        (&["serve", "--channel", "a=lates"], &["--channel", "\"lates\"", "did you mean latest?"]),
        (&["serve", "--channel", "a..b=latest"], &["\"a..b\"", "empty token"]),
        (&["serve", "--channel", "a=close,max_age=25h"], &["channels[0].max_age", "24h"]),
        (&no_file, &["cannot be read", &nowhere, "--config"]),
        (&["serve", "--config", "/"], &["cannot be read", "it is a folder", "--config"]),
        (&["demo", "--clients", "9_007_199_254_740_992"], &["--clients", "lower --clients"]),
        (&["demo", "--clients", "0"], &["--clients", "at least 1"]),
    ] {
        let output = throng(words).output().unwrap();
        let (code, errors) = refused(&output);
        // A missing file may exist at the next start.
        let expected = if words == &no_file[..] { 1 } else { 2 };
        assert_eq!(code, Some(expected), "{words:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{words:?}: {errors:?} does not say {part:?}");
        }
    }
    // A mistake in a file has its line, with a mark below its place.
    let output = throng(&["serve", "--config", file]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with(&format!("throng: {file}:2:")), "{errors}");
    assert!(lines[1].ends_with("2 | max_backlog = 1MiB") && lines[2].ends_with('^'), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    let output = throng(&["serve"]).env("THRONG_SHARDS", "x").output().unwrap();
    assert!(refused(&output).1.contains("environment THRONG_SHARDS"));
    let output = throng(&["serve", "--lisen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--listen"), "names the nearest");
}

#[test]
fn a_descriptor_limit_that_is_too_low_says_how_to_raise_it() {
    let script = "ulimit -n 60; exec \"$0\" serve --listen 127.0.0.1:0";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_throng")]).output().unwrap();
    let (code, errors) = refused(&output);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("ulimit -n") && errors.contains("60"), "{errors}");
}
