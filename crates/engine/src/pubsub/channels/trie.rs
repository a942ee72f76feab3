//! Patterns in use on a shard, and the search for the patterns that match a name.
//!
//! A node is a prefix of patterns. Tokens are numbered: so a published token is searched for once,
//! not once for each prefix that it could continue, and a node has 16 bytes with tokens of any
//! length. All edges lie in one map. A look-up visits the prefixes that match the name so far: at
//! most the number of nodes, and at most two for each node of the previous token. Names cost
//! nothing where there is no pattern.

use std::collections::HashMap;
use std::hash::Hash;

use super::ChannelIndex;
use super::wildcard::{ANY, MAX_PATTERN_TOKENS, TAIL};

type NodeIndex = u32;

/// Not reused: 64 bits never run out.
type TokenId = u64;

const NONE: u32 = u32::MAX;
const ROOT: NodeIndex = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Child for `*`.
    any: NodeIndex,
    /// The pattern that continues with `>`.
    tail: ChannelIndex,
    /// The pattern that ends here.
    channel: ChannelIndex,
    /// Literal tokens that lead on.
    edges: u32,
}

const BARE: Node = Node { any: NONE, tail: NONE, channel: NONE, edges: 0 };

impl Node {
    fn is_bare(&self) -> bool {
        (self.any, self.tail, self.channel, self.edges) == (NONE, NONE, NONE, 0)
    }
}

#[derive(Debug)]
struct Token {
    id: TokenId,
    /// Edges that have it.
    edges: u32,
}

/// Trie of patterns.
#[derive(Debug, Default)]
pub(super) struct Trie {
    /// The root is the first, if there is any pattern.
    nodes: Vec<Node>,
    free: Vec<NodeIndex>,
    tokens: HashMap<Box<str>, Token>,
    next_token: TokenId,
    edges: HashMap<(NodeIndex, TokenId), NodeIndex>,
    patterns: usize,
}

/// Memory of a look-up, kept from one to the next: nodes that the tokens so far lead to, and those
/// that the next one does.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    reached: Vec<NodeIndex>,
    next: Vec<NodeIndex>,
}

impl Trie {
    pub(super) fn is_empty(&self) -> bool {
        self.patterns == 0
    }

    /// Patterns in it.
    pub(super) fn len(&self) -> usize {
        self.patterns
    }

    /// Adds a pattern that is well-formed and not there yet.
    pub(super) fn insert(&mut self, pattern: &str, channel: ChannelIndex) {
        if self.nodes.is_empty() {
            self.nodes.push(BARE);
        }
        self.patterns += 1;
        let mut node = ROOT;
        for token in pattern.split('.') {
            node = match token {
                TAIL => {
                    self.nodes[node as usize].tail = channel;
                    return;
                }
                ANY => self.any(node),
                literal => self.edge(node, literal),
            };
        }
        self.nodes[node as usize].channel = channel;
    }

    /// Removes a pattern that is there, and the nodes that were its alone.
    pub(super) fn remove(&mut self, pattern: &str) {
        self.patterns -= 1;
        if self.patterns == 0 {
            // Free the memory that the maximum number of patterns took.
            *self = Self::default();
            return;
        }
        // The way down, to be walked back up.
        let mut path = [(ROOT, ""); MAX_PATTERN_TOKENS];
        let (mut node, mut depth, mut is_tail) = (ROOT, 0, false);
        for token in pattern.split('.') {
            is_tail = token == TAIL;
            if is_tail {
                break;
            }
            path[depth] = (node, token);
            depth += 1;
            node = match token {
                ANY => self.nodes[node as usize].any,
                literal => self.edges[&(node, self.tokens[literal].id)],
            };
        }
        let last = &mut self.nodes[node as usize];
        *(if is_tail { &mut last.tail } else { &mut last.channel }) = NONE;
        for &(parent, token) in path[..depth].iter().rev() {
            if !self.nodes[node as usize].is_bare() {
                break;
            }
            self.free.push(node);
            match token {
                ANY => self.nodes[parent as usize].any = NONE,
                literal => self.cut(parent, literal),
            }
            node = parent;
        }
    }

    /// Appends the channels of all patterns that match `name` to `found`, each once.
    pub(super) fn matching(
        &self,
        name: &str,
        scratch: &mut Scratch,
        found: &mut Vec<ChannelIndex>,
    ) {
        // A malformed name must not match any pattern; otherwise it could match `>` but not `*.*`.
        if self.is_empty() || name.split('.').any(str::is_empty) {
            return;
        }
        let Scratch { reached, next } = scratch;
        reached.clear();
        reached.push(ROOT);
        for token in name.split('.') {
            let id = self.tokens.get(token).map(|token| token.id);
            next.clear();
            for &node in reached.iter() {
                let Node { any, tail, edges, .. } = self.nodes[node as usize];
                if tail != NONE {
                    found.push(tail);
                }
                if any != NONE {
                    next.push(any);
                }
                if let Some(id) = id.filter(|_| edges > 0) {
                    next.extend(self.edges.get(&(node, id)));
                }
            }
            std::mem::swap(reached, next);
            if reached.is_empty() {
                return;
            }
        }
        let ends = reached.iter().map(|&node| self.nodes[node as usize].channel);
        found.extend(ends.filter(|&channel| channel != NONE));
    }

    /// Nodes, edges and tokens in use, for tests: removed patterns must not leave any.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.nodes.len() - self.free.len(), self.edges.len(), self.tokens.len())
    }

    fn node(&mut self) -> NodeIndex {
        if let Some(node) = self.free.pop() {
            // It was bare, or it would not have been freed.
            return node;
        }
        self.nodes.push(BARE);
        self.nodes.len() as NodeIndex - 1
    }

    fn any(&mut self, node: NodeIndex) -> NodeIndex {
        if self.nodes[node as usize].any == NONE {
            self.nodes[node as usize].any = self.node();
        }
        self.nodes[node as usize].any
    }

    fn edge(&mut self, node: NodeIndex, token: &str) -> NodeIndex {
        let id = match self.tokens.get(token) {
            Some(token) => token.id,
            None => {
                let id = self.next_token;
                self.next_token += 1;
                self.tokens.insert(token.into(), Token { id, edges: 0 });
                id
            }
        };
        if let Some(&to) = self.edges.get(&(node, id)) {
            return to;
        }
        let to = self.node();
        self.edges.insert((node, id), to);
        self.nodes[node as usize].edges += 1;
        self.tokens.get_mut(token).expect("it was found or made above").edges += 1;
        to
    }

    /// Removes an edge that is there.
    fn cut(&mut self, node: NodeIndex, token: &str) {
        self.nodes[node as usize].edges -= 1;
        let known = self.tokens.get_mut(token).expect("an edge's token is known");
        self.edges.remove(&(node, known.id));
        known.edges -= 1;
        if known.edges == 0 {
            self.tokens.remove(token);
            shrink(&mut self.tokens);
        }
        shrink(&mut self.edges);
    }
}

/// A map never shrinks by itself. Halving at a quarter full leaves as many removals until the next
/// time.
fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}
