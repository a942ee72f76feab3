//! Messages of a tunnel: numbered questions, and numbered answers. Each side computes the message
//! that must come next, so each detects a gap, a swap, a duplicate and a wrong byte by itself.

/// State of one side of a tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tunnel {
    questions: u64,
    answers: u64,
}

/// Outcome of the check of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Next,
    /// This many are missing before it.
    Gap(u64),
    /// A duplicate, or another message than expected.
    Wrong,
}

impl Tunnel {
    /// Returns the number of questions sent, or received.
    pub(crate) fn questions(&self) -> u64 {
        self.questions
    }

    /// The next question.
    pub(crate) fn ask(&mut self) -> Vec<u8> {
        self.questions += 1;
        message(self.questions - 1, 0)
    }

    /// The numbers of the answers to this question: one, and every third time two. `None` if it is
    /// not the next.
    pub(crate) fn handle_question(
        &mut self,
        bytes: &[u8],
    ) -> Option<impl Iterator<Item = u64> + use<>> {
        if bytes != message(self.questions, 0) {
            return None;
        }
        let before = answers_to(self.questions);
        self.questions += 1;
        Some(before..answers_to(self.questions))
    }

    pub(crate) fn handle_answer(&mut self, bytes: &[u8]) -> Order {
        let number = number(bytes);
        let order = match number {
            Some(number) if bytes != answer(number) => Order::Wrong,
            Some(number) if number == self.answers => Order::Next,
            Some(number) if number > self.answers => Order::Gap(number - self.answers),
            _ => Order::Wrong,
        };
        if order != Order::Wrong {
            self.answers = number.unwrap_or_default() + 1;
        }
        order
    }

    /// Answers that have not come yet.
    pub(crate) fn missing(&self) -> u64 {
        answers_to(self.questions) - self.answers
    }
}

/// Returns the number of answers to this many questions.
fn answers_to(questions: u64) -> u64 {
    questions + questions.div_ceil(3)
}

/// The answer of that number.
pub(crate) fn answer(number: u64) -> Vec<u8> {
    message(number, 0x5a)
}

/// 8 to 200 bytes, and now and then more than fits into one read or segment.
fn message(number: u64, salt: u8) -> Vec<u8> {
    let len = if number % 64 == 63 { 20_000 } else { 8 + (number * 37 % 193) as usize };
    let mut bytes = vec![number as u8 ^ salt; len];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Checks that the checks above can fail.
pub(crate) fn check_the_checker() {
    let (mut client, mut backend) = (Tunnel::default(), Tunnel::default());
    for _ in 0..7 {
        for answer_number in backend.handle_question(&client.ask()).unwrap() {
            assert_eq!(client.handle_answer(&answer(answer_number)), Order::Next);
        }
    }
    assert_eq!((client.missing(), backend.questions()), (0, 7));
    let lost = client.ask();
    assert!(backend.handle_question(&client.ask()).is_none(), "one is missing before it");
    assert_eq!(backend.handle_question(&lost).unwrap().count(), 1);
    assert_eq!(client.missing(), 2);
    assert_eq!(client.handle_answer(&answer(11)), Order::Gap(1));
    assert_eq!(client.handle_answer(&answer(10)), Order::Wrong);
    let mut damaged = answer(12);
    damaged[8] ^= 1;
    assert_eq!(client.handle_answer(&damaged), Order::Wrong);
}
