//! The account of a deadlock: the circle of those that wait for each other, or who is missing.
//!
//! A graph of hosts and streams. A blocked host waits for a stream; a stream waits for the stream at its head's fence,
//! or, with a collective at its head, for whatever keeps another part from its head: a stream, or the host that has not
//! issued it. Everything that stands waits for *all* of these, so any circle is a deadlock, and what stands without
//! being on one stands behind one, or behind somebody who is *missing*: a host that will not issue the part, or a device
//! that has a fault. The shortest circle is told first, then who hangs behind it.

use std::collections::{BTreeMap, VecDeque};

use super::engine::{HostStatus, State};
use super::queue::{Entry, Part, Stream, Work};

/// Somebody who waits, or is waited for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Stream(usize),
    Host(usize),
}

/// One thing that somebody waits for.
struct Edge {
    /// What stands between them, as a sentence about the one that waits.
    text: String,
    /// Whom it waits for; `None` when nobody is left who could help.
    to: Option<Node>,
}

/// Who waits for what.
struct Graph(BTreeMap<Node, Vec<Edge>>);

impl State {
    /// What is stuck: the circle first, or who is missing; then those behind. One part for each, with "; " between.
    pub(super) fn describe_stuck(&self) -> String {
        let graph = self.wait_graph();
        let circle = graph.circle();
        let line = |node: &Node, edge: &Edge| format!("{} {}", self.label(*node), edge.text);
        let all = || graph.0.iter().flat_map(|(node, edges)| edges.iter().map(move |edge| (node, edge)));
        let (mut parts, rest): (Vec<String>, Vec<String>) = if circle.is_empty() {
            let (missing, rest): (Vec<_>, Vec<_>) = all().partition(|(_, edge)| self.is_missing(edge.to));
            let parts = missing.into_iter().map(|(node, edge)| line(node, edge)).collect();
            (parts, rest.into_iter().map(|(node, edge)| line(node, edge)).collect())
        } else {
            let steps = circle.iter().map(|(node, edge)| line(node, edge));
            let first = self.label(circle[0].0);
            let text = steps.chain([first]).collect::<Vec<_>>().join(" → ");
            let on_circle = |edge: &Edge| circle.iter().any(|(_, step)| std::ptr::eq(*step, edge));
            let rest = all().filter(|(_, edge)| !on_circle(edge));
            (vec![text], rest.map(|(node, edge)| line(node, edge)).collect())
        };
        if let Some(first) = rest.first() {
            let lead = if parts.is_empty() { "" } else { "behind: " };
            parts.push(format!("{lead}{first}"));
            parts.extend(rest.into_iter().skip(1));
        }
        parts.join("; ")
    }

    /// Whether an edge ends at somebody who waits for nobody: he will not come.
    fn is_missing(&self, to: Option<Node>) -> bool {
        to.is_none_or(|node| match node {
            Node::Host(rank) => !matches!(self.hosts[rank].status, HostStatus::Blocked(_)),
            Node::Stream(_) => false,
        })
    }

    fn label(&self, node: Node) -> String {
        match node {
            Node::Host(rank) => format!("rank {rank}: the host"),
            Node::Stream(index) => {
                let stream = &self.streams[index];
                format!("rank {}: stream {:?}", stream.device, stream.name)
            }
        }
    }

    fn wait_graph(&self) -> Graph {
        let mut graph = BTreeMap::new();
        for (rank, host) in self.hosts.iter().enumerate() {
            if let HostStatus::Blocked(blocked) = &host.status {
                let text = format!("waits for a fence on {}", self.stream_seen_from(rank, blocked.stream));
                graph.insert(Node::Host(rank), vec![Edge { text, to: Some(Node::Stream(blocked.stream)) }]);
            }
        }
        let stuck = |(_, stream): &(usize, &Stream)| stream.running.is_some() || !stream.queue.is_empty();
        for (index, stream) in self.streams.iter().enumerate().filter(stuck) {
            graph.insert(Node::Stream(index), self.edges_of(stream));
        }
        Graph(graph)
    }

