//! A script of messages: the steps of every client, read from lines of text.

use std::time::Duration;

use throng_config::units::parse_duration;

use crate::error::Error;
use crate::template::Template;

/// Maximum steps of a script.
const MAX_STEPS: usize = 1000;
/// Maximum steps that wait for a message. Each has a histogram on each thread.
const MAX_WAITS: usize = 100;

/// The steps of a client, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    name: String,
    steps: Vec<Step>,
}

/// One line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    /// The line itself.
    pub(crate) text: String,
    pub(crate) action: ScriptAction,
}

/// The effect of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptAction {
    /// Sends a message.
    Send { payload: Template, is_text: bool },
    /// Waits for a message that contains a text: the next one, or any, skipping others.
    Receive { part: Template, skips_others: bool },
    /// Waits so long.
    Pause(Duration),
    /// Goes back to a step, either a number of times in total or without end.
    Repeat { to: usize, times: Option<u64> },
}

impl Script {
    /// Parses a script. `name` is the file's name for errors.
    ///
    /// A line is `send TEXT`, `send-binary TEXT`, `expect TEXT`, `await TEXT`, `pause TIME`, `loop`
    /// or `repeat [N]`; blank lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`Error::Usage`] with file, line and remedy.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let mut reader = Reader::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if line.trim_end().is_empty() || line.starts_with('#') {
                continue;
            }
            reader.line = at + 1;
            reader.read(line).map_err(|why| Error::Usage(format!("{name}:{}: {why}", at + 1)))?;
        }
        if let Some(line) = reader.loop_line {
            return Err(Error::Usage(format!(
                "{name}:{line}: the loop has no end; write repeat, or repeat N, below its steps"
            )));
        }
        if reader.steps.is_empty() {
            return Err(Error::Usage(format!(
                "{name} has no step; write send TEXT, expect TEXT and the like, one a line"
            )));
        }
        Ok(Self { name: name.to_owned(), steps: reader.steps })
    }

    /// The name of its file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns whether the script needs tokens of clients.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        self.templates().any(Template::needs_token)
    }

    /// The templates of all steps.
    pub(crate) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.steps.iter().filter_map(|step| match &step.action {
            ScriptAction::Send { payload: template, .. }
            | ScriptAction::Receive { part: template, .. } => Some(template),
            ScriptAction::Pause(_) | ScriptAction::Repeat { .. } => None,
        })
    }
}

/// The steps so far.
#[derive(Default)]
struct Reader {
    line: usize,
    steps: Vec<Step>,
    /// The beginning of the current loop: its line and its first step.
    loop_line: Option<usize>,
    loop_start: usize,
    /// Steps before this one belong to a loop that has ended.
    closed: usize,
    is_endless: bool,
}

impl Reader {
    fn read(&mut self, line: &str) -> Result<(), String> {
        if self.is_endless {
            return Err(
                "never reached, because repeat without a number has no end; remove it, or \
                 write repeat N"
                    .to_owned(),
            );
        }
        let (verb, rest) = line.split_once(' ').unwrap_or((line.trim_end(), ""));
        let action = match verb {
            "send" | "send-binary" => {
                ScriptAction::Send { payload: Template::parse(rest)?, is_text: verb == "send" }
            }
            "expect" | "await" => ScriptAction::Receive {
                part: Template::parse(rest)?,
                skips_others: verb == "await",
            },
            "pause" => match parse_duration(rest.trim()) {
                Ok(time) => ScriptAction::Pause(time),
                Err(error) => return Err(format!("pause {}: {error}", rest.trim())),
            },
            "loop" => return self.begin_loop(rest),
            "repeat" => self.repeat(rest.trim())?,
            _ => {
                return Err(format!(
                    "{verb:?} is not a step: write send, send-binary, expect, await, pause, loop \
                     or repeat"
                ));
            }
        };
        self.steps.push(Step { line: self.line, text: line.trim_end().to_owned(), action });
        let is_wait = |step: &&Step| matches!(step.action, ScriptAction::Receive { .. });
        if self.steps.len() > MAX_STEPS || self.steps.iter().filter(is_wait).count() > MAX_WAITS {
            return Err(format!(
                "a script has at most {MAX_STEPS} steps, {MAX_WAITS} of them expect or await; \
                 use loop and repeat"
            ));
        }
        Ok(())
    }

