use std::fmt::Arguments;

use super::World;
use super::state::{Block, Hand, List, MAX_ROWS, Parked, Relay, Row, State, Status};

/// What the walk over a released key's parked and failed rows came to.
struct Walk {
    block: Option<Block>,
    followers: Vec<u8>,
    busy: bool,
}

fn walk(world: &World, state: &State) -> Walk {
    let rows = &state.rows[..world.rows];
    let mut walk = Walk { block: state.block, followers: Vec::new(), busy: false };
    let Some(block) = state.block.filter(|block| block.released) else { return walk };
    for (i, row) in (0..).zip(rows) {
        let in_retry =
            i > block.hold_after && row.unsettled() && matches!(row.parked, Parked::Backoff | Parked::Due);
        if world.block && row.status == Status::Failed || world.rules.stop && in_retry {
            if row.status == Status::Processing {
                walk.busy = true;
            } else if walk.followers.is_empty() && !walk.busy {
                walk.block = Some(Block { hold_after: i, released: false });
            }
            return walk;
        }
        match (row.parked, row.status) {
            (Parked::Follower, Status::Processing) => walk.busy = true,
            (Parked::Follower, Status::Pending) if walk.followers.len() < world.followers => {
                walk.followers.push(i);
            }
            _ => {}
        }
    }
    let waiting = |row: &Row| {
        let in_flight = world.rules.fresh && row.status == Status::Processing;
        row.parked == Parked::Follower && (row.status == Status::Pending || in_flight)
    };
    if !rows.iter().any(waiting) {
        walk.block = None;
    }
    walk
}

/// What one look at the table shows, before other keys' rows decide how much of it fits.
struct Scan {
    walk: Walk,
    start: u8,
    ready: Vec<u8>,
    due: Vec<u8>,
    /// The ready window was cut off.
    short: bool,
}

fn scan(world: &World, state: &State, relay: &Relay) -> Scan {
    let rows = &state.rows[..world.rows];
    let ended = |i: usize| rows[i].status != Status::Open;
    let watched = (0..world.rows).filter(|&i| world.rules.watch && ended(i)).filter_map(|i| relay.watch[i]);
    let start = watched.chain([relay.start]).min().unwrap_or(0);
    let at = |i: u8| rows[i as usize];
    let count = world.rows as u8;
    let mut ready: Vec<u8> =
        (start..count).filter(|&i| at(i).unsettled() && at(i).parked == Parked::Ready).collect();
    let window = world.batch + rows.iter().filter(|row| row.status == Status::Processing).count();
    let short = ready.len() > window;
    ready.truncate(window);
    let beyond = |i: u8| short && ready.last().is_some_and(|&last| i > last);
    let due =
        (0..count).filter(|&i| at(i).unsettled() && at(i).parked == Parked::Due && !beyond(i)).collect();
    Scan { walk: walk(world, state), start, ready, due, short }
}

/// Takes what the rules allow of the candidates and parks what waits; returns the rows taken.
fn take(world: &World, scan: &Scan, due: &[u8], rows: &mut [Row; MAX_ROWS]) -> Vec<u8> {
    let before = *rows;
    let followers = &scan.walk.followers;
    let mut candidates: Vec<u8> = scan.ready.iter().chain(due).chain(followers).copied().collect();
    candidates.sort_unstable();
    let in_flight = |&i: &u8| before[i as usize].status == Status::Processing;
    let busy = scan.walk.busy || candidates.iter().any(in_flight);
    let waiting = before.iter().any(|row| row.parked == Parked::Follower && row.status == Status::Pending);
    let mut taken = Vec::new();
    for i in candidates.into_iter().filter(|i| !in_flight(i)) {
        let held_by = scan.walk.block.filter(|block| i > block.hold_after && !followers.contains(&i));
        if let Some(block) = held_by.filter(|_| world.rules.park_all) {
            // Behind the last followers in flight it is left where it is.
            if !block.released || waiting {
                rows[i as usize] = before[i as usize].with(Status::Pending, Parked::Follower);
            }
        } else if !busy && taken.len() < world.batch {
            taken.push(i);
        }
    }
    taken
}

/// All outcomes of one claim: other keys decide how many due rows fit into the window and where the next scan starts.
pub(super) fn claim(
    world: &World,
    state: &State,
    relay: usize,
    mut outcome: impl FnMut(Arguments<'_>, State),
) {
    let me = state.relays[relay];
    let scan = scan(world, state, &me);
    let drawn = state.rows.iter().filter(|row| row.status != Status::Unborn).count() as u8;
    let end = if scan.short { scan.ready.last().map_or(drawn, |&last| last + 1) } else { drawn };
    let open = |i: usize| i < world.rows && state.rows[i].status == Status::Open;
    let watch = std::array::from_fn(|i| open(i).then(|| me.watch[i].unwrap_or(me.start)));
    for cut in 0..=scan.due.len() {
        let mut next = *state;
        let taken = take(world, &scan, &scan.due[..cut], &mut next.rows);
        let still_ready = |&&i: &&u8| next.rows[i as usize].parked == Parked::Ready;
        let idle = |&&i: &&u8| state.rows[i as usize].status != Status::Processing && !taken.contains(&i);
        let lowest = scan.ready.iter().filter(still_ready).filter(|i| world.rules.hold || idle(i)).min();
        let starts = lowest.map_or(scan.start..=end, |&lowest| lowest..=lowest);
        let token = state.new_token();
        for &i in &taken {
            next.rows[i as usize].status = Status::Processing;
            next.rows[i as usize].token = token;
        }
        let todo: List = taken.iter().copied().collect();
        next.block = scan.walk.block;
        if !taken.is_empty() {
            next.claims.push(token);
        }
        for start in starts {
            let hand = Hand { token, todo, acked: List::default(), bad: List::default() };
            next.relays[relay] = Relay { start, watch, hand: (!taken.is_empty()).then_some(hand) };
            outcome(
                format_args!("relay {relay} claims {taken:?} from {}, next from {start}", scan.start),
                next,
            );
        }
    }
}
