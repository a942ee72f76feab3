//! JSON that keeps the order of its keys, and keys that come twice.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value, as far as an answer has some.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Object(Vec<(String, Node)>),
    Text(String),
    Number(f64),
    /// Anything else, by its name.
    Other(&'static str),
}

impl Node {
    /// Returns the name of the kind, with an article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Object(_) => "an object",
            Self::Text(_) => "a text",
            Self::Number(_) => "a number",
            Self::Other(name) => name,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other("true or false"))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other("null"))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        while list.next_element::<Node>()?.is_some() {}
        Ok(Node::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Node::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_repetition_are_kept() {
        let node: Node =
            serde_json::from_str(r#"{"b":1,"a":"x","b":[1,{}],"c":null,"d":true,"e":-2.5}"#)
                .unwrap();
        let Node::Object(members) = node else { panic!("{node:?}") };
        let keys: Vec<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["b", "a", "b", "c", "d", "e"]);
        let kinds: Vec<&str> = members.iter().map(|(_, node)| node.kind()).collect();
        assert_eq!(kinds, ["a number", "a text", "a list", "null", "true or false", "a number"]);
        assert_eq!(members[5].1, Node::Number(-2.5));
    }
}