    fn begin_loop(&mut self, rest: &str) -> Result<(), String> {
        if !rest.trim().is_empty() {
            return Err("loop stands alone; write the number after repeat".to_owned());
        }
        if let Some(line) = self.loop_line {
            return Err(format!("the loop of line {line} has no end yet; write repeat before"));
        }
        (self.loop_line, self.loop_start) = (Some(self.line), self.steps.len());
        Ok(())
    }

    fn repeat(&mut self, times: &str) -> Result<ScriptAction, String> {
        let times = match times {
            "" => None,
            times => match times.parse::<u64>() {
                Ok(times) if times > 0 => Some(times),
                _ => {
                    return Err(format!(
                        "repeat {times}: write a number from 1 on, or none for no end"
                    ));
                }
            },
        };
        if self.loop_line.take().is_none() && self.closed > 0 {
            return Err("which steps? Write loop above the first of them".to_owned());
        }
        let to = self.loop_start.max(self.closed);
        // Without a waiting step, a client would send without limit and exhaust memory.
        let waits = |action: &ScriptAction| match action {
            ScriptAction::Send { .. } => false,
            ScriptAction::Pause(time) => !time.is_zero(),
            _ => true,
        };
        if !self.steps[to..].iter().any(|step| waits(&step.action)) {
            return Err(
                "what is repeated has to wait; write expect, await or pause in it".to_owned()
            );
        }
        self.closed = self.steps.len() + 1;
        self.is_endless = times.is_none();
        Ok(ScriptAction::Repeat { to, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_steps() {
        let text = "# log in\nsend {\"user\":{client}}\nexpect ok\n\nloop\n  send-binary  a \n  \
                    await\n  pause 50ms\nrepeat 3\nloop\npause 1s\nrepeat\n";
        let script = Script::parse("chat.txt", text).unwrap();
        let lines: Vec<usize> = script.steps().iter().map(|step| step.line).collect();
        assert_eq!(lines, [2, 3, 6, 7, 8, 9, 11, 12]);
        let action = |at: usize| script.steps()[at].action.clone();
        let template = |text: &str| Template::parse(text).unwrap();
        assert_eq!(action(2), ScriptAction::Send { payload: template(" a "), is_text: false });
        assert_eq!(action(3), ScriptAction::Receive { part: template(""), skips_others: true });
        assert_eq!(action(4), ScriptAction::Pause(Duration::from_millis(50)));
        assert_eq!(action(5), ScriptAction::Repeat { to: 2, times: Some(3) });
        assert_eq!(action(7), ScriptAction::Repeat { to: 6, times: None });
        assert_eq!(script.templates().count(), 4);
        // Without loop everything is repeated.
        let whole = Script::parse("x", "send a\nexpect a\nrepeat").unwrap();
        assert_eq!(whole.steps()[2].action, ScriptAction::Repeat { to: 0, times: None });
    }

    #[test]
    fn mistakes_name_file_line_and_remedy() {
        for (text, words) in [
            ("", "s.txt has no step"),
            ("\nsay hi", "s.txt:2: \"say\" is not a step: write send"),
            ("send {x}", "s.txt:1: {x} is not a value"),
            ("pause 5", "s.txt:1: pause 5: it has no unit: write \"5s\""),
            ("loop\nexpect a", "s.txt:1: the loop has no end"),
            ("loop 3\nexpect a\nrepeat", "write the number after repeat"),
            ("loop\nloop", "s.txt:2: the loop of line 1 has no end yet"),
            ("expect a\nrepeat 0", "s.txt:2: repeat 0: write a number"),
            ("send a\nrepeat", "s.txt:2: what is repeated has to wait"),
            ("repeat", "has to wait"),
            ("send a\npause 0s\nrepeat", "has to wait"),
            ("expect a\nrepeat\nsend b", "s.txt:3: never reached"),
            ("expect a\nrepeat 2\nexpect b\nrepeat", "Write loop above"),
        ] {
            let error = Script::parse("s.txt", text).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
        let long = "expect\n".repeat(MAX_WAITS + 1);
        assert!(Script::parse("s.txt", &long).unwrap_err().to_string().contains("use loop"));
    }
}
