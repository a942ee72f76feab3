//! The faults of the record layer that its tests must detect. A fault that both ends can have is
//! written into both, because tests with two ends of this project would not detect it otherwise.

/// A program with tests.
#[derive(Clone, Copy)]
pub(super) enum Program {
    /// The tests of the modules.
    Units,
    /// Tests of whole connections.
    Connections,
}

impl Program {
    pub(super) const EACH: [Self; 2] = [Self::Units, Self::Connections];

    /// The arguments of `cargo test` that select it.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Units => &["--lib"],
            Self::Connections => &["--test", "all"],
        }
    }
}

/// A fault, as replacements in the sources of throng-tls: the file, a text that occurs once in it,
/// and its replacement.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// The program whose test detects the fault.
    pub(super) program: Program,
    pub(super) changes: &'static [(&'static str, &'static str, &'static str)],
}

/// Every fault.
pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the sequence number goes on after an update of the keys",
        program: Program::Units,
        changes: &[(
            "cipher.rs",
            "        *self = Self::from_secret(suite, next)?;\n",
            "        let sequence = self.sequence;\n\
             *self = Self::from_secret(suite, next)?;\n\
             self.sequence = sequence;\n",
        )],
    },
    Fault {
        name: "the sequence number does not advance after an update of the keys",
        program: Program::Units,
        changes: &[
            (
                "cipher.rs",
                "        *self = Self::from_secret(suite, next)?;\n",
                "        *self = Self::from_secret(suite, next)?;\n\
                 self.sequence = [0xFF; SEQUENCE_LEN];\n",
            ),
            (
                "cipher.rs",
                "        let number = self.records();\n",
                "        let is_updated = self.sequence == [0xFF; SEQUENCE_LEN];\n\
                 let number = if is_updated { 0 } else { self.records() };\n",
            ),
            (
                "cipher.rs",
                "        self.sequence = sequence(number + 1);\n",
                "        if !is_updated {\n\
                 self.sequence = sequence(number + 1);\n\
                 }\n",
            ),
            (
                "cipher.rs",
                "        self.records() >= MAX_RECORDS\n",
                "        self.records() > MAX_RECORDS\n",
            ),
        ],
    },
    Fault {
        name: "the IV is that of the other direction",
        program: Program::Units,
        changes: &[(
            "session.rs",
            "TrafficKeys::new(suite, direction.key, &direction.iv, secret, direction.sequence)",
            "{\n\
             let is_sent = std::ptr::eq(direction, send);\n\
             let iv = if is_sent { &receive.iv } else { &send.iv };\n\
             TrafficKeys::new(suite, direction.key, iv, secret, direction.sequence)\n\
             }",
        )],
    },
    Fault {
        name: "the length that the tag covers lacks the tag (TLS 1.3)",
        program: Program::Units,
        changes: &[
            (
                "record.rs",
                "seal_in_place(key, nonce, &header, sealed)",
                "seal_in_place(key, nonce, &tls13_data(len_of(pieces) + 1), sealed)",
            ),
            ("record.rs", "&tls13_data(header.len)", "&tls13_data(header.len - TAG_LEN)"),
        ],
    },
    Fault {
        name: "the length that the tag covers includes the tag (TLS 1.2)",
        program: Program::Units,
        changes: &[
            (
                "record.rs",
                "tls12_data(sequence, content_type, VERSION, plain_len)",
                "tls12_data(sequence, content_type, VERSION, plain_len + TAG_LEN)",
            ),
            ("record.rs", "[head[1], head[2]], plain.len())", "[head[1], head[2]], sealed_len)"),
            (
                "record.rs",
                "        let (plain, tag) = sealed.split_last_chunk_mut().ok_or(\
                 Alert::BAD_RECORD_MAC)?;\n        let explicit",
                "        let sealed_len = sealed.len();\n\
                 let (plain, tag) = sealed.split_last_chunk_mut().ok_or(Alert::BAD_RECORD_MAC)?;\n\
                 let explicit",
            ),
        ],
    },
    Fault {
        name: "the type stays behind the data",
        program: Program::Units,
        changes: &[(
            "record.rs",
            "Some(content_type) => Ok((content_type, end)),",
            "Some(content_type) => Ok((content_type, end + 1)),",
        )],
    },
    Fault {
        name: "padding is returned as data",
        program: Program::Units,
        changes: &[(
            "record.rs",
            "Some(content_type) => Ok((content_type, end)),",
            "Some(content_type) => Ok((content_type, plain.len() - 1)),",
        )],
    },
    Fault {
        name: "data after close_notify is delivered",
        program: Program::Units,
        changes: &[(
            "session.rs",
            "while opened.end.is_none() && opened.consumed < input.len() {",
            "while matches!(opened.end, None | Some(End::CloseNotify))\n\
             && opened.consumed < input.len()\n\
             {",
        )],
    },
    Fault {
        name: "only the first half of the tag is compared",
        program: Program::Units,
        changes: &[(
            "record.rs",
            "    let aad = Aad::from(associated_data);\n    \
             let opened = key.open_in_place_separate_tag(nonce, aad, tag, content);\n    \
             opened.map(|_| ()).map_err(|_| Alert::BAD_RECORD_MAC)\n",
            // The ciphers are stream ciphers: sealing a second time opens.
            "    let nonce = *nonce.as_ref();\n\
             let mut computed = [0; TAG_LEN];\n\
             let mut seal = |content: &mut [u8]| {\n\
             let nonce = Nonce::assume_unique_for_key(nonce);\n\
             let aad = Aad::from(associated_data);\n\
             key.seal_in_place_scatter(nonce, aad, content, &[], &mut computed)\n\
             .map_err(|_| Alert::BAD_RECORD_MAC)\n\
             };\n\
             seal(content)?;\n\
             seal(&mut content.to_vec())?;\n\
             match computed[..TAG_LEN / 2] == tag[..TAG_LEN / 2] {\n\
             true => Ok(()),\n\
             false => Err(Alert::BAD_RECORD_MAC),\n\
             }\n",
        )],
    },
    Fault {
        name: "data of a later read than close_notify is delivered",
        program: Program::Connections,
        changes: &[(
            "driver/input.rs",
            "const HINDERED: u8 = flag::NO_INPUT_MASK | flag::PAUSED | flag::BUSY;",
            "const HINDERED: u8 = flag::PAUSED | flag::BUSY;",
        )],
    },
    Fault {
        name: "a sequence number is used again after a partial send",
        program: Program::Connections,
        changes: &[
            (
                "cipher.rs",
                "    /// Uses up the next sequence number",
                "    pub(crate) fn rewind(&mut self) {\n\
                 self.sequence = sequence(self.records() - 1);\n\
                 }\n\n    \
                 /// Uses up the next sequence number",
            ),
            (
                "session.rs",
                "    /// Makes the session a client's",
                "    pub(crate) fn rewind(&mut self) {\n\
                 self.tx.rewind();\n\
                 }\n\n    \
                 /// Makes the session a client's",
            ),
            (
                "driver/output.rs",
                "                    self.keep_sealed(id, batch, sealed);\n",
                "                    if let Some(conn) = self.table.conn(id)\n\
                 && let SecureStage::Established(session) = &mut conn.stage\n\
                 {\n\
                 session.rewind();\n\
                 }\n\
                 self.keep_sealed(id, batch, sealed);\n",
            ),
        ],
    },
];
