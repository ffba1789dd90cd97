//! The protocol holds in small worlds, and no rule of it can be left out.

use outbox_tests::protocol::{Outcome, Rules, World, search};

fn holds(world: &World) {
    match search(world) {
        Outcome::Holds { states } => assert!(states > 1000, "only {states} states: is this a search at all?"),
        Outcome::Bounded => panic!("{world:?} has more than {} states", world.max_states),
        Outcome::Inversion(trace) => panic!("{world:?}: out of order\n{trace}"),
        Outcome::Stuck(trace) => panic!("{world:?}: stuck\n{trace}"),
    }
}

fn needs(world: &World, without: impl FnOnce(&mut Rules)) {
    let mut broken = *world;
    without(&mut broken.rules);
    let outcome = search(&broken);
    assert!(matches!(outcome, Outcome::Inversion(_) | Outcome::Stuck(_)), "nothing found: {outcome:?}");
}

/// Serialised writers, one relay: the smallest world in which each rule is needed.
fn small() -> World {
    World { relays: 1, serial: true, ..World::default() }
}

#[test]
fn one_relay() {
    holds(&small());
}

#[test]
fn one_relay_where_failed_rows_block() {
    holds(&World { block: true, ..small() });
}

#[test]
fn two_relays() {
    holds(&World { rows: 2, relays: 2, ..small() });
    holds(&World { rows: 2, relays: 2, block: true, ..small() });
}

#[test]
fn two_relays_and_writers_in_any_order() {
    holds(&World { rows: 2, serial: false, relays: 2, ..small() });
}

/// `OUTBOX_TEST_PROTOCOL_ROWS=4` searches further: minutes, and gigabytes of memory.
#[test]
fn larger_worlds_when_asked_for() {
    let Some(rows) = std::env::var("OUTBOX_TEST_PROTOCOL_ROWS").ok().and_then(|rows| rows.parse().ok())
    else {
        outbox_tests::skip("set OUTBOX_TEST_PROTOCOL_ROWS to search further");
        return;
    };
    let max_states = 100_000_000;
    for block in [false, true] {
        holds(&World { rows, block, max_states, followers: 2, ..small() });
        holds(&World { rows, block, max_states, relays: 2, ..small() });
        holds(&World { rows, block, max_states, serial: false, ..small() });
    }
}

#[test]
fn watched_transactions_are_needed() {
    needs(&small(), |rules| rules.watch = false);
}

#[test]
fn the_walks_stop_at_the_next_head_is_needed() {
    needs(&small(), |rules| rules.stop = false);
}

#[test]
fn the_block_staying_while_followers_are_in_flight_is_needed() {
    needs(&small(), |rules| rules.fresh = false);
}

#[test]
fn parking_ready_rows_is_needed() {
    needs(&small(), |rules| rules.park_all = false);
}

#[test]
fn rows_in_flight_holding_the_start_down_is_needed() {
    needs(&small(), |rules| rules.hold = false);
}
