use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::World;
use super::state::State;
use super::step::steps;

/// What a search came to. Traces say one action a line, from the first state on.
#[derive(Debug)]
pub enum Outcome {
    /// All states were seen; the order always holds and every state can finish.
    Holds {
        /// How many.
        states: usize,
    },
    /// The bound on states was reached, without a fault so far.
    Bounded,
    /// A later row was first delivered before an earlier one.
    Inversion(String),
    /// From this state on nothing leads to an end.
    Stuck(String),
}

/// A state and how it was first reached.
struct Seen {
    state: State,
    from: usize,
    action: String,
}

/// Searches all reachable states, nearest first.
#[must_use]
pub fn search(world: &World) -> Outcome {
    let first = State::default();
    let mut seen = vec![Seen { state: first, from: 0, action: String::new() }];
    let mut number = HashMap::from([(first, 0)]);
    // (to, from), to walk back from the ends.
    let mut edges = Vec::new();
    let mut at = 0;
    while at < seen.len() {
        let state = seen[at].state;
        if state.inverted(world) {
            return Outcome::Inversion(trace(&seen, at));
        }
        if seen.len() > world.max_states {
            return Outcome::Bounded;
        }
        steps(world, &state, &mut |action, after| {
            let after = after.normal(world);
            let to = match number.entry(after) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    seen.push(Seen { state: after, from: at, action: action.to_string() });
                    *new.insert(seen.len() - 1)
                }
            };
            edges.push((to, at));
        });
        at += 1;
    }
    match stuck(world, &seen, edges) {
        Some(at) => Outcome::Stuck(trace(&seen, at)),
        None => Outcome::Holds { states: seen.len() },
    }
}

/// The first state from which no end can be reached.
fn stuck(world: &World, seen: &[Seen], mut edges: Vec<(usize, usize)>) -> Option<usize> {
    edges.sort_unstable();
    let mut can_finish: Vec<bool> = seen.iter().map(|seen| seen.state.finished(world)).collect();
    let mut open: Vec<usize> = (0..seen.len()).filter(|&at| can_finish[at]).collect();
    while let Some(to) = open.pop() {
        let first = edges.partition_point(|edge| edge.0 < to);
        for &(_, from) in edges[first..].iter().take_while(|edge| edge.0 == to) {
            if !can_finish[from] {
                can_finish[from] = true;
                open.push(from);
            }
        }
    }
    can_finish.iter().position(|can| !can)
}

fn trace(seen: &[Seen], mut at: usize) -> String {
    let mut lines = Vec::new();
    while at > 0 {
        let Seen { state, from, action } = &seen[at];
        let rows: Vec<_> =
            state.rows.iter().map(|row| format!("{:?}/{:?}", row.status, row.parked)).collect();
        lines.push(format!(
            "{action} -> {} block {:?} delivered {:?}",
            rows.join(" "),
            state.block,
            state.delivered.as_slice()
        ));
        at = *from;
    }
    lines.reverse();
    lines.join("\n")
}