    /// What keeps a stream. It has something to do.
    fn edges_of(&self, stream: &Stream) -> Vec<Edge> {
        if let Some(running) = &stream.running {
            // Whatever runs alone ends by itself.
            let name = &running.operation.name;
            return vec![Edge { text: format!("runs {name:?}, a collective that a faulty rank has left"), to: None }];
        }
        match stream.queue.front() {
            Some(Entry::Wait(wait)) => {
                let text = format!("waits for a fence on {}", self.stream_seen_from(stream.device, wait.stream));
                vec![Edge { text, to: Some(Node::Stream(wait.stream)) }]
            }
            Some(Entry::Operation(operation)) => match &operation.work {
                Work::Collective(part) => self.edges_of_part(stream.device, &operation.name, part),
                _ => vec![Edge { text: format!("is about to start {:?}", operation.name), to: None }],
            },
            None => Vec::new(),
        }
    }

    /// What a collective lacks, whose part of one rank is at the head of its stream.
    fn edges_of_part(&self, device: usize, name: &str, part: &Part) -> Vec<Edge> {
        let group = &self.groups[part.communicator];
        let is_in = format!("is in {name:?}, collective {} of communicator {:?}", part.sequence, group.handle.name);
        let own = group.handle.rank_of(device).expect("checked when it was submitted");
        if part.sequence > group.done {
            // The rank has issued the one before, on another stream: it is that one's turn.
            let before = group.rounds.get(&group.done).and_then(|round| round[own].as_ref());
            let before = before.expect("a rank issues its parts in order");
            let on = self.stream_seen_from(device, before.stream);
            let text = format!("{is_in}, which comes after collective {} on {on}", group.done);
            return vec![Edge { text, to: Some(Node::Stream(before.stream)) }];
        }
        let round = group.rounds.get(&part.sequence).into_iter().flatten();
        let others = round.zip(group.handle.ranks.iter().map(|&rank| rank as usize));
        let lacking = others.filter_map(|(part, rank)| {
            if let Some(fault) = &self.devices[rank].fault {
                let text = format!("{is_in}, which lacks rank {rank}, which has a fault ({fault})");
                return Some(Edge { text, to: None });
            }
            match part {
                None => {
                    let left = matches!(self.hosts[rank].status, HostStatus::Finished);
                    let why = if left { ", and its host has ended" } else { "" };
                    let text = format!("{is_in}, which lacks rank {rank}, which has not issued it{why}");
                    Some(Edge { text, to: Some(Node::Host(rank)) })
                }
                Some(part) if !part.at_head => {
                    let name = &self.streams[part.stream].name;
                    let text = format!("{is_in}, which lacks rank {rank}, where it is queued on stream {name:?}");
                    Some(Edge { text, to: Some(Node::Stream(part.stream)) })
                }
                Some(_) => None,
            }
        });
        lacking.collect()
    }

    /// A stream, as one of rank `rank` calls it.
    fn stream_seen_from(&self, rank: usize, stream: usize) -> String {
        let stream = &self.streams[stream];
        let of = if stream.device == rank { String::new() } else { format!(" of rank {}", stream.device) };
        format!("stream {:?}{of}", stream.name)
    }
}

impl Graph {
    /// The shortest circle, from its first stream on; of several the one with the first stream. Empty when there is none.
    fn circle(&self) -> Vec<(Node, &Edge)> {
        let circles = self.0.keys().filter_map(|&start| self.way_back(start));
        circles.min_by_key(Vec::len).unwrap_or_default()
    }

    /// The shortest way from a node to itself.
    fn way_back(&self, start: Node) -> Option<Vec<(Node, &Edge)>> {
        let mut came_by: BTreeMap<Node, (Node, &Edge)> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(node) = next.pop_front() {
            for edge in self.0.get(&node).into_iter().flatten() {
                let Some(to) = edge.to else { continue };
                if came_by.contains_key(&to) {
                    continue;
                }
                came_by.insert(to, (node, edge));
                next.push_back(to);
                if to == start {
                    return Some(trace(start, &came_by));
                }
            }
        }
        None
    }
}

/// The steps that led to `start` again, the first one first.
fn trace<'a>(start: Node, came_by: &BTreeMap<Node, (Node, &'a Edge)>) -> Vec<(Node, &'a Edge)> {
    let mut steps = Vec::new();
    let mut at = start;
    loop {
        let step = came_by[&at];
        steps.push(step);
        at = step.0;
        if at == start {
            steps.reverse();
            return steps;
        }
    }
}
