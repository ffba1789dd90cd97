use super::World;

/// Most rows of a world: states are plain arrays.
pub(super) const MAX_ROWS: usize = 5;
pub(super) const MAX_RELAYS: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Status {
    /// No seq drawn yet.
    #[default]
    Unborn,
    /// Its transaction is open.
    Open,
    Pending,
    Processing,
    Delivered,
    Failed,
}

/// What available_at says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Parked {
    #[default]
    Ready,
    Backoff,
    Due,
    Follower,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) parked: Parked,
    pub(super) token: u8,
    pub(super) attempts: u8,
}

impl Row {
    pub(super) fn with(self, status: Status, parked: Parked) -> Self {
        Self { status, parked, token: 0, ..self }
    }

    pub(super) fn unsettled(self) -> bool {
        matches!(self.status, Status::Pending | Status::Processing)
    }
}

/// A short list of row numbers or tokens; what lies beyond its length is 0, so that equal lists are equal values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct List {
    len: u8,
    items: [u8; MAX_ROWS],
}

impl List {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.items[..self.len as usize]
    }

    pub(super) fn push(&mut self, item: u8) {
        self.items[self.len as usize] = item;
        self.len += 1;
    }

    pub(super) fn with(mut self, item: u8) -> Self {
        self.push(item);
        self
    }

    pub(super) fn contains(&self, item: u8) -> bool {
        self.as_slice().contains(&item)
    }

    pub(super) fn rest(&self) -> Self {
        self.as_slice()[1..].iter().copied().collect()
    }

    pub(super) fn without(&self, item: u8) -> Self {
        self.as_slice().iter().copied().filter(|&other| other != item).collect()
    }
}

impl FromIterator<u8> for List {
    fn from_iter<I: IntoIterator<Item = u8>>(items: I) -> Self {
        let mut list = Self::default();
        items.into_iter().for_each(|item| list.push(item));
        list
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Block {
    pub(super) hold_after: u8,
    pub(super) released: bool,
}

/// A claim as its relay sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Hand {
    pub(super) token: u8,
    pub(super) todo: List,
    pub(super) acked: List,
    pub(super) bad: List,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Relay {
    /// Where its next scan starts.
    pub(super) start: u8,
    /// For each row whose transaction it watches: the start when it first saw it.
    pub(super) watch: [Option<u8>; MAX_ROWS],
    pub(super) hand: Option<Hand>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) rows: [Row; MAX_ROWS],
    /// Tokens of the claims that the database knows.
    pub(super) claims: List,
    pub(super) block: Option<Block>,
    pub(super) relays: [Relay; MAX_RELAYS],
    /// Rows in the order of their first delivery.
    pub(super) delivered: List,
    /// Rows in the order of their commits; empty when that is seq order.
    pub(super) committed: List,
}

impl State {
    /// Renumbers tokens and sorts relays: states that differ in names alone are one.
    pub(super) fn normal(mut self, world: &World) -> Self {
        let mut used = [false; 16];
        self.tokens().for_each(|token| used[token as usize] = true);
        let mut names = [0; 16];
        let mut next = 0;
        for token in 1..16 {
            if used[token] {
                next += 1;
                names[token] = next;
            }
        }
        self.rows.iter_mut().for_each(|row| row.token = names[row.token as usize]);
        let mut claims: Vec<u8> = self.claims.as_slice().iter().map(|&token| names[token as usize]).collect();
        claims.sort_unstable();
        self.claims = claims.into_iter().collect();
        for relay in &mut self.relays {
            if let Some(hand) = &mut relay.hand {
                hand.token = names[hand.token as usize];
            }
        }
        self.relays[..world.relays].sort_unstable();
        if world.serial {
            self.committed = List::default();
        }
        self
    }

    fn tokens(&self) -> impl Iterator<Item = u8> {
        let rows = self.rows.into_iter().map(|row| row.token);
        let hands = self.relays.into_iter().filter_map(|relay| relay.hand).map(|hand| hand.token);
        let claims = self.claims;
        rows.chain(hands)
            .chain((0..claims.len as usize).map(move |n| claims.items[n]))
            .filter(|&token| token > 0)
    }

    pub(super) fn new_token(&self) -> u8 {
        self.tokens().max().unwrap_or(0) + 1
    }

    /// A row was first delivered before another one that comes before it.
    pub(super) fn inverted(&self, world: &World) -> bool {
        let delivered = self.delivered.as_slice();
        let place = |row: u8| match world.serial {
            true => Some(row as usize),
            false => self.committed.as_slice().iter().position(|&other| other == row),
        };
        let places: Vec<_> = delivered.iter().map(|&row| (row, place(row))).collect();
        let inverts =
            |n: usize| places[n + 1..].iter().any(|later| later.0 < places[n].0 && later.1 < places[n].1);
        (0..places.len()).any(inverts)
    }

    /// Nothing is left to do.
    pub(super) fn finished(&self, world: &World) -> bool {
        let rows = &self.rows[..world.rows];
        rows.iter().all(|row| matches!(row.status, Status::Delivered | Status::Failed))
            && (world.block || self.block.is_none_or(|block| block.released))
            && self.relays.iter().all(|relay| relay.hand.is_none())
    }
}

/// A non-ack of a row holds its key from there on. A released block below it stays: the walk over the followers stops
/// at the row and makes it the hold.
pub(super) fn hold(block: Option<Block>, row: u8) -> Option<Block> {
    match block {
        Some(block) if block.released && block.hold_after < row => Some(block),
        _ => {
            Some(Block { hold_after: block.map_or(row, |block| block.hold_after.min(row)), released: false })
        }
    }
}

/// The head is done with: its followers may go.
pub(super) fn finish(block: Option<Block>, row: u8) -> Option<Block> {
    match block {
        Some(block) if block.hold_after == row => Some(Block { released: true, ..block }),
        other => other,
    }
}
