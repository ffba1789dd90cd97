//! What a run plays in: a database server, a broker, relays, and proxies between them.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_tests::brokers::redis::Redis;
use outbox_tests::postgres::{Options, Postgres};
use outbox_tests::process::Relay;
use outbox_tests::proxy::{Proxy, Weather};
use uuid::Uuid;

use super::plan::Fault;
use crate::sinks::{Received, consume};
use crate::stage::{Engine, Stage};

pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const SWEEP: Duration = Duration::from_millis(500);
const STREAM: &str = "events";
const HOUR: i32 = 3600;

/// A database server and the way to it.
pub(crate) struct Store {
    pub(crate) server: Postgres,
    pub(crate) link: Proxy,
}

/// A relay that is started again under the same name.
pub(crate) struct Player {
    name: String,
    pub(crate) relay: Relay,
}

pub(crate) struct World {
    pub(crate) stage: Stage,
    pub(crate) players: Vec<Player>,
    pub(crate) servers: Servers,
}

/// What is no relay.
pub(crate) struct Servers {
    pub(crate) url: String,
    /// `None`: a file.
    pub(crate) store: Option<Store>,
    pub(crate) broker: Redis,
    pub(crate) broker_link: Proxy,
}

impl World {
    pub(crate) async fn build(engine: Engine) -> Result<Self> {
        let broker = Redis::start(&[])?;
        broker.command(&format!("XGROUP CREATE {STREAM} readers $ MKSTREAM"))?;
        let broker_link = Proxy::to(broker.port()).await?;
        let play = format!(
            "[queues.default]\nsink = \"broker\"\ndestination = \"{STREAM}\"\nbatch = 100\nlease = \"{}ms\"\n\
             publish_timeout = \"1500ms\"\nkeep_for = \"2s\"\nmax_retries = 100\n\
             retry = {{ initial = \"100ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }}\n\
             [sinks.broker]\ntype = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\n[sweeper]\ninterval = \"{}ms\"\n",
            LEASE.as_millis(),
            broker_link.port(),
            SWEEP.as_millis()
        );
        let (stage, store, relays) = match engine {
            Engine::Postgres => {
                let server = Postgres::start(Options::installed()?)?;
                let link = Proxy::to(server.port()).await?;
                let mut stage = Stage::on(engine, server.create_database(None).await?, play).await?;
                stage.relays_through(server.port(), link.port());
                (stage, Some(Store { server, link }), 3)
            }
            Engine::Sqlite => (Stage::set(engine, play).await?, None, 2),
        };
        let players =
            (0..relays).map(|n| Player::start(&stage, format!("relay-{n}"))).collect::<Result<_>>()?;
        let servers = Servers { url: stage.url.clone(), store, broker, broker_link };
        Ok(Self { stage, players, servers })
    }

    /// What can go wrong here: with relays, and with what is around them.
    pub(crate) fn faults(&self) -> (Vec<Fault>, Vec<Fault>) {
        let mut relays = vec![Fault::KillRelay, Fault::KillRelay, Fault::StopRelay];
        if self.servers.store.is_some() {
            relays.extend([Fault::WrongClock(HOUR), Fault::WrongClock(-HOUR)]);
        }
        let weathers =
            [Weather::Slow(Duration::from_millis(50)), Weather::Deaf, Weather::Silent, Weather::Reset];
        let mut servers: Vec<_> = weathers.map(Fault::BrokerLink).to_vec();
        servers.push(Fault::KillBroker);
        if self.servers.store.is_some() {
            servers.extend(weathers.map(Fault::StoreLink));
            servers.extend([Fault::StopStore, Fault::KillStore]);
        } else {
            servers.push(Fault::LongReader);
        }
        (relays, servers)
    }

    /// What the broker has got, in its order.
    pub(crate) async fn delivered(&self) -> Result<Vec<Uuid>> {
        let port = self.servers.broker.port().to_string();
        let received = consume("redis_streams.py", &[&port, STREAM]).await?;
        received.iter().map(Received::id).collect()
    }

    /// Rows that only a safety scan found, as all relays that there were logged it.
    pub(crate) fn scan_misses(&self) -> usize {
        let misses = |player: &Player| player.relay.log().matches("only the safety scan found them").count();
        self.players.iter().map(misses).sum()
    }

    /// The last lines of each relay.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for player in &self.players {
            let log = player.relay.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(30)..].join("\n");
            let _ = writeln!(text, "{}:\n{last}", player.name);
        }
        text
    }

    /// Ends the relays by SIGTERM.
    pub(crate) fn end(mut self) -> Result<()> {
        for player in &mut self.players {
            player.relay.terminate();
            let ended = player.relay.wait(Duration::from_secs(20))?;
            ensure!(ended.success(), "SIGTERM: {}", player.relay.log());
        }
        Ok(())
    }
}

impl Player {
    fn start(stage: &Stage, name: String) -> Result<Self> {
        let relay = stage.relay(&name)?;
        Ok(Self { name, relay })
    }

    /// Kills it and starts it again.
    pub(crate) fn restart(&mut self, stage: &Stage) -> Result<()> {
        self.relay.kill();
        self.relay = stage.relay(&self.name)?;
        Ok(())
    }

    /// The same with a clock that is so many seconds off.
    pub(crate) fn restart_with_clock(&mut self, stage: &Stage, off: i32) -> Result<()> {
        self.relay.kill();
        self.relay = stage.relay_with_clock(&self.name, off)?;
        Ok(())
    }
}
