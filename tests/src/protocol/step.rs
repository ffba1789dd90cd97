use std::fmt::Arguments;

use super::World;
use super::claim::claim;
use super::state::{Hand, List, Parked, Relay, State, Status, finish, hold};

/// Calls `next` with every action that is possible in a state, and the state after it.
pub(super) fn steps(world: &World, state: &State, next: &mut impl FnMut(Arguments<'_>, State)) {
    for i in 0..world.rows {
        application(world, state, i, next);
        clock_and_operator(world, state, i, next);
    }
    for relay in 0..world.relays {
        match state.relays[relay].hand {
            None => claim(world, state, relay, |action, after| {
                if after != *state {
                    next(action, after);
                }
            }),
            Some(hand) => {
                publish(world, state, relay, hand, next);
                settle(world, state, relay, hand, next);
                if world.crash {
                    let mut after = *state;
                    after.relays[relay] = Relay::default();
                    next(format_args!("relay {relay} crashes"), after);
                }
            }
        }
    }
    for &token in state.claims.as_slice() {
        expire(state, token, next);
    }
}

fn application(world: &World, state: &State, i: usize, next: &mut impl FnMut(Arguments<'_>, State)) {
    let mut after = *state;
    let before = &state.rows[..i];
    let waits = |status| status == Status::Unborn || world.serial && status == Status::Open;
    match state.rows[i].status {
        Status::Unborn if !before.iter().any(|row| waits(row.status)) => {
            after.rows[i].status = Status::Open;
            next(format_args!("seq {i} drawn"), after);
        }
        Status::Open => {
            after.rows[i].status = Status::Pending;
            after.committed.push(i as u8);
            next(format_args!("{i} commits"), after);
        }
        _ => {}
    }
}

fn clock_and_operator(world: &World, state: &State, i: usize, next: &mut impl FnMut(Arguments<'_>, State)) {
    let row = state.rows[i];
    let mut after = *state;
    if row.parked == Parked::Backoff {
        after.rows[i] = row.with(Status::Pending, Parked::Due);
        next(format_args!("{i} is due"), after);
    } else if world.block && row.status == Status::Failed {
        after.rows[i] = row.with(Status::Pending, Parked::Due);
        after.rows[i].attempts = 0;
        next(format_args!("operator retries {i}"), after);
        after.rows[i] = after.rows[i].with(Status::Delivered, Parked::Ready);
        after.block = finish(state.block, i as u8);
        next(format_args!("operator discards {i}"), after);
    }
}

/// The next row of the claim: acknowledged, refused, or delivered with its answer lost. After a non-ack the relay sends
/// no more of the key.
fn publish(
    world: &World,
    state: &State,
    relay: usize,
    hand: Hand,
    next: &mut impl FnMut(Arguments<'_>, State),
) {
    if hand.todo == List::default() || hand.bad != List::default() {
        return;
    }
    let i = hand.todo.as_slice()[0];
    let row = state.rows[i as usize];
    // A stale owner may still send a row that was delivered or given up: no first delivery.
    let given_up = row.status == Status::Failed && !world.block;
    let again = state.delivered.contains(i) || row.status == Status::Delivered || given_up;
    let delivered = if again { state.delivered } else { state.delivered.with(i) };
    let acked = Hand { todo: hand.todo.rest(), acked: hand.acked.with(i), ..hand };
    let bad = Hand { todo: hand.todo.rest(), bad: hand.bad.with(i), ..hand };
    for (what, hand, delivered) in [
        ("publishes", acked, delivered),
        ("gets a nack for", bad, state.delivered),
        ("loses the answer for", bad, delivered),
    ] {
        let mut after = *state;
        after.relays[relay].hand = Some(hand);
        after.delivered = delivered;
        next(format_args!("relay {relay} {what} {i}"), after);
    }
}

fn settle(
    world: &World,
    state: &State,
    relay: usize,
    hand: Hand,
    next: &mut impl FnMut(Arguments<'_>, State),
) {
    let mut after = *state;
    after.relays[relay].hand = None;
    if !state.claims.contains(hand.token) {
        next(format_args!("relay {relay} settles too late"), after);
        return;
    }
    after.claims = state.claims.without(hand.token);
    for &i in hand.todo.as_slice() {
        let row = &mut after.rows[i as usize];
        *row = row.with(Status::Pending, row.parked);
    }
    for &i in hand.acked.as_slice() {
        after.rows[i as usize] = after.rows[i as usize].with(Status::Delivered, Parked::Ready);
        after.rows[i as usize].attempts = 0;
        after.block = finish(after.block, i);
    }
    for &i in hand.bad.as_slice() {
        let row = &mut after.rows[i as usize];
        if row.attempts >= world.retries {
            *row = row.with(Status::Failed, Parked::Ready);
            row.attempts = 0;
            after.block = if world.block { hold(after.block, i) } else { finish(after.block, i) };
        } else {
            *row = row.with(Status::Pending, Parked::Backoff);
            row.attempts += 1;
            after.block = hold(after.block, i);
        }
    }
    next(format_args!("relay {relay} settles"), after);
}

/// A lease may run out at any time.
fn expire(state: &State, token: u8, next: &mut impl FnMut(Arguments<'_>, State)) {
    let mut after = *state;
    after.claims = state.claims.without(token);
    for row in &mut after.rows {
        if row.status == Status::Processing && row.token == token {
            *row = row.with(Status::Pending, row.parked);
        }
    }
    next(format_args!("claim {token} is swept"), after);
}
